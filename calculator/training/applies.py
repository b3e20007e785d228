"""Which settings of a training plan depend on another: where that one is absent they change nothing, and are named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from calculator.training import fp8
from calculator.training.check import GROUPED
from calculator.training.plan import TrainingPlan
from calculator.training.recipe import adapted

_ZERO = ("zero1", "zero2", "zero3")

APPLIES: Mapping[str, Callable[[TrainingPlan], bool]] = MappingProxyType({
    "adapter": adapted,
    "lora_dropout": adapted,
    "adapter_dtype": adapted,
    "kbit_prepared": lambda plan: adapted(plan) and plan.base_quant != "none",
    "base_quant_group": lambda plan: plan.base_quant in GROUPED,
    "fp8_recipe": lambda plan: plan.fp8_compute,
    "fp8_param_gather": lambda plan: fp8.engine(plan) == "te",
    "checkpoint_every": lambda plan: plan.checkpointing in ("full", "offloaded"),
    "checkpointing_reentrant": lambda plan: plan.checkpointing != "none",
    "max_split_mb": lambda plan: plan.allocator == "max_split_mb",
    "hsdp_shard_size": lambda plan: plan.sharding == "hsdp",
    "zero_reduce_bucket": lambda plan: plan.sharding in _ZERO,
    "zero_allgather_bucket": lambda plan: plan.sharding in _ZERO,
    "zero_overlap_comm": lambda plan: plan.sharding in _ZERO,
    "zero_prefetch_bucket": lambda plan: plan.sharding == "zero3",
    "zero_max_live_parameters": lambda plan: plan.sharding == "zero3",
    "pp_schedule": lambda plan: plan.pp > 1,
    "vpp": lambda plan: plan.pp > 1,
    "micro_batches": lambda plan: plan.pp > 1,
    "expert_tp": lambda plan: plan.tp > 1 or plan.ep > 1,
    "sequence_parallel": lambda plan: plan.tp > 1,
    "optimizer_in_backward": lambda plan: plan.grad_accum == 1,
})  # fmt: skip


def unused(plan: TrainingPlan) -> tuple[str, ...]:
    """The fields that were set, to something else than their default, and change nothing beside the others."""
    fields = type(plan).model_fields
    return tuple(
        name for name in APPLIES
        if name in plan.model_fields_set and getattr(plan, name) != fields[name].default and not APPLIES[name](plan)
    )  # fmt: skip
