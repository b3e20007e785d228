"""What rows of changing length add to reserved memory.

Where rows are not packed, every step has another length. A block of logits that one step freed cannot serve a longer
one, and is cut in two by a shorter one, so the cache grows over the steps far beyond two equal ones. Only the loss's
blocks matter: they are the largest, and they are replayed alone, once with one length and once with many.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from calculator.training.allocator import AllocatorSettings, replay
from calculator.training.plan import TrainingPlan
from calculator.training.program import Program

STEPS = 40
"""The cache has stopped growing by then: a hundred steps reserve hardly more."""
SHORTEST = 0.1
"""Lengths are spread evenly from a tenth of the longest row to the whole of it."""
LEAST_SHARE = 1.5
"""In bytes per token and vocabulary entry: smaller blocks are not the loss's."""
SPREAD_VARYING = 0.12
"""Half of the range where lengths vary: the data's own lengths are not known."""


def lengths_vary(plan: TrainingPlan) -> bool:
    """Whether rows come as long as they are: said so, or the framework does not pack unless told to. ms-swift 2.x has
    no packing, whatever the longest row fills. Only with adapters and without eager attention: an optimizer's
    temporaries or an eager block of scores are as large as the loss's blocks and serve them."""
    if plan.method == "full" or plan.attention == "eager":
        return False
    if plan.packed is False:
        return True
    if plan.framework != "ms_swift":
        return False
    return plan.packed is None or (plan.framework_version or "").startswith("2.")


def loss_blocks(program: Program, tokens: int, vocab: int, room: int, settings: AllocatorSettings) -> int:
    """Bytes that the loss's blocks reserve when their lengths change from step to step; 0 where no logits are made.

    ``tokens`` of the longest step; ``room``: what the allocator may reserve for these blocks.
    """
    sizes = [
        delta for stage in program.stages for delta in stage.events.deltas if abs(delta) >= LEAST_SHARE * vocab * tokens
    ]
    if not sizes or room <= 0:
        return 0
    draw = Random(0).uniform
    lengths = [max(1, int(tokens * draw(SHORTEST, 1.0))) for _ in range(STEPS)]
    events = _events(sizes, tokens, [*lengths, tokens])
    return replay(events, capacity_bytes=room, settings=settings).reserved_since_trim_bytes


def beside_loss(program: Program) -> int:
    """Bytes alive at the loss that are not the loss's own."""
    return sum(size for key, size in program.items["loss"].items() if key not in ("logits_loss", "backward_temporary"))


def _events(sizes: Sequence[int], tokens: int, lengths: Sequence[int]) -> list[tuple[int, int]]:
    """The blocks of each step, scaled to its length; a release frees the newest block of its size."""
    events: list[tuple[int, int]] = []
    for length in lengths:
        alive: list[tuple[int, int]] = []
        for size in sizes:
            if size > 0:
                alive.append((len(events), size))
                events.append((len(events), size * length // tokens))
            else:
                found = next((i for i in range(len(alive) - 1, -1, -1) if alive[i][1] == -size), None)
                if found is not None:
                    events.append((alive.pop(found)[0], 0))
        events += [(ident, 0) for ident, _ in alive]
    return events
