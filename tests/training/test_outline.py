"""What a bill reads from a step's outline, against the step's events walked one by one; and what a bill costs."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calculator import hardware, model, presets
from calculator.training import bill
from calculator.training.compiled import compiled
from calculator.training.outline import groups
from calculator.training.plan import TrainingPlan
from calculator.training.program import Program
from calculator.training.recent import Recent
from calculator.training.step import step
from tests.training.shapes import A100, plan, shape
from tests.training.test_laws import names, plans


class Walk:
    """A program's events in order, with a note of all that a bill needs."""

    def __init__(self, program: Program) -> None:
        self.level = dict(program.start)
        self.total = sum(self.level.values())
        self.peaks: dict[str, int] = {}
        self.items: dict[str, dict[str, int]] = {}
        self.highest = {key: size for key, size in program.start.items() if size}
        self.alive: dict[str, dict[str, None]] = {}
        phase = ""
        for stage in program.stages:
            if stage.phase != phase:
                phase = stage.phase
                if phase not in self.peaks:
                    self.note(phase)
                for key, size in self.level.items():
                    if size:
                        self.alive.setdefault(key, {})[phase] = None
            begins, before = dict(self.level), self.total
            for key, delta in zip(stage.events.keys, stage.events.deltas, strict=True):
                self.level[key] = self.level.get(key, 0) + delta
                self.total += delta
                if self.total > before:
                    self.note(phase)
                if self.level[key] > self.highest.get(key, 0):
                    self.highest[key] = self.level[key]
                if self.level[key] > begins.get(key, 0):
                    self.alive.setdefault(key, {})[phase] = None

    def note(self, phase: str) -> None:
        if phase not in self.peaks or self.total > self.peaks[phase]:
            self.peaks[phase] = self.total
            self.items[phase] = {key: size for key, size in self.level.items() if size}


def agrees(program: Program) -> None:
    walk = Walk(program)
    assert {phase: moment.bytes for phase, moment in program.moments.items()} == walk.peaks
    assert program.items == walk.items
    assert {key: size for key, size in program.highest_by_key.items() if size} == walk.highest
    assert {key: set(phases) for key, phases in program.phases_by_key.items()} == {
        key: set(phases) for key, phases in walk.alive.items()
    }


@settings(deadline=None, max_examples=60)
@given(names, plans, st.integers(1, 4), st.integers(1, 300))
def test_the_outline_is_the_step_walked_through(
    name: str, changes: dict[str, Any], micro_batch: int, seq_len: int
) -> None:
    agrees(step(shape(name), plan(**changes | {"micro_batch": micro_batch, "seq_len": seq_len}), A100).program)


SHARED: dict[str, dict[str, Any]] = {
    "fsdp": {"sharding": "fsdp2", "n_gpus": 4, "grad_accum": 2},
    "zero-3": {"sharding": "zero3", "n_gpus": 4, "method": "lora"},
    "zero-2": {"sharding": "zero2", "n_gpus": 4},
    "pipeline": {"pp": 2, "n_gpus": 2, "framework": "megatron", "micro_batches": 8, "precision": "mixed_bf16"},
    "interleaved": {"pp": 2, "vpp": 2, "n_gpus": 2, "framework": "megatron", "micro_batches": 4},
    "tensor": {"tp": 2, "n_gpus": 2, "sequence_parallel": True, "checkpointing": "full"},
    "offloaded": {"checkpointing": "offloaded", "offload": ["activations"]},
}  # fmt: skip


@pytest.mark.parametrize("length", [1, 2, 257, 100_000])
@pytest.mark.parametrize("name", SHARED)
def test_so_it_is_where_ranks_share(name: str, length: int) -> None:
    agrees(step(shape("llama"), plan(**SHARED[name] | {"seq_len": length}), A100).program)


@settings(deadline=None, max_examples=40)
@given(names, plans, st.integers(1, 4), st.integers(1, 5000))
def test_a_kept_step_gives_the_bill_of_a_fresh_one(
    name: str, changes: dict[str, Any], micro_batch: int, seq_len: int
) -> None:
    """Only micro-batch and length differ between plans that share a step."""
    kept, wanted = shape(name), plan(**changes | {"micro_batch": micro_batch, "seq_len": seq_len})
    bill(kept, plan(**changes), A100)
    assert bill(kept, wanted, A100) == bill(kept.model_copy(), wanted, A100)


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(0, 3), max_size=6), st.integers(1, 9), st.lists(st.integers(0, 3), max_size=20))
def test_folded_places_are_all_places_in_order(unit: list[int], times: int, others: list[int]) -> None:
    row = [*others, *unit * times, *reversed(others)]
    folded = list(groups(row, ["forward", "forward", "loss", "backward"]))
    assert [place for group, repetitions in folded for place in list(group) * repetitions] == row


def test_layers_are_visited_first_and_last() -> None:
    """Forty layers of six in turn, the last four left over."""
    row = [0, *[1, 1, 1, 1, 1, 2] * 6, 1, 1, 1, 1, 3]
    folded = list(groups(row, ["forward"] * 4))
    assert folded == [([0], 1), ([1, 1, 1, 1, 1, 2], 6), ([1], 4), ([3], 1)]


def test_only_the_last_answers_are_kept() -> None:
    kept, made = Recent(2), []

    def answer(number: int) -> int:
        return kept.ask(number, lambda: made.append(number) or number)  # type: ignore[func-returns-value]

    assert [answer(n) for n in (1, 2, 1, 3, 1, 2)] == [1, 2, 1, 3, 1, 2]
    assert made == [1, 2, 3, 2]
    assert len(kept) == 2


def test_steps_do_not_pile_up() -> None:
    for bucket in range(40):
        bill(shape("tied"), plan(zero_reduce_bucket=10_000 + bucket), A100)
    assert len(compiled(shape("tied")).steps) <= 32


def calls(work: Callable[[], object]) -> int:
    """Function calls, those into C among them."""
    count = 0

    def watch(_: FrameType, event: str, __: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(watch)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


COSTS: dict[str, tuple[str, dict[str, Any], int]] = {
    "full": ("qwen2.5-0.5b", {"micro_batch": 4}, 1200),
    "lora": ("llama-3.1-8b", {"method": "lora", "micro_batch": 4}, 1200),
    "experts": ("qwen3-30b-a3b", {"n_gpus": 8, "sharding": "fsdp2"}, 1200),
    "sharded": ("llama-3.1-405b", {"n_gpus": 1024, "sharding": "zero3"}, 1200),
    "pipeline": (
        "llama-3.1-405b",
        {"n_gpus": 1024, "tp": 8, "pp": 16, "framework": "megatron", "micro_batches": 32},
        1300,
    ),
}


@pytest.mark.parametrize("name", COSTS)
def test_a_bill_of_another_length_costs_a_few_calls(name: str) -> None:
    """A usual machine makes some 5 million such calls a second. A bill that walks its layers or events again, or that
    is put together anew, takes ten times as many."""
    key, fields, most = COSTS[name]
    seen, gpu = model.read(presets.preset(key).config()), hardware.find("h100-80gb-sxm")
    bill(seen, TrainingPlan(**fields, seq_len=1024), gpu)
    assert calls(lambda: bill(seen, TrainingPlan(**fields, seq_len=1536), gpu)) <= most
