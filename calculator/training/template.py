"""Recordings of stretches of the step.

A stretch (embedding, one layer, head with loss) is recorded once per numerics and shape. Its events name storages,
whose sizes are forms: rows of a width, counted once a plan's micro-batch and length are known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from calculator.training.forms import BLOCK, Form, Size, rounded
from calculator.training.tape import BACKWARD, FORWARD, ITEM_BYTES, RECOMPUTE, Node, Tape, Tensor

Event = tuple[int, int]
"""(index of the storage in the template, +1 allocated or -1 released)."""


@dataclass(frozen=True, eq=False)
class Template:
    """A recorded stretch. ``storages`` are (rows, width in bytes, item key); ``events`` are those in the three places
    of the step where it is at work: ``forward``, going in, ``exit``, when the autocast block ends, and ``backward``,
    going back.

    ``entering`` is the storage of its input, ``leaving`` of its output, ``gradient_in`` of the gradient that it is
    given and ``gradient_out`` of the one that it hands on (the same storage when it was added to in place).
    ``extras`` are further tensors that outlive it; ``marks`` name places among the forward events; ``dtype`` is the
    output's type. ``node_held`` are storages that live as long as the graph, should something hold that. Of an
    embedding's extras, ``summands`` are those that were added up to its output, and ``transient`` those, with these,
    that layers do not keep.
    """

    storages: tuple[tuple[int, int, str], ...]
    events: dict[str, tuple[Event, ...]]
    entering: int
    leaving: int
    gradient_in: int
    gradient_out: int
    extras: tuple[int, ...]
    keeps_input: bool
    keeps_shared: bool
    marks: dict[str, int]
    dtype: str
    node_held: tuple[int, ...] = ()
    transient: frozenset[int] = frozenset()
    summands: frozenset[int] = frozenset()
    _parts: dict[tuple[str, int, int | None], Stretch] = field(default_factory=dict)

    @cached_property
    def sizes(self) -> tuple[Form, ...]:
        """Bytes of every storage."""
        return tuple([Form.allocation(rows, width) for rows, width, _ in self.storages])

    @cached_property
    def _released(self) -> tuple[Form, ...]:
        return tuple([-size for size in self.sizes])

    def part(self, place: str, first: int = 0, last: int | None = None) -> Stretch:
        """The events of one place, from ``first`` to before ``last``."""
        found = self._parts.get((place, first, last))
        if found is None:
            events, made, released = self.events[place][first:last], self.sizes, self._released
            found = self._parts[place, first, last] = Stretch(
                keys=tuple([self.storages[i][2] for i, _ in events]),
                changes=tuple([made[i] if sign > 0 else released[i] for i, sign in events]),
                storages=tuple([i for i, _ in events]),
                template=self,
            )
        return found

    @property
    def forward(self) -> Stretch:
        return self.part("forward")

    @property
    def exit(self) -> Stretch:
        return self.part("exit")

    @property
    def backward(self) -> Stretch:
        return self.part("backward")

    def between(self, first: str, last: str) -> Stretch:
        """Forward events between two marks ("" for the start or the end)."""
        return self.part("forward", self.marks[first] if first else 0, self.marks[last] if last else None)


@dataclass(frozen=True, eq=False)
class Stretch:
    """Changes in order, each of an item's bytes; recorded ones also name the storage."""

    keys: tuple[str, ...]
    changes: tuple[Form, ...]
    storages: tuple[int, ...] = ()
    template: Template | None = None

    @cached_property
    def places(self) -> dict[str, list[int]]:
        """By item, which changes are its own."""
        found: dict[str, list[int]] = {}
        for place, key in enumerate(self.keys):
            found.setdefault(key, []).append(place)
        return found

    @cached_property
    def idents(self) -> tuple[int, ...]:
        """The changes by identity, which takes no time to compare: a form that is there twice counts as two."""
        return tuple(map(id, self.changes))

    @cached_property
    def forms(self) -> dict[int, Form]:
        """Each change once, by identity."""
        return dict(zip(self.idents, self.changes, strict=True))

    @cached_property
    def idents_by_key(self) -> dict[str, tuple[int, ...]]:
        """By item, its own changes in order."""
        return {key: tuple([self.idents[place] for place in places]) for key, places in self.places.items()}

    @cached_property
    def net_by_key(self) -> dict[str, Form]:
        """Bytes by item that are left in the end."""
        found = {}
        for key, own in self.idents_by_key.items():
            terms: dict[Size, int] = {}
            for ident, times in Counter(own).items():
                for size, count in self.forms[ident].terms.items():
                    terms[size] = terms.get(size, 0) + times * count
            found[key] = Form(terms)
        return found


