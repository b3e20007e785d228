"""Every family, from its configuration to a bill of each kind: a total that is its items' sum, or a typed error."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from calculator.bill import Bill
from calculator.errors import PlanError, UnknownFamilyError
from calculator.hardware import find
from calculator.model import read
from calculator.model.shape import ModelShape
from calculator.serving.bill import bill as serving_bill
from calculator.serving.plan import ServingPlan
from calculator.training import bill as training_bill
from calculator.training.plan import Adapter, TrainingPlan
from tests.model.corpus import class_defaults, configs

CARD = find("h100-80gb-sxm")
SERVED = ("vllm", "llama_cpp", "transformers")
REFUSED = {"switch_transformers"}
"""Families whose training is refused: experts in an encoder-decoder model."""
COMPRESSED = {"deepseek_v4", "deepseek_ref"}
"""Families whose cache only some engines' layouts are known for."""
TRAINED = {
    "full": TrainingPlan(micro_batch=1, seq_len=512, sharding="fsdp2", n_gpus=8, checkpointing="full"),
    "lora": TrainingPlan(method="lora", adapter=Adapter(rank=8), micro_batch=1, seq_len=512),
}


@cache
def families() -> dict[str, ModelShape]:
    """The first published configuration of each model type, and every class without one."""
    found: dict[str, dict[str, Any]] = {}
    for row in configs().values():
        found.setdefault(str(row.get("model_type")), row)
    for row in class_defaults():
        found.setdefault(str(row["config"]["model_type"]), row["config"])
    return {name: read(config) for name, config in found.items()}


def checked(bill: Bill) -> None:
    assert bill.verdict in ("fits", "tight", "does_not_fit")
    assert sum(item.bytes for item in bill.items) > 0
    assert all(item.bytes >= 0 for item in bill.items)
    assert bill.need.low <= bill.need.value <= bill.need.high


@pytest.mark.parametrize("family", sorted(families()))
@pytest.mark.parametrize("kind", TRAINED)
def test_training(family: str, kind: str) -> None:
    if family in REFUSED:
        with pytest.raises(PlanError) as refusal:
            training_bill(families()[family], TRAINED[kind], CARD, tensors_only=True)
        assert refusal.value.field == "model"
        return
    checked(training_bill(families()[family], TRAINED[kind], CARD, tensors_only=True))


@pytest.mark.parametrize("family", sorted(families()))
@pytest.mark.parametrize("engine", SERVED)
def test_serving(family: str, engine: str) -> None:
    shape = families()[family]
    plan = ServingPlan(engine=engine, max_model_len=min(2048, shape.max_context or 2048, shape.positions or 2048))
    if shape.cache_refusal is not None:
        with pytest.raises(UnknownFamilyError):
            serving_bill(shape, plan, CARD)
        return
    if engine == "llama_cpp" and family in COMPRESSED:
        with pytest.raises(PlanError) as refusal:
            serving_bill(shape, plan, CARD)
        assert refusal.value.field == "engine"
        return
    found = serving_bill(shape, plan, CARD)
    checked(found)
    assert found.serving is not None
