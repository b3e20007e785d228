"""Settings that depend on another: named where they change nothing, and without effect there."""

from typing import Any

import pytest

from calculator.hardware import resolve
from calculator.render import render
from calculator.training import bill
from calculator.training.applies import APPLIES, unused
from calculator.training.plan import Adapter, TrainingPlan
from tests.training.shapes import shape

VALUES: dict[str, Any] = {
    "adapter": Adapter(rank=8), "lora_dropout": 0.1, "adapter_dtype": "fp32", "kbit_prepared": True,
    "fp8_recipe": "te_current", "checkpoint_every": 2, "checkpointing_reentrant": True, "hsdp_shard_size": 1,
    "zero_reduce_bucket": 5_000_000, "zero_overlap_comm": True, "zero_prefetch_bucket": 1_000_000,
    "zero_max_live_parameters": 1_000_000, "pp_schedule": "gpipe", "vpp": 2, "micro_batches": 8, "expert_tp": 1,
    "sequence_parallel": True,
}  # fmt: skip
REFUSED = {"base_quant_group", "fp8_param_gather", "max_split_mb", "optimizer_in_backward"}
"""Set without their counterpart these are an error, which names them."""
ELSEWHERE = {"zero_allgather_bucket"}
"""Changes nothing under any sharding, and says so by itself."""


def test_every_dependent_setting_is_tried() -> None:
    assert VALUES.keys() | REFUSED | ELSEWHERE == APPLIES.keys()


@pytest.mark.parametrize("name", VALUES)
def test_what_does_not_apply_is_named_and_changes_nothing(name: str) -> None:
    plain = TrainingPlan(checkpointing="none")
    plan = TrainingPlan(checkpointing="none", **{name: VALUES[name]})
    gpu = resolve("a100-80gb-sxm4")
    before, after = bill(shape("llama"), plain, gpu), bill(shape("llama"), plan, gpu)
    assert [(i.key, i.bytes) for i in before.items] == [(i.key, i.bytes) for i in after.items]
    if plan != plain:
        assert any("without effect" in render(said) and name in render(said) for said in after.assumptions)


def test_what_applies_is_not_named() -> None:
    assert not unused(TrainingPlan(sharding="hsdp", n_gpus=8, hsdp_shard_size=4))
    assert not unused(TrainingPlan(method="lora", adapter=Adapter(), lora_dropout=0.1))
    assert not unused(TrainingPlan())
