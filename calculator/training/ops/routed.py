"""What a mixture of experts is made of.

Each follows PyTorch's own kernel and derivative (``derivatives.yaml``, ``FunctionsManual.cpp``).
"""

from __future__ import annotations

from calculator.training.ops.base import Grads, finish, like_of, reduced, shape_of
from calculator.training.ops.elementwise import cast
from calculator.training.ops.products import autocast_weight
from calculator.training.tape import ONE, TOKENS, Param, Tape, Tensor


def top_k(tape: Tape, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The largest ``k`` of the width and their places; backward scatters into a zero-filled tensor."""
    shape = shape_of(x)
    node = tape.record("topk", [x], lambda _, g: [tape.new(*shape)], [])
    values, index = tape.new(x.rows, k, x.dtype), tape.new(x.rows, k, "int64")
    tape.save(node, [index])
    return finish(tape, values, node), index


def divide_by_sum(tape: Tape, x: Tensor) -> Tensor:
    """x /= x.sum(): in place, so the original that the derivative needs is cloned first."""
    width = x.width
    total_node = tape.record("sum", [x], lambda _, g: [g[0] and tape.new(x_rows, width, x_dtype)], [])
    x_rows, x_dtype = x.rows, x.dtype
    total = finish(tape, tape.new(x.rows, 1, x.dtype), total_node)

    def backward(_: list[Tensor], g: Grads) -> Grads:
        assert g[0] is not None
        gx = like_of(tape, g[0])
        gy = like_of(tape, g[0])
        return [gx, reduced(tape, gy, (g[0].rows, 1, g[0].dtype))]

    original = like_of(tape, x) if x.needs_grad and tape.recording else None
    node = tape.record("div", [x, total], backward, [t for t in (original, total) if t is not None])
    out = x.alias()
    return finish(tape, out, node)


def gather_rows(tape: Tape, x: Tensor, index: Tensor, rows: int, width: int, second: Tensor | None = None) -> Tensor:
    """Rows picked by an index tensor, which is kept; backward adds into a zero-filled tensor of the input's size."""
    shape = shape_of(x)
    node = tape.record(
        "index", [x], lambda _, g: [tape.new(*shape)], [index] + ([second] if second is not None else [])
    )
    return finish(tape, tape.new(rows, width, x.dtype), node)


def grouped_linear(tape: Tape, x: Tensor, weight: Param, offsets: Tensor, width: int) -> Tensor:
    """One product per expert over sorted rows: keeps its input, the offsets and the weight."""
    w = autocast_weight(tape, weight.tensor)
    x = cast(tape, x, w.dtype)
    elements, rows, in_width = w.width, x.rows, x.width

    def backward(_: list[Tensor], g: Grads) -> Grads:
        assert node is not None
        assert g[0] is not None
        gx = tape.new(rows, in_width, g[0].dtype) if node.needs(0) else None
        gw = tape.new(ONE, elements, g[0].dtype) if node.needs(1) else None
        return [gx, gw]

    node = tape.record("grouped_mm", [x, w], backward, ([x] if w.needs_grad else []) + [w, offsets])
    return finish(tape, tape.new(rows, width, x.dtype), node)


def sum_parts(tape: Tape, x: Tensor, width: int) -> Tensor:
    """(rows, parts, width) summed over the parts; the view before it makes its gradient a whole copy."""
    shape = shape_of(x)
    node = tape.record("sum", [x], lambda _, g: [tape.new(*shape)], [])
    return finish(tape, tape.new(x.rows, width, x.dtype), node)


def expert_linear(tape: Tape, x: Tensor, weight: Param, experts: int, width: int) -> Tensor:
    """A product with one expert's slice of a fused parameter; the slice's gradient is put into a zero-filled tensor of
    the whole parameter's size."""
    w = weight.tensor
    elements, rows, in_width = w.width, x.rows, x.width
    select = tape.record("select", [w], lambda _, g: [tape.new(ONE, elements, g[0].dtype)] if g[0] else [None], [])
    part = finish(tape, Tensor(w.storage, ONE, elements // experts, w.dtype), select)

    def backward(_: list[Tensor], g: Grads) -> Grads:
        assert node is not None
        assert g[0] is not None
        gw = tape.new(ONE, elements // experts, g[0].dtype) if node.needs(1) else None
        gx = tape.new(rows, in_width, g[0].dtype) if node.needs(0) else None
        return [gx, gw]

    node = tape.record("linear", [x, part], backward, ([x] if part.needs_grad else []) + [part])
    return finish(tape, tape.new(rows, width, x.dtype), node)


def add_rows(tape: Tape, x: Tensor, y: Tensor, index: Tensor) -> Tensor:
    """index_add in place; keeps the added rows' index, and backward picks their gradient."""
    shape = shape_of(y)
    node = tape.record("index_add", [x, y], lambda _, g: [g[0], tape.new(*shape)], [index, y])
    return finish(tape, x.alias(), node)


def repeat_rows(tape: Tape, x: Tensor, times: int) -> Tensor:
    """Every row ``times`` times over; backward adds up."""
    shape = shape_of(x)
    node = tape.record("repeat_interleave", [x], lambda _, g: [tape.new(*shape)], [])
    return finish(tape, tape.new(x.rows, x.width * times, x.dtype), node)


def gather_param(tape: Tape, weight: Param, index: Tensor, width: int) -> Tensor:
    """Whole matrices of a parameter picked per token; backward adds into a zero-filled parameter."""
    w = autocast_weight(tape, weight.tensor)
    elements, dtype = w.width, w.dtype
    node = tape.record("index", [w], lambda _, g: [tape.new(ONE, elements, dtype)], [index])
    return finish(tape, tape.new(TOKENS, width, dtype), node)


def batched_linear(tape: Tape, matrices: Tensor, x: Tensor, width: int) -> Tensor:
    sm, sx = shape_of(matrices), shape_of(x)

    def backward(_: list[Tensor], g: Grads) -> Grads:
        assert node is not None
        return [tape.new(*sm) if node.needs(0) else None, tape.new(*sx) if node.needs(1) else None]

    node = tape.record("bmm", [matrices, x], backward, [matrices, x])
    return finish(tape, tape.new(x.rows, width, x.dtype), node)
