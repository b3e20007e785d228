"""Bytes before micro-batch and length are known: sums of allocations, each of some rows of some width.

A step's recordings, and everything that is added up from them, are the same for every micro-batch and length; only the
number of rows changes. So they are written as forms once, and a plan fills in its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter

from calculator.training.tape import ONE

BLOCK = 512
"""PyTorch's caching allocator rounds every request up to this (c10/cuda/CUDACachingAllocator, ``kMinBlockSize``)."""


def rounded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


Size = tuple[int, int]
"""(kind of rows as in ``tape``, width in bytes) of one allocation. Of ``ONE`` row, bytes that are not rounded up."""

BYTE: Size = (ONE, 1)
"""What does not depend on micro-batch and length is counted in single bytes."""


class Form:
    """How many allocations of each size, less those released: bytes as soon as the rows are known. Immutable."""

    __slots__ = ("_hash", "_negative", "terms")

    def __init__(self, terms: Mapping[Size, int]) -> None:
        self.terms = {size: count for size, count in terms.items() if count}
        self._hash: int | None = None
        self._negative: Form | None = None

    @staticmethod
    def of(amount: Form | int) -> Form:
        return amount if isinstance(amount, Form) else Form({BYTE: amount})

    @staticmethod
    @lru_cache(4096)
    def allocation(rows: int, width: int) -> Form:
        """One tensor of ``width`` bytes a row."""
        return Form({BYTE: rounded(width)} if rows == ONE else {(rows, width): 1})

    def __add__(self, other: Form | int) -> Form:
        terms = dict(self.terms)
        for size, count in Form.of(other).terms.items():
            terms[size] = terms.get(size, 0) + count
        return Form(terms)

    __radd__ = __add__

    def __mul__(self, times: int) -> Form:
        return Form({size: times * count for size, count in self.terms.items()})

    __rmul__ = __mul__

    def __neg__(self) -> Form:
        if self._negative is None:
            self._negative = self * -1
        return self._negative

    def __sub__(self, other: Form | int) -> Form:
        return self + -other

    def __rsub__(self, other: int) -> Form:
        return -self + other

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Form) and self.terms == other.terms

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self.terms.items()))
        return self._hash

    def __bool__(self) -> bool:
        """Whether it is more or less than nothing for some rows."""
        return bool(self.terms)

    def at(self, rows: Sequence[int]) -> int:
        """Bytes for the row counts of ``tape``, by kind."""
        total = 0
        for (kind, width), count in self.terms.items():
            total += count * (width if kind == ONE else -(-rows[kind] * width // BLOCK) * BLOCK)
        return total


NOTHING = Form({})

Picker = Callable[[Sequence[int]], "tuple[int, ...]"]


def picker(places: Sequence[int]) -> Picker:
    """Reads the values at ``places``, in order, without a loop in Python."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda values: tuple(values[place] for place in places)
