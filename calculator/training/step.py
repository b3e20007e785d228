"""One rank's whole step: what is there before it, and its program."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from calculator.hardware import Gpu
from calculator.model.shape import ModelShape
from calculator.text import Text, Value
from calculator.training import overheads
from calculator.training.build import Compiled, compiled, head_form, numerics, single_program
from calculator.training.holdings import bytes_of
from calculator.training.numerics import Numerics
from calculator.training.optimizer import StepMemory, step_memory
from calculator.training.plan import TrainingPlan
from calculator.training.program import Program
from calculator.training.recipe import BYTES, Recipe, adapted, resolve
from calculator.training.template import rounded


@dataclass(frozen=True)
class Step:
    """The program of the worst-loaded rank, named ``rank``; ``spread``: peak bytes by rank; ``divided``: over how many
    GPUs an item is spread; ``values``: the plan's numbers for the items' formulas; ``end``: what is left after the last step."""

    program: Program
    rank: str = "0"
    spread: dict[str, int] = field(default_factory=dict)
    divided: dict[str, int] = field(default_factory=dict)
    values: dict[str, Value | Text] = field(default_factory=dict)
    assumptions: tuple[Text, ...] = ()
    end: dict[str, int] = field(default_factory=dict)
    host_bytes: int = 0


@dataclass(frozen=True)
class Statics:
    """What does not change with micro-batch and length."""

    trained: tuple[tuple[int, ...], ...]
    trained_elements: int
    memory: StepMemory
    parameters: int
    adapter_parameters: int


_statics: dict[tuple[int, tuple[object, ...]], tuple[Compiled, Statics]] = {}


def statics(book: Compiled, plan: TrainingPlan, recipe: Recipe, n: Numerics) -> Statics:
    """Weights and optimizer memory of a rank that holds everything, cached by what they depend on."""
    key = (id(book), (recipe, plan.method, plan.adapter, plan.base_quant, plan.optimizer, n.experts))
    found = _statics.get(key)
    if found is not None and found[0] is book:
        return found[1]
    trained = trained_tensors(book, plan, n)
    units, counts = book.units_of_modules if n.experts == "modules" else book.units, book.shape.block_counts
    parameters = sum(bytes_of(units.blocks[i], plan, recipe) * count for i, count in enumerate(counts) if count)
    parameters += sum(bytes_of(g, plan, recipe) for g in (units.embedding, units.final, units.head, units.extra))
    item = BYTES[recipe.adapter]
    made = Statics(
        trained=trained, trained_elements=sum(prod(dims) for dims in trained), memory=step_memory(trained, plan, recipe),
        parameters=parameters + book.buffers_bytes,
        adapter_parameters=sum(rounded(int(prod(dims) * item)) for dims in trained) if adapted(plan) else 0,
    )
    if len(_statics) > 128:
        _statics.clear()
    _statics[key] = (book, made)
    return made


def trained_tensors(book: Compiled, plan: TrainingPlan, n: Numerics) -> tuple[tuple[int, ...], ...]:
    """Dimensions of every trained parameter."""
    units, shape = book.units_of_modules if n.experts == "modules" else book.units, book.shape
    if not adapted(plan):
        groups = [units.embedding, units.extra, *(units.blocks[i] for i in shape.order), units.final, units.head]
        return tuple(w.dims for group in groups for w in group)
    found = [dims for i in shape.order for dims in book.adapters(i, n)]
    if plan.adapter is not None and plan.adapter.train_embeddings:
        found += [w.dims for w in (*units.embedding, *units.head)]
    return tuple(found)


def before(made: Statics, plan: TrainingPlan, gpu: Gpu, *, tensors_only: bool) -> dict[str, int]:
    """Bytes by item that exist before a step begins, on a rank that holds everything."""
    states = made.memory.master if plan.first_step else made.memory.states
    start = {
        "parameters": made.parameters, "adapter_parameters": made.adapter_parameters, "optimizer_states": states,
        "inputs": 2 * rounded(8 * plan.micro_batch * plan.seq_len),
    }
    if not tensors_only:
        start["kernel_workspace"] = overheads.cublas_workspace_bytes(gpu)
    return start


def step(shape: ModelShape, plan: TrainingPlan, gpu: Gpu, *, tensors_only: bool = False) -> Step:
    """The step of the worst-loaded rank."""
    recipe = resolve(shape, plan)
    book = compiled(shape)
    n = numerics(shape, plan, recipe, gpu, scratch=not tensors_only)
    made = statics(book, plan, recipe, n)
    start = before(made, plan, gpu, tensors_only=tensors_only)
    program = single_program(start, shape, plan, n, head_form(shape, plan), made.memory)
    values: dict[str, Value | Text] = {
        "model_params": shape.parameters.total, "trained_params": made.trained_elements, "layers_count": shape.layers,
        "vocab_count": shape.vocab,
    }
    end = {key: size for key, size in start.items() if size and key != "inputs"}
    if made.memory.states:
        end["optimizer_states"] = made.memory.states
    return Step(program=program, values=values, end=end, host_bytes=made.memory.host_states)
