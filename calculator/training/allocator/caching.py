"""The allocator as it is by default: segments asked from the driver one by one."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from calculator.training.allocator.blocks import (
    ADDRESS_BITS,
    ADDRESS_MASK,
    FREE,
    LARGE_SEGMENT_BYTES,
    OWN_SEGMENT_FROM_BYTES,
    OWN_SEGMENT_ROUND_BYTES,
    ROUND_BYTES,
    SMALL_BYTES,
    SMALL_SEGMENT_BYTES,
    TAKEN,
    Block,
    Pool,
)

ENDLESS_BYTES: Final = 1 << 50
"""Stands for a card without end and for a split limit that nothing reaches."""


class CachingAllocator:
    """The allocator of a card on which it may reserve ``capacity_bytes``.

    ``max_split_bytes``: larger blocks are not split, and serve only requests as large. Counters are public:
    ``allocated_bytes`` and ``reserved_bytes``, their peaks, ``reserved_since_trim_bytes`` (the highest reserved total
    since the cache was last given back because the card was full) and ``trims`` (how often that was). Every stream has
    pools of its own: what one freed serves no other.
    """

    keeps_large_rest_bytes = SMALL_BYTES + ROUND_BYTES
    """The smallest rest of a large block that is split off: more than ``kSmallSize``."""

    def __init__(self, capacity_bytes: int = ENDLESS_BYTES, max_split_bytes: int = ENDLESS_BYTES) -> None:
        self.capacity_bytes = capacity_bytes
        self.max_split_bytes = max_split_bytes
        self.split_below_bytes = max_split_bytes
        self.pools: dict[int, tuple[Pool, Pool]] = {}
        self.small, self.large = self._pools_of(0)
        self.allocated_bytes = 0
        self.allocated_peak_bytes = 0
        self.reserved_bytes = 0
        self.reserved_peak_bytes = 0
        self.reserved_since_trim_bytes = 0
        self.trims = 0
        self._next_address = 0
        self._oversize_key = max_split_bytes << ADDRESS_BITS

    def _pools_of(self, stream: int) -> tuple[Pool, Pool]:
        """A stream's pools of small and of large blocks."""
        found = self.pools.get(stream)
        if found is None:
            small = Pool(SMALL_SEGMENT_BYTES, ROUND_BYTES)
            found = self.pools[stream] = small, Pool(LARGE_SEGMENT_BYTES, self.keeps_large_rest_bytes)
        return found

    def _all_pools(self) -> list[Pool]:
        return [pool for small, large in self.pools.values() for pool in (large, small)]

    def allocate(self, size: int, stream: int = 0) -> Block | None:
        """Hand out a block of at least ``size`` bytes (> 0) to a stream; None where the card is full even without the
        cache."""
        size = (size + ROUND_BYTES - 1) & -ROUND_BYTES
        small, large = self._pools_of(stream) if stream else (self.small, self.large)
        pool = small if size <= SMALL_BYTES else large
        block = self._best_fit(pool, size) or self._grow(pool, size)
        if block is None:
            return None
        if block.size - size >= pool.keep_bytes and size < self.split_below_bytes:
            pool.add(block.cut(size, FREE))
        block.state = TAKEN
        self.allocated_bytes += block.size
        if self.allocated_bytes > self.allocated_peak_bytes:
            self.allocated_peak_bytes = self.allocated_bytes
        return block

    def free(self, block: Block) -> None:
        """Take a block back and merge it with its free neighbours."""
        self.allocated_bytes -= block.size
        block.state = FREE
        block.merge()
        block.pool.add(block)

    def empty_cache(self) -> None:
        """Give back every segment that is wholly free."""
        for pool in self._all_pools():
            for block in pool.free_blocks():
                if block.before is None and block.after is None:
                    self._release(block)

    def inactive_split_bytes(self) -> int:
        """Free bytes in segments that are partly taken: what no trim gives back."""
        free = [block for pool in self._all_pools() for block in pool.free_blocks()]
        return sum(block.size for block in free if block.before is not None or block.after is not None)

    def _best_fit(self, pool: Pool, size: int) -> Block | None:
        """The smallest free block that holds ``size`` bytes, the lowest address first, taken out of its list."""
        order = pool.order
        index = bisect_left(order, size << ADDRESS_BITS)
        if index == len(order):
            return None
        key = order[index]
        if key >= self._oversize_key and not self._suits(key >> ADDRESS_BITS, size):
            return None
        del order[index]
        return pool.at.pop(key & ADDRESS_MASK)

    def _suits(self, found: int, size: int) -> bool:
        """Oversize blocks are kept for oversize requests, which may not waste more than a large segment."""
        return self.max_split_bytes <= size and found < size + LARGE_SEGMENT_BYTES

    def _grow(self, pool: Pool, size: int) -> Block | None:
        """A block from new memory, giving back what is cached if the card refuses."""
        block = self._new(pool, size)
        if block is None and self._release_oversize(pool, size):
            block = self._new(pool, size)
        if block is None:
            self.empty_cache()
            self.trims += 1
            self.reserved_since_trim_bytes = self.reserved_bytes
            block = self._new(pool, size)
        return block

    def _new(self, pool: Pool, size: int) -> Block | None:
        """A segment for a request of ``size`` bytes, as one free block in no list; None where the card is full."""
        if size <= SMALL_BYTES:
            segment = SMALL_SEGMENT_BYTES
        elif size < OWN_SEGMENT_FROM_BYTES:
            segment = LARGE_SEGMENT_BYTES
        else:
            segment = (size + OWN_SEGMENT_ROUND_BYTES - 1) & -OWN_SEGMENT_ROUND_BYTES
        if not self._reserve(segment):
            return None
        return Block(self._take_addresses(segment, OWN_SEGMENT_ROUND_BYTES), segment, pool, FREE)

    def _reserve(self, size: int) -> bool:
        """Ask the card for ``size`` bytes."""
        if self.reserved_bytes + size > self.capacity_bytes:
            return False
        self.reserved_bytes += size
        self.reserved_peak_bytes = max(self.reserved_peak_bytes, self.reserved_bytes)
        self.reserved_since_trim_bytes = max(self.reserved_since_trim_bytes, self.reserved_bytes)
        return True

    def _take_addresses(self, size: int, alignment: int) -> int:
        address = -(-self._next_address // alignment) * alignment
        self._next_address = address + size
        return address

    def _release_oversize(self, pool: Pool, size: int) -> bool:
        """Give back cached blocks above the split limit: the smallest that is large enough, or else several from the
        largest down. Says whether that freed enough."""
        limit = self.max_split_bytes
        if limit == ENDLESS_BYTES:
            return False
        wished = max(size, limit)
        index = bisect_left(pool.order, wished << ADDRESS_BITS)
        if index < len(pool.order):
            self._release(pool.free_block(index))
            return True
        released = 0
        while released < wished and pool.order and pool.order[-1] >> ADDRESS_BITS >= limit:
            block = pool.free_block(-1)
            released += block.size
            self._release(block)
        return released >= wished

    def _release(self, segment: Block) -> None:
        segment.pool.remove(segment)
        self.reserved_bytes -= segment.size
