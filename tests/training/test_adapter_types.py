"""The types that adapters and whole copies of embedding and head are held in, by release of PEFT."""

from __future__ import annotations

import pytest

from calculator.hardware import resolve
from calculator.lookup import load_preset
from calculator.training import bill
from calculator.training.plan import Adapter, TrainingPlan

GPU = resolve("a100-80gb-sxm4")
LLAMA = load_preset("llama-3.1-8b").shape
RANK16 = 41_943_040
"""Weights of rank-16 adapters on all seven matrices of Llama 3.1 8B."""
TABLES = 2 * 128_256 * 4096


def held(release: str | None, **changes) -> dict[str, int]:
    plan = TrainingPlan.model_validate(
        {"method": "lora", "adapter": Adapter(rank=16), "peft_version": release, "seq_len": 512} | changes
    )
    return {item.key: item.max_bytes for item in bill(LLAMA, plan, GPU).items}


@pytest.mark.parametrize(
    ("release", "item"), [("0.5.0", 4), ("0.6.0", 2), ("0.11.1", 2), ("0.12.0", 4), ("0.18.0", 4), (None, 4)]
)
def test_adapters_by_release(release: str | None, item: int) -> None:
    """Made in fp32, then in the base's type, then cast up (peft ``tuners/lora/layer.py``, ``tuners_utils.py``)."""
    assert held(release)["adapter_parameters"] == pytest.approx(item * RANK16, rel=1e-3)


def test_adapters_over_packed_integers_are_fp32_in_every_release() -> None:
    for release in ("0.5.0", "0.9.0", "0.12.0"):
        found = held(release, method="qlora", base_quant="nf4")
        assert found["adapter_parameters"] == pytest.approx(4 * RANK16, rel=1e-3)


def test_copies_of_embedding_and_head_keep_the_base_type() -> None:
    """Only adapter layers are cast up, so the copies take 2 bytes, and 4 for the two moments."""
    whole = held(None, adapter=Adapter(rank=16, train_embeddings=True))
    assert whole["adapter_parameters"] == pytest.approx(4 * RANK16 + 2 * TABLES, rel=1e-3)
    assert whole["optimizer_states"] == pytest.approx(8 * RANK16 + 4 * TABLES, rel=1e-3)
    assert whole["gradients"] == pytest.approx(4 * RANK16 + 2 * TABLES, rel=1e-3)


def test_a_master_copy_evens_all_trained_weights() -> None:
    mixed = held(None, adapter=Adapter(rank=16, train_embeddings=True), precision="mixed_bf16", framework="deepspeed")
    assert mixed["adapter_parameters"] == pytest.approx(2 * (RANK16 + TABLES), rel=1e-3)
    assert mixed["optimizer_states"] == pytest.approx(12 * (RANK16 + TABLES), rel=1e-3)


def test_deepspeed_casts_adapters_to_16_bit_and_keeps_a_master_copy() -> None:
    mixed = held(None, precision="mixed_bf16", framework="deepspeed", sharding="zero2", n_gpus=4)
    assert mixed["adapter_parameters"] == pytest.approx(2 * RANK16, rel=1e-3)
    assert mixed["optimizer_states"] == pytest.approx(12 * RANK16 / 4, rel=1e-3)


@pytest.mark.parametrize(("group", "each"), [(None, 128), (32, 32), (-1, 4096)])
def test_a_gptq_base_with_other_groups(group: int | None, each: int) -> None:
    """Half a byte a weight, and for each group of a row a 16-bit scale and a zero point of half a byte."""
    found = held(None, method="qlora", base_quant="gptq_int4", base_quant_group=group)["parameters"]
    with_default = held(None, method="qlora", base_quant="gptq_int4")["parameters"]
    linear = 32 * (2 * 4096 * 4096 + 2 * 1024 * 4096 + 2 * 14336 * 4096)
    down = 32 * 14336 * 4096
    scales = 2.5 * (linear / each + (down / each if group != -1 else down / 14336))
    assert found - with_default == pytest.approx(scales - 2.5 * (linear + down) / 128, rel=1e-3, abs=1e6)
