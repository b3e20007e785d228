"""The training step as a program over recorded stretches, and what is read from it.

A program is a list of stages. A stage is a stretch's forward, exit or backward, or an edit that a framework makes
between them (a gather, a reduction). Running sums inside each stage are known once, so the peak is found in
O(templates + layers). ``expand`` writes the same program out as single allocations and releases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class Program:
    """``start``: bytes by item key that are there before the first stage."""

    start: dict[str, int]
    stages: Sequence[Stage]
    marks: dict[str, int] = field(default_factory=dict)

    @cached_property
    def start_bytes(self) -> int:
        return sum(self.start.values())

    @cached_property
    def moments(self) -> dict[str, Moment]:
        """The highest instant of every phase."""
        found: dict[str, Moment] = {}
        total = self.start_bytes
        for index, stage in enumerate(self.stages):
            top, at = stage.events.top
            best = found.get(stage.phase)
            if best is None or (at and total + top > best.bytes):
                found[stage.phase] = Moment(total + top, index, at)
            total += stage.events.net
        return found

    @cached_property
    def peak_phase(self) -> str:
        return max(self.moments, key=lambda name: self.moments[name].bytes)

    def items_at(self, moment: Moment) -> dict[str, int]:
        """Bytes by item key at an instant."""
        found = dict(self.start)
        counted: dict[int, tuple[Stretch, int]] = {}
        for stage in self.stages[: moment.stage]:
            key = id(stage.events)
            counted[key] = (stage.events, counted[key][1] + 1 if key in counted else 1)
        for events, times in counted.values():
            for name, net in events.net_by_key.items():
                found[name] = found.get(name, 0) + net * times
        if moment.events:
            for name, net in self.stages[moment.stage].events.upto(moment.events).items():
                found[name] = found.get(name, 0) + net
        return {name: size for name, size in found.items() if size}

    @cached_property
    def highest_by_key(self) -> dict[str, int]:
        """Each item's own maximum over the step."""
        now = dict(self.start)
        best = dict(self.start)
        for stage in self.stages:
            for key, top in stage.events.tops_by_key.items():
                level = now.get(key, 0) + top
                if level > best.get(key, 0):
                    best[key] = level
            for key, net in stage.events.net_by_key.items():
                now[key] = now.get(key, 0) + net
        return best

    @cached_property
    def phases_by_key(self) -> dict[str, tuple[str, ...]]:
        """The phases in which each item is alive."""
        now = dict(self.start)
        alive: dict[str, list[str]] = {key: [] for key in now}
        for stage in self.stages:
            for key in {**now, **stage.events.tops_by_key}:
                if now.get(key, 0) or stage.events.tops_by_key.get(key, 0):
                    phases = alive.setdefault(key, [])
                    if stage.phase not in phases:
                        phases.append(stage.phase)
            for key, net in stage.events.net_by_key.items():
                now[key] = now.get(key, 0) + net
        return {key: tuple(phases) for key, phases in alive.items()}
