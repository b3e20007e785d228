"""A rank's step for one micro-batch and length: its pattern with the rows filled in."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from calculator.training.pattern import Pattern
from calculator.training.template import Stretch, Template


class Events:
    """A stretch with its bytes: ``deltas`` in order, the items that they count under, and the storages of ``template``
    that they belong to."""

    def __init__(self, stretch: Stretch, deltas: Sequence[int]) -> None:
        self.deltas, self._places = deltas, stretch.places
        self.keys, self.storages = stretch.keys, stretch.storages
        self.template: Template | None = stretch.template

    def upto(self, count: int) -> dict[str, int]:
        """Sums by item of the first ``count`` events."""
        return {
            key: sum([self.deltas[place] for place in places[: bisect_left(places, count)]])
            for key, places in self._places.items()
            if places[0] < count
        }

    @cached_property
    def net_by_key(self) -> dict[str, int]:
        return self.upto(len(self.deltas))

    @cached_property
    def top(self) -> tuple[int, int]:
        """Highest running sum over the start, and the number of events up to and with it."""
        sums = list(accumulate(self.deltas, initial=0))
        best = max(sums)
        return best, sums.index(best)


class Stage(NamedTuple):
    """A stage of the pattern with its bytes."""

    phase: str
    name: str
    unit: int
    events: Events
    marks: Mapping[str, int] = {}


class Moment(NamedTuple):
    """The highest instant of a phase, the first where several are: bytes, the visit, and whether it is within that or
    at its beginning."""

    bytes: int
    visit: int
    within: bool


class Span(NamedTuple):
    """Visits of one phase in a row: the bytes over the start by item at its beginning, and which items rise, by
    number."""

    phase: str
    begins: dict[str, int]
    rising: set[int]


class Items(NamedTuple):
    """Bytes over the start by item: at every phase's highest instant, and each item's own highest; and the spans."""

    at_moments: dict[str, dict[str, int]]
    highest: dict[str, int]
    spans: list[Span]


class Walk:
    """A pattern's bytes for some rows, which its ranks share: its start, what waits, and the levels over the start."""

    def __init__(self, pattern: Pattern, rows: Sequence[int]) -> None:
        self._outline = pattern.outline
        self._sizes = [form.at(rows) for form in self._outline.forms]
        self._tracks = [_levels(read(self._sizes)) for read in self._outline.tracks]
        self.start = {key: form.at(rows) for key, form in pattern.start.items()}
        self.waiting = {key: form.at(rows) for key, form in pattern.waiting.items()}

    @cached_property
    def events(self) -> tuple[Events, ...]:
        """By number of the stretch."""
        return tuple(self._events(stretch, number) for stretch, number in self._outline.stretches.items())

    def _events(self, stretch: Stretch, number: int) -> Events:
        return Events(stretch, self._outline.tracks[self._outline.whole[number]](self._sizes))

    @cached_property
    def moments(self) -> dict[str, Moment]:
        """By phase, in bytes over the start."""
        level, found, outline = 0, dict[str, Moment](), self._outline
        whole = [self._tracks[track] for track in outline.whole]
        for number, (phase, stretch, times) in enumerate(outline.visits):
            net, top = whole[stretch]
            if phase not in found:
                found[phase] = Moment(level, number, within=False)
            if times == 1 and top and level + top > found[phase].bytes:
                found[phase] = Moment(level + top, number, within=True)
            level += times * net
        return found

    @cached_property
    def highest(self) -> int:
        """The highest instant, in bytes over the start."""
        return max([moment.bytes for moment in self.moments.values()])

    @cached_property
    def items(self) -> Items:
        outline = self._outline
        keys, stretches = outline.keys, list(outline.stretches)
        moments = {moment.visit: moment for moment in self.moments.values()}
        by_key = [[(key, *self._tracks[track]) for key, track in tracks] for tracks in outline.by_key]
        levels, highest, rising = [0] * len(keys), [0] * len(keys), set[int]()
        at_moments, spans, now = dict[str, dict[str, int]](), list[Span](), ""
        for number, (phase, stretch, times) in enumerate(outline.visits):
            if phase != now:
                now, rising = phase, set()
                spans.append(Span(phase, dict(zip(keys, levels, strict=True)), rising))
            if number in moments:
                there = at_moments[phase] = dict(zip(keys, levels, strict=True))
                if moments[number].within:
                    events = self._events(stretches[stretch], stretch)
                    add(there, events.upto(events.top[1]))
            if times > 1:
                for key, net, _ in by_key[stretch]:
                    levels[key] += times * net
                continue
            for key, net, top in by_key[stretch]:
                if top:
                    if key not in rising:
                        rising.add(key)
                    if levels[key] + top > highest[key]:
                        highest[key] = levels[key] + top
                levels[key] += net
        return Items(at_moments, dict(zip(keys, highest, strict=True)), spans)


