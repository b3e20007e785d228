"""Evaluation as a phase: forward without a graph, and predictions that wait on the card."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculator.bill import Bill, Phase
from calculator.errors import PlanError
from calculator.hardware import resolve
from calculator.lookup import load_preset
from calculator.training import bill, timeline
from calculator.training.evaluation import evaluation
from calculator.training.plan import TrainingPlan
from tests.training.shapes import shape

GPU = resolve("h100-80gb-sxm")
LLAMA = load_preset("llama-3.1-8b").shape
VOCAB = 128_256


def plan(**changes: Any) -> TrainingPlan:
    return TrainingPlan.model_validate({"seq_len": 1024, "eval_batch": 8} | changes)


def made(model: Any = LLAMA, *, replay: bool = False, **changes: Any) -> Bill:
    return bill(model, plan(**changes), GPU, replay=replay)


def phase(found: Bill, name: str = "evaluation") -> Phase:
    return next(p for p in found.phases if p.name == name)


def test_without_a_batch_nothing_changes() -> None:
    off = made(eval_batch=None)
    assert "evaluation" not in [p.name for p in off.phases]
    assert off.phases == tuple(p for p in made(eval_batch=1).phases if p.name != "evaluation")


def test_logits_are_there_in_16_bit_and_twice_in_fp32() -> None:
    """2 bytes as computed, 4 as returned, 4 for the log-probabilities of the loss; none of a graph."""
    tokens = 8 * 1024
    items = phase(made()).items
    assert items["logits_loss"] == pytest.approx(10 * VOCAB * tokens, rel=1e-3)
    assert "gradients" not in items
    assert items.get("activations", 0) + items["live_layer"] < tokens * LLAMA.hidden * 2 * 3


@pytest.mark.parametrize("name", ["llama", "tied", "gpt2", "neox", "mixtral", "gemma2"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"method": "lora"},
        {"precision": "amp_bf16"},
        {"sharding": "zero3", "n_gpus": 4},
        {"sharding": "fsdp2", "n_gpus": 4},
        {"attention": "eager"},
    ],
)
def test_nothing_is_left_behind(name: str, changes: dict[str, Any]) -> None:
    """Whatever forward makes is gone at the end, and no level falls below nothing on the way."""
    program = evaluation(shape(name), plan(**changes), GPU)
    now = dict(program.start)
    for stage in program.stages:
        for key, delta in zip(stage.events.keys, stage.events.deltas, strict=True):
            now[key] = now.get(key, 0) + delta
            assert now[key] >= 0, (stage.name, key)
    assert {k: v for k, v in now.items() if v} == {k: v for k, v in program.start.items() if v}


@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral", "gemma2"])
def test_forward_keeps_no_more_than_one_layer(name: str) -> None:
    """Twice the layers, the same activations: what a graph would keep grows with depth, the layer at work does not."""
    layers = {"gpt2": "n_layer"}.get(name, "num_hidden_layers")
    few, many = (phase(made(shape(name, **{layers: n}), eval_batch=4)) for n in (2, 8))
    alive = [sum(p.items.get(k, 0) for k in ("activations", "live_layer", "logits_loss")) for p in (few, many)]
    assert alive[0] == alive[1]


def test_it_is_never_more_than_the_same_forward_with_a_graph() -> None:
    same = {"eval_batch": 4, "micro_batch": 4, "checkpointing": "none", "method": "lora"}
    found = made(shape("llama"), **same)
    assert phase(found).allocated_bytes <= max(p.allocated_bytes for p in found.phases if p.name != "evaluation")


@given(batch=st.integers(1, 32), more=st.integers(0, 32), steps=st.integers(1, 8), further=st.integers(0, 8))
def test_more_never_takes_less(batch: int, more: int, steps: int, further: int) -> None:
    def at(sequences: int, kept: int) -> int:
        return phase(made(shape("llama"), eval_batch=sequences, eval_accumulation_steps=kept)).allocated_bytes

    assert at(batch, steps) <= at(batch + more, steps)
    assert at(batch, steps) <= at(batch, steps + further)


@pytest.mark.parametrize(("steps", "copies"), [(1, 0), (2, 3), (4, 7)])
def test_predictions_are_joined_to_those_before(steps: int, copies: int) -> None:
    """Before the last of k batches leaves: k - 1 old ones, the new one, and all k joined."""
    tokens = 8 * 1024
    found = made(eval_accumulation_steps=steps)
    predictions = {i.key: i.max_bytes for i in found.items}.get("predictions", 0)
    assert predictions == copies * (4 * VOCAB + 8) * tokens


def test_predictions_of_all_ranks_are_gathered_on_each() -> None:
    alone, shared = (
        {i.key: i.max_bytes for i in made(eval_accumulation_steps=3, n_gpus=n, sharding=s).items}["predictions"]
        for n, s in ((1, "none"), (4, "ddp"))
    )
    one = (4 * VOCAB + 8) * 8 * 1024
    assert (alone, shared) == (5 * one, 4 * (3 - 1 + 1 + 3) * one)


def test_a_fused_loss_gives_whole_logits_in_evaluation() -> None:
    assert phase(made(loss="fused_linear_ce")).items["logits_loss"] == phase(made()).items["logits_loss"]


def test_the_peak_and_the_replay_know_it() -> None:
    found = made(method="lora", replay=True)
    assert found.peak_phase == "evaluation"
    assert found.allocated.value == phase(found).allocated_bytes
    assert found.reserved.value >= found.allocated.value
    steps = made(method="lora", eval_batch=None, replay=True)
    assert found.reserved.value > steps.reserved.value
    points = timeline(LLAMA, plan(method="lora"), GPU)
    assert max(sum(p.items.values()) for p in points) == found.allocated.value
    assert [p.phase for p in points][-1] == "evaluation"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"eval_batch": None, "eval_accumulation_steps": 2}, "eval_batch"),
        ({"n_gpus": 4, "pp": 4, "framework": "megatron"}, "eval_batch"),
    ],
)
def test_refusals_name_the_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(PlanError) as caught:
        made(**changes)
    assert caught.value.field == field