@lru_cache(4096)
def edit(*changes: tuple[str, Form | int]) -> Stretch:
    """Single changes by item key, made by a framework between stretches."""
    return Stretch(tuple(key for key, _ in changes), tuple(Form.of(change) for _, change in changes))


def _key(phase: str, role: str, kept: bool) -> str:
    if role:
        return role
    if phase == FORWARD:
        return "activations" if kept else "live_layer"
    return "live_layer" if phase == RECOMPUTE else "backward_temporary"


Run = Callable[[list[Tensor]], "list[Tensor]"]
"""Takes a box with the input (to empty when it gives the input up) and returns the output, followed by whatever else
outlives the stretch."""


def record(
    tape: Tape,
    run: Run,
    entering: tuple[int, int, str] | None = None,
    *,
    input_needs_grad: bool = True,
    shared: Sequence[Tensor] = (),
    hold_input: bool = False,
    held: list[Tensor] | None = None,
    marks: dict[str, int] | None = None,
    boundary: str = "activations",
) -> Template:
    """Record a stretch forward and back. ``hold_input``: the caller keeps the input beyond the stretch. ``held``:
    what the caller's result keeps until it is dropped, before backward. ``boundary``: item key of the tensors between
    stretches."""
    box, leaf, entering_id, hold = [], None, -1, None
    if entering is not None:
        box.append(tape.outside(*entering, role=boundary))
        entering_id = box[0].storage.ident
        if input_needs_grad:
            leaf = tape.leaf(box[0]).node
        hold = box[0].alias() if hold_input else None
    source = tape.storages[entering_id] if entering_id >= 0 else None
    results = run(box)
    box.clear()
    keeps_input = source is not None and source.handles > (1 if hold is not None else 0)
    if source is not None and hold is not None and not keeps_input:
        source.tape = None
    del hold
    out, extras = results[0], [t.storage.ident for t in results[1:]]
    shape, root, slot, leaving = (out.rows, out.width, out.dtype), out.node, out.slot, out.storage
    keeps_shared = any(t.storage.handles > 1 for t in shared)
    for storage in [t.storage for t in results]:
        storage.tape = None
        storage.role = storage.role or boundary
    results.clear()
    del out
    assert leaving.handles == 0, "an output that its own stretch keeps"
    split = len(tape.events)
    tape.cast_cache.clear()
    if held is not None:
        held.clear()
    exit_at = len(tape.events)
    gradient_in = gradient_out = -1
    if root is not None:
        tape.phase = BACKWARD
        gradient = tape.outside(*shape, role="backward_temporary")
        gradient_in = gradient.storage.ident
        roots: list[tuple[Node, int, Tensor | None]] = [(root, slot, gradient)]
        del gradient, root
        tape.run_backward(roots)
        tape.drop_graph()
        if leaf is not None and leaf.buffer and leaf.buffer[0] is not None:
            gradient_out = leaf.buffer[0].storage.ident
            leaf.buffer[0].storage.tape = None
            # The stretch below releases it under this key, also where a fused loss has made it in its forward.
            leaf.buffer[0].storage.role = "backward_temporary"
            leaf.buffer[0] = None
    events = tuple(tape.events)
    freed_later = {i for i, sign in events[split:] if sign < 0}
    storages = tuple((s.rows, s.width_bytes, _key(s.phase, s.role, s.ident in freed_later)) for s in tape.storages)
    for s in tape.storages:
        s.tape = None
    return Template(
        storages,
        {"forward": events[:split], "exit": events[split:exit_at], "backward": events[exit_at:]},
        entering_id,
        leaving.ident,
        gradient_in,
        gradient_out,
        tuple(extras),
        keeps_input,
        keeps_shared,
        marks or {},
        shape[2],
        tuple(sorted(tape.node_held)),
    )


__all__ = ["BLOCK", "ITEM_BYTES", "Stretch", "Template", "edit", "record", "rounded"]
