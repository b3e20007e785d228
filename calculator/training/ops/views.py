"""Changes of shape and order: views, and the copies that they sometimes are.

Each follows PyTorch's own kernel and derivative (``derivatives.yaml``, ``FunctionsManual.cpp``).
"""

from __future__ import annotations

from collections.abc import Sequence

from calculator.training.ops.base import Grads, finish, like_of, reduced, shape_of
from calculator.training.tape import Tape, Tensor


def transpose_heads(tape: Tape, x: Tensor) -> Tensor:
    """(batch, length, heads, dim) <-> (batch, heads, length, dim): a view."""

    def backward(_: list[Tensor], g: Grads) -> Grads:
        return [g[0] and g[0].alias(heads_first=not g[0].heads_first)]

    node = tape.record("transpose", [x], backward, [])
    return finish(tape, x.alias(heads_first=not x.heads_first), node)


def contiguous(tape: Tape, x: Tensor) -> Tensor:
    """A copy in the order of the dimensions, where the bytes are in another."""
    if x.heads_first == x.heads_first_memory:
        return x

    node = tape.record("clone", [x], lambda _, g: [g[0]], [])
    out = tape.new(x.rows, x.width, x.dtype)
    out.heads_first = out.heads_first_memory = x.heads_first
    return finish(tape, out, node)


def merge_heads(tape: Tape, x: Tensor) -> Tensor:
    """(batch, length, heads, dim) as (batch, length, width): a view, or a copy where the bytes are out of order."""

    def backward(_: list[Tensor], g: Grads) -> Grads:
        return [g[0]]

    if x.heads_first_memory:
        node = tape.record("reshape", [x], backward, [])
        return finish(tape, tape.new(x.rows, x.width, x.dtype), node)
    node = tape.record("view", [x], backward, [])
    return finish(tape, x.alias(), node)


def split_heads(tape: Tape, x: Tensor) -> Tensor:
    """(batch, length, width) as (batch, length, heads, dim). Its gradient comes back in that order: a copy if it does
    not lie so in memory."""

    def backward(_: list[Tensor], g: Grads) -> Grads:
        grad = g[0]
        if grad is not None and grad.heads_first_memory:
            return [tape.new(grad.rows, grad.width, grad.dtype)]
        return [grad and grad.alias()]

    node = tape.record("view", [x], backward, [])
    return finish(tape, x.alias(), node)


def narrow(tape: Tape, x: Tensor, width: int) -> Tensor:
    """A slice along the width: a view, whose gradient is a zero-filled tensor of the whole size."""
    full = x.width

    def backward(_: list[Tensor], g: Grads) -> Grads:
        assert g[0] is not None
        out = tape.new(g[0].rows, full, g[0].dtype)
        out.heads_first = out.heads_first_memory = g[0].heads_first
        return [out]

    node = tape.record("slice", [x], backward, [])
    out = x.alias()
    out.width = width
    return finish(tape, out, node)


def split(tape: Tape, x: Tensor, widths: Sequence[int]) -> list[Tensor]:
    """Views of consecutive parts; backward joins their gradients."""
    full, order = x.width, x.heads_first

    def backward(_: list[Tensor], g: Grads) -> Grads:
        known = next(t for t in g if t is not None)
        missing = [tape.new(known.rows, w, known.dtype) for t, w in zip(g, widths, strict=True) if t is None]
        out = tape.new(known.rows, full, known.dtype)
        out.heads_first = out.heads_first_memory = order
        del missing
        return [out]

    node = tape.record("split", [x], backward, [], outputs=len(widths))
    parts = []
    for slot, width in enumerate(widths):
        part = x.alias()
        part.width = width
        parts.append(tape.attach(part, node, slot))
    return parts


def shifted_rows(tape: Tape, x: Tensor, rows: int, *, single: bool = False) -> Tensor:
    """All but the last position of every sequence, copied; of a ``single`` sequence they lie in a row already, and
    ``contiguous`` copies nothing. The gradient is first of the slice, then of the whole."""
    full = x.rows

    def backward(_: list[Tensor], g: Grads) -> Grads:
        assert g[0] is not None
        return [tape.new(full, g[0].width, g[0].dtype)]

    node = tape.record("shift_rows", [x], backward, [])
    if single:
        view = x.alias()
        view.rows = rows
        return finish(tape, view, node)
    return finish(tape, tape.new(rows, x.width, x.dtype), node)


