"""Plans that contradict themselves are refused by the field, and what a bill takes for granted is said."""

from __future__ import annotations

from typing import Any

import pytest

from calculator.errors import PlanError
from calculator.hardware import resolve
from calculator.lookup import load_preset
from calculator.training import bill
from calculator.training.plan import Adapter, TrainingPlan

CONTRADICTIONS: list[tuple[str, dict[str, Any]]] = [
    ("adapter.targets", {"method": "lora", "adapter": Adapter(targets=())}),
    ("pp_schedule", {"n_gpus": 4, "pp": 4, "vpp": 2, "pp_schedule": "1f1b", "framework": "megatron"}),
    ("vpp", {"n_gpus": 4, "pp": 4, "pp_schedule": "interleaved", "framework": "megatron"}),
    ("max_split_mb", {"allocator": "max_split_mb"}),
    ("max_split_mb", {"max_split_mb": 200}),
    ("hsdp_shard_size", {"n_gpus": 16, "sharding": "hsdp", "hsdp_shard_size": 3}),
    ("hsdp_shard_size", {"n_gpus": 16, "sharding": "hsdp", "hsdp_shard_size": 32}),
    ("expert_tp", {"n_gpus": 2, "expert_tp": 2}),
    ("fp8_param_gather", {"fp8_compute": True, "fp8_param_gather": True}),
    ("base_quant_group", {"method": "qlora", "base_quant": "nf4", "base_quant_group": 64}),
    ("fp8_param_gather", {"framework": "megatron", "fp8_param_gather": True}),
]


@pytest.mark.parametrize(("field", "plan"), CONTRADICTIONS)
def test_a_contradiction_names_its_field(field: str, plan: dict[str, Any]) -> None:
    with pytest.raises(PlanError) as caught:
        bill(load_preset("llama-3.1-8b").shape, TrainingPlan(**plan), resolve("h100-80gb-sxm"))
    assert caught.value.field == field


def said(**plan: Any) -> dict[str, dict[str, Any]]:
    found = bill(load_preset("llama-3.1-8b").shape, TrainingPlan(**plan), resolve("h100-80gb-sxm")).assumptions
    return {one.id: dict(one.values) for one in found}


def test_the_recipe_of_8_bit_products_is_said() -> None:
    assert said(fp8_compute=True)["training.assumption.fp8"] == {"recipe": "torchao"}
    assert said(fp8_compute=True, framework="megatron")["training.assumption.fp8"] == {"recipe": "te_delayed"}
    assert "training.assumption.fp8" not in said()


def test_a_length_beyond_the_context_is_said() -> None:
    assert said(seq_len=262_144)["training.assumption.context"] == {"seq_tokens": 262_144, "limit_tokens": 131_072}
    assert "training.assumption.context" not in said(seq_len=131_072)


def test_checkpointing_of_another_kind_is_said() -> None:
    assert "training.assumption.checkpointing" in said(checkpointing="other")
