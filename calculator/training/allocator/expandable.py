"""The allocator with expandable segments: a pool is an address range whose pages are mapped as it grows."""

from __future__ import annotations

from bisect import bisect_left

from calculator.training.allocator.blocks import (
    ADDRESS_BITS,
    ADDRESS_MASK,
    FREE,
    ROUND_BYTES,
    TAKEN,
    UNMAPPED,
    Block,
    Pool,
)
from calculator.training.allocator.caching import ENDLESS_BYTES, CachingAllocator


class ExpandableAllocator(CachingAllocator):
    """``card_bytes`` is the card's whole memory: a range is an eighth longer than that, and when fragments fill it a
    second one is opened. What the allocator may reserve, ``capacity_bytes``, is less by what else is on the card."""

    keeps_large_rest_bytes = ROUND_BYTES

    def __init__(
        self,
        capacity_bytes: int = ENDLESS_BYTES,
        max_split_bytes: int = ENDLESS_BYTES,
        card_bytes: int | None = None,
    ) -> None:
        super().__init__(capacity_bytes, max_split_bytes)
        self.split_below_bytes = ENDLESS_BYTES
        self.card_bytes = capacity_bytes if card_bytes is None else card_bytes

    def empty_cache(self) -> None:
        """Give back every page that is wholly free."""
        for pool in self._all_pools():
            for block in pool.free_blocks():
                self._unmap(block)

    def inactive_split_bytes(self) -> int:
        """PyTorch counts none here, since free pages can always be given back."""
        return 0

    def _release_oversize(self, pool: Pool, size: int) -> bool:
        return False

    def _best_fit(self, pool: Pool, size: int) -> Block | None:
        """As by default, but a block at the mapped end of its range counts with all that it can grow to, so that a
        tighter one goes first."""
        order = pool.order
        index = bisect_left(order, size << ADDRESS_BITS)
        if index == len(order):
            return None
        while index + 1 < len(order) and _reach(pool.free_block(index + 1)) < _reach(pool.free_block(index)):
            index += 1
        key = order[index]
        if key >= self._oversize_key and not self._suits(key >> ADDRESS_BITS, size):
            return None
        del order[index]
        return pool.at.pop(key & ADDRESS_MASK)

    def _new(self, pool: Pool, size: int) -> Block | None:
        """Map pages until ``size`` free bytes stand in a row; what was mapped before the card refused stays free."""
        block = self._room(pool, size)
        if block.state == UNMAPPED and not self._map(block, min(block.size, size)):
            return None
        while block.size < size:
            after = block.after
            assert after is not None, "the row was counted before"
            if not self._map(after, min(size - block.size, after.size)):
                return None
            block = after
        pool.remove(block)
        return block

    def _room(self, pool: Pool, size: int) -> Block:
        """The first block of the lowest row of free and unmapped blocks that holds ``size`` bytes; of a new range where
        there is none."""
        for address in pool.unmapped:
            block = pool.at[address]
            if block.before is not None and block.before.state == FREE:
                block = block.before
            row_bytes = 0
            here: Block | None = block
            while row_bytes < size and here is not None and here.state != TAKEN:
                row_bytes += here.size
                here = here.after
            if row_bytes >= size:
                return block
        page = pool.page_bytes
        range_bytes = -(-(self.card_bytes + self.card_bytes // 8) // page) * page
        block = Block(self._take_addresses(range_bytes, page), range_bytes, pool, UNMAPPED)
        pool.add(block)
        return block

    def _map(self, block: Block, size: int) -> bool:
        """Map the pages of the first ``size`` bytes of an unmapped block; it becomes free and merges."""
        pool = block.pool
        mapped = -(-size // pool.page_bytes) * pool.page_bytes
        if not self._reserve(mapped):
            return False
        pool.remove(block)
        if mapped < block.size:
            pool.add(block.cut(mapped, UNMAPPED))
        block.state = FREE
        block.merge()
        pool.add(block)
        return True

    def _unmap(self, block: Block) -> None:
        """Give back the pages that lie wholly inside a free block; what is left at its ends stays free."""
        pool = block.pool
        start = -(-block.address // pool.page_bytes) * pool.page_bytes
        end = (block.address + block.size) // pool.page_bytes * pool.page_bytes
        if start >= end:
            return
        pool.remove(block)
        if end < block.address + block.size:
            pool.add(block.cut(end - block.address, FREE))
        if start > block.address:
            rest = block.cut(start - block.address, FREE)
            pool.add(block)
            block = rest
        self.reserved_bytes -= block.size
        block.state = UNMAPPED
        block.merge()
        if block.before is not None or block.after is not None:  # else the range is empty and goes back too
            pool.add(block)


def _reach(block: Block) -> int:
    """The size that a free block could have once what follows it is mapped."""
    after = block.after
    return block.size + (after.size if after is not None and after.state == UNMAPPED else 0)
