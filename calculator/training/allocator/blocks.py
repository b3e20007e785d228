"""Blocks of memory and the pools that keep the free ones in order."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Final

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

FREE: Final = 0
TAKEN: Final = 1
UNMAPPED: Final = 2
"""Address space without memory behind it: in expandable segments only."""

ADDRESS_BITS: Final = 60
ADDRESS_MASK: Final = (1 << ADDRESS_BITS) - 1


class Block:
    """A run of bytes inside a segment, between its neighbours ``before`` and ``after`` (None at the segment's ends)."""

    __slots__ = ("address", "after", "before", "pool", "size", "state")

    def __init__(
        self, address: int, size: int, pool: Pool, state: int, before: Block | None = None, after: Block | None = None
    ) -> None:
        self.address = address
        self.size = size
        self.pool = pool
        self.state = state
        self.before = before
        self.after = after

    def cut(self, size: int, state: int) -> Block:
        """Keep the first ``size`` bytes and return the rest as a block of its own, in no list yet."""
        rest = Block(self.address + size, self.size - size, self.pool, state, self, self.after)
        if self.after is not None:
            self.after.before = rest
        self.after = rest
        self.size = size
        return rest

    def merge(self) -> None:
        """Swallow the neighbours of the same state, taking them out of their lists; the block itself is in none."""
        other = self.before
        if other is not None and other.state == self.state:
            self.pool.remove(other)
            self.address = other.address
            self.size += other.size
            self.before = other.before
            if other.before is not None:
                other.before.after = self
        other = self.after
        if other is not None and other.state == self.state:
            self.pool.remove(other)
            self.size += other.size
            self.after = other.after
            if other.after is not None:
                other.after.before = self


class Pool:
    """The blocks of one kind that are not taken.

    Free ones stand in ``order`` by (size, address), the order in which best fit looks at them; both are packed into
    one integer, since this search is the hot spot of a replay. ``unmapped`` holds the addresses of unmapped blocks.
    ``at`` finds either by its address. ``keep_bytes`` is the smallest rest that is split off a block.
    """

    __slots__ = ("at", "keep_bytes", "order", "page_bytes", "unmapped")

    def __init__(self, page_bytes: int, keep_bytes: int) -> None:
        self.page_bytes = page_bytes
        self.keep_bytes = keep_bytes
        self.order: list[int] = []
        self.unmapped: list[int] = []
        self.at: dict[int, Block] = {}

    def add(self, block: Block) -> None:
        if block.state == FREE:
            insort(self.order, block.size << ADDRESS_BITS | block.address)
        else:
            insort(self.unmapped, block.address)
        self.at[block.address] = block

    def remove(self, block: Block) -> None:
        if block.state == FREE:
            order = self.order
            del order[bisect_left(order, block.size << ADDRESS_BITS | block.address)]
        else:
            del self.unmapped[bisect_left(self.unmapped, block.address)]
        del self.at[block.address]

    def free_block(self, index: int) -> Block:
        """The free block at a place of ``order``."""
        return self.at[self.order[index] & ADDRESS_MASK]

    def free_blocks(self) -> list[Block]:
        return [self.at[key & ADDRESS_MASK] for key in self.order]
