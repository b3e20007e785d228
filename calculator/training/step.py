"""One rank's whole step: what is there before it, and its program."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from math import prod

from calculator.hardware import Gpu
from calculator.model.shape import ModelShape
from calculator.text import Text, Value
from calculator.training import overheads
from calculator.training.assumptions import assumed
from calculator.training.build import Compiled, build_program, compiled, head_form, numerics
from calculator.training.holdings import Weights, bytes_of, statistics_of
from calculator.training.numerics import Numerics
from calculator.training.optimizer import StepMemory, step_memory
from calculator.training.parallel import Part, parts_of, share
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
    expert_memory: StepMemory
    expert_parameters: int
    expert_elements: int


_statics: dict[tuple[int, tuple[object, ...]], tuple[Compiled, Statics]] = {}


def statics(book: Compiled, plan: TrainingPlan, recipe: Recipe, n: Numerics, part: Part) -> Statics:
    """Weights and optimizer memory of a rank that holds a whole part, cached by what they depend on."""
    key = (id(book), (recipe, plan.method, plan.adapter, plan.sharding in FSDP, plan.base_quant, plan.optimizer, n.experts, n.code, n.degrees, part))
    found = _statics.get(key)
    if found is not None and found[0] is book:
        return found[1]
    units, order = book.units_for(n), layers_of(book.shape, part)
    groups = groups_of(book, n, part)
    trained = trained_tensors(book, plan, n, part)
    held = recipe._replace(weight=recipe.held, small=recipe.held, norm=recipe.held) if recipe.held != recipe.weight else recipe
    apart = n.degrees.expert > 1
    sizes = {id(group): bytes_of(group, plan, held) for group in groups}
    experts = {id(g): tuple(w for w in g if w.expert) for g in groups} if apart else {}
    expert_bytes = sum(bytes_of(experts[id(g)], plan, held) for g in groups) if apart else 0
    expert_dims = tuple(w.dims for g in groups for w in experts[id(g)]) if apart and not adapted(plan) else ()
    statistics = {i: statistics_of(units.blocks[i], plan) for i in set(order)}
    item = BYTES[recipe.adapter]
    elements = sum(prod(dims) for dims in trained)
    dense = _less(trained, expert_dims)
    made = Statics(
        trained=trained, trained_elements=elements, largest=max((prod(dims) for dims in trained), default=0),
        memory=step_memory(dense, plan, recipe), expert_memory=step_memory(expert_dims, plan, recipe),
        parameters=sum(sizes[id(g)] for g in groups) - expert_bytes + book.buffers_bytes, expert_parameters=expert_bytes,
        expert_elements=sum(prod(dims) for dims in expert_dims), whole=sum(statistics[i] for i in order),
        adapter_parameters=sum(rounded(int(prod(dims) * item)) for dims in trained) if adapted(plan) else 0,
        units=tuple(unit_bytes(book, plan, recipe, n, part, statistics)),
    )
    if len(_statics) > 128:
        _statics.clear()
    _statics[key] = (book, made)
    return made


def _less(all_: tuple[tuple[int, ...], ...], some: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """``all_`` without ``some``, one for one."""
    gone = Counter(some)
    kept = []
    for dims in all_:
        if gone[dims]:
            gone[dims] -= 1
        else:
            kept.append(dims)
    return tuple(kept)


def layers_of(shape: ModelShape, part: Part) -> tuple[int, ...]:
    """The part's layers as block indices, encoder layers first."""
    return (*(shape.encoder_order if part.embedding else ()), *part.layers)


def groups_of(book: Compiled, n: Numerics, part: Part) -> list[Weights]:
    """The weights of a part, unit by unit. The last stage of a pipeline has its own copy of tied embeddings."""
    units = book.units_for(n)
    groups = [units.embedding, units.extra] if part.embedding else []
    groups += [units.blocks[i] for i in layers_of(book.shape, part)]
    if part.head:
        groups += [units.final, units.head]
        if book.shape.tied and not part.embedding:
            groups.append(units.embedding[:1])
    return groups


def unit_bytes(
    book: Compiled, plan: TrainingPlan, recipe: Recipe, n: Numerics, part: Part, statistics: dict[int, int]
) -> list[UnitBytes]:
    """Embedding, every layer, and final norm with head as sharded units."""
    full, units = not adapted(plan), book.units_for(n)

    def one(weights: Weights, index: int | None = None) -> UnitBytes:
        elements = sum(w.elements for w in weights)
        gathered = bytes_of(weights, plan, recipe) - (statistics[index] if index is not None else 0)
        adapters = sum(prod(dims) for dims in book.adapters(index, n)) if index is not None and not full else 0
        return UnitBytes(gathered=gathered, trained=elements if full else adapters, frozen=not full)

    order = layers_of(book.shape, part)
    layers = {i: one(units.blocks[i], i) for i in set(order)}
    first = one((*units.embedding, *units.extra)) if part.embedding else one(())
    return [first, *(layers[i] for i in order), one((*units.final, *units.head)) if part.head else one(())]


