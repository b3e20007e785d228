"""A sequence of allocations in, the allocator's counters out."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from pydantic import Field

from calculator.base import Frozen
from calculator.training.allocator.blocks import LARGE_SEGMENT_BYTES, Block
from calculator.training.allocator.caching import ENDLESS_BYTES, CachingAllocator
from calculator.training.allocator.expandable import ExpandableAllocator


class AllocatorSettings(Frozen):
    """What ``PYTORCH_ALLOC_CONF`` sets: ``max_split_size_mb`` (here in bytes, None: no limit) and
    ``expandable_segments``."""

    max_split_bytes: int | None = Field(default=None, gt=LARGE_SEGMENT_BYTES)
    expandable_segments: bool = False


class AllocatorStats(Frozen):
    """Counters after a replay, by the names of ``torch.cuda.memory_stats`` where it has them.

    ``reserved_since_trim_bytes`` is the highest reserved total since the cache was last given back (``trims`` times,
    torch's ``num_alloc_retries``): what a monitor shows of a job that runs at the card's limit. ``out_of_memory``
    counts the requests that failed even then, ``first_out_of_memory`` is the position of the first in the sequence.
    """

    allocated_bytes: int
    reserved_bytes: int
    allocated_peak_bytes: int
    reserved_peak_bytes: int
    inactive_split_bytes: int
    reserved_since_trim_bytes: int
    trims: int
    out_of_memory: int
    first_out_of_memory: int | None


def replay(
    events: Iterable[tuple[Hashable, int]],
    *,
    capacity_bytes: int | None = None,
    card_bytes: int | None = None,
    settings: AllocatorSettings | None = None,
    streams: Mapping[Any, int] | None = None,
) -> AllocatorStats:
    """Run a sequence through a fresh allocator.

    An event is (id, bytes): more than 0 bytes allocate the tensor ``id``, 0 or fewer release it. A request that fails
    is counted and the sequence goes on without that tensor; releasing what is not there does nothing.
    ``capacity_bytes`` is what the allocator may reserve: the card's total less everything else on it (None: endless).
    ``card_bytes`` is the card's total; it only bounds an expandable range (None: the capacity). ``streams``: the stream
    of each tensor that does not belong to the main one, 0.
    """
    allocator = make(capacity_bytes, card_bytes, settings or AllocatorSettings())
    allocate, free = allocator.allocate, allocator.free
    stream_of = (streams or {}).get
    taken: dict[Hashable, Block] = {}
    failed = 0
    first: int | None = None
    for position, (ident, size) in enumerate(events):
        if size > 0:
            block = allocate(size, stream_of(ident, 0))
            if block is not None:
                taken[ident] = block
            else:
                failed += 1
                first = position if first is None else first
        elif ident in taken:
            free(taken.pop(ident))
    return AllocatorStats(
        allocated_bytes=allocator.allocated_bytes,
        reserved_bytes=allocator.reserved_bytes,
        allocated_peak_bytes=allocator.allocated_peak_bytes,
        reserved_peak_bytes=allocator.reserved_peak_bytes,
        inactive_split_bytes=allocator.inactive_split_bytes(),
        reserved_since_trim_bytes=allocator.reserved_since_trim_bytes,
        trims=allocator.trims,
        out_of_memory=failed,
        first_out_of_memory=first,
    )


def make(capacity_bytes: int | None, card_bytes: int | None, settings: AllocatorSettings) -> CachingAllocator:
    """The allocator that some settings ask for."""
    capacity = ENDLESS_BYTES if capacity_bytes is None else capacity_bytes
    limit = settings.max_split_bytes or ENDLESS_BYTES
    if settings.expandable_segments:
        return ExpandableAllocator(capacity, limit, card_bytes)
    return CachingAllocator(capacity, limit)
