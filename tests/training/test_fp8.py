"""8-bit products by recipe: what they keep beside or instead of 16-bit weights and inputs."""

from __future__ import annotations

from typing import Any

import pytest

from calculator.hardware import resolve
from calculator.lookup import load_preset
from calculator.training import bill
from calculator.training.build import saved_layers
from calculator.training.plan import TrainingPlan
from calculator.training.step import step

LLAMA = load_preset("llama-3.1-8b").shape
HOPPER, BLACKWELL = resolve("h100-80gb-sxm"), resolve("b200-180gb-sxm")
H, F, Q, KV, L = 4096, 14336, 4096, 1024, 32
PRODUCTS = L * (2 * H * Q + 2 * H * KV + 3 * H * F)
TOKENS = 4096


def plan(**changes: Any) -> TrainingPlan:
    base = {
        "framework": "megatron", "precision": "mixed_bf16", "checkpointing": "none", "seq_len": TOKENS,
        "attention": "flash", "loss": "fused_ce", "fp8_compute": True,
    }  # fmt: skip
    return TrainingPlan.model_validate(base | changes)


def held(gpu=HOPPER, **changes: Any) -> dict[str, int]:
    return {item.key: item.max_bytes for item in bill(LLAMA, plan(**changes), gpu).items}


def kept(**changes: Any) -> float:
    return saved_layers(step(LLAMA, plan(**changes), HOPPER, tensors_only=True).program) / (TOKENS * L)


@pytest.mark.parametrize(
    ("gpu", "recipe", "each"),
    [
        (HOPPER, "te_current", 2), (BLACKWELL, "te_current", 1), (HOPPER, "te_blockwise", 2),
        (BLACKWELL, "te_mxfp8", 2 + 2 / 32),
    ],
)  # fmt: skip
def test_casts_of_weights_stay_over_the_step(gpu, recipe: str, each: float) -> None:
    """One cast, and a transposed one where products take one order of operands only; MXFP8 has both in blocks."""
    assert held(gpu, fp8_recipe=recipe)["casts"] == pytest.approx(each * PRODUCTS, rel=1e-6)


def test_delayed_scaling_keeps_maxima() -> None:
    histories = 7 * L * 4 * 1024 * 5
    more = held()["casts"] - held(fp8_recipe="te_current")["casts"]
    assert more == pytest.approx(histories, rel=1e-3)


def test_8_bit_parameters_take_the_place_of_16_bit_ones() -> None:
    plain = held(fp8_compute=False)["parameters"]
    there = held(BLACKWELL, fp8_recipe="te_current", fp8_param_gather=True)
    assert "casts" not in there
    assert plain - there["parameters"] == pytest.approx(PRODUCTS, rel=1e-6)
    assert held(fp8_recipe="te_current", fp8_param_gather=True)["parameters"] == plain


def test_transformer_engine_keeps_inputs_in_8_bits() -> None:
    """Norm outputs (read by three and two products) and the gated product lose a byte; attention's output stays for its
    own backward, so its cast comes on top."""
    assert kept(fp8_compute=False) - kept() == pytest.approx(2 * H + F - Q, rel=1e-2)


def test_torchao_keeps_what_16_bit_products_keep() -> None:
    """Its casts live within a product: three runs of torchao and torchtitan read the same to 0.4 %, fp8 or not."""
    for framework in ("torchtitan", "plain_torch"):
        assert kept(framework=framework) == kept(framework=framework, fp8_compute=False)
    assert "casts" not in held(framework="torchtitan")
    tops = []
    for eight in (True, False):
        stages = step(LLAMA, plan(framework="torchtitan", fp8_compute=eight), HOPPER).program.stages
        tops.append(max(s.events.top[0] for s in stages if s.name == "layer" and s.phase == "forward"))
    assert tops[0] > tops[1]


def test_frozen_products_keep_no_input() -> None:
    assert kept(method="lora") == pytest.approx(kept(method="lora", fp8_compute=False), rel=0.02)
