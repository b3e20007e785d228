"""A rank's step for one micro-batch and length: its pattern with the rows filled in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from calculator.training.forms import size_bytes
from calculator.training.outline import Instant, Outline
from calculator.training.pattern import Pattern
from calculator.training.template import Stretch, Template


class Events:
    """A stretch with its bytes: ``deltas`` in order, the items that they count under, and the storages of ``template``
    that they belong to."""

    def __init__(self, stretch: Stretch, rows: Sequence[int]) -> None:
        known = {change: change.at(rows) for change in set(stretch.changes)}
        self.deltas = tuple(known[change] for change in stretch.changes)
        self.keys, self.storages = stretch.keys, stretch.storages
        self.template: Template | None = stretch.template

    def upto(self, count: int) -> dict[str, int]:
        """Sums by item of the first ``count`` events."""
        found: dict[str, int] = {}
        for key, delta in zip(self.keys[:count], self.deltas[:count], strict=True):
            found[key] = found.get(key, 0) + delta
        return found

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
    """The highest instant of a phase: bytes, and which it is."""

    bytes: int
    instant: Instant


class Amounts(dict[int, int]):
    """An outline's sums for some rows, by number, each worked out when it is first asked for."""

    def __init__(self, outline: Outline, rows: Sequence[int]) -> None:
        self.outline = outline
        self._values = [size_bytes(size, rows) for size in outline.sizes]

    @cached_property
    def highest(self) -> int:
        """The highest of all instants, over the start."""
        return max(self[instant.total] for instants in self.outline.instants.values() for instant in instants)

    def __missing__(self, number: int) -> int:
        found = self[number] = self.outline.sums[number].of(self._values)
        return found


class Program:
    """``start``: bytes by item key that are there before the first stage. ``in_flight``: micro-batches whose
    activations wait at once; ``amounts``: the sums of the pattern's outline for these rows, which ranks of one pattern
    share."""

    def __init__(self, pattern: Pattern, rows: Sequence[int], amounts: Amounts, in_flight: float = 1.0) -> None:
        self._pattern, self._rows, self._amounts = pattern, rows, amounts
        self.start = {key: amounts[number] for key, number in amounts.outline.start.items()}
        if in_flight > 1:
            for key, number in amounts.outline.waiting.items():
                if amounts[number] > 0:
                    self.start[key] = self.start.get(key, 0) + int((in_flight - 1) * amounts[number])
        self.start_bytes = sum(self.start.values())

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        sized = {stage.events: Events(stage.events, self._rows) for stage in self._pattern.stages}
        return tuple(
            Stage(stage.phase, stage.name, stage.unit, sized[stage.events], stage.marks)
            for stage in self._pattern.stages
        )

    @property
    def peak_bytes(self) -> int:
        """The highest instant of the step."""
        return self.start_bytes + self._amounts.highest

    @cached_property
    def moments(self) -> dict[str, Moment]:
        """The highest instant of every phase, the first where several are."""
        amounts, found = self._amounts, {}
        for phase, instants in amounts.outline.instants.items():
            best = max(instants, key=lambda instant: amounts[instant.total])
            found[phase] = Moment(self.start_bytes + amounts[best.total], best)
        return found

    @cached_property
    def peak_phase(self) -> str:
        return max(self.moments, key=lambda name: self.moments[name].bytes)

    @cached_property
    def items(self) -> dict[str, dict[str, int]]:
        """Bytes by item key at every phase's highest instant."""
        amounts, found = self._amounts, {}
        for phase, moment in self.moments.items():
            there = dict(self.start)
            for key, number in moment.instant.by_key:
                there[key] = there.get(key, 0) + amounts[number]
            found[phase] = {key: size for key, size in there.items() if size}
        return found

    @property
    def highest_by_key(self) -> dict[str, int]:
        """Each item's own maximum over the step."""
        amounts, found = self._amounts, dict(self.start)
        for key, numbers in amounts.outline.highest.items():
            highest = max((amounts[number] for number in numbers), default=0)
            if highest > 0:
                found[key] = found.get(key, 0) + highest
        return found

    @property
    def phases_by_key(self) -> dict[str, tuple[str, ...]]:
        """The phases in which each item is alive."""
        amounts = self._amounts
        found: dict[str, dict[str, None]] = {}
        for phase, key, surely, level, rises in amounts.outline.alive:
            if surely or self.start.get(key, 0) + amounts[level] or any(amounts[rise] > 0 for rise in rises):
                found.setdefault(key, {})[phase] = None
        return {key: tuple(phases) for key, phases in found.items()}
