"""Axes of tables of plans."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2


def around(value: int, steps: Sequence[int], count: int) -> tuple[int, ...]:
    """``count`` of the ``steps`` with ``value`` among them: it takes the place of the nearest one, so that the axis
    stays where it is while the value moves. An axis ends at a value that lies beyond its steps;
    without steps it is the value alone."""
    if not steps:
        return (value,)
    nearest = min(range(len(steps)), key=lambda i: abs(log2(steps[i] / value)))
    axis = sorted({*(step for i, step in enumerate(steps) if i != nearest), value})
    start = min(max(axis.index(value) - count + 1, 0), max(len(axis) - count, 0))
    return tuple(axis[start : start + count])
