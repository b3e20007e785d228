"""torchtitan's per-operator selective checkpointing: which outputs stay, and what recomputation then skips."""

from __future__ import annotations

import pytest

from calculator.hardware import resolve
from calculator.lookup import load_preset
from calculator.training import bill
from calculator.training.build import saved_layers
from calculator.training.plan import TrainingPlan
from calculator.training.step import step

LLAMA = load_preset("llama-3.1-8b").shape
GPU = resolve("h100-96gb")
TOKENS = 8192
H, F, Q, KV, HEADS, LAYERS = 4096, 14336, 4096, 1024, 32, 32
LISTED = 2 * H + 2 * Q + 2 * KV + 2 * F + 2 * Q + 4 * HEADS
"""Bytes a token of the layer's input, first, third and fifth product (q, v, gate), attention's output and log-sum-exp:
the list of torchtitan ``distributed/activation_checkpoint.py`` walked through a Llama block."""


def plan(**changes) -> TrainingPlan:
    base = {
        "framework": "torchtitan", "precision": "fsdp_mixed_bf16", "sharding": "fsdp2", "n_gpus": 8,
        "checkpointing": "selective", "seq_len": TOKENS, "optimizer": "adamw_fused",
    }  # fmt: skip
    return TrainingPlan.model_validate(base | changes)


def kept(**changes) -> float:
    program = step(LLAMA, plan(**changes), GPU, tensors_only=True).program
    return saved_layers(program) / (TOKENS * LAYERS)


def test_eager_keeps_the_seventh_product_too() -> None:
    """The cache holds what the policy names whether backward reads it or not: the down projection's output as well."""
    assert kept() == pytest.approx(LISTED + 2 * H, rel=5e-3)


def test_a_compiler_saves_only_what_backward_reads() -> None:
    assert kept(compile=True) == pytest.approx(LISTED, rel=1e-3)


def test_it_lies_between_full_and_none() -> None:
    full, none = kept(checkpointing="full"), kept(checkpointing="none")
    assert full < kept() < none
    assert kept(checkpoint_every=2) == pytest.approx((full + none) / 2, rel=5e-3)


def test_recomputation_makes_no_kept_output_again() -> None:
    """The layer at work on its own: full recomputation makes every output, the selection only those not kept."""
    programs = {form: step(LLAMA, plan(checkpointing=form), GPU).program for form in ("full", "selective")}
    made = {}
    for form, program in programs.items():
        layer = next(s for s in program.stages if s.phase == "backward" and s.name == "layer" and s.unit == 16)
        made[form] = sum(
            d for d, k in zip(layer.events.deltas, layer.events.keys, strict=True) if d > 0 and k == "live_layer"
        )
    assert made["full"] - made["selective"] == pytest.approx(TOKENS * (LISTED - 2 * H), rel=1e-2)


def test_a_compiled_loss_keeps_16_bit_logits_alone() -> None:
    """2 bytes a logit and as much for their gradient; in eager mode and before torch 2.6 12 bytes."""

    def peak(**changes) -> int:
        found = bill(LLAMA, plan(compile=True, **changes), GPU).phases
        return max(p.items.get("logits_loss", 0) for p in found)

    logits = 128_256 * TOKENS
    assert peak(torch_version="2.7") == pytest.approx(4 * logits, rel=1e-2)
    assert peak(torch_version="2.5") == pytest.approx(12 * logits, rel=1e-2)
