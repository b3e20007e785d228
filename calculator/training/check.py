"""Which plans a framework would run, with the field at fault named where it would not."""

from __future__ import annotations

from calculator.errors import PlanError
from calculator.model.shape import Attention, LatentAttention, ModelShape
from calculator.training.fp8 import engine
from calculator.training.fp8 import recipe as fp8_recipe
from calculator.training.plan import TrainingPlan
from calculator.training.recipe import adapted

GROUPED = ("gptq_int4", "awq_int4")
"""Formats whose number of weights to a scale is a choice."""


def check(shape: ModelShape, plan: TrainingPlan) -> None:
    """Raise ``PlanError`` for a combination that cannot run."""
    _divisibility(shape, plan)
    if plan.base_quant != "none" and not adapted(plan):
        raise PlanError("training.quantised_full", field="base_quant", base_quant=plan.base_quant, method=plan.method)
    if plan.method == "qlora" and plan.base_quant == "none":
        raise PlanError("training.qlora_base", field="base_quant")
    if plan.base_quant_group is not None and plan.base_quant not in GROUPED:
        raise PlanError("training.group_size", field="base_quant_group", base_quant=plan.base_quant)
    if plan.base_quant in ("mxfp4", "other"):
        raise PlanError("training.base_quant_unknown", field="base_quant", base_quant=plan.base_quant)
    if plan.method == "other" or plan.optimizer == "other":
        field = "optimizer" if plan.optimizer == "other" else "method"
        raise PlanError("training.method_unknown", field=field, value=getattr(plan, field))
    if plan.sharding in ("zero2", "zero3") and plan.pp > 1:
        raise PlanError("training.zero_pipeline", field="sharding", sharding=plan.sharding)
    if "parameters" in plan.offload and plan.sharding not in ("zero3", "fsdp1", "fsdp2", "hsdp"):
        raise PlanError("training.offload_parameters", field="offload", sharding=plan.sharding)
    if plan.fp8_param_gather and engine(plan) != "te":
        recipe = fp8_recipe(plan) if plan.fp8_compute else "fp8_compute = false"
        raise PlanError("training.fp8_params", field="fp8_param_gather", recipe=recipe)
    _schedule(plan)
    _allocator(plan)
    _evaluation(plan)
    if plan.adapter is not None and not plan.adapter.targets and adapted(plan):
        raise PlanError("training.adapter_targets", field="adapter.targets")
    if plan.optimizer_in_backward and plan.grad_accum > 1:
        raise PlanError("training.backward_step_accumulation", field="optimizer_in_backward")


def _schedule(plan: TrainingPlan) -> None:
    """A pipeline schedule that contradicts the number of virtual stages."""
    if plan.pp_schedule in ("1f1b", "gpipe") and plan.vpp > 1:
        raise PlanError("training.schedule_virtual", field="pp_schedule", schedule=plan.pp_schedule, vpp=plan.vpp)
    if plan.pp_schedule == "interleaved" and plan.vpp == 1:
        raise PlanError("training.schedule_interleaved", field="vpp")


def _evaluation(plan: TrainingPlan) -> None:
    if plan.eval_accumulation_steps is not None and plan.eval_batch is None:
        raise PlanError("training.evaluation_batch", field="eval_batch")
    if plan.eval_batch is not None and plan.pp > 1:
        raise PlanError("training.evaluation_pipeline", field="eval_batch", pp=plan.pp)


def _allocator(plan: TrainingPlan) -> None:
    if (plan.allocator == "max_split_mb") != (plan.max_split_mb is not None):
        raise PlanError("training.max_split", field="max_split_mb", allocator=plan.allocator)


def _divisibility(shape: ModelShape, plan: TrainingPlan) -> None:
    ranks = plan.tp * plan.pp * plan.cp
    if plan.n_gpus % ranks:
        raise PlanError("training.ranks", field="n_gpus", gpus_count=plan.n_gpus, ranks_count=ranks)
    if plan.pp * plan.vpp > shape.layers:
        raise PlanError(
            "training.pipeline_layers", field="pp", stages_count=plan.pp * plan.vpp, layers_count=shape.layers
        )
    shards = plan.hsdp_shard_size
    if shards is not None and (shards > plan.n_gpus or plan.n_gpus // ranks % shards):
        raise PlanError(
            "training.hsdp_shards", field="hsdp_shard_size", shards_count=shards, gpus_count=plan.n_gpus // ranks
        )
    if plan.seq_len % plan.cp:
        raise PlanError("training.context_length", field="cp", cp=plan.cp, seq_tokens=plan.seq_len)
    experts = max((b.mixture.experts for b in shape.blocks if b.mixture), default=0)
    if plan.ep > 1 and (not experts or experts % plan.ep):
        raise PlanError("training.expert_groups", field="ep", ep=plan.ep, experts_count=experts)
    if plan.expert_tp is not None and plan.expert_tp > 1 and not experts:
        raise PlanError("training.expert_groups", field="expert_tp", ep=plan.expert_tp, experts_count=0)
    if plan.tp > 1:
        mixers = (mixer for block in shape.blocks for mixer in block.mixers)
        heads = min((m.heads for m in mixers if isinstance(m, Attention | LatentAttention)), default=0)
        if heads and heads % plan.tp:
            raise PlanError("training.tensor_heads", field="tp", tp=plan.tp, heads_count=heads)
    if plan.pp > 1 and shape.kind != "decoder":
        raise PlanError("training.pipeline_kind", field="pp", kind=shape.kind)