def _levels(changes: Sequence[int]) -> tuple[int, int]:
    """What is left in the end, and the highest running sum over the start."""
    sums = list(accumulate(changes, initial=0))
    return sums[-1], max(sums)


def add(levels: dict[str, int], more: Mapping[str, int]) -> None:
    """Adds in place."""
    for key, size in more.items():
        levels[key] = levels[key] + size if key in levels else size


class Program:
    """``start``: bytes by item key that are there before the first stage. ``in_flight``: micro-batches whose
    activations wait at once; ``walk``: that of the pattern for these rows."""

    def __init__(self, pattern: Pattern, walk: Walk, in_flight: float = 1.0) -> None:
        self._pattern, self._walk = pattern, walk
        self.start = walk.start
        if in_flight > 1:
            self.start = dict(walk.start)
            add(self.start, {key: int((in_flight - 1) * size) for key, size in walk.waiting.items() if size > 0})
        self.start_bytes = sum(self.start.values())

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        numbers, events = self._pattern.outline.stretches, self._walk.events
        return tuple(
            Stage(stage.phase, stage.name, stage.unit, events[numbers[stage.events]], stage.marks)
            for stage in self._pattern.stages
        )

    @property
    def peak_bytes(self) -> int:
        """The highest instant of the step."""
        return self.start_bytes + self._walk.highest

    @cached_property
    def moments(self) -> dict[str, Moment]:
        """The highest instant of every phase."""
        return {
            phase: moment._replace(bytes=self.start_bytes + moment.bytes)
            for phase, moment in self._walk.moments.items()
        }

    @cached_property
    def peak_phase(self) -> str:
        return max(self.moments, key=lambda phase: self.moments[phase].bytes)

    @cached_property
    def items(self) -> dict[str, dict[str, int]]:
        """Bytes by item key at every phase's highest instant, the first where several are."""
        found = {}
        for phase in self.moments:
            found[phase] = self._alive(self._walk.items.at_moments[phase])
        return found

    @property
    def highest_by_key(self) -> dict[str, int]:
        """Each item's own maximum over the step."""
        found = dict(self.start)
        for key, highest in self._walk.items.highest.items():
            if highest > 0:
                found[key] = found.get(key, 0) + highest
        return found

    @property
    def phases_by_key(self) -> dict[str, tuple[str, ...]]:
        """The phases in which each item is alive."""
        found: dict[str, dict[str, None]] = {}
        keys = self._pattern.outline.keys
        for phase, begins, rising in self._walk.items.spans:
            for key in (*self._alive(begins), *[keys[number] for number in rising]):
                if key not in found:
                    found[key] = {}
                found[key][phase] = None
        return {key: tuple(phases) for key, phases in found.items()}

    def _alive(self, levels: Mapping[str, int]) -> dict[str, int]:
        """Bytes by item, from those over the start; items of none are left out."""
        there = dict(self.start)
        add(there, levels)
        return {key: size for key, size in there.items() if size}
