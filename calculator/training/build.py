"""From a model shape and a plan to the step's program on one rank."""

from __future__ import annotations

from calculator.model.shape import ModelShape
from calculator.training.micro import MicroStep, whole_step
from calculator.training.numerics import Numerics
from calculator.training.optimizer import StepMemory
from calculator.training.parallel import Part
from calculator.training.plan import TrainingPlan
from calculator.training.program import Program, Stage
from calculator.training.sharding import Edits
from calculator.training.stack import accumulates
from calculator.training.stretches import HeadForm
from calculator.training.template import edit


def build_program(
    start: dict[str, int],
    shape: ModelShape,
    plan: TrainingPlan,
    n: Numerics,
    form: HeadForm,
    memory: StepMemory,
    part: Part,
    edits: Edits,
    *,
    buffered: bool = False,
) -> Program:
    """All of a step: micro-batches, then the optimizer. ``buffered``: gradients are added into buffers of their own,
    which ``start`` holds, and leave as soon as they are added."""
    kept = n._replace(grads_exist=True)
    if shape.kind == "encoder_decoder":
        stages = whole_step(shape, plan, kept if plan.gradients_kept else n, form)
        if accumulates(plan):
            stages += whole_step(shape, plan, kept, form)
        gradients = sum(stage.events.net_by_key.get("gradients", 0) for stage in stages)
        return Program(start, (*stages, *optimizer_stages(plan, memory, gradients)))
    first = MicroStep(shape, plan, kept if plan.gradients_kept or buffered else n, form, part, edits)
    accumulating = accumulates(plan)
    steady = bool(first.outputs) and not (plan.first_step or plan.resumed)
    if steady:
        start = start | {key: start.get(key, 0) + size for key, size in first.outputs.items()}
    going = first.forward(previous=steady)
    start = with_waiting(start, going, part.in_flight)
    stages = going + first.backward(None if accumulating and edits.waits_for_last else first.gradients)
    if accumulating:
        again = MicroStep(shape, plan, kept if edits.waits_for_last or buffered else n, form, part, edits)
        stages += again.forward(previous=bool(first.outputs)) + again.backward(first.gradients)
    gradients = sum(stage.events.net_by_key.get("gradients", 0) for stage in stages)
    if plan.gradients_kept:
        start = start | {"gradients": memory.gradients}
    stages += optimizer_stages(plan, memory, 0 if plan.gradients_kept or buffered else gradients)
    return Program(start, tuple(stages))


def with_waiting(start: dict[str, int], forward: list[Stage], in_flight: float) -> dict[str, int]:
    """``start`` with what the other micro-batches of a pipeline keep, each as much as one forward leaves."""
    if in_flight <= 1:
        return start
    kept: dict[str, int] = {}
    for stage in forward:
        for key, net in stage.events.net_by_key.items():
            kept[key] = kept.get(key, 0) + net
    more = {
        key: start.get(key, 0) + int((in_flight - 1) * net) for key, net in kept.items() if net > 0 and key in WAITING
    }
    return start | more


WAITING = ("activations", "checkpoints", "logits_loss", "casts")


def optimizer_stages(plan: TrainingPlan, memory: StepMemory, gradients: int) -> list[Stage]:
    """The step: states at the first one, gradients swapped for fp32 ones under a master copy, temporaries."""
    changes: list[tuple[str, int]] = []
    if plan.first_step:
        changes.append(("optimizer_states", memory.states - memory.master))
    if memory.wide_gradients:
        changes += [("gradients", memory.wide_gradients), ("gradients", -gradients)]
        gradients = memory.wide_gradients
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


def _saved_in(stage: Stage) -> int:
    """The same within a model recorded whole, by the ranges of storages that its blocks made."""
    marks = stage.marks
    ranges = [(marks[key], marks["end" + key[5:]]) for key in marks if key.startswith("block")]
    return sum(
        delta
        for delta, key, storage in zip(stage.events.deltas, stage.events.keys, stage.events.storages, strict=True)
        if key != "casts" and any(low <= storage < high for low, high in ranges)
    )
