"""Which instants of a step may be its highest, as sums that a plan only has to fill in.

Stages that repeat layer by layer are looked at once: along equal layers a level rises or falls steadily, so it is
highest at the first or the last. Of the instants that remain, those that others exceed whatever the rows are left out.
What is left is a handful for each phase.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from calculator.training.forms import Basis, Form, Size, Sum, Vector
from calculator.training.template import Stretch

Place = tuple[str, Stretch]
"""A phase and what happens at one place of it."""

LONGEST_GROUP = 32
"""Places that may repeat together: gather, layer, reduction and release of the six layers of Gemma 3's pattern."""


class Instant(NamedTuple):
    """Numbers of sums: all bytes over the start, and those of each item."""

    total: int
    by_key: tuple[tuple[str, int], ...]


class Alive(NamedTuple):
    """When an item is alive in a phase: ``surely`` whatever the rows; or if its bytes over the start at the phase's
    beginning (``level``, a sum's number), with the start's, are not nothing; or if one of its ``rises`` there is more
    than nothing."""

    phase: str
    key: str
    surely: bool
    level: int
    rises: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Outline:
    """What decides a bill. ``sums``, over the bytes of ``sizes``, are named by their number.

    ``start`` and ``waiting``: bytes by item before the step, and that each further micro-batch in flight keeps.
    ``instants``: by phase, those that may be its highest, in order. ``highest``: by item, its own levels over the start
    that may be its highest.
    """

    sizes: Sequence[Size]
    sums: Sequence[Sum]
    start: dict[str, int]
    waiting: dict[str, int]
    instants: dict[str, tuple[Instant, ...]]
    highest: dict[str, tuple[int, ...]]
    alive: tuple[Alive, ...]


def outline(start: Mapping[str, Form], places: Sequence[Place], waiting: Mapping[str, Form]) -> Outline:
    """The outline of a step that goes through ``places`` in order."""
    stretches = {stretch: None for _, stretch in places}
    nets = [form for stretch in stretches for form in stretch.net_by_key.values()]
    tops = [form for stretch in stretches for forms in stretch.tops_by_key.values() for form in forms]
    tops += [form for stretch in stretches for top in stretch.tops for form in top.values()]
    writer = _Writer(Basis([*start.values(), *waiting.values(), *nets, *tops]))
    segments = list(writer.segments(places))
    return Outline(
        sizes=writer.basis.sizes,
        start=writer.numbers(start),
        waiting=writer.numbers(waiting),
        instants=writer.instants(segments),
        highest=writer.highest(segments),
        alive=writer.alive(segments, start),
        sums=tuple(writer.sums),
    )


class Group(NamedTuple):
    """Places that follow each other ``times`` times: those of a stack of equal layers."""

    places: Sequence[Place]
    times: int


def groups(places: Sequence[Place]) -> Iterator[Group]:
    """The places with their repetitions folded: of several ways the one that folds most, within one phase."""
    at = 0
    while at < len(places):
        length, times = 1, 1
        for period in range(1, LONGEST_GROUP + 1):
            unit, count = places[at : at + period], 1
            if unit[-1][0] != unit[0][0]:
                break
            while places[at + count * period : at + (count + 1) * period] == unit:
                count += 1
            if count > 1 and count * period > length * times:
                length, times = period, count
        yield Group(places[at : at + length], times)
        at += length * times


Levels = dict[str, Vector]
"""Bytes over the start by item at one place of the step."""


class Segment(NamedTuple):
    """Places of one phase in a row: the levels at its beginning, and at the beginning of every place."""

    phase: str
    begins: Levels
    visits: list[tuple[Levels, Stretch]]


