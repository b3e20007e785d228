"""One rank's whole step: what is there before it, and its program."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from calculator.hardware import Gpu
from calculator.model.shape import ModelShape
from calculator.text import Text, Value
from calculator.training import overheads
from calculator.training.build import Compiled, Part, build_program, compiled, head_form, numerics
from calculator.training.holdings import Units, Weights, bytes_of, statistics_of
from calculator.training.numerics import Numerics
from calculator.training.optimizer import StepMemory, step_memory
from calculator.training.plan import TrainingPlan
from calculator.training.program import Program
from calculator.training.recipe import BYTES, Recipe, adapted, resolve
from calculator.training.sharding import (
    FSDP,
    ZERO_BUCKET,
    Division,
    UnitBytes,
    data_parallel,
    division,
    edits_of,
)
from calculator.training.stack import accumulates, outputs_held, stack_of
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
    """What does not change with micro-batch and length. ``units``: weights of embedding, each layer, and final norm with head,
    as they are gathered; ``whole``: bytes of quantisation statistics, which no sharding divides."""

    trained: tuple[tuple[int, ...], ...]
    trained_elements: int
    largest: int
    memory: StepMemory
    parameters: int
    whole: int
    adapter_parameters: int
    units: tuple[UnitBytes, ...]


_statics: dict[tuple[int, tuple[object, ...]], tuple[Compiled, Statics]] = {}


def statics(book: Compiled, plan: TrainingPlan, recipe: Recipe, n: Numerics) -> Statics:
    """Weights and optimizer memory of a rank that holds everything, cached by what they depend on."""
    key = (id(book), (recipe, plan.method, plan.adapter, plan.base_quant, plan.optimizer, n.experts, n.code))
    found = _statics.get(key)
    if found is not None and found[0] is book:
        return found[1]
    trained = trained_tensors(book, plan, n)
    units, order = book.units_for(n), all_layers(book.shape)
    held = recipe._replace(weight=recipe.held, small=recipe.held, norm=recipe.held) if recipe.held != recipe.weight else recipe
    resident = {i: bytes_of(units.blocks[i], plan, held) for i in set(order)}
    parameters = sum(resident[i] for i in order)
    parameters += sum(bytes_of(g, plan, held) for g in (units.embedding, units.final, units.head, units.extra))
    statistics = {i: statistics_of(units.blocks[i], plan) for i in set(order)}
    item = BYTES[recipe.adapter]
    made = Statics(
        trained=trained, trained_elements=sum(prod(dims) for dims in trained),
        largest=max((prod(dims) for dims in trained), default=0), memory=step_memory(trained, plan, recipe),
        parameters=parameters + book.buffers_bytes, whole=sum(statistics[i] for i in order),
        adapter_parameters=sum(rounded(int(prod(dims) * item)) for dims in trained) if adapted(plan) else 0,
        units=tuple(unit_bytes(book, plan, recipe, n, units, statistics)),
    )
    if len(_statics) > 128:
        _statics.clear()
    _statics[key] = (book, made)
    return made


def all_layers(shape: ModelShape) -> tuple[int, ...]:
    """Encoder and decoder layers as block indices."""
    return (*shape.encoder_order, *shape.order)


def unit_bytes(book: Compiled, plan: TrainingPlan, recipe: Recipe, n: Numerics, units: Units, statistics: dict[int, int]
               ) -> list[UnitBytes]:
    """Embedding, every layer, and final norm with head as sharded units."""
    full = not adapted(plan)

    def one(weights: Weights, index: int | None = None) -> UnitBytes:
        elements = sum(w.elements for w in weights)
        gathered = bytes_of(weights, plan, recipe) - (statistics[index] if index is not None else 0)
        adapters = sum(prod(dims) for dims in book.adapters(index, n)) if index is not None and not full else 0
        return UnitBytes(gathered=gathered, trained=elements if full else adapters, frozen=not full)

    layers = {i: one(units.blocks[i], i) for i in set(all_layers(book.shape))}
    return [one((*units.embedding, *units.extra)), *(layers[i] for i in all_layers(book.shape)), one((*units.final, *units.head))]


def trained_tensors(book: Compiled, plan: TrainingPlan, n: Numerics) -> tuple[tuple[int, ...], ...]:
    """Dimensions of every trained parameter."""
    units, shape = book.units_for(n), book.shape
    if not adapted(plan):
        groups = [units.embedding, units.extra, *(units.blocks[i] for i in all_layers(shape)), units.final, units.head]
        return tuple(w.dims for group in groups for w in group)
    found = [dims for i in shape.order for dims in book.adapters(i, n)]
    if plan.adapter is not None and plan.adapter.train_embeddings:
        found += [w.dims for w in (*units.embedding, *units.head)]
    return tuple(found)


def divided(memory: StepMemory, plan: TrainingPlan, by: Division, largest: int) -> StepMemory:
    """The optimizer's memory on one of the ranks that share its states."""
    if plan.base_quant != "none" and plan.sharding in FSDP:
        by = Division()
    states, temporary = -(-memory.states // by.states), -(-memory.temporary // by.states)
    wide = -(-memory.wide_gradients // by.states)
    if plan.sharding in ("fsdp2", "hsdp") and plan.optimizer == "adamw_foreach":
        temporary = 2 * rounded(4 * largest // by.states)
    host = memory.host_states // by.states
    if "optimizer" in plan.offload:
        return memory._replace(states=0, temporary=0, master=0, wide_gradients=0, host_states=host + states)
    return memory._replace(
        states=states, temporary=temporary, master=-(-memory.master // by.states), wide_gradients=wide, host_states=host)


def before(made: Statics, memory: StepMemory, plan: TrainingPlan, recipe: Recipe, gpu: Gpu, by: Division, *, tensors_only: bool
           ) -> dict[str, int]:
    """Bytes by item that exist before a step begins on one rank."""
    adapters = made.adapter_parameters
    if not (plan.base_quant != "none" and plan.sharding in FSDP):
        adapters = -(-adapters // by.weights)
    weights = -(-(made.parameters - made.whole) // by.weights) + made.whole
    if "parameters" in plan.offload:
        weights = made.whole
    start = {
        "parameters": weights, "adapter_parameters": adapters,
        "optimizer_states": memory.master if plan.first_step else memory.states,
        "inputs": 2 * rounded(8 * plan.micro_batch * plan.seq_len),
    }
    start |= gradient_buffers(made, plan, recipe, by)
    if not tensors_only:
        start["kernel_workspace"] = overheads.cublas_workspace_bytes(gpu)
    return start


def gradient_buffers(made: Statics, plan: TrainingPlan, recipe: Recipe, by: Division) -> dict[str, int]:
    """Buffers for gradients that a framework makes before the first step."""
    item, elements = BYTES[recipe.gradient], made.trained_elements
    if plan.framework == "megatron":
        return {"gradients": int(elements * item)}
    if plan.n_gpus == 1 or data_parallel(plan) == 1:
        return {}
    part = rounded(2 * -(-elements // data_parallel(plan)))
    match plan.sharding:
        case "ddp":
            return {"comm_buffers": int(elements * item)}
        case "zero1":
            return {"gradients": part}
        case "zero2" if accumulates(plan) and "optimizer" not in plan.offload:
            return {"gradients": part}
        case "zero3":
            bucket = 2 * min(plan.zero_reduce_bucket or ZERO_BUCKET, elements)
            return {"gradients": 0 if "optimizer" in plan.offload else part, "comm_buffers": bucket}
    return {}


def step(shape: ModelShape, plan: TrainingPlan, gpu: Gpu, *, tensors_only: bool = False) -> Step:
    """The step of the worst-loaded rank."""
    recipe = resolve(shape, plan)
    book = compiled(shape)
    n = numerics(shape, plan, recipe, gpu, scratch=not tensors_only)
    made, by = statics(book, plan, recipe, n), division(plan)
    memory = divided(made.memory, plan, by, made.largest)
    start = before(made, memory, plan, recipe, gpu, by, tensors_only=tensors_only)
    edits = edits_of(made.units, plan, recipe)
    part = Part(shape.order)
    buffered = plan.framework == "megatron"
    program = build_program(start, shape, plan, n, head_form(shape, plan), memory, part, edits, buffered=buffered)
    values: dict[str, Value | Text] = {
        "model_params": shape.parameters.total, "trained_params": made.trained_elements, "layers_count": shape.layers,
        "vocab_count": shape.vocab,
    }
    brief = ("inputs",) if plan.sharding in ("zero3", "ddp") else ("inputs", "comm_buffers")
    end = {key: size for key, size in start.items() if size and key not in brief}
    if outputs_held(plan) and plan.loss == "standard":
        item = 4 if recipe.compute == "fp32" or stack_of(plan).era == "shifted_freed" else 2
        end["logits_loss"] = rounded(item * shape.vocab * plan.micro_batch * plan.seq_len)
    if memory.states:
        end["optimizer_states"] = memory.states
    if plan.sharding in FSDP and by.gradients > 1:
        shards = int(made.trained_elements * BYTES[recipe.gradient])
        end["gradients"] = shards // (1 if plan.base_quant != "none" else by.gradients)
    elif plan.sharding == "zero2":
        end["gradients"] = end.get("gradients", 0) + rounded(2 * made.trained_elements // by.gradients)
    counts = {"parameters": by.weights, "gradients": by.gradients, "optimizer_states": by.states}
    return Step(program=program, values=values, end=end, host_bytes=memory.host_states,
                divided={key: count for key, count in counts.items() if count > 1})
