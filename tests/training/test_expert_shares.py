"""What a bill says of a mixture of experts over expert-parallel ranks: experts have a division of their own."""

from __future__ import annotations

import pytest

from calculator.hardware import resolve
from calculator.lookup import load_preset
from calculator.render import render
from calculator.training import bill
from calculator.training.plan import TrainingPlan

QWEN = load_preset("qwen3-30b-a3b").shape
EXPERTS = 48 * 128 * 3 * 2048 * 768
"""48 layers of 128 experts with three matrices of 2048 x 768."""


def items(**changes):
    base = {
        "framework": "megatron", "precision": "mixed_bf16", "sharding": "distributed_optimizer", "n_gpus": 16, "ep": 8,
        "seq_len": 4096,
    }  # fmt: skip
    found = bill(QWEN, TrainingPlan.model_validate(base | changes), resolve("h100-80gb-sxm")).items
    return {item.key: item for item in found}


def test_states_of_experts_are_spread_over_their_own_ranks() -> None:
    """16 ranks share the dense states; two ranks hold the same experts, so these take an eighth and a half of it."""
    states = items()["optimizer_states"]
    values = states.formula.values
    assert (values["expert_params"], values["expert_gpus_count"], values["dense_gpus_count"]) == (EXPERTS, 16, 16)
    assert values["each"] == 12
    assert states.divided_by == 1


def test_weights_and_gradients_of_experts_are_cut_by_expert_ranks_alone() -> None:
    found = items()
    dense = QWEN.parameters.total - EXPERTS
    for key, each in (("parameters", 2), ("gradients", 4)):
        values = found[key].formula.values
        assert (values["dense_gpus_count"], values["expert_gpus_count"], values["each"]) == (1, 8, each)
        assert found[key].max_bytes == pytest.approx(each * (dense + EXPERTS / 8), rel=1e-3)


def test_the_formula_gives_its_amount() -> None:
    for changes in ({}, {"tp": 2, "expert_tp": 1}, {"sharding": "fsdp2", "framework": "torchtitan"}):
        for key, item in items(**changes).items():
            if item.formula.id != "training.item.apart":
                continue
            v = {name: value for name, value in item.formula.values.items() if isinstance(value, int | float)}
            held = v["dense_params"] / v["dense_gpus_count"] + v["expert_params"] / v["expert_gpus_count"]
            assert v["each"] * held == pytest.approx(item.max_bytes, rel=1e-3), key


def test_it_reads_as_a_sentence() -> None:
    assert "in experts ÷ 16 GPUs) × 12 B" in render(items()["optimizer_states"].formula)


def test_without_expert_ranks_the_usual_formula_stands() -> None:
    assert items(ep=1)["optimizer_states"].formula.id == "training.item.optimizer_states"
