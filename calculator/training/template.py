"""Recordings of stretches of the step, and their sizes for one micro-batch and length.

A stretch (embedding, one layer, head with loss) is recorded once per numerics and shape; its events name sizes by
index, so a plan with another micro-batch or length only evaluates a short table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import accumulate
from operator import itemgetter

from calculator.training.tape import BACKWARD, FORWARD, ITEM_BYTES, RECOMPUTE, Node, Tape, Tensor

BLOCK = 512
"""PyTorch's caching allocator rounds every request up to this (c10/cuda/CUDACachingAllocator, ``kMinBlockSize``)."""


def rounded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


Event = tuple[int, int]
"""(index of the storage in the template, +1 allocated or -1 released)."""


@dataclass(frozen=True)
class Template:
    """A recorded stretch. ``storages`` are (rows, width in bytes, item key); ``forward``, ``exit`` and ``backward`` are
    its events in the three places of the step where it is at work: going in, when the autocast block ends, and going
    back. ``saved`` are the storages that it keeps from forward to backward.

    ``entering`` is the storage of its input, ``leaving`` of its output, ``gradient_in`` of the gradient that it is
    given and ``gradient_out`` of the one that it hands on (the same storage when it was added to in place).
    ``extras`` are further tensors that outlive it; ``marks`` name places among the forward events; ``dtype`` is the
    output's type. ``node_held`` are storages that live as long as the graph, should something hold that.
    """

    storages: tuple[tuple[int, int, str], ...]
    forward: tuple[Event, ...]
    exit: tuple[Event, ...]
    backward: tuple[Event, ...]
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
    outlines: dict[tuple[str, int, int | None], Outline] = field(default_factory=dict, compare=False)

    @cached_property
    def widths(self) -> tuple[tuple[tuple[int, int], ...], Picker]:
        """The different (rows, width in bytes) among the storages, and what reads each storage's from a list of
        them."""
        different = {
            kind_and_width: place for place, kind_and_width in enumerate(dict.fromkeys(s[:2] for s in self.storages))
        }
        return tuple(different), picker([different[s[:2]] for s in self.storages])


Picker = Callable[[Sequence[int]], "tuple[int, ...]"]


def picker(places: Sequence[int]) -> Picker:
    """Reads the values at ``places``, in order, without a loop in Python."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda values: tuple(values[place] for place in places)


@dataclass(frozen=True)
class Outline:
    """What a stretch's events are apart from their sizes. ``signed`` reads their deltas from the storages' sizes
    followed by the same sizes negated; ``by_key`` reads each item's own deltas from all of them."""

    keys: tuple[str, ...]
    storages: tuple[int, ...]
    signed: Picker
    by_key: tuple[tuple[str, Picker], ...]


def outline(keys: Sequence[str], events: Sequence[Event] = (), count: int = 0) -> Outline:
    """``count`` is the number of storages that ``events`` name."""
    places: dict[str, list[int]] = {}
    for place, key in enumerate(keys):
        places.setdefault(key, []).append(place)
    return Outline(
        tuple(keys),
        tuple(i for i, _ in events),
        picker([i if sign > 0 else count + i for i, sign in events]),
        tuple((key, picker(found)) for key, found in places.items()),
    )


@dataclass(frozen=True)
class Stretch:
    """Events with their sizes: ``deltas`` in order, and in ``outline`` the items that they count under and the storages
    that they belong to."""

    deltas: tuple[int, ...]
    outline: Outline
    template: Template | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        return self.outline.keys

    @property
    def storages(self) -> tuple[int, ...]:
        return self.outline.storages

    @cached_property
    def net(self) -> int:
        return sum(self.deltas)

    @cached_property
    def top(self) -> tuple[int, int]:
        """Highest running sum over the start, and the number of events up to and with it."""
        if not self.deltas:
            return 0, 0
        sums = list(accumulate(self.deltas))
        best = max(sums)
        return (best, sums.index(best) + 1) if best > 0 else (0, 0)

    @cached_property
    def net_by_key(self) -> dict[str, int]:
        return {key: sum(own(self.deltas)) for key, own in self.outline.by_key}

    def upto(self, count: int) -> dict[str, int]:
        """Sums by item of the first ``count`` events."""
        if count == len(self.deltas):
            return self.net_by_key
        found: dict[str, int] = {}
        for key, delta in zip(self.keys[:count], self.deltas[:count], strict=True):
            found[key] = found.get(key, 0) + delta
        return found

    @cached_property
    def tops_by_key(self) -> dict[str, int]:
        """Highest running sum of each key over the start."""
        tops = ((key, max(accumulate(own(self.deltas)))) for key, own in self.outline.by_key)
        return {key: top for key, top in tops if top > 0}


@lru_cache(4096)
def edit(*changes: tuple[str, int]) -> Stretch:
    """Single changes by item key, made by a framework between stretches."""
    return Stretch(tuple(d for _, d in changes), outline([k for k, _ in changes]))


@dataclass(frozen=True)
class Sized:
    """A template with its bytes for one micro-batch and length."""

    template: Template
    sizes: tuple[int, ...]
    spans: dict[tuple[str, str], Stretch] = field(default_factory=dict, compare=False)

    @cached_property
    def signed_sizes(self) -> tuple[int, ...]:
        return (*self.sizes, *[-size for size in self.sizes])

    def part(self, place: str, first: int = 0, last: int | None = None) -> Stretch:
        """The events of one of the template's places, from ``first`` to before ``last``."""
        found = self.template.outlines.get((place, first, last))
        if found is None:
            storages, events = self.template.storages, getattr(self.template, place)[first:last]
            found = outline([storages[i][2] for i, _ in events], events, len(storages))
            self.template.outlines[place, first, last] = found
        return Stretch(found.signed(self.signed_sizes), found, self.template)

    @cached_property
    def forward(self) -> Stretch:
        return self.part("forward")

    def between(self, first: str, last: str) -> Stretch:
        """Forward events between two marks ("" for the start or the end)."""
        found = self.spans.get((first, last))
        if found is None:
            marks = self.template.marks
            found = self.part("forward", marks[first] if first else 0, marks[last] if last else None)
            self.spans[first, last] = found
        return found

    @cached_property
    def exit(self) -> Stretch:
        return self.part("exit")

    @cached_property
    def backward(self) -> Stretch:
        return self.part("backward")


def size(template: Template, rows: Sequence[int]) -> Sized:
    """Evaluate a template for the row counts of ``tape`` (indexed by row kind)."""
    different, each = template.widths
    return Sized(template, each([-(-rows[kind] * width // BLOCK) * BLOCK for kind, width in different]))


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
        events[:split],
        events[split:exit_at],
        events[exit_at:],
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


__all__ = ["BLOCK", "ITEM_BYTES", "Sized", "Stretch", "Template", "edit", "record", "rounded", "size"]
