"""PyTorch's CUDA caching allocator as arithmetic: which bytes it reserves for a sequence of allocations.

Rules modelled, for one stream on one device: sizes round up to 512 B; requests up to 1 MiB live in a pool of 2 MiB
segments, larger ones in a pool whose segments are 20 MiB below 10 MiB and else the request rounded up to 2 MiB; a free
block is chosen by (size, address); the rest is split off where it is large enough and otherwise handed out with the
block; free neighbours of one segment merge; when the card refuses, cached segments go back and the request is tried
once more. With expandable segments a pool is one address range whose pages are mapped as it grows.

Sizes are bytes. Nothing is allocated: addresses are numbers that only order the blocks.

Source: PyTorch 2.14 ``c10/cuda/CUDACachingAllocator.cpp`` and its notes under "Memory management" in
https://pytorch.org/docs/stable/notes/cuda.html. Held against that code's own statistics by recorded sequences.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterable
from typing import Final

from pydantic import Field

from calculator.base import Frozen
from calculator.units import MIB

ROUND_BYTES: Final = 512
"""Every request is a multiple of this (``kMinBlockSize``)."""
SMALL_BYTES: Final = MIB
"""Requests up to this come from the small pool, and a large block keeps a rest up to this (``kSmallSize``)."""
SMALL_SEGMENT_BYTES: Final = 2 * MIB
"""``kSmallBuffer``; also the page of the small pool's expandable segments."""
LARGE_SEGMENT_BYTES: Final = 20 * MIB
"""``kLargeBuffer``; also the page of the large pool's expandable segments, and how much larger than wished an oversize
block may be."""
OWN_SEGMENT_FROM_BYTES: Final = 10 * MIB
"""From here a request gets a segment of its own size (``kMinLargeAlloc``) ..."""
OWN_SEGMENT_ROUND_BYTES: Final = 2 * MIB
"""... rounded up to this (``kRoundLarge``)."""

_ADDRESS_BITS: Final = 60
_ADDRESS_MASK: Final = (1 << _ADDRESS_BITS) - 1
_ENDLESS_BYTES: Final = 1 << 50

_FREE, _TAKEN, _UNMAPPED = 0, 1, 2


class AllocatorSettings(Frozen):
    """What ``PYTORCH_ALLOC_CONF`` sets: ``max_split_size_mb`` (in bytes here) and ``expandable_segments``."""

    max_split_bytes: int | None = Field(None, gt=LARGE_SEGMENT_BYTES)
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


class _Block:
    """A run of bytes inside a segment: taken, free, or (expandable segments only) not mapped."""

    __slots__ = ("address", "after", "before", "pool", "size", "state")

    def __init__(self, address: int, size: int, pool: _Pool, state: int, before: _Block | None, after: _Block | None):
        self.address = address
        self.size = size
        self.pool = pool
        self.state = state
        self.before = before
        self.after = after


class _Pool:
    """The free blocks of one kind, ordered by (size, address): the order in which best fit looks at them.

    ``order`` packs both into one integer, since the search is the hot spot of a replay; ``at`` finds the block by its
    address. ``unmapped`` holds the addresses of unmapped blocks.
    """

    __slots__ = ("at", "keep_bytes", "order", "page_bytes", "unmapped")

    def __init__(self, *, small: bool, expandable: bool) -> None:
        self.page_bytes = SMALL_SEGMENT_BYTES if small else LARGE_SEGMENT_BYTES
        self.keep_bytes = ROUND_BYTES if small or expandable else SMALL_BYTES + ROUND_BYTES
        self.order: list[int] = []
        self.at: dict[int, _Block] = {}
        self.unmapped: list[int] = []

    def add(self, block: _Block) -> None:
        insort(self.order, block.size << _ADDRESS_BITS | block.address)
        self.at[block.address] = block

    def discard(self, block: _Block) -> None:
        order = self.order
        del order[bisect_left(order, block.size << _ADDRESS_BITS | block.address)]
        del self.at[block.address]

    def blocks(self) -> list[_Block]:
        return [self.at[key & _ADDRESS_MASK] for key in self.order]


