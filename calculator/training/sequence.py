"""The step's program written out as single allocations and releases, for the allocator's replay.

What the program keeps as sums gets its parts back: weights, states and gradients are tensors of their own, made
in the order in which a training script makes them. States appear in the first optimizer step, among the blocks that
its activations left, which is why two steps are written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from calculator.training.program import Program, Stage
from calculator.training.sharding import FSDP
from calculator.training.template import Template

Event = tuple[int, int]
"""(number of the tensor, bytes): more than 0 allocates it, 0 releases it."""

PER_STEP = ("inputs",)
"""Items of a program's start that come anew with every step."""
GATHERING, REDUCING = 1, 2
"""Streams beside the main one, on which sharded weights are gathered and gradients reduced. Source: PyTorch
``distributed/fsdp/_runtime_utils.py`` and ``_fully_shard/_fsdp_collectives.py``."""


class _Writer:
    """The events so far, and what is alive: by tensor, by item key (the oldest first), and by place in a stretch."""

    def __init__(self, parts: Mapping[str, Sequence[int]], *, brief: bool = False, sharding: str = "none") -> None:
        self.parts = parts
        self.brief = brief
        self.sharding = sharding
        self.streams: dict[int, int] = {}
        self.waiting: list[int] = []
        self.written: set[tuple[str, int]] = set()
        self.lasting: dict[int, tuple[int, ...]] = {}
        self.events: list[Event] = []
        self.size: dict[int, int] = {}
        self.key: dict[int, str] = {}
        self.alive: dict[str, dict[int, None]] = {}
        self.place: dict[tuple[int, int], int] = {}
        self.templates: dict[int, Template] = {}

    def take(self, key: str, size: int, stream: int = 0) -> int:
        ident = len(self.events)
        if stream:
            self.streams[ident] = stream
        self.events.append((ident, size))
        self.size[ident], self.key[ident] = size, key
        self.alive.setdefault(key, {})[ident] = None
        return ident

    def give(self, ident: int) -> None:
        self.events.append((ident, 0))
        del self.size[ident]
        del self.alive[self.key.pop(ident)][ident]

    def take_parts(self, key: str, total: int) -> list[int]:
        """Allocate ``total`` bytes of an item tensor by tensor."""
        return [self.take(key, size) for size in divide(total, self.parts.get(key, ()))]

    def give_some(self, key: str, total: int) -> None:
        """Release ``total`` bytes of an item: the newest tensor of just that size, or else the newest ones."""
        alive = self.alive.get(key, {})
        for ident in reversed(alive):
            if self.size[ident] == total:
                self.give(ident)
                return
        for ident in reversed(list(alive)):
            if total <= 0:
                return
            if self.size[ident] <= total:
                total -= self.size[ident]
                self.give(ident)
            else:  # a part of it: the allocator keeps the block until the rest goes, too
                self.size[ident] -= total
                return

    def stage(self, stage: Stage) -> None:
        events = stage.events
        if events.template is None:
            self.edit(stage)
            return
        self.templates[stage.unit] = events.template
        storages, deltas, keys = events.storages, events.deltas, events.keys
        for place in self.to_write(stage):
            storage, delta = storages[place], deltas[place]
            if delta > 0:
                self.place[stage.unit, storage] = self.take(keys[place], delta)
            elif delta < 0:
                ident = self.find(stage.unit, storage)
                if ident is not None:
                    self.give(ident)
                else:
                    self.give_some(keys[place], -delta)

    def to_write(self, stage: Stage) -> Sequence[int]:
        """The places of a stage's events that are written: all, or, if ``brief``, only of what outlives the stage once
        an equal layer of the same step has been written in full. Its temporaries find that one's blocks."""
        events = stage.events
        kind = stage.phase, id(events.storages)
        if not self.brief or stage.name != "layer" or kind not in self.written:
            self.written.add(kind)
            return range(len(events.deltas))
        found = self.lasting.get(id(events.storages))
        if found is None:
            made = {s for s, delta in zip(events.storages, events.deltas, strict=True) if delta > 0}
            gone = {s for s, delta in zip(events.storages, events.deltas, strict=True) if delta < 0}
            passing = made & gone
            found = tuple(place for place, s in enumerate(events.storages) if s not in passing)
            self.lasting[id(events.storages)] = found
        return found

    def edit(self, stage: Stage) -> None:
        for key, delta in zip(stage.events.keys, stage.events.deltas, strict=True):
            if delta > 0 and stage.phase == "optimizer":
                self.take_parts(key, delta)
            elif key == "gathered_parameters" and self.sharding != "none":
                self.gathered(stage, delta)
            elif delta > 0 and key == "gradients" and stage.name == "reduce" and self.sharding in FSDP:
                self.take(key, delta, REDUCING)
            elif delta > 0:
                self.take(key, delta)
            elif delta < 0:
                self.give_some(key, -delta)

    def gathered(self, stage: Stage, delta: int) -> None:
        """Weights gathered or given up. FSDP2's buffer belongs to the gathering stream, what is copied out of it to
        the main one. FSDP1 marks a unit as in use by the main stream, so that its block is free again only once the
        next unit has been gathered: its limiter lets two be under way."""
        key, first = "gathered_parameters", stage.unit == 0
        if delta > 0 and self.sharding in ("fsdp2", "hsdp"):
            half = 0 if first else delta // 2
            if half:
                self.take(key, half, GATHERING)
            self.take(key, delta - half)
        elif delta > 0:
            self.take(key, delta, GATHERING)
            self.release_waiting()
        else:
            own = next((i for i in reversed(self.alive.get(key, {})) if self.size[i] == -delta), None)
            if self.sharding == "fsdp1" and own is not None and not first:
                self.waiting.append(own)
            else:
                self.give_some(key, -delta)

    def release_waiting(self) -> None:
        for ident in self.waiting:
            self.give(ident)
        self.waiting.clear()

    def find(self, unit: int, storage: int) -> int | None:
        """The tensor at a place of a unit's stretch: made there, or handed over by a neighbour."""
        ident = self.place.get((unit, storage))
        if ident is not None and ident in self.size:
            return ident
        template = self.templates[unit]
        if storage == template.entering:
            before = self.templates.get(unit - 1)
            return self.find(unit - 1, before.leaving) if before is not None else None
        if storage == template.gradient_in:
            after = self.templates.get(unit + 1)
            return self.find(unit + 1, after.gradient_out) if after is not None else None
        return None


