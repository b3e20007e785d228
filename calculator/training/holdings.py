"""The weights that a rank holds, unit by unit: what is trained, what is frozen, in which type."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from calculator.model.shape import ModelShape, Tensor
from calculator.training.template import rounded


class Weight(NamedTuple):
    """``elements`` of one parameter; ``linear``: an adapter may sit on it and a quantiser pack it."""

    elements: int
    linear: bool
    small: bool
    expert: bool = False


def _weights(tensors: tuple[Tensor, ...], *, packable: bool) -> tuple[Weight, ...]:
    found = []
    for t in tensors:
        count = 1 if t.fused else t.copies
        each = t.elements // count
        expert = t.component == "experts"
        linear = packable and t.kind in ("linear", "router") and not t.fused
        found += [Weight(each, linear, not linear, expert)] * count
    return tuple(found)


class Units(NamedTuple):
    """Weights by unit of the model."""

    embedding: tuple[Weight, ...]
    blocks: tuple[tuple[Weight, ...], ...]
    final: tuple[Weight, ...]
    head: tuple[Weight, ...]
    extra: tuple[Weight, ...]


@lru_cache(maxsize=64)
def units(shape: ModelShape) -> Units:
    towers = tuple(w for tower in shape.towers for w in _weights(tower.tensors, packable=False))
    return Units(
        embedding=_weights(shape.embedding, packable=False),
        blocks=tuple(_weights(b.tensors, packable=True) for b in shape.blocks),
        final=_weights(shape.final, packable=False),
        head=() if shape.tied else _weights(shape.head, packable=False),
        extra=towers + _weights(shape.projector, packable=False),
    )


def held_bytes(weights: tuple[Weight, ...], item_bytes: float) -> int:
    return sum(rounded(int(w.elements * item_bytes)) for w in weights)