class _Writer:
    def __init__(self, basis: Basis) -> None:
        self.basis = basis
        self.zero = basis.vector(Form({}))
        self.sums: list[Sum] = []
        self._numbers: dict[Vector, int] = {}
        self._vectors: dict[int, dict[str, Vector]] = {}

    def number(self, vector: Vector) -> int:
        """The number of the sum that a vector stands for."""
        found = self._numbers.get(vector)
        if found is None:
            found = self._numbers[vector] = len(self.sums)
            self.sums.append(Sum(self.basis.counts(vector)))
        return found

    def numbers(self, forms: Mapping[str, Form]) -> dict[str, int]:
        return {key: self.number(vector) for key, vector in self.vectors(forms).items()}

    def vectors(self, forms: Mapping[str, Form]) -> Levels:
        """The same mapping is asked for with every repetition of a stretch."""
        found = self._vectors.get(id(forms))
        if found is None:
            found = self._vectors[id(forms)] = {key: self.basis.vector(form) for key, form in forms.items()}
        return found

    def plus(self, levels: Levels, more: Levels, times: int = 1) -> Levels:
        if not times:
            return levels
        found = dict(levels)
        for key, vector in more.items():
            change = vector if times == 1 else tuple(times * count for count in vector)
            before = found.get(key)
            found[key] = change if before is None else self.basis.plus(before, change)
        return found

    def total(self, levels: Levels) -> Vector:
        return tuple(map(sum, zip(*levels.values(), strict=True))) if levels else self.zero

    def segments(self, places: Sequence[Place]) -> Iterator[Segment]:
        """The step phase by phase, of repeated places only the first and the last repetition."""
        levels: Levels = {}
        found: Segment | None = None
        for group in groups(places):
            phase = group.places[0][0]
            if found is None or phase != found.phase:
                if found is not None:
                    yield found
                found = Segment(phase, levels, [])
            net: Levels = {}
            for _, stretch in group.places:
                net = self.plus(net, self.vectors(stretch.net_by_key))
            for repetition in sorted({0, group.times - 1}):
                here = self.plus(levels, net, repetition)
                for _, stretch in group.places:
                    found.visits.append((here, stretch))
                    here = self.plus(here, self.vectors(stretch.net_by_key))
            levels = self.plus(levels, net, group.times)
        if found is not None:
            yield found

    def instants(self, segments: Sequence[Segment]) -> dict[str, tuple[Instant, ...]]:
        """A phase's beginning, and the tops of its places over what was there before each."""
        found: dict[str, list[tuple[Levels, Levels]]] = {}
        for segment in segments:
            instants = found.setdefault(segment.phase, [(segment.begins, {})])
            instants += [(levels, self.vectors(top)) for levels, stretch in segment.visits for top in stretch.tops]
        return {phase: self._instants(candidates) for phase, candidates in found.items()}

    def _instants(self, candidates: Sequence[tuple[Levels, Levels]]) -> tuple[Instant, ...]:
        totals = {id(levels): self.total(levels) for both in candidates for levels in both}
        heights = [self.basis.plus(totals[id(levels)], totals[id(top)]) for levels, top in candidates]
        return tuple(
            Instant(
                self.number(heights[i]),
                tuple((key, self.number(vector)) for key, vector in self.plus(*candidates[i]).items()),
            )
            for i in self.basis.may_be_first(heights)
        )

    def highest(self, segments: Sequence[Segment]) -> dict[str, tuple[int, ...]]:
        found: dict[str, dict[Vector, None]] = {}
        for segment in segments:
            for levels, stretch in segment.visits:
                for key, tops in stretch.tops_by_key.items():
                    before, own = levels.get(key, self.zero), found.setdefault(key, {})
                    own.update((self.basis.plus(before, self.basis.vector(top)), None) for top in tops)
        return {
            key: tuple(self.number(vectors[i]) for i in self.basis.may_be_first(vectors))
            for key, vectors in ((key, list(own)) for key, own in found.items())
        }

    def alive(self, segments: Sequence[Segment], start: Mapping[str, Form]) -> tuple[Alive, ...]:
        found: list[Alive] = []
        for segment in segments:
            rises: dict[str, dict[Vector, None]] = {}
            for _, stretch in segment.visits:
                for key, tops in stretch.tops_by_key.items():
                    rises.setdefault(key, {}).update((self.basis.vector(top), None) for top in tops)
            for key in dict.fromkeys((*start, *segment.begins, *rises)):
                before = self.basis.vector(start[key]) if key in start else self.zero
                level = segment.begins.get(key, self.zero)
                sure = (self.basis.plus(before, level), *rises.get(key, ()))
                surely = any(self.basis.over(vector, self.zero) == "surely" for vector in sure)
                numbers = () if surely else tuple(self.number(vector) for vector in rises.get(key, ()))
                found.append(Alive(segment.phase, key, surely, 0 if surely else self.number(level), numbers))
        return tuple(found)
