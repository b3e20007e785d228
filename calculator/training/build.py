"""From a model shape and a plan to the step's program on one rank."""

from __future__ import annotations

from collections import Counter

from calculator.model.shape import ModelShape
from calculator.training.forms import NOTHING, Form
from calculator.training.micro import MicroStep, whole_step
from calculator.training.numerics import Numerics
from calculator.training.optimizer import StepMemory
from calculator.training.parallel import Part
from calculator.training.pattern import Pattern, Stage
from calculator.training.plan import TrainingPlan
from calculator.training.program import Program
from calculator.training.program import Stage as Filled
from calculator.training.sharding import Edits
from calculator.training.stack import accumulates
from calculator.training.stretches import HeadForm
from calculator.training.template import edit


def build_pattern(
    start: dict[str, Form],
    shape: ModelShape,
    plan: TrainingPlan,
    n: Numerics,
    form: HeadForm,
    memory: StepMemory,
    part: Part,
    edits: Edits,
    *,
    buffered: bool = False,
) -> Pattern:
    """All of a step: micro-batches, then the optimizer. ``buffered``: gradients are added into buffers of their own,
    which ``start`` holds, and leave as soon as they are added."""
    kept = n._replace(grads_exist=True)
    if shape.kind == "encoder_decoder":
        stages = whole_step(shape, plan, kept if plan.gradients_kept else n, form)
        if accumulates(plan):
            stages += whole_step(shape, plan, kept, form)
        return Pattern(start, (*stages, *optimizer_stages(plan, memory, gradients_of(stages))), {})
    first = MicroStep(shape, plan, kept if plan.gradients_kept or buffered else n, form, part, edits)
    accumulating = accumulates(plan)
    steady = bool(first.outputs) and not (plan.first_step or plan.resumed)
    if steady:
        start = start | {key: start.get(key, NOTHING) + size for key, size in first.outputs.items()}
    going = first.forward(previous=steady)
    stages = going + first.backward(None if accumulating and edits.waits_for_last else first.gradients)
    if accumulating:
        again = MicroStep(shape, plan, kept if edits.waits_for_last or buffered else n, form, part, edits)
        stages += again.forward(previous=bool(first.outputs)) + again.backward(first.gradients)
    if plan.gradients_kept:
        start = start | {"gradients": Form.of(memory.gradients)}
    stages += optimizer_stages(plan, memory, NOTHING if plan.gradients_kept or buffered else gradients_of(stages))
    return Pattern(start, tuple(stages), waiting(going))


def waiting(forward: list[Stage]) -> dict[str, Form]:
    """What one forward leaves, by item: so much does every other micro-batch in flight keep."""
    kept: dict[str, Form] = {}
    for stretch, count in Counter(stage.events for stage in forward).items():
        for key, net in stretch.net_by_key.items():
            if key in WAITING:
                kept[key] = kept.get(key, NOTHING) + count * net
    return kept


WAITING = ("activations", "checkpoints", "logits_loss", "casts")


def gradients_of(stages: list[Stage]) -> Form:
    """What a step's stages leave of gradients."""
    counts = Counter(stage.events for stage in stages)
    return sum((count * stretch.net_by_key.get("gradients", NOTHING) for stretch, count in counts.items()), NOTHING)


def optimizer_stages(plan: TrainingPlan, memory: StepMemory, gradients: Form) -> list[Stage]:
    """The step: states at the first one, gradients swapped for fp32 ones under a master copy, temporaries."""
    changes: list[tuple[str, Form | int]] = []
    if plan.first_step:
        changes.append(("optimizer_states", memory.states - memory.master))
    if memory.wide_gradients:
        changes += [("gradients", memory.wide_gradients), ("gradients", -gradients)]
        gradients = Form.of(memory.wide_gradients)
    if memory.temporary:
        changes += [("optimizer_temporary", memory.temporary), ("optimizer_temporary", -memory.temporary)]
    changes.append(("gradients", -gradients))
    return [Stage("optimizer", "step", -1, edit(*changes))]


def saved_layers(program: Program) -> int:
    """Bytes that the layers' own tensors hold at the end of forward, weight casts left out."""
    total = 0
    for stage in program.stages:
        if stage.phase == "loss":
            break
        if stage.name == "layers":
            total += _saved_in(stage)
        if stage.name not in ("layer", "final_norm"):
            continue
        first = stage.name == "layer" and stage.unit == 1
        for delta, key, storage in zip(stage.events.deltas, stage.events.keys, stage.events.storages, strict=True):
            if (stage.name == "layer" and key != "casts" and not (first and storage == 0)) or (
                stage.name == "final_norm" and storage == 0
            ):
                total += delta
    return total


def _saved_in(stage: Filled) -> int:
    """The same within a model recorded whole, by the ranges of storages that its blocks made."""
    marks = stage.marks
    ranges = [(marks[key], marks["end" + key[5:]]) for key in marks if key.startswith("block")]
    return sum(
        delta
        for delta, key, storage in zip(stage.events.deltas, stage.events.keys, stage.events.storages, strict=True)
        if key != "casts" and any(low <= storage < high for low, high in ranges)
    )
