"""The step's program written out as single allocations and releases, for the allocator's replay.

What the program keeps as sums gets its parts back: weights, states and gradients are tensors of their own, made
in the order in which a training script makes them. States appear in the first optimizer step, among the blocks that
its activations left, which is why two steps are written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from calculator.training.program import Program, Stage
from calculator.training.template import Template

Event = tuple[int, int]
"""(number of the tensor, bytes): more than 0 allocates it, 0 releases it."""

PER_STEP = ("inputs",)
"""Items of a program's start that come anew with every step."""


class _Writer:
    """The events so far, and what is alive: by tensor, by item key (the oldest first), and by place in a stretch."""

    def __init__(self, parts: Mapping[str, Sequence[int]]) -> None:
        self.parts = parts
        self.events: list[Event] = []
        self.size: dict[int, int] = {}
        self.key: dict[int, str] = {}
        self.alive: dict[str, dict[int, None]] = {}
        self.place: dict[tuple[int, int], int] = {}
        self.templates: dict[int, Template] = {}

    def take(self, key: str, size: int) -> int:
        ident = len(self.events)
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
        for storage, delta, key in zip(events.storages, events.deltas, events.keys, strict=True):
            if delta > 0:
                self.place[stage.unit, storage] = self.take(key, delta)
            elif delta < 0:
                ident = self.find(stage.unit, storage)
                if ident is not None:
                    self.give(ident)
                else:
                    self.give_some(key, -delta)

    def edit(self, stage: Stage) -> None:
        for key, delta in zip(stage.events.keys, stage.events.deltas, strict=True):
            if delta > 0 and stage.phase == "optimizer":
                self.take_parts(key, delta)
            elif delta > 0:
                self.take(key, delta)
            elif delta < 0:
                self.give_some(key, -delta)

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


def expand(programs: Sequence[Program], parts: Mapping[str, Sequence[int]]) -> list[Event]:
    """The events of consecutive steps, each a program: what is there before the first, then every stage in order.

    ``parts``: sizes in bytes of the single tensors of an item, in their order of creation; an item without them is one
    block. They are scaled to the program's total, of which a sharded rank holds a share.
    """
    writer = _Writer(parts)
    first = programs[0].start
    for key, total in first.items():
        if key not in PER_STEP and total:
            writer.take_parts(key, total)
    for program in programs:
        passing = [ident for key in PER_STEP for ident in writer.take_parts(key, program.start.get(key, 0))]
        for stage in program.stages:
            writer.stage(stage)
        for ident in passing:
            writer.give(ident)
    return writer.events


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
