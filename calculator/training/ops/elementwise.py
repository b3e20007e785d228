"""Elementwise operations, reductions over the width, activations, dropout.

Each follows PyTorch's own kernel and derivative (``derivatives.yaml``, ``FunctionsManual.cpp``).
"""

from __future__ import annotations

from calculator.training.ops.base import Grads, finish, like_of, promoted, reduced, shape_of, wider
from calculator.training.tape import Tape, Tensor


def cast(tape: Tape, x: Tensor, dtype: str) -> Tensor:
    """A copy in another type; the same tensor if the type is right already."""
    if x.dtype == dtype:
        return x
    source = x.dtype
    node = tape.record("cast", [x], lambda _, g: [g[0] and like_of(tape, g[0], source)], [])
    return finish(tape, like_of(tape, x, dtype), node)


def add(tape: Tape, x: Tensor, y: Tensor) -> Tensor:
    """x + y; both gradients are the incoming one itself."""
    sx, sy = shape_of(x), shape_of(y)

    def backward(_: list[Tensor], g: Grads) -> Grads:
        return [
            reduced(tape, g[0], sx) if node and node.needs(0) else None,
            reduced(tape, g[0], sy) if node and node.needs(1) else None,
        ]

    node = tape.record("add", [x, y], backward, [])
    big = wider(x, y)
    return finish(tape, tape.new(big.rows, big.width, promoted(x, y), like=x if big is x else big), node)


def added_in_place(tape: Tape, x: Tensor, y: Tensor) -> Tensor:
    """x += y, into x's own storage; y may be narrower, for a slice or a broadcast."""
    sy = shape_of(y)
    node = tape.record("add_", [x, y], lambda _, g: [g[0], reduced(tape, g[0], sy)], [])
    return finish(tape, x.alias(), node)


def mul(tape: Tape, x: Tensor, y: Tensor) -> Tensor:
    """x * y: each operand is kept if the other needs a gradient. Both products exist before a broadcast is summed."""
    sx, sy = shape_of(x), shape_of(y)
    saves = ([x] if y.needs_grad else []) + ([y] if x.needs_grad else [])
    dtype = promoted(x, y)

    def backward(_: list[Tensor], g: Grads) -> Grads:
        assert node is not None
        assert g[0] is not None
        gx = like_of(tape, g[0]) if node.needs(0) else None
        gy = like_of(tape, g[0]) if node.needs(1) else None
        return [reduced(tape, gx, sx), reduced(tape, gy, sy)]

    node = tape.record("mul", [x, y], backward, saves)
    big = wider(x, y)
    return finish(tape, tape.new(big.rows, big.width, dtype, like=x if big is x else big), node)


def scale(tape: Tape, x: Tensor) -> Tensor:
    """x times a number, or divided by one: keeps nothing."""
    node = tape.record("scale", [x], lambda _, g: [g[0] and like_of(tape, g[0])], [])
    return finish(tape, like_of(tape, x), node)


def shift(tape: Tape, x: Tensor) -> Tensor:
    """x plus a number: keeps nothing, and the gradient passes through."""
    node = tape.record("shift", [x], lambda _, g: [g[0]], [])
    return finish(tape, like_of(tape, x), node)


def negate(tape: Tape, x: Tensor) -> Tensor:
    return scale(tape, x)


def square(tape: Tape, x: Tensor) -> Tensor:
    """x ** 2; the derivative makes x ** 1, twice that, and the product, all alive together."""
    return power(tape, x)


def power(tape: Tape, x: Tensor) -> Tensor:
    if tape.autocast and x.dtype != "fp32":
        x = cast(tape, x, "fp32")

    def backward(_: list[Tensor], g: Grads) -> Grads:
        assert g[0] is not None
        one = like_of(tape, g[0])
        two = like_of(tape, g[0])
        product = like_of(tape, g[0])
        del one, two
        return [product]

    node = tape.record("pow", [x], backward, [x])
    return finish(tape, like_of(tape, x), node)


def mean(tape: Tape, x: Tensor, groups: int = 1) -> Tensor:
    """Mean over the width, or over each of ``groups`` parts of it."""
    node = tape.record("mean", [x], lambda saved, g: [tape.new(*shape)], [])
    shape = shape_of(x)
    return finish(tape, tape.new(x.rows, groups, x.dtype), node)


def tanh_gelu(tape: Tape, x: Tensor) -> Tensor:
    """GELU's tanh form written out in Python (GPT-2): 0.5 x (1 + tanh(c (x + 0.044715 x^3)))."""
    half = scale(tape, x)
    return mul(
        tape, half, shift(tape, unary(tape, scale(tape, add(tape, x, scale(tape, power(tape, x)))), "output", "tanh"))
    )


def rsqrt(tape: Tape, x: Tensor) -> Tensor:
    def backward(_: list[Tensor], g: Grads) -> Grads:
        assert g[0] is not None
        half = like_of(tape, g[0])
        cube = like_of(tape, g[0])
        product = like_of(tape, g[0])
        del half, cube
        return [product]

    node = tape.record("rsqrt", [x], backward, [])
    out = like_of(tape, x)
    tape.save(node, [out])
    return finish(tape, out, node)


def unary(tape: Tape, x: Tensor, keep: str = "input", name: str = "unary", copies: int = 0) -> Tensor:
    """An activation with a fused derivative that keeps its input or its output; ``copies`` extra temporaries."""

    def backward(_: list[Tensor], g: Grads) -> Grads:
        assert g[0] is not None
        temporary = [like_of(tape, g[0]) for _ in range(copies)]
        result = like_of(tape, g[0])
        del temporary
        return [result]

    node = tape.record(name, [x], backward, [x] if keep == "input" else [])
    out = like_of(tape, x)
    if keep == "output":
        tape.save(node, [out])
    return finish(tape, out, node)


def relu(tape: Tape, x: Tensor, inplace: bool = False) -> Tensor:
    """relu keeps its output; in place it has no storage of its own."""

    def backward(_: list[Tensor], g: Grads) -> Grads:
        assert g[0] is not None
        return [like_of(tape, g[0])]

    node = tape.record("relu", [x], backward, [])
    out = x.alias() if inplace else like_of(tape, x)
    tape.save(node, [out])
    return finish(tape, out, node)


def dropout(tape: Tape, x: Tensor, p: float) -> Tensor:
    """Keeps a mask of one byte an element."""
    if not p:
        return x
    node = tape.record("dropout", [x], lambda _, g: [g[0] and like_of(tape, g[0])], [])
    out = like_of(tape, x)
    mask = tape.new(x.rows, x.width, "bool")
    tape.save(node, [mask])
    return finish(tape, out, node)


def clone(tape: Tape, x: Tensor) -> Tensor:
    node = tape.record("clone", [x], lambda _, g: [g[0]], [])
    return finish(tape, tape.new(x.rows, x.width, x.dtype), node)


def where(tape: Tape, condition: Tensor, x: Tensor) -> Tensor:
    """x where the condition holds, a number elsewhere; the condition is kept."""
    node = tape.record("where", [x], lambda _, g: [g[0] and like_of(tape, g[0])], [condition])
    return finish(tape, like_of(tape, x), node)