class Expansion(NamedTuple):
    """Events ``before`` the first step and of each of the ``steps``; ``streams`` of the tensors that do not belong to
    the main one."""

    before: list[Event]
    steps: list[list[Event]]
    streams: dict[int, int]

    @property
    def events(self) -> list[Event]:
        return [*self.before, *(event for events in self.steps for event in events)]


def expand(
    programs: Sequence[Program], parts: Mapping[str, Sequence[int]], *, brief: bool = False, sharding: str = "none"
) -> Expansion:
    """The events of consecutive steps, each a program: what is there before the first, then every stage in order.

    ``parts``: sizes in bytes of the single tensors of an item, in their order of creation; an item without them is one
    block. They are scaled to the program's total, of which a sharded rank holds a share. ``brief`` leaves out the
    temporaries of layers that repeat another, some nine in ten events; what is reserved changes by a few
    hundredths at most. ``sharding``: that of the plan, where ranks share the weights.
    """
    writer = _Writer(parts, brief=brief, sharding=sharding)
    first = programs[0].start
    for key, total in first.items():
        if key not in PER_STEP and total:
            writer.take_parts(key, total)
    ends = [len(writer.events)]
    for program in programs:
        writer.written.clear()
        passing = [ident for key in PER_STEP for ident in writer.take_parts(key, program.start.get(key, 0))]
        for stage in program.stages:
            writer.stage(stage)
        for ident in passing:
            writer.give(ident)
        writer.release_waiting()
        ends.append(len(writer.events))
    events = writer.events
    return Expansion(events[: ends[0]], [events[start:end] for start, end in pairwise(ends)], writer.streams)


def divide(total: int, sizes: Sequence[int]) -> list[int]:
    """Cut ``total`` bytes in the proportions of ``sizes``, in blocks of 512; the last takes what is left."""
    whole = sum(sizes)
    if total <= 0:
        return []
    if whole == total:
        return [size for size in sizes if size]
    if not whole:
        return [total]
    cut = [size * total // whole // 512 * 512 for size in sizes] if whole > total else list(sizes)
    return [size for size in [*cut, total - sum(cut)] if size > 0]
