"""The formula of an item, with its own numbers put in, gives the item's amount."""

from __future__ import annotations

import pytest

from calculator.bill import Item
from calculator.hardware import resolve
from calculator.lookup import load_preset
from calculator.render import render
from calculator.training import bill
from calculator.training.plan import Adapter, TrainingPlan

COUNTED = {
    "parameters": ("model_params",),
    "adapter_parameters": ("trained_params",),
    "gradients": ("trained_params",),
    "optimizer_states": ("trained_params",),
    "checkpoints": ("tokens_count", "layers_count"),
    "logits_loss": ("tokens_count", "vocab_count"),
    "backward_temporary": ("tokens_count",),
    "gathered_parameters": ("copied_params",),
    "casts": ("copied_params",),
    "activations": ("tokens_count", "layers_count"),
    "live_layer": ("tokens_count",),
}
PLANS = {
    "full": TrainingPlan(micro_batch=2, seq_len=4096),
    "fsdp": TrainingPlan(sharding="fsdp2", n_gpus=8, precision="fsdp_mixed_bf16", seq_len=8192),
    "tensor": TrainingPlan(
        tp=2, n_gpus=4, sharding="distributed_optimizer", precision="mixed_bf16", framework="megatron"
    ),
    "qlora": TrainingPlan(method="qlora", base_quant="nf4_dq", adapter=Adapter(rank=16)),
    "8-bit products": TrainingPlan(framework="megatron", fp8_compute=True),
    "autocast": TrainingPlan(method="lora", precision="amp_bf16", checkpointing="full", adapter=Adapter(rank=16)),
}


def recomputed(item: Item) -> float:
    found = float(item.formula.values["each"])  # type: ignore[arg-type]
    for name in COUNTED[item.key]:
        found *= item.formula.values[name]  # type: ignore[operator]
    return found / item.divided_by


@pytest.mark.parametrize("name", PLANS)
def test_a_formula_gives_the_highest_amount(name: str) -> None:
    shape = load_preset("llama-3.1-8b").shape
    for item in bill(shape, PLANS[name], resolve("h100-80gb-sxm")).items:
        if item.key in COUNTED:
            assert recomputed(item) == pytest.approx(item.max_bytes, rel=1e-3), item.key


def test_the_loss_is_twelve_bytes_a_logit() -> None:
    """log-softmax and two gradients, each fp32 and vocabulary wide (transformers since 4.49)."""
    items = {i.key: i for i in bill(load_preset("llama-3.1-8b").shape, PLANS["fsdp"], resolve("h100-80gb-sxm")).items}
    loss = items["logits_loss"]
    assert loss.formula.values["each"] == 12
    assert loss.bytes == pytest.approx(12 * 128_256 * 8192, rel=1e-4)
    assert "× 12 B" in render(loss.formula)


def test_weights_and_moments_name_their_bytes() -> None:
    items = {i.key: i for i in bill(load_preset("llama-3.1-8b").shape, PLANS["full"], resolve("h100-80gb-sxm")).items}
    assert "8.03 B parameters × 2 B" in render(items["parameters"].formula)
    assert items["optimizer_states"].formula.values["each"] == 4
