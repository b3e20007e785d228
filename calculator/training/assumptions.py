"""What a bill took for granted: the defaults that a plan left to its framework, each as a sentence."""

from __future__ import annotations

from typing import NamedTuple

from calculator.model.shape import ModelShape
from calculator.text import Text, text
from calculator.training import fp8
from calculator.training.applies import unused
from calculator.training.numerics import Numerics
from calculator.training.plan import TrainingPlan
from calculator.training.recipe import Recipe, adapted, usual_precision
from calculator.training.stack import HUGGING_FACE, accumulates, expandable, stack_of
from calculator.training.varying import lengths_vary

ERAS = {"padded": "4.49+", "shifted_held": "4.46 - 4.48", "shifted_freed": "4.45"}
"""Releases of transformers by their form of the loss."""


class Assumed(NamedTuple):
    """The assumptions behind one rank's step, whatever its length: those told before and after ``too_long``."""

    before: tuple[Text, ...]
    after: tuple[Text, ...]


UNWRITTEN = {
    "deepseek_v4": "hyper_connections",
    "deepseek_ref": "hyper_connections",
    "glm5_next": "hyper_connections",
    "glm5_next_text": "hyper_connections",
    "qwen4_exp": "hyper_connections",
    "qwen4_exp_text": "hyper_connections",
    "mllama": "cross_attention",
    "mllama_text_model": "cross_attention",
    "blt": "byte_models",
}
"""Families with parts that the step leaves out: the bill says so."""


def assumed(shape: ModelShape, plan: TrainingPlan, recipe: Recipe, n: Numerics) -> Assumed:
    """What a plan left to its framework."""
    stack = stack_of(plan, shape.model_type)
    found = [text("training.assumption.recipe", weight=recipe.held, gradient=recipe.gradient, state=recipe.state)]
    if usual_precision(plan) != plan.precision:
        found.append(text("training.assumption.no_master", usual=usual_precision(plan)))
    if plan.base_quant in ("nf4", "nf4_dq", "int8") and plan.kbit_prepared is None:
        found.append(text("training.assumption.kbit"))
    if recipe.autocast and not plan.precision.startswith("amp"):
        found.append(text("training.assumption.autocast", compute=recipe.autocast))
    if plan.transformers_version is None and plan.framework in HUGGING_FACE and plan.loss in ("standard", "fused_ce"):
        found.append(text("training.assumption.era", release=ERAS[stack.era]))
    if plan.checkpointing_reentrant is None and plan.checkpointing != "none" and stack.reentrant:
        found.append(text("training.assumption.reentrant"))
    if adapted(plan) and plan.lora_dropout is None and n.adapter_dropout:
        found.append(text("training.assumption.adapter_dropout"))
    if n.fused_norm:
        found.append(text("training.assumption.kernels"))
    if accumulates(plan) and plan.grad_accum == 1:
        found.append(text("training.assumption.accumulation"))
    before, found = tuple(found), []
    if plan.checkpointing == "other":
        found.append(text("training.assumption.checkpointing"))
    if idle := unused(plan):
        found.append(text("training.assumption.unused", names=", ".join(idle)))
    if plan.fp8_compute:
        found.append(text("training.assumption.fp8", recipe=fp8.recipe(plan)))
    if lengths_vary(plan):
        found.append(text("training.assumption.lengths"))
    if expandable(plan) and plan.allocator == "default":
        found.append(text("training.assumption.expandable"))
    if plan.zero_allgather_bucket is not None:
        found.append(text("training.assumption.allgather"))
    if shape.towers:
        found.append(text("training.assumption.towers"))
    if shape.model_type in UNWRITTEN:
        found.append(text(f"training.assumption.no_{UNWRITTEN[shape.model_type]}"))
    if "parameters" in plan.offload and "optimizer" not in plan.offload:
        found.append(text("training.assumption.host_step"))
    return Assumed(before, tuple(found))


def too_long(shape: ModelShape, plan: TrainingPlan) -> tuple[Text, ...]:
    """A length beyond what the model was made for."""
    learned = shape.positions if shape.kind == "decoder" else 0
    if learned and plan.seq_len > learned:
        return (text("training.assumption.positions", seq_tokens=plan.seq_len, limit_tokens=learned),)
    if shape.max_context is not None and plan.seq_len > shape.max_context:
        return (text("training.assumption.context", seq_tokens=plan.seq_len, limit_tokens=shape.max_context),)
    return ()


def evaluated(plan: TrainingPlan) -> tuple[Text, ...]:
    """What evaluation takes for granted, where it is counted."""
    return () if plan.eval_batch is None else (text("training.assumption.evaluation"),)
