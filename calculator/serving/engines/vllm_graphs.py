"""Memory of vLLM's CUDA graphs, which the driver takes for the nodes that are recorded.

A piecewise graph is recorded for every captured size and every stretch between two attention operations, one more than
there are layers; a full graph for every size is as long as all of them. What is kept goes with layers times sizes:
start-ups print 0.13 to 0.29 MiB for each, whatever the hidden size, more for linear attention, whose layers run more
kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

from calculator.model.shape import ModelShape, StateMixer
from calculator.serving.engines.vllm_rules import captured
from calculator.serving.start import ZERO, Span
from calculator.serving.versions import Version
from calculator.sources import Source
from calculator.units import MIB

FULL_TOO: Version = (0, 11, 0)
"""From here on decode batches have full graphs beside the piecewise ones (vllm/config, FULL_AND_PIECEWISE)."""
ESTIMATED: Version = (0, 20, 0)
"""From here on an estimate of graph memory is taken out of the budget (vllm/envs.py,
VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS)."""
LAYER_BYTES, PIECE_BYTES = 200 * MIB // 1000, 280 * MIB // 1000
"""Of one layer in one graph where full ones are among them, and where all are piecewise (0.8 to 0.10)."""
STATE_WEIGHT = 2
"""A layer of linear attention counts as two."""
FIRST_USE_BYTES = 640 * MIB
"""Workspaces that kernels allocate when they first run, at most; the reading is a difference of free memory."""
SOURCE = Source(
    title="Graph memory printed by public vLLM starts, 0.03 to 2.4 GiB, by layers and captured sizes",
    url="https://github.com/vllm-project/vllm", checked_on="2026-11-29", versions="0.6 to 0.33",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Graphs:
    """Sizes of each kind that are captured, layers times graphs, memory as used, and what is held back for it before
    the pool is sized."""

    pieces: int
    full: int
    layer_graphs: int
    used: Span
    reserved: Span


def graphs(
    shape: ModelShape, layers: range, drafting: int, version: Version, runner: str, seqs: int, checked: int = 1
) -> Graphs:
    """The graphs of one stage with ``layers`` and so many layers that draft; ``checked`` tokens of every request are
    decoded in a step."""
    sizes = captured(version, runner, seqs, checked)
    decode = sum(size <= seqs * checked for size in sizes)
    pieces = len(sizes) if runner != "v0" else 0
    full = len(sizes) if runner == "v0" else decode if version >= FULL_TOO else 0
    linear = {i for i, block in enumerate(shape.blocks) if any(isinstance(m, StateMixer) for m in block.mixers)}
    states = sum(shape.order[layer] in linear for layer in layers) if linear else 0
    length = len(layers) + (STATE_WEIGHT - 1) * states + drafting + 1
    each = LAYER_BYTES if full else PIECE_BYTES
    layer_graphs = length * (pieces + full)
    used = layer_graphs * each
    # Newer drivers were seen to share what kernels of one kind need, down to an eighth (Qwen3-0.6B on an H100).
    span = Span(used, used // 8, 2 * used + FIRST_USE_BYTES)
    # Start-ups that print both estimate between half of what is used and twice that; a hybrid held back a quarter.
    held = Span(used, used // 4, 2 * used) if version >= ESTIMATED else ZERO
    return Graphs(pieces, full, layer_graphs, span, held)


NONE = Graphs(0, 0, 0, ZERO, ZERO)
