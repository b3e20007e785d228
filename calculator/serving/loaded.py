"""Weights as an engine holds them: stored or chosen format, divided over the ranks, kept for the next bill."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from calculator.model.shape import ModelShape, Tensor
from calculator.model.stored import StoredWeights
from calculator.model.weights import WeightLayout, stored_weights
from calculator.precision import Format, weight_format
from calculator.serving.drafts import method_of
from calculator.serving.plan import ServingPlan
from calculator.serving.split import Split
from calculator.serving.weights import VOCAB_PADDING, RankWeights, Recent, rank_weights

_recent = Recent()


Sizer = Callable[[WeightLayout, Tensor, int | None], int]
"""Bytes of a whole tensor as an engine holds it, from the layout that the checkpoint has."""


def load(
    shape: ModelShape,
    plan: ServingPlan,
    split: Split,
    stored: StoredWeights | None = None,
    *,
    sizer: Sizer | None = None,
    variant: object = None,
    chosen: Format | None = None,
) -> RankWeights:
    """Weight bytes of every stage's rank, as stored or in the plan's format; with ``stored`` scaled, component by
    component, to what the files' headers say. ``sizer`` is the engine's own layout, told apart by ``variant``;
    ``chosen`` the format that it makes of the plan's."""
    key = (
        plan.engine,
        plan.weights,
        split,
        method_of(shape, plan) == "mtp",
        id(stored),
        plan.pp_layer_partition,
        variant,
    )
    if chosen is None and plan.weights is not None:
        chosen = weight_format(plan.weights)

    def make() -> RankWeights:
        return _load(shape, plan, split, stored, sizer, chosen)

    return cast(RankWeights, _recent.get(shape, key, make))


def _load(
    shape: ModelShape,
    plan: ServingPlan,
    split: Split,
    stored: StoredWeights | None,
    sizer: Sizer | None,
    chosen: Format | None,
) -> RankWeights:
    layout = WeightLayout(shape, chosen)
    factors = _factors(shape, stored) if stored is not None and plan.weights is None else {}

    def size(tensor: Tensor, layer: int | None) -> float:
        whole = sizer(layout, tensor, layer) if sizer is not None else layout.tensor_bytes(tensor, layer)
        return whole * factors.get(tensor.component, 1.0)

    return rank_weights(
        shape, split, size, by_layer=layout.by_layer, padding=VOCAB_PADDING, mtp=method_of(shape, plan) == "mtp",
        partition=plan.pp_layer_partition,
    )  # fmt: skip


def _factors(shape: ModelShape, stored: StoredWeights) -> Mapping[str, float]:
    """Stored over computed bytes of each component that both know."""
    computed = stored_weights(shape).by_component
    return {
        name: stored.by_component[name] / size
        for name, size in computed.items()
        if size and stored.by_component.get(name)
    }
