"""FSDP with parameters on the host: gradients go there too, and travel in the compute type."""

from __future__ import annotations

from typing import Any

import pytest

from calculator.hardware import resolve
from calculator.lookup import load_preset
from calculator.training.plan import TrainingPlan
from calculator.training.step import step

LLAMA = load_preset("llama-3.1-8b").shape
GPU = resolve("h100-80gb-sxm")
LAYER = 4096 * (2 * 4096 + 2 * 1024 + 3 * 14336) + 2 * 4096


def made(**changes: Any):
    base = {"sharding": "fsdp2", "n_gpus": 8, "precision": "fsdp_mixed_bf16", "seq_len": 1024}
    return step(LLAMA, TrainingPlan.model_validate(base | changes), GPU)


def reduced(**changes: Any) -> int:
    """Bytes of the largest single buffer that gradients of a middle layer are reduced through."""
    stages = made(**changes).program.stages
    one = next(s for s in stages if s.name == "reduce" and s.unit == 16)
    return max(d for d, k in zip(one.events.deltas, one.events.keys, strict=True) if k == "comm_buffers")


@pytest.mark.parametrize(("framework", "item"), [("hf_trainer", 2), ("torchtune", 2), ("torchtitan", 4)])
def test_gradients_travel_in_the_compute_type(framework: str, item: int) -> None:
    assert reduced(framework=framework) == pytest.approx(item * LAYER, rel=1e-3)


def test_gradients_follow_offloaded_parameters() -> None:
    """Nothing of them is left on the card, whatever the number of micro-batches."""
    everything = ("optimizer", "parameters")
    for accumulated in (1, 4):
        there = made(offload=everything, grad_accum=accumulated)
        assert "gradients" not in there.end
        assert sum(s.events.net_by_key.get("gradients", 0) for s in there.program.stages) == 0
    once, often = (made(offload=everything, grad_accum=n).program for n in (1, 4))
    tops = [p.moments[p.peak_phase].bytes for p in (once, often)]
    assert tops[1] == pytest.approx(tops[0], rel=0.01)


def test_without_offload_accumulated_gradients_wait_whole() -> None:
    """Accelerate synchronises only the last micro-batch, so 2 bytes a weight wait on every rank."""

    def top(accumulated: int) -> int:
        program = made(grad_accum=accumulated).program
        return program.highest_by_key["gradients"]

    assert top(4) - top(1) > LLAMA.parameters.total
