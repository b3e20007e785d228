"""A plan's neighbours: the bill at other micro-batches and sequence lengths, everything else as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from calculator.axes import around
from calculator.base import Frozen
from calculator.bill import Bill, Verdict
from calculator.errors import CalculatorError
from calculator.hardware import Gpu
from calculator.model.shape import ModelShape
from calculator.text import Text
from calculator.training.bill import bill
from calculator.training.plan import TrainingPlan

MICRO_BATCHES = (1, 2, 4, 8, 16, 32, 64)
SEQUENCES = (512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072)
_COLUMNS, _ROWS = 6, 7


class Cell(Frozen):
    """One field: ``need_bytes`` on the worst-loaded GPU and the verdict, or, where the plan cannot run, why."""

    micro_batch: int
    seq_len: int
    verdict: Verdict | None
    need_bytes: int = 0
    refusal: Text | None = None


def axes(shape: ModelShape, plan: TrainingPlan) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Micro-batches and sequence lengths to look at: those of the plan and powers of two about them, no longer than
    the model's context."""
    longest = max(shape.max_context or SEQUENCES[-1], SEQUENCES[0])
    lengths = [length for length in SEQUENCES if length <= longest]
    return around(plan.micro_batch, MICRO_BATCHES, _COLUMNS), around(plan.seq_len, lengths, _ROWS)


def grid(
    shape: ModelShape,
    plan: TrainingPlan,
    gpu: Gpu,
    micro_batches: Sequence[int],
    seq_lens: Sequence[int],
    bill_of: Callable[[ModelShape, TrainingPlan, Gpu], Bill] = bill,
) -> tuple[tuple[Cell, ...], ...]:
    """A row for each sequence length, a cell for each micro-batch."""
    return tuple(
        tuple(_cell(shape, plan, gpu, micro_batch, seq_len, bill_of) for micro_batch in micro_batches)
        for seq_len in seq_lens
    )


def _cell(
    shape: ModelShape, plan: TrainingPlan, gpu: Gpu, micro_batch: int, seq_len: int,
    bill_of: Callable[[ModelShape, TrainingPlan, Gpu], Bill],
) -> Cell:  # fmt: skip
    try:
        found = bill_of(shape, plan.model_copy(update={"micro_batch": micro_batch, "seq_len": seq_len}), gpu)
    except CalculatorError as error:
        return Cell(micro_batch=micro_batch, seq_len=seq_len, verdict=None, refusal=error.message)
    return Cell(micro_batch=micro_batch, seq_len=seq_len, verdict=found.verdict, need_bytes=found.need.value)
