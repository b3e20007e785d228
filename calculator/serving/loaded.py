"""Weights as an engine holds them: stored or chosen format, divided over the ranks, kept for the next bill."""

from __future__ import annotations

from typing import cast

from calculator.model.shape import ModelShape, Tensor
from calculator.serving.plan import ServingPlan
from calculator.serving.split import Split
from calculator.serving.weights import VOCAB_PADDING, RankWeights, Recent, rank_weights

_recent = Recent()


def load(shape: ModelShape, plan: ServingPlan, split: Split) -> RankWeights:
    """Weight bytes of every stage's rank."""
    key = (plan.engine, plan.weights, split)
    return cast(RankWeights, _recent.get(shape, key, lambda: _load(shape, plan, split)))


def _load(shape: ModelShape, plan: ServingPlan, split: Split) -> RankWeights:
    def size(tensor: Tensor, layer: int | None) -> float:
        return 2.0 * tensor.elements

    return rank_weights(shape, split, size, by_layer=False, padding=VOCAB_PADDING)
