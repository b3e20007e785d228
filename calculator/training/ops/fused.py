"""Kernels that replace several operations: packed weights, adapters, norms, gates, DoRA, tiled MLPs.

Each follows PyTorch's own kernel and derivative (``derivatives.yaml``, ``FunctionsManual.cpp``).
"""

from __future__ import annotations

from collections.abc import Sequence

from calculator.training.ops.base import Grads, finish, like_of, promoted, shape_of
from calculator.training.ops.elementwise import cast
from calculator.training.tape import ONE, TILE, Param, Tape, Tensor


def dequantising_linear(
    tape: Tape,
    x: Tensor,
    weight: Param,
    width: int,
    bias: Param | None,
    compute: str,
    stored: str,
    *,
    in_pieces: bool = False,
) -> Tensor:
    """A product with a packed frozen weight: the weight is unpacked to ``compute`` for the product and again in
    backward. The result has the input's type. ``int8`` (LLM.int8) also keeps its 16-bit input, and so does
    ``bnb4_half``; the others keep no activation. ``in_pieces``: the weight is unpacked for a few tokens at a time, the
    last time with all others' results there."""
    source = x.dtype
    x = cast(tape, x, compute)
    elements, in_width, rows = weight.tensor.width, x.width, x.rows

    def unpack() -> Tensor:
        half = tape.new(ONE, elements, "fp16") if stored == "bnb4_half" and compute != "fp16" else None
        unpacked = tape.new(ONE, elements, compute)
        del half
        return unpacked

    def backward(_: list[Tensor], g: Grads) -> Grads:
        unpacked = unpack()
        out = tape.new(rows, in_width, compute)
        del unpacked
        return [out]

    node = tape.record("dequantising_linear", [x], backward, [x] if stored in ("int8", "bnb4_half") else [])
    if node is not None and stored == "bnb4_half":
        tape.node_held.add(x.storage.ident)
    out = tape.new(rows, width, compute) if in_pieces else None
    unpacked = unpack() if stored != "int8" else None
    if out is None:
        out = tape.new(rows, width, compute)
    del unpacked
    return cast(tape, finish(tape, out, node), source)


def fused_adapter_linear(
    tape: Tape, x: Tensor, weight: Param, a: Param, b: Param, width: int, rank: int, compute: str, dropped: bool
) -> Tensor:
    """One kernel for a packed weight and its adapter (Unsloth's, also in fms-acceleration): keeps the input and the
    input after dropout, both in the compute type."""
    x = cast(tape, x, compute)
    rows, in_width, elements = x.rows, x.width, weight.tensor.width
    sizes = (a.tensor.width, b.tensor.width)
    dtype = a.tensor.dtype

    def backward(_: list[Tensor], g: Grads) -> Grads:
        assert node is not None
        grads: Grads = [tape.new(ONE, size, dtype) for size in sizes]
        unpacked = tape.new(ONE, elements, compute)
        gx = tape.new(rows, in_width, compute) if node.needs(0) else None
        del unpacked
        return [gx, *grads]

    after = like_of(tape, x) if dropped else x
    node = tape.record("fused_adapter", [x, a.tensor, b.tensor], backward, [x, after])
    unpacked = tape.new(ONE, elements, compute)
    out = tape.new(rows, width, compute)
    del unpacked
    low = tape.new(rows, rank, compute)
    del low
    return finish(tape, out, node)


def fused_rms_norm(tape: Tape, x: Tensor, weight: Param) -> Tensor:
    """A one-kernel RMSNorm: keeps its input and 1/rms; backward overwrites the incoming gradient."""
    node = tape.record("fused_norm", [x, weight.tensor], lambda _, g: [g[0], _weight_grad()], [x])

    def _weight_grad() -> Tensor | None:
        return tape.new(ONE, weight.tensor.width, weight.tensor.dtype) if node is not None and node.needs(1) else None

    out = like_of(tape, x)
    inverse = tape.new(x.rows, 1, "fp32")
    tape.save(node, [inverse])
    return finish(tape, out, node)


def fused_glu(tape: Tape, gate: Tensor, up: Tensor) -> Tensor:
    """A one-kernel gate: keeps gate and up and writes both gradients over them."""
    node = tape.record("fused_glu", [gate, up], lambda saved, _: [saved[0], saved[1]], [gate, up])
    return finish(tape, like_of(tape, gate), node)


def rewrite(tape: Tape, x: Tensor) -> Tensor:
    """A kernel that works in place and keeps nothing (rotary embedding)."""
    node = tape.record("rewrite", [x], lambda _, g: [g[0]], [])
    return finish(tape, x.alias(), node)


def magnitude(tape: Tape, base: Tensor, delta: Tensor, scale_: Param, weight: Param, width: int) -> Tensor:
    """DoRA: base and adapter output scaled by a trained vector over the norm of the summed weight, which takes an
    identity through the adapter, the full delta and its sum with the (unpacked) weight; both outputs are kept."""
    in_width = weight.tensor.width // width
    dtype = delta.dtype
    identity = tape.new(ONE, in_width * in_width, dtype)
    full = tape.new(ONE, weight.tensor.width, dtype)
    del identity
    wide = tape.new(ONE, weight.tensor.width, dtype)
    total = tape.new(ONE, weight.tensor.width, dtype)
    del full, wide, total
    shapes = shape_of(base), shape_of(delta)

    def backward(_: list[Tensor], g: Grads) -> Grads:
        assert node is not None
        assert g[0] is not None
        return [
            tape.new(*shapes[0]) if node.needs(0) else None,
            tape.new(*shapes[1]) if node.needs(1) else None,
            tape.new(ONE, width, dtype),
        ]

    node = tape.record("dora", [base, delta, scale_.tensor], backward, [base, delta])
    return finish(tape, tape.new(base.rows, width, promoted(base, delta)), node)


def tiled(tape: Tape, x: Tensor, params: Sequence[Param], widths: Sequence[int], out_width: int) -> Tensor:
    """An MLP in tiles of as many tokens as the model is wide, run again tile by tile in backward: it keeps its
    input."""
    rows, in_width, dtype = x.rows, x.width, x.dtype
    inputs = [x, *(p.tensor for p in params)]

    def once() -> None:
        held = [tape.new(TILE, w, dtype) for w in widths]
        held.clear()

    def backward(_: list[Tensor], g: Grads) -> Grads:
        assert node is not None
        out: Grads = [tape.new(rows, in_width, dtype) if node.needs(0) else None]
        once()
        once()
        out += [tape.new(ONE, p.tensor.width, dtype) if node.needs(i + 1) else None for i, p in enumerate(params)]
        return out

    node = tape.record("tiled_mlp", inputs, backward, [x])
    once()
    return finish(tape, tape.new(rows, out_width, dtype), node)
