"""What a rank's part of the model holds whatever the micro-batch: weights by unit, trained tensors, optimizer
memory."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import prod

from calculator.model.shape import ModelShape
from calculator.training.compiled import Compiled
from calculator.training.holdings import Weights, bytes_of, statistics_of
from calculator.training.numerics import Numerics
from calculator.training.optimizer import StepMemory, Tables, step_memory, together
from calculator.training.parallel import Part
from calculator.training.plan import TrainingPlan
from calculator.training.recipe import BYTES, TRAINERS, Recipe, adapted, copied
from calculator.training.sharding import FSDP, UnitBytes
from calculator.training.template import rounded


@dataclass(frozen=True)
class Statics:
    """What does not change with micro-batch and length. ``units``: weights of embedding, each layer, and final norm
    with head, as they are gathered; ``whole``: bytes of quantisation statistics, which no sharding divides."""

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
    products: Weights = ()


def statics(book: Compiled, plan: TrainingPlan, recipe: Recipe, n: Numerics, part: Part) -> Statics:
    """Weights and optimizer memory of a rank that holds a whole part, kept by what they depend on."""
    adapter = (plan.method, plan.adapter, plan.base_quant, plan.base_quant_group)
    kinds = (plan.sharding in FSDP, plan.sharding == "zero3", plan.framework in TRAINERS)
    question = ("statics", recipe, adapter, plan.optimizer, kinds, n.experts, n.code, n.degrees, part)
    return book.kept.ask(question, lambda: _statics(book, plan, recipe, n, part))


def _statics(book: Compiled, plan: TrainingPlan, recipe: Recipe, n: Numerics, part: Part) -> Statics:
    units, order = book.units_for(n), layers_of(book.shape, part)
    groups = groups_of(book, n, part)
    trained = trained_tensors(book, plan, n, part)
    held = (
        recipe._replace(weight=recipe.held, small=recipe.held, norm=recipe.held)
        if recipe.held != recipe.weight
        else recipe
    )
    apart = n.degrees.expert > 1
    distinct = {id(group): group for group in groups}  # equal layers are one group
    sizes = {ident: bytes_of(group, plan, held) for ident, group in distinct.items()}
    experts = {ident: tuple(w for w in group if w.expert) for ident, group in distinct.items()} if apart else {}
    expert_sizes = {ident: bytes_of(group, plan, held) for ident, group in experts.items()}
    expert_bytes = sum(expert_sizes[id(g)] for g in groups) if apart else 0
    expert_dims = tuple(w.dims for g in groups for w in experts[id(g)]) if apart and not adapted(plan) else ()
    statistics = {i: statistics_of(units.blocks[i], plan) for i in set(order)}
    item = BYTES[recipe.adapter]
    elements = sum(prod(dims) * count for dims, count in Counter(trained).items())
    copies, as_copied = copied_tensors(book, plan, n, part), copied(recipe, plan)
    dense = _less(trained, expert_dims)[: len(trained) - len(expert_dims) - len(copies)]
    tables = tables_of(book, n)
    return Statics(
        trained=trained,
        trained_elements=elements,
        largest=max((prod(dims) for dims in set(trained)), default=0),
        memory=together(step_memory(dense, plan, recipe, tables), step_memory(copies, plan, as_copied, tables), plan),
        expert_memory=step_memory(expert_dims, plan, recipe, tables),
        parameters=sum(sizes[id(g)] for g in groups) - expert_bytes + book.buffers_bytes,
        expert_parameters=expert_bytes,
        expert_elements=sum(prod(dims) for dims in expert_dims),
        whole=sum(statistics[i] for i in order),
        adapter_parameters=sum(
            count * rounded(int(prod(dims) * each))
            for some, each in ((dense, item), (copies, BYTES[as_copied.adapter]))
            for dims, count in Counter(some).items()
        )
        if adapted(plan)
        else 0,
        units=tuple(unit_bytes(book, plan, recipe, n, part, statistics)),
        products=tuple(w for g in groups for w in g if w.packable),
    )


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


def tables_of(book: Compiled, n: Numerics) -> Tables:
    """Dimensions of embeddings and head."""
    units = book.units_for(n)
    return Tables(
        tuple(w.dims for w in units.embedding if len(w.dims) > 1), tuple(w.dims for w in units.head if len(w.dims) > 1)
    )


def layers_of(shape: ModelShape, part: Part) -> tuple[int, ...]:
    """The part's layers as block indices, encoder layers first."""
    return (*(shape.encoder_order if part.embedding else ()), *part.layers)


def groups_of(book: Compiled, n: Numerics, part: Part) -> list[Weights]:
    """The weights of a part, unit by unit. The last stage of a pipeline has its own copy of tied embeddings."""
    units = book.units_for(n)
    groups = [units.embedding, units.extra] if part.embedding else []
    groups.append(units.shared)  # every part has layers that use them
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
        tensors = tuple(bytes_of((w,), plan, recipe) for w in weights) if plan.sharding == "zero3" else ()
        return UnitBytes(gathered=gathered, trained=elements if full else adapters, frozen=not full, tensors=tensors)

    order = layers_of(book.shape, part)
    layers = {i: one(units.blocks[i], i) for i in set(order)}
    first = one((*(units.embedding if part.embedding else ()), *(units.extra if part.embedding else ()), *units.shared))
    return [first, *(layers[i] for i in order), one((*units.final, *units.head)) if part.head else one(())]


def trained_tensors(
    book: Compiled, plan: TrainingPlan, n: Numerics, part: Part | None = None
) -> tuple[tuple[int, ...], ...]:
    """Dimensions of every trained parameter of a part."""
    part = part or Part(book.shape.order)
    if not adapted(plan):
        return tuple(w.dims for group in groups_of(book, n, part) for w in group)
    found = tuple(dims for i in part.layers for dims in book.adapters(i, n))
    return found + copied_tensors(book, plan, n, part)


def copied_tensors(book: Compiled, plan: TrainingPlan, n: Numerics, part: Part) -> tuple[tuple[int, ...], ...]:
    """Dimensions of embedding and head where they are trained whole beside adapters, as copies of the frozen ones."""
    if not adapted(plan) or plan.adapter is None or not plan.adapter.train_embeddings:
        return ()
    units = book.units_for(n)
    return tuple(w.dims for w in (*(units.embedding if part.embedding else ()), *(units.head if part.head else ())))