def concat(tape: Tape, parts: Sequence[Tensor]) -> Tensor:
    """Join along the width. The result lies in the order of its dimensions; gradients are views."""
    widths = [p.width for p in parts]

    def backward(_: list[Tensor], g: Grads) -> Grads:
        assert g[0] is not None
        out: Grads = []
        for i, width in enumerate(widths):
            if node is not None and node.needs(i):
                view = g[0].alias()
                view.width = width
                out.append(view)
            else:
                out.append(None)
        return out

    node = tape.record("cat", list(parts), backward, [])
    out = tape.new(parts[0].rows, sum(widths), parts[0].dtype)
    out.heads_first = out.heads_first_memory = parts[0].heads_first
    return finish(tape, out, node)


def beside(tape: Tape, x: Tensor, y: Tensor) -> Tensor:
    """x itself; y, which other stretches read, has its gradient when x has."""
    shape = shape_of(y)
    node = tape.record("beside", [x, y], lambda _, g: [g[0], tape.new(*shape)], [])
    return finish(tape, x.alias(), node)


def copy_heads(tape: Tape, x: Tensor) -> Tensor:
    """A copy head by head."""
    node = tape.record("clone", [x], lambda _, g: [g[0]], [])
    out = tape.new(x.rows, x.width, x.dtype)
    out.heads_first = out.heads_first_memory = True
    return finish(tape, out, node)


def padded(tape: Tape, x: Tensor, width: int) -> Tensor:
    """Columns copied into a wider tensor of zeros (``index_copy``), which keeps them for backward."""
    small = x.width

    def backward(_: list[Tensor], g: Grads) -> Grads:
        assert g[0] is not None
        return [tape.new(g[0].rows, small, g[0].dtype)]

    node = tape.record("index_copy", [x], backward, [x])
    zeros = tape.new(x.rows, width, x.dtype)
    out = tape.new(x.rows, width, x.dtype)
    del zeros
    return finish(tape, out, node)


def repeat_heads(tape: Tape, x: Tensor, times: int) -> Tensor:
    """Key or value heads repeated to all query heads: a copy; backward sums it again."""
    if times == 1:
        return x
    small = x.width

    def backward(_: list[Tensor], g: Grads) -> Grads:
        assert g[0] is not None
        out = tape.new(g[0].rows, small, g[0].dtype)
        out.heads_first = out.heads_first_memory = g[0].heads_first
        return [out]

    node = tape.record("repeat", [x], backward, [])
    out = tape.new(x.rows, small * times, x.dtype)
    out.heads_first = out.heads_first_memory = x.heads_first
    return finish(tape, out, node)


def assemble(tape: Tape, parts: Sequence[Tensor], width: int) -> Tensor:
    """Parts copied into slices of a new tensor; backward of each copy clones the whole gradient and its slice."""
    shapes = [shape_of(p) for p in parts]
    whole = tape.new(parts[0].rows, width, parts[0].dtype)
    whole.heads_first = whole.heads_first_memory = True
    order = parts[0].heads_first

    def one(index: int) -> None:
        rows, own, dtype = shapes[index]

        def backward(_: list[Tensor], g: Grads) -> Grads:
            assert g[0] is not None
            rest = like_of(tape, g[0])
            piece = tape.new(rows, width - widths[1 - index] if index == 0 else width - widths[0], dtype)
            piece.heads_first = piece.heads_first_memory = order
            return [rest, reduced(tape, piece, (rows, own, dtype))]

        nonlocal whole
        node = tape.record("copy_slice", [whole, parts[index]], backward, [])
        following = whole.alias()
        whole = finish(tape, following, node)

    widths = [parts[0].width, width - parts[0].width]
    one(0)
    one(1)
    return whole
