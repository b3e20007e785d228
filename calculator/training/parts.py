"""Sizes of the single tensors behind an item's sum, in the order in which a training script makes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from calculator.hardware import Gpu
from calculator.model.shape import ModelShape
from calculator.training.compiled import compiled
from calculator.training.holdings import Weights, bytes_of
from calculator.training.optimizer import step_memory
from calculator.training.plan import TrainingPlan
from calculator.training.recipe import BYTES, adapted, resolve
from calculator.training.settings import numerics
from calculator.training.statics import tables_of, trained_tensors
from calculator.training.template import rounded


def parts(shape: ModelShape, plan: TrainingPlan, gpu: Gpu) -> Mapping[str, Sequence[int]]:
    """Bytes of every tensor of the items that a step's program keeps as sums, on a rank that holds everything.

    Weights in the model's order; states and step temporaries parameter by parameter. What a sharded rank holds has the
    same proportions.
    """
    recipe = resolve(shape, plan)
    n = numerics(shape, plan, recipe, gpu, scratch=True)
    book = compiled(shape)
    units, order = book.units_for(n), (*shape.encoder_order, *shape.order)
    held = (
        recipe._replace(weight=recipe.held, small=recipe.held, norm=recipe.held)
        if recipe.held != recipe.weight
        else recipe
    )

    def each(weights: Weights) -> list[int]:
        return [bytes_of((weight,), plan, held) for weight in weights]

    layers = {index: each(units.blocks[index]) for index in set(order)}
    weights = each(units.embedding) + [size for index in order for size in layers[index]]
    weights += each(units.final) + each(units.head) + each(units.extra) + each(units.shared)
    trained = trained_tensors(book, plan, n)
    found = {"parameters": weights, "gradients": [rounded(int(prod(t) * BYTES[recipe.gradient])) for t in trained]}
    if adapted(plan):
        found["adapter_parameters"] = [rounded(int(prod(t) * BYTES[recipe.adapter])) for t in trained]
    if plan.optimizer != "none":
        tables = tables_of(book, n)
        alone = {dims: step_memory((dims,), plan, recipe, tables) for dims in set(trained)}
        found["optimizer_states"] = [size for t in trained for size in _halves(alone[t].states)]
        if plan.optimizer == "adamw_foreach":
            found["optimizer_temporary"] = [alone[t].temporary for t in trained]
    return found


def _halves(states: int) -> tuple[int, int]:
    """The two moments of one parameter, which are most of its states."""
    half = states // 1024 * 512
    return half, states - half
