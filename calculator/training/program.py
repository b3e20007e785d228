"""The training step as a program over recorded stretches, and what is read from it.

A program is a list of stages. A stage is a stretch's forward, exit or backward, or an edit that a framework makes
between them (a gather, a reduction). Running sums inside each stage are known once, so the peak is found in
O(templates + layers). ``expand`` writes the same program out as single allocations and releases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from calculator.training.template import Stretch


class Event(NamedTuple):
    """One allocation (``bytes`` > 0) or the release (< 0) of the tensor ``id``."""

    id: tuple[object, ...]
    bytes: int


class Stage(NamedTuple):
    """A place in the step: its phase, a name, the unit of the model whose tensors it touches, and its events."""

    phase: str
    name: str
    unit: int
    events: Stretch
    marks: Mapping[str, int] = {}


class Moment(NamedTuple):
    """The highest instant of a phase: bytes, the stage and how many of its events have happened."""

    bytes: int
    stage: int
    events: int


class Run(NamedTuple):
    """The same events ``times`` times in a row from stage ``first`` on: a stack of equal layers."""

    phase: str
    events: Stretch
    times: int
    first: int


def _add(to: dict[str, int], changes: Mapping[str, int], times: int) -> None:
    for name, change in changes.items():
        to[name] = to.get(name, 0) + change * times


@dataclass(frozen=True)
class Program:
    """``start``: bytes by item key that are there before the first stage."""

    start: dict[str, int]
    stages: Sequence[Stage]

    @cached_property
    def start_bytes(self) -> int:
        return sum(self.start.values())

    @cached_property
    def runs(self) -> list[Run]:
        found: list[Run] = []
        previous, phase, count, first = None, "", 0, 0
        for index, stage in enumerate(self.stages):
            if stage.events is previous and stage.phase == phase:
                count += 1
                continue
            if previous is not None:
                found.append(Run(phase, previous, count, first))
            previous, phase, count, first = stage.events, stage.phase, 1, index
        if previous is not None:
            found.append(Run(phase, previous, count, first))
        return found

    @cached_property
    def moments(self) -> dict[str, Moment]:
        """The highest instant of every phase."""
        found: dict[str, Moment] = {}
        total = self.start_bytes
        for phase, events, count, index in self.runs:
            top, at = events.top
            net = events.net
            last = count - 1 if net > 0 else 0
            best = found.get(phase)
            level = total + last * net + top
            if best is None or (at and level > best.bytes):
                found[phase] = Moment(level, index + last, at)
            total += count * net
        return found

    @cached_property
    def peak_phase(self) -> str:
        return max(self.moments, key=lambda name: self.moments[name].bytes)

    @cached_property
    def items(self) -> dict[str, dict[str, int]]:
        """Bytes by item key at every phase's highest instant."""
        found: dict[str, dict[str, int]] = {}
        wanted = sorted((moment.stage, phase) for phase, moment in self.moments.items())
        now = dict(self.start)
        runs = self.runs
        at = 0
        for stage, phase in wanted:
            while at < len(runs) and runs[at].first + runs[at].times <= stage:
                _add(now, runs[at].events.net_by_key, runs[at].times)
                at += 1
            then = dict(now)
            if at < len(runs) and stage > runs[at].first:
                _add(then, runs[at].events.net_by_key, stage - runs[at].first)
            moment = self.moments[phase]
            if moment.events:
                _add(then, self.stages[stage].events.upto(moment.events), 1)
            found[phase] = {name: size for name, size in then.items() if size}
        return found

    @cached_property
    def _by_key(self) -> tuple[dict[str, int], dict[str, tuple[str, ...]]]:
        now = dict(self.start)
        best = dict(self.start)
        alive: dict[str, list[str]] = {key: [] for key, size in now.items() if size}
        last_phase = ""
        for phase, events, count, _ in self.runs:
            if phase != last_phase:
                last_phase = phase
                for key, level in now.items():
                    if level:
                        phases = alive.setdefault(key, [])
                        if phase not in phases:
                            phases.append(phase)
            nets = events.net_by_key
            for key, top in events.tops_by_key.items():
                level = now.get(key, 0) + top + (count - 1) * max(0, nets.get(key, 0))
                if level > best.get(key, 0):
                    best[key] = level
                phases = alive.setdefault(key, [])
                if phase not in phases:
                    phases.append(phase)
            for key, net in nets.items():
                now[key] = now.get(key, 0) + net * count
        return best, {key: tuple(phases) for key, phases in alive.items()}

    @property
    def highest_by_key(self) -> dict[str, int]:
        """Each item's own maximum over the step."""
        return self._by_key[0]

    @property
    def phases_by_key(self) -> dict[str, tuple[str, ...]]:
        """The phases in which each item is alive."""
        return self._by_key[1]
