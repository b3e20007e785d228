"""Evaluation between steps: forward without a graph, and the predictions that wait on the card.

The layers are the step's own, recorded with nothing saved: dropout is off, checkpointing has nothing to drop, a loss in
pieces gives way to whole logits (Liger's layers return them outside training). transformers' Trainer gathers every
batch's logits from all ranks and joins them to those before, for which old, new and joined exist at once, until they
go to the host every ``eval_accumulation_steps`` batches; without metrics of one's own it drops them.

Source: transformers 5.24 ``trainer.py`` evaluation_loop and prediction_step, ``trainer_pt_utils.py`` nested_concat.
"""

from __future__ import annotations

from collections.abc import Iterable

from calculator.hardware import Gpu
from calculator.model.shape import ModelShape
from calculator.training.compiled import compiled
from calculator.training.forms import NOTHING, Form
from calculator.training.micro import MicroStep, forward_of
from calculator.training.parallel import parts_of
from calculator.training.pattern import Pattern, Stage
from calculator.training.plan import TrainingPlan
from calculator.training.program import Program, Walk
from calculator.training.recipe import BYTES, Recipe, resolve
from calculator.training.settings import head_form, numerics, outputs_fp32, regime, row_counts
from calculator.training.sharding import FSDP, Edits, data_parallel, division, edits_of
from calculator.training.stack import stack_of
from calculator.training.statics import statics
from calculator.training.step import before, divided, structure
from calculator.training.tape import TOKENS
from calculator.training.template import edit

EVALUATION = "evaluation"


def evaluation(shape: ModelShape, plan: TrainingPlan, gpu: Gpu, *, tensors_only: bool = False) -> Program:
    """The program of one rank's evaluation, a single phase. The plan has an ``eval_batch``."""
    at = during(plan)
    pattern = compiled(shape).steps.ask(
        (EVALUATION, regime(shape, at), structure(at), plan.eval_accumulation_steps, gpu.vendor,
         gpu.compute_capability, tensors_only),
        lambda: evaluation_pattern(shape, at, gpu, plan.eval_accumulation_steps or 0, tensors_only=tensors_only),
    )  # fmt: skip
    return Program(pattern, Walk(pattern, row_counts(shape, at)))


def during(plan: TrainingPlan) -> TrainingPlan:
    """The plan as it is while the model is evaluated: its own batch, nothing of backward."""
    changes = {
        "micro_batch": plan.eval_batch,
        "grad_accum": 1,
        "checkpointing": "none",
        "loss": "fused_ce" if plan.loss == "fused_ce" else "standard",
        "offload": tuple(each for each in plan.offload if each != "activations"),
        "outputs_held": True,
        "first_step": False,
        "gradients_kept": False,
        "eval_batch": None,
        "eval_accumulation_steps": None,
    }
    return plan.model_copy(update=changes)


def evaluation_pattern(
    shape: ModelShape, plan: TrainingPlan, gpu: Gpu, accumulated: int, *, tensors_only: bool
) -> Pattern:
    """Forward of the last batch before predictions leave the card; ``accumulated``: batches that wait by then, 0 where
    predictions are not kept."""
    recipe, part = resolve(shape, plan), parts_of(shape, plan)[0]
    n = numerics(shape, plan, recipe, gpu, scratch=not tensors_only)
    made, by = statics(compiled(shape), plan, recipe, n, part), division(plan)
    start = before(made, divided(made, plan, by), plan, recipe, gpu, by, tensors_only=tensors_only)
    quiet = n._replace(evaluating=True, dropout=0.0, adapter_dropout=0.0)
    form = head_form(shape, plan)
    if shape.kind == "encoder_decoder":
        forward = forward_of(compiled(shape).whole(quiet, form, ""))
    else:
        gathers = plan.sharding == "zero3" or plan.sharding in FSDP
        edits = edits_of(made.units, plan, recipe) if gathers else Edits()
        forward = MicroStep(shape, plan, quiet, form, part, edits).forward()
        ended = edits.end()
        forward += [Stage("forward", "release", 0, ended)] if ended is not None else []
    batch = predictions(shape, plan, recipe)
    waiting = [("predictions", (accumulated - 1) * batch)] if accumulated > 1 else []
    stages = [Stage(EVALUATION, "evaluation", 0, edit(*waiting))] if waiting else []
    stages += [stage._replace(phase=EVALUATION) for stage in forward]
    left = net(forward)
    left.pop("logits_loss", None)
    if left:
        stages.append(Stage(EVALUATION, "outputs", 0, edit(*((key, -size) for key, size in left.items()))))
    joined: list[tuple[str, Form | int]] = []
    if accumulated and data_parallel(plan) > 1:
        joined.append(("predictions", batch))
    if accumulated > 1:
        joined.append(("predictions", accumulated * batch))
    if joined:
        stages.append(Stage(EVALUATION, "predictions", 0, edit(*joined)))
    stages.append(Stage(EVALUATION, "end", 0, edit(*((key, -size) for key, size in net(stages).items()))))
    return Pattern(start, tuple(stages), {})


def predictions(shape: ModelShape, plan: TrainingPlan, recipe: Recipe) -> Form:
    """Logits and labels of one batch, gathered from all ranks."""
    wide = outputs_fp32(plan) or recipe.compute == "fp32" or stack_of(plan).era == "shifted_freed"
    item = 4 if wide else int(BYTES[recipe.compute])
    return data_parallel(plan) * (Form.allocation(TOKENS, item * shape.vocab) + Form.allocation(TOKENS, 8))


def net(stages: Iterable[Stage]) -> dict[str, Form]:
    """What stages leave, by item."""
    found: dict[str, Form] = {}
    for stage in stages:
        for key, size in stage.events.net_by_key.items():
            found[key] = found.get(key, NOTHING) + size
    return {key: size for key, size in found.items() if size}
