"""What the operations share: new tensors like old ones, promotion of types, sums over broadcast operands.

Each follows PyTorch's own kernel and derivative (``derivatives.yaml``, ``FunctionsManual.cpp``).
"""

from __future__ import annotations

from calculator.training.tape import SCORES, SHARD, TOKENS, Node, Tape, Tensor

Grads = list[Tensor | None]
"""Gradients by operand; None where an operand needs none."""
LONG = (SCORES, TOKENS, SHARD)


def finish(tape: Tape, out: Tensor, node: Node | None) -> Tensor:
    return tape.attach(out, node)


def like_of(tape: Tape, t: Tensor, dtype: str | None = None, width: int | None = None) -> Tensor:
    return tape.new(t.rows, t.width if width is None else width, dtype or t.dtype, like=t)


def promoted(x: Tensor, y: Tensor) -> str:
    if x.dtype == y.dtype:
        return x.dtype
    return "fp32" if "fp32" in (x.dtype, y.dtype) else x.dtype


def wider(x: Tensor, y: Tensor) -> Tensor:
    """Which operand has the broadcast shape. Rows ONE or a narrower width broadcast."""
    if x.rows == y.rows:
        return x if x.width >= y.width else y
    if x.rows in LONG and y.rows not in LONG:
        return x
    if y.rows in LONG and x.rows not in LONG:
        return y
    return x if x.rows == SCORES else y


def reduced(tape: Tape, g: Tensor | None, shape: tuple[int, int, str]) -> Tensor | None:
    """What the engine does to a gradient of a broadcast operand: sum and cast to the operand's size and type."""
    if g is None:
        return None
    rows, width, dtype = shape
    if (g.rows, g.width) != (rows, width):
        g = tape.new(rows, width, g.dtype)
    if g.dtype != dtype:
        g = tape.new(rows, width, dtype, like=g)
    return g


def shape_of(x: Tensor) -> tuple[int, int, str]:
    return x.rows, x.width, x.dtype