def trained_tensors(book: Compiled, plan: TrainingPlan, n: Numerics, part: Part | None = None) -> tuple[tuple[int, ...], ...]:
    """Dimensions of every trained parameter of a part."""
    part = part or Part(book.shape.order)
    if not adapted(plan):
        return tuple(w.dims for group in groups_of(book, n, part) for w in group)
    found = [dims for i in part.layers for dims in book.adapters(i, n)]
    if plan.adapter is not None and plan.adapter.train_embeddings:
        units = book.units_for(n)
        found += [w.dims for w in (*(units.embedding if part.embedding else ()), *(units.head if part.head else ()))]
    return tuple(found)


def divided(made: Statics, plan: TrainingPlan, by: Division) -> StepMemory:
    """The optimizer's memory on one of the ranks that share its states; experts have their own number of such ranks."""
    memory, experts = made.memory, made.expert_memory
    if plan.base_quant != "none" and plan.sharding in FSDP:
        by = Division()

    def both(name: str) -> int:
        dense, expert = getattr(memory, name), getattr(experts, name)
        return int(-(-dense // by.states) + -(-expert // by.expert_states))

    states, temporary, wide, master = both("states"), both("temporary"), both("wide_gradients"), both("master")
    if plan.sharding in ("fsdp2", "hsdp") and plan.optimizer == "adamw_foreach":
        temporary = 2 * rounded(4 * made.largest // by.states)
    host = both("host_states")
    gradients = memory.gradients + experts.gradients
    if "optimizer" in plan.offload:
        return StepMemory(states=0, temporary=0, host_states=host + states, gradients=gradients)
    return StepMemory(
        states=states, temporary=temporary, master=master, wide_gradients=wide, host_states=host, gradients=gradients)


def before(
    made: Statics, memory: StepMemory, plan: TrainingPlan, recipe: Recipe, gpu: Gpu, by: Division, *, tensors_only: bool
) -> dict[str, int]:
    """Bytes by item that exist before a step begins on one rank."""
    adapters = made.adapter_parameters
    if not (plan.base_quant != "none" and plan.sharding in FSDP):
        adapters = -(-adapters // by.weights)
    weights = -(-(made.parameters - made.whole) // by.weights) + made.whole
    weights += -(-made.expert_parameters // by.expert_weights)
    if "parameters" in plan.offload:
        weights = made.whole
    start = {
        "parameters": weights, "adapter_parameters": adapters,
        "optimizer_states": memory.master if plan.first_step else memory.states,
        "inputs": 2 * rounded(8 * plan.micro_batch * share(plan.seq_len, plan.cp)),
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
    """The step of the worst-loaded rank: of a pipeline, the stage with the highest peak."""
    recipe = resolve(shape, plan)
    n = numerics(shape, plan, recipe, gpu, scratch=not tensors_only)
    steps = [rank_step(shape, plan, gpu, recipe, n, part, tensors_only=tensors_only) for part in parts_of(shape, plan)]
    if len(steps) == 1:
        return steps[0]
    peaks = {one.rank: one.program.moments[one.program.peak_phase].bytes for one in steps}
    return replace(max(steps, key=lambda one: peaks[one.rank]), spread=peaks)


def rank_step(
    shape: ModelShape, plan: TrainingPlan, gpu: Gpu, recipe: Recipe, n: Numerics, part: Part, *, tensors_only: bool
) -> Step:
    """The step of a rank that runs one part of the model."""
    book = compiled(shape)
    made, by = statics(book, plan, recipe, n, part), division(plan)
    memory = divided(made, plan, by)
    start = before(made, memory, plan, recipe, gpu, by, tensors_only=tensors_only)
    edits = edits_of(made.units, plan, recipe)
    buffered = plan.framework == "megatron"
    program = build_program(start, shape, plan, n, head_form(shape, plan), memory, part, edits, buffered=buffered)
    values: dict[str, Value | Text] = {
        "model_params": shape.parameters.total, "trained_params": made.trained_elements, "layers_count": len(part.layers),
        "vocab_count": shape.vocab,
    }
    counts = {"parameters": by.weights, "gradients": by.gradients, "optimizer_states": by.states}
    host = host_memory(made, memory, plan, by)
    return Step(
        program=program, rank=part.name, values=values, end=at_end(start, made, memory, shape, plan, recipe, by),
        host_bytes=host, assumptions=assumed(shape, plan, recipe, n, host), divided={key: count for key, count in counts.items() if count > 1},
    )


def host_memory(made: Statics, memory: StepMemory, plan: TrainingPlan, by: Division) -> int:
    """Bytes in host memory for what a rank offloads: optimizer states with an fp32 gradient and a 16-bit staging copy,
    parameters."""
    host = memory.host_states
    if "optimizer" in plan.offload:
        host += 6 * made.trained_elements // by.states
    if "parameters" in plan.offload:
        host += (made.parameters - made.whole) // by.weights
    return host


def at_end(
    start: dict[str, int], made: Statics, memory: StepMemory, shape: ModelShape, plan: TrainingPlan, recipe: Recipe, by: Division
) -> dict[str, int]:
    """Live tensors after the last step, by item."""
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
    return end
