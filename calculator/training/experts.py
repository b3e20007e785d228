"""Mixtures of experts: router, the three ways that transformers runs routed experts, shared experts.

Source: transformers 5.24.0 ``integrations/moe.py``, ``modeling_mixtral.py``, ``modeling_qwen3_moe.py``,
``modeling_deepseek_v2.py``.
"""

from __future__ import annotations

from calculator.model.shape import DenseMlp, MoeMlp
from calculator.training import ops
from calculator.training.feedforward import activation, dense
from calculator.training.layers import Layer
from calculator.training.tape import ROUTED, TOKENS, Tensor


def route(layer: Layer, x: Tensor, moe: MoeMlp) -> tuple[Tensor, Tensor, Tensor]:
    """Router logits, the chosen experts' weights and their numbers."""
    tape, d = layer.tape, layer.dialect
    logits = layer.router(x, moe.experts)
    scores = ops.softmax(tape, ops.cast(tape, logits, "fp32"), "fp32")
    weights, index = ops.top_k(tape, scores, moe.top_k)
    del scores
    if d.normalised:
        weights = ops.divide_by_sum(tape, weights)
    elif d.router_fp32:
        weights = ops.scale(tape, weights)
    if d.router == "compute":
        weights = ops.cast(tape, weights, logits.dtype)
    return logits, weights, index


def grouped(layer: Layer, x: Tensor, weights: Tensor, index: Tensor, moe: MoeMlp) -> Tensor:
    """Tokens copied ``top_k`` times, sorted by expert, and multiplied in one grouped product a matrix."""
    tape, k, hidden = layer.tape, moe.top_k, layer.hidden
    sorted_experts, order = tape.new(TOKENS, k, "int64"), tape.new(TOKENS, k, "int64")
    source = tape.new(TOKENS, k, "int64")
    chosen = ops.gather_rows(tape, x, source, TOKENS, k * hidden)
    del source
    chosen_weights = ops.gather_rows(tape, weights, order, TOKENS, k)
    as_int = tape.new(TOKENS, k, "int32")
    counts = tape.new(0, moe.experts, "int32")
    del as_int
    offsets = tape.new(0, moe.experts, "int32")
    inner = 2 * moe.width if moe.gated else moe.width
    out = ops.grouped_linear(tape, chosen, layer.experts("gate_up", moe.experts, inner, hidden), offsets, k * inner)
    out = _gate(layer, out, moe, k)
    out = ops.grouped_linear(tape, out, layer.experts("down", moe.experts, hidden, moe.width), offsets, k * hidden)
    weighted = ops.mul(tape, out, chosen_weights)
    back = tape.new(TOKENS, k, "int64")
    places = tape.new(TOKENS, k, "int64")
    del places
    weighted = ops.gather_rows(tape, weighted, back, TOKENS, k * hidden)
    final = ops.sum_parts(tape, weighted, hidden)
    result = ops.cast(tape, final, x.dtype)
    del sorted_experts, counts, index
    return result


def _gate(layer: Layer, x: Tensor, moe: MoeMlp, parts: int) -> Tensor:
    tape = layer.tape
    if not moe.gated:
        return activation(layer, x, moe.activation)
    gate, up = ops.split(tape, x, (parts * moe.width, parts * moe.width))
    return ops.mul(tape, activation(layer, gate, moe.activation), up)


def looped(layer: Layer, x: Tensor, weights: Tensor, index: Tensor, moe: MoeMlp) -> Tensor:
    """One expert after the other, here with an even routing. Every expert's slice of the fused parameter has a gradient
    of the whole parameter's size."""
    tape, hidden = layer.tape, layer.hidden
    inner = 2 * moe.width if moe.gated else moe.width
    up_param = layer.experts("gate_up", moe.experts, inner, hidden)
    down_param = layer.experts("down", moe.experts, hidden, moe.width)
    final = tape.new(x.rows, hidden, x.dtype)
    mask = tape.new(TOKENS, moe.top_k * (moe.experts + 1), "int64")
    state = None
    for _ in range(moe.experts):
        place, token = tape.new(ROUTED, 1, "int64"), tape.new(ROUTED, 1, "int64")
        state = ops.gather_rows(tape, x, token, ROUTED, hidden)
        both = ops.expert_linear(tape, state, up_param, moe.experts, inner)
        gate, up = ops.split(tape, both, (moe.width, moe.width)) if moe.gated else (both, None)
        del both
        state = activation(layer, gate, moe.activation)
        if up is not None:
            state = ops.mul(tape, state, up)
        state = ops.expert_linear(tape, state, down_param, moe.experts, hidden)
        state = ops.mul(tape, state, ops.gather_rows(tape, weights, token, ROUTED, 1, place))
        final = ops.add_rows(tape, final, ops.cast(tape, state, final.dtype), token)
    del mask, index
    return final


def batched(layer: Layer, x: Tensor, weights: Tensor, index: Tensor, moe: MoeMlp) -> Tensor:
    """Every token takes copies of its experts' matrices and keeps them."""
    tape, k, hidden = layer.tape, moe.top_k, layer.hidden
    inner = 2 * moe.width if moe.gated else moe.width
    chosen = ops.repeat_rows(tape, x, k)
    matrices = ops.gather_param(tape, layer.experts("gate_up", moe.experts, inner, hidden), index, k * inner * hidden)
    out = ops.batched_linear(tape, matrices, chosen, k * inner)
    out = _gate(layer, out, moe, k)
    matrices = ops.gather_param(
        tape, layer.experts("down", moe.experts, hidden, moe.width), index, k * hidden * moe.width
    )
    out = ops.batched_linear(tape, matrices, out, k * hidden)
    weighted = ops.mul(tape, out, weights)
    final = ops.sum_parts(tape, weighted, hidden)
    return ops.cast(tape, final, x.dtype)


def mixture(layer: Layer, hidden: Tensor, moe: MoeMlp) -> Tensor:
    """Routed experts, and the shared ones beside them."""
    tape, impl = layer.tape, layer.numerics.experts
    run = {"grouped_mm": grouped, "eager": looped, "modules": looped, "batched_mm": batched}[impl]
    residual = hidden
    logits, weights, index = route(layer, hidden, moe)
    hidden = run(layer, hidden, weights, index, moe)
    del logits
    if moe.shared_width:
        shared = DenseMlp(width=moe.shared_width, gated=moe.gated, activation=moe.activation)
        hidden = ops.add(tape, hidden, dense(layer, residual, shared, prefix="shared_"))
    if moe.dense_width:
        beside = DenseMlp(width=moe.dense_width, gated=moe.gated, activation=moe.activation)
        hidden = ops.add(tape, hidden, dense(layer, residual, beside, prefix="dense_"))
    return hidden
