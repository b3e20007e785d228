"""Bytes before micro-batch and length are known: sums of allocations, each of some rows of some width.

A step's recordings, and everything that is added up from them, are the same for every micro-batch and length; only the
number of rows changes. So they are written as forms once, and a plan fills in its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, groupby
from operator import add, itemgetter, mul, sub
from typing import Literal, NamedTuple

from calculator.training.tape import ONE, ROW_KINDS, SHIFTED

BLOCK = 512
"""PyTorch's caching allocator rounds every request up to this (c10/cuda/CUDACachingAllocator, ``kMinBlockSize``)."""


def rounded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


Size = tuple[int, int]
"""(kind of rows as in ``tape``, width in bytes) of one allocation."""

BYTE: Size = (ONE, 1)
"""What does not depend on micro-batch and length is counted in single bytes."""


class Form:
    """How many allocations of each size, less those released: bytes as soon as the rows are known. Immutable."""

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: Mapping[Size, int]) -> None:
        self.terms = {size: count for size, count in terms.items() if count}
        self._hash: int | None = None

    @staticmethod
    def of(amount: Form | int) -> Form:
        return amount if isinstance(amount, Form) else Form({BYTE: amount})

    @staticmethod
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
        return self * -1

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

    @property
    def grows(self) -> bool:
        """Whether it only adds."""
        return bool(self.terms) and min(self.terms.values()) > 0

    @property
    def shrinks(self) -> bool:
        """Whether it only takes away."""
        return bool(self.terms) and max(self.terms.values()) < 0

    def at(self, rows: Sequence[int]) -> int:
        """Bytes for the row counts of ``tape``, by kind."""
        return sum(count * size_bytes(size, rows) for size, count in self.terms.items())


def size_bytes(size: Size, rows: Sequence[int]) -> int:
    return 1 if size == BYTE else -(-rows[size[0]] * size[1] // BLOCK) * BLOCK


NOTHING = Form({})

Vector = tuple[int, ...]


class _Kind(NamedTuple):
    """The sizes of one kind of rows in a basis, widest first: how much wider each is than the next, and which of them
    the allocator rounds up."""

    places: slice
    steps: tuple[int, ...]
    rounds: tuple[bool, ...]
    some: bool


class Basis:
    """The sizes that some forms are made of, and forms as vectors over them: of every size, how many allocations of
    that kind of rows are as wide or wider."""

    def __init__(self, forms: Iterable[Form]) -> None:
        found = {size for form in forms for size in form.terms}
        self.sizes = sorted(found, key=lambda size: (size[0], -size[1]))
        self._places = {size: place for place, size in enumerate(self.sizes)}
        self._kinds: list[_Kind] = []
        for kind, same in groupby(self.sizes, key=itemgetter(0)):
            widths = [width for _, width in same]
            first = self._kinds[-1].places.stop if self._kinds else 0
            self._kinds.append(
                _Kind(
                    places=slice(first, first + len(widths)),
                    steps=tuple(map(sub, widths, [*widths[1:], 0])),
                    rounds=tuple(kind != ONE and width % BLOCK > 0 for width in widths),
                    some=kind != SHIFTED,  # the labels' shifted rows are none where a sequence is one token
                )
            )
        self._vectors: dict[Form, Vector] = {}
        self._samples = [
            tuple(tail for kind in self._kinds for tail in map(sub, sized[kind.places], (*sized[kind.places][1:], 0)))
            for rows in SAMPLES
            for sized in [[size_bytes(size, rows) for size in self.sizes]]
        ]

    def vector(self, form: Form) -> Vector:
        found = self._vectors.get(form)
        if found is None:
            counts = [0] * len(self.sizes)
            for size, count in form.terms.items():
                counts[self._places[size]] = count
            tails: list[int] = []
            for kind in self._kinds:
                tails += accumulate(counts[kind.places])
            found = self._vectors[form] = tuple(tails)
        return found

    @staticmethod
    def plus(one: Vector, other: Vector) -> Vector:
        return tuple(map(add, one, other))

    def counts(self, vector: Vector) -> dict[int, int]:
        """How many allocations of each size a vector stands for, by place among ``sizes``."""
        starts = {kind.places.start for kind in self._kinds}
        counts = (tail - (0 if i in starts else vector[i - 1]) for i, tail in enumerate(vector))
        return {place: count for place, count in enumerate(counts) if count}

    def over(self, one: Vector, other: Vector) -> Literal["surely", "perhaps", ""]:
        """Whether ``one`` is no less than ``other`` whatever the rows ("perhaps"), or always more ("surely").

        It is no less where it has as many allocations of every width and wider: each is no smaller than a narrower one
        of the same rows. Or else where a row of it takes so many bytes more as rounding can add to the other's: less
        than a block for each allocation.
        """
        difference, more = tuple(map(sub, one, other)), False
        for places, steps, rounds, some in self._kinds:
            tails = difference[places]
            if min(tails) >= 0:
                more |= some and tails[-1] > 0
                continue
            spare = sum(map(mul, tails, steps))
            if spare < 0:
                return ""
            counts = map(sub, tails, (0, *tails))
            spare += (BLOCK - 1) * sum(count for count, up in zip(counts, rounds, strict=False) if up and count < 0)
            if spare < 0:
                return ""
            more |= some and spare > 0
        return "surely" if more else "perhaps"

    def may_be_first(self, vectors: Sequence[Vector]) -> list[int]:
        """Which of some amounts, in order, may be the first highest for some rows."""
        few, many = ([sum(map(mul, vector, sample)) for vector in vectors] for sample in self._samples)
        kept: list[int] = []
        for i, vector in enumerate(vectors):
            some, more = few[i], many[i]
            if any(few[k] >= some and many[k] >= more and self.over(vectors[k], vector) for k in reversed(kept)):
                continue
            kept = [k for k in kept if few[k] >= some or many[k] >= more or self.over(vector, vectors[k]) != "surely"]
            kept.append(i)
        return kept


SAMPLES = ((1,) * ROW_KINDS, tuple(1000 + 777 * kind for kind in range(ROW_KINDS)))
"""Rows at which amounts are compared before they are compared for all."""


Picker = Callable[[Sequence[int]], "tuple[int, ...]"]


def picker(places: Sequence[int]) -> Picker:
    """Reads the values at ``places``, in order, without a loop in Python."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda values: tuple(values[place] for place in places)


class Sum:
    """A form ready to be filled in: which sizes, and how many of each."""

    __slots__ = ("counts", "pick")

    def __init__(self, counts: Mapping[int, int]) -> None:
        self.pick, self.counts = picker(tuple(counts)), tuple(counts.values())

    def of(self, values: Sequence[int]) -> int:
        """Its bytes, from those of every size."""
        return sum(map(mul, self.counts, self.pick(values)))
