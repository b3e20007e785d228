"""What rows of changing length add to reserved memory.

Where rows are not packed, every step has another length. A block that one step freed cannot serve a longer one, and is
cut in two by a shorter one, so the cache grows over the steps far beyond two equal ones: most of all the loss's blocks,
which are the largest. Many steps are replayed, each with a length of its own.

The sizes of a step's tensors are polynomials of its length, of second degree at most (scores of attention), so three
expansions say what every other length needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from calculator.training.allocator import AllocatorSettings, AllocatorStats, replay
from calculator.training.plan import TrainingPlan
from calculator.training.sequence import Event, Expansion

BATCHES = 100
"""Of a run: growth slows down with every longest row so far, and ten times as many batches bring two more of those."""
REPLAYED = 8
"""Of the batches that are shorter than one before, which find its blocks, only every so many-th is replayed."""
ORDERS = 7
"""How often rows are drawn anew: the value is the median, the range goes from the lowest to the highest but one."""
SHORTEST = 0.1
"""Lengths go from a tenth of the longest row to the whole of it, as many between a tenth and a third as above: in most
data short rows are more common than long ones."""
LEAST_BYTES = 1 << 20
"""Smaller tensors have a pool of their own, which is small."""

Size = tuple[float, float, float]


def lengths_vary(plan: TrainingPlan) -> bool:
    """Whether rows come as long as they are: said so, or the framework does not pack unless told to. ms-swift 2.x has
    no packing, whatever the longest row fills."""
    if plan.packed is False:
        return True
    if plan.framework != "ms_swift":
        return False
    return plan.packed is None or (plan.framework_version or "").startswith("2.")


def drawn(longest: int, rows: int, seed: int) -> list[int]:
    """Lengths of the batches that are replayed, each of ``rows`` rows and padded to the longest among them; the last
    has the longest of all."""
    draw = Random(seed).random
    found: list[int] = []
    so_far = 0
    for number in range(BATCHES):
        length = max(1, int(longest * SHORTEST ** min(draw() for _ in range(rows))))
        if length > so_far or number % REPLAYED == 0:
            found.append(length)
        so_far = max(so_far, length)
    return [*found, longest]


def replayed(
    expanded: Callable[[int], Expansion],
    longest: int,
    rows: int,
    *,
    capacity_bytes: int,
    settings: AllocatorSettings,
) -> list[AllocatorStats]:
    """The allocator's counters after many steps, once for each order of the rows, from the lowest reserved total up.

    ``expanded``: the events of a first and a steady step of a length. Empty where the
    events do not correspond, so that nothing can be said of other lengths.
    """
    lengths = (longest, max(1, longest // 2), max(1, longest // 4))
    if len(set(lengths)) < 3:
        return []
    known = [expanded(length) for length in lengths]
    steps = [fitted([one.steps[index] for one in known], lengths) for index in (0, 1)]
    if not steps[0] or not steps[1]:
        return []
    found = [
        replay(
            [*known[0].before, *many(steps, drawn(longest, rows, seed))],
            capacity_bytes=capacity_bytes,
            settings=settings,
            streams=known[0].streams,
        )
        for seed in range(ORDERS)
    ]
    return sorted(found, key=lambda stats: stats.reserved_since_trim_bytes)


def fitted(events: Sequence[Sequence[Event]], lengths: Sequence[int]) -> list[tuple[int, Size | None]]:
    """A step's events with sizes as polynomials of the length (None releases), from three lengths; empty where the
    three do not allocate at the same places. Small tensors are left out."""
    made = [[ident if size > 0 else None for ident, size in one] for one in events]
    if made[0] != made[1] or made[0] != made[2]:
        return []
    x, y, z = lengths
    left_out: set[int] = set()
    found: list[tuple[int, Size | None]] = []
    for (ident, a), (_, b), (_, c) in zip(*events, strict=True):
        if a <= 0:
            if ident not in left_out:
                found.append((ident, None))
        elif a <= LEAST_BYTES:
            left_out.add(ident)
        else:
            second = ((a - b) / (x - y) - (b - c) / (y - z)) / (x - z)
            first = (a - b) / (x - y) - second * (x + y)
            found.append((ident, (a - first * x - second * x * x, first, second)))
    return found


def many(steps: Sequence[Sequence[tuple[int, Size | None]]], lengths: Sequence[int]) -> list[Event]:
    """The events of a first and then steady steps of these lengths. What a step leaves behind stays if the first step
    made it (optimizer states), and else ends with its step."""
    events: list[Event] = []
    for number, length in enumerate(lengths):
        alive: dict[int, None] = {}
        for ident, size in steps[min(number, 1)]:
            if size is None:
                alive.pop(ident, None)
                events.append((ident, 0))
                continue
            alive[ident] = None
            constant, first, second = size
            events.append((ident, max(512, int(constant + length * (first + length * second)))))
        if number:
            events += [(ident, 0) for ident in alive]
    return events