class CachingAllocator:
    """The allocator of one card that lets it reserve ``capacity_bytes`` (None: without end)."""

    def __init__(self, capacity_bytes: int | None = None, settings: AllocatorSettings | None = None) -> None:
        settings = settings or AllocatorSettings()
        self.capacity_bytes = _ENDLESS_BYTES if capacity_bytes is None else capacity_bytes
        self.max_split_bytes = settings.max_split_bytes or _ENDLESS_BYTES
        self.expandable = settings.expandable_segments
        self.small = _Pool(small=True, expandable=self.expandable)
        self.large = _Pool(small=False, expandable=self.expandable)
        self.allocated_bytes = self.allocated_peak_bytes = 0
        self.reserved_bytes = self.reserved_peak_bytes = self.reserved_since_trim_bytes = 0
        self.trims = 0
        self._next_address = 0

    def allocate(self, size: int) -> _Block | None:
        """Hand out a block of at least ``size`` bytes (> 0); None where the card is full even without the cache."""
        size = (size + ROUND_BYTES - 1) // ROUND_BYTES * ROUND_BYTES
        pool = self.small if size <= SMALL_BYTES else self.large
        block = self._best_fit(pool, size) or self._grow(pool, size)
        if block is None:
            return None
        rest = block.size - size
        if rest >= pool.keep_bytes and (size < self.max_split_bytes or self.expandable):
            after = _Block(block.address + size, rest, pool, _FREE, block, block.after)
            if block.after is not None:
                block.after.before = after
            block.after = after
            block.size = size
            pool.add(after)
        block.state = _TAKEN
        self.allocated_bytes += block.size
        if self.allocated_bytes > self.allocated_peak_bytes:
            self.allocated_peak_bytes = self.allocated_bytes
        return block

    def free(self, block: _Block) -> None:
        """Take a block back and merge it with its free neighbours."""
        self.allocated_bytes -= block.size
        block.state = _FREE
        self._merge(block)
        block.pool.add(block)

    def _merge(self, block: _Block) -> None:
        """Swallow the neighbours of the same state; the block itself is in no list yet."""
        pool = block.pool
        state = block.state
        other = block.before
        if other is not None and other.state == state:
            _leave(pool, other)
            block.address = other.address
            block.size += other.size
            block.before = other.before
            if other.before is not None:
                other.before.after = block
        other = block.after
        if other is not None and other.state == state:
            _leave(pool, other)
            block.size += other.size
            block.after = other.after
            if other.after is not None:
                other.after.before = block

    def _best_fit(self, pool: _Pool, size: int) -> _Block | None:
        order = pool.order
        index = bisect_left(order, size << _ADDRESS_BITS)
        if index == len(order):
            return None
        if self.expandable:
            # A block at the mapped end of its range counts with all that it can grow to: a tighter one goes first.
            while index + 1 < len(order) and _reach(pool, order[index + 1]) < _reach(pool, order[index]):
                index += 1
        found = order[index] >> _ADDRESS_BITS
        if size < self.max_split_bytes:
            if found >= self.max_split_bytes:
                return None
        elif found >= size + LARGE_SEGMENT_BYTES:
            return None
        return pool.at.pop(order.pop(index) & _ADDRESS_MASK)

    def _grow(self, pool: _Pool, size: int) -> _Block | None:
        """A block from new memory, after giving back what is cached if the card refuses."""
        more = self._map_more if self.expandable else self._new_segment
        block = more(pool, size)
        if block is None and self._release_oversize(pool, size):
            block = more(pool, size)
        if block is None:
            self.trim()
            self.trims += 1
            self.reserved_since_trim_bytes = self.reserved_bytes
            block = more(pool, size)
        return block

    def _new_segment(self, pool: _Pool, size: int) -> _Block | None:
        if size <= SMALL_BYTES:
            segment = SMALL_SEGMENT_BYTES
        elif size < OWN_SEGMENT_FROM_BYTES:
            segment = LARGE_SEGMENT_BYTES
        else:
            segment = -(-size // OWN_SEGMENT_ROUND_BYTES) * OWN_SEGMENT_ROUND_BYTES
        if not self._reserve(segment):
            return None
        return _Block(self._take_addresses(segment), segment, pool, _FREE, None, None)

    def _reserve(self, size: int) -> bool:
        """Ask the card for ``size`` bytes."""
        if self.reserved_bytes + size > self.capacity_bytes:
            return False
        self.reserved_bytes += size
        self.reserved_peak_bytes = max(self.reserved_peak_bytes, self.reserved_bytes)
        self.reserved_since_trim_bytes = max(self.reserved_since_trim_bytes, self.reserved_bytes)
        return True

    def _take_addresses(self, size: int, page: int = OWN_SEGMENT_ROUND_BYTES) -> int:
        address = -(-self._next_address // page) * page
        self._next_address = address + size
        return address

    def _release_oversize(self, pool: _Pool, size: int) -> bool:
        """Give back cached blocks above the split limit, which only requests above it could use; the smallest that is
        large enough, or several from the largest down. Says whether that freed enough."""
        limit = self.max_split_bytes
        if limit == _ENDLESS_BYTES or self.expandable:
            return False
        wished = max(size, limit)
        index = bisect_left(pool.order, wished << _ADDRESS_BITS)
        if index < len(pool.order):
            self._release_segment(pool.at[pool.order[index] & _ADDRESS_MASK])
            return True
        released = 0
        while released < wished and pool.order and pool.order[-1] >> _ADDRESS_BITS >= limit:
            block = pool.at[pool.order[-1] & _ADDRESS_MASK]
            released += block.size
            self._release_segment(block)
        return released >= wished

    def _release_segment(self, block: _Block) -> None:
        block.pool.discard(block)
        self.reserved_bytes -= block.size

    def trim(self) -> None:
        """Give back every segment or page that is wholly free, as ``torch.cuda.empty_cache`` does."""
        for pool in (self.large, self.small):
            for block in pool.blocks():
                if self.expandable:
                    self._unmap(block)
                elif block.before is None and block.after is None:
                    self._release_segment(block)

    # Expandable segments: a pool is an address range, mapped page by page.

    def _map_more(self, pool: _Pool, size: int) -> _Block | None:
        """Map pages until a free block of ``size`` bytes stands at one place of the range.

        Pages that were mapped before the card refused stay mapped, as a free block.
        """
        block = self._room(pool, size)
        if block.state == _UNMAPPED and not self._map(block, min(block.size, size)):
            return None
        while block.size < size:
            after = block.after
            assert after is not None  # _room has counted it
            if not self._map(after, min(size - block.size, after.size)):
                return None
            block = after
        pool.discard(block)
        return block

    def _room(self, pool: _Pool, size: int) -> _Block:
        """The first place of the range with ``size`` bytes free or unmapped in a row, the free block before included;
        a new range where there is none."""
        for address in pool.unmapped:
            block = pool.at[address]
            if block.before is not None and block.before.state == _FREE:
                block = block.before
            bytes_in_a_row = 0
            here: _Block | None = block
            while bytes_in_a_row < size and here is not None and here.state != _TAKEN:
                bytes_in_a_row += here.size
                here = here.after
            if bytes_in_a_row >= size:
                return block
        # As long as the card and an eighth more.
        range_bytes = -(-(self.capacity_bytes * 9 // 8) // pool.page_bytes) * pool.page_bytes
        block = _Block(self._take_addresses(range_bytes, pool.page_bytes), range_bytes, pool, _UNMAPPED, None, None)
        _enter_unmapped(pool, block)
        return block

    def _map(self, block: _Block, size: int) -> bool:
        """Map the pages that hold the first ``size`` bytes of an unmapped block; it becomes free and merges."""
        pool = block.pool
        mapped = -(-size // pool.page_bytes) * pool.page_bytes
        if not self._reserve(mapped):
            return False
        _leave(pool, block)
        if mapped < block.size:
            rest = _Block(block.address + mapped, block.size - mapped, pool, _UNMAPPED, block, block.after)
            if block.after is not None:
                block.after.before = rest
            block.after = rest
            block.size = mapped
            _enter_unmapped(pool, rest)
        block.state = _FREE
        self._merge(block)
        pool.add(block)
        return True

    def _unmap(self, block: _Block) -> None:
        """Give back the pages that lie wholly inside a free block; what is left at its ends stays free."""
        pool = block.pool
        page = pool.page_bytes
        start = -(-block.address // page) * page
        end = (block.address + block.size) // page * page
        if start >= end:
            return
        pool.discard(block)
        if start > block.address:
            before = _Block(block.address, start - block.address, pool, _FREE, block.before, block)
            if block.before is not None:
                block.before.after = before
            block.before = before
            pool.add(before)
        if end < block.address + block.size:
            after = _Block(end, block.address + block.size - end, pool, _FREE, block, block.after)
            if block.after is not None:
                block.after.before = after
            block.after = after
            pool.add(after)
        self.reserved_bytes -= end - start
        block.address, block.size, block.state = start, end - start, _UNMAPPED
        self._merge(block)
        if block.before is not None or block.after is not None:
            _enter_unmapped(pool, block)

    def inactive_split_bytes(self) -> int:
        """Free bytes in segments that are partly taken, which no trim gives back; expandable ones are not counted."""
        if self.expandable:
            return 0
        free = self.small.blocks() + self.large.blocks()
        return sum(block.size for block in free if block.before is not None or block.after is not None)

    def stats(self, out_of_memory: int = 0, first_out_of_memory: int | None = None) -> AllocatorStats:
        return AllocatorStats(
            allocated_bytes=self.allocated_bytes,
            reserved_bytes=self.reserved_bytes,
            allocated_peak_bytes=self.allocated_peak_bytes,
            reserved_peak_bytes=self.reserved_peak_bytes,
            inactive_split_bytes=self.inactive_split_bytes(),
            reserved_since_trim_bytes=self.reserved_since_trim_bytes,
            trims=self.trims,
            out_of_memory=out_of_memory,
            first_out_of_memory=first_out_of_memory,
        )


def _reach(pool: _Pool, key: int) -> int:
    """The size that a free block could have once what follows it is mapped."""
    block = pool.at[key & _ADDRESS_MASK]
    after = block.after
    return block.size + (after.size if after is not None and after.state == _UNMAPPED else 0)


def _enter_unmapped(pool: _Pool, block: _Block) -> None:
    insort(pool.unmapped, block.address)
    pool.at[block.address] = block


def _leave(pool: _Pool, block: _Block) -> None:
    """Take a free or unmapped block out of its list."""
    if block.state == _FREE:
        pool.discard(block)
    else:
        pool.unmapped.remove(block.address)
        del pool.at[block.address]


def replay(
    events: Iterable[tuple[Hashable, int]],
    *,
    capacity_bytes: int | None = None,
    settings: AllocatorSettings | None = None,
) -> AllocatorStats:
    """Run a sequence through a fresh allocator.

    An event is (id, bytes): more than 0 bytes allocate the tensor ``id``, 0 or fewer release it. A request that fails
    is counted and the sequence goes on without that tensor; releasing what is not there does nothing.
    ``capacity_bytes`` is what the allocator may reserve: the card's total less everything else on it (None: endless).
    """
    allocator = CachingAllocator(capacity_bytes, settings)
    allocate, free = allocator.allocate, allocator.free
    taken: dict[Hashable, _Block] = {}
    failed = 0
    first: int | None = None
    for position, (ident, size) in enumerate(events):
        if size > 0:
            block = allocate(size)
            if block is not None:
                taken[ident] = block
            else:
                failed += 1
                first = position if first is None else first
        elif ident in taken:
            free(taken.pop(ident))
    return allocator.stats(failed, first)
