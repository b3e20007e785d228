"""Softmax attention: projections, rotary embedding, kernels.

Source: transformers 5.24.0 ``modeling_*.py`` and ``integrations/sdpa_attention.py``.
"""

from __future__ import annotations

from calculator.model.shape import Attention
from calculator.training import ops
from calculator.training.kernels import fused_attention
from calculator.training.layers import Layer, Shared
from calculator.training.tape import SCORES, TOKENS, Tensor


def rotate_half(layer: Layer, x: Tensor) -> Tensor:
    tape = layer.tape
    first = ops.narrow(tape, x, x.width // 2)
    second = ops.narrow(tape, x, x.width // 2)
    return ops.concat(tape, [ops.negate(tape, second), first])


def rotate(layer: Layer, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    tape = layer.tape
    return ops.add(tape, ops.mul(tape, x, cos), ops.mul(tape, rotate_half(layer, x), sin))


def _rotary_part(
    layer: Layer, q: Tensor, k: Tensor, mixer: Attention, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor]:
    """Rotary embedding of a part of every head, the rest joined unchanged; the joined result lies head by head."""
    tape, part = layer.tape, cos.width
    q_turned, q_passed = _parts(layer, q, mixer.heads * part)
    k_turned, k_passed = _parts(layer, k, k.width * part // mixer.head_dim)
    return (
        ops.concat(tape, [rotate(layer, q_turned, cos, sin), *q_passed]),
        ops.concat(tape, [rotate(layer, k_turned, cos, sin), *k_passed]),
    )


def _parts(layer: Layer, x: Tensor, part: int) -> tuple[Tensor, list[Tensor]]:
    rest = x.width - part
    turned = ops.narrow(layer.tape, x, part)
    return turned, [ops.narrow(layer.tape, x, rest)]


def rotary(layer: Layer, q: Tensor, k: Tensor, mixer: Attention, shared: Shared) -> tuple[Tensor, Tensor]:
    if mixer.rotary == "none" or not shared.rotary:
        return q, k
    cos, sin = shared.rotary
    if layer.numerics.fused_rope:
        return ops.rewrite(layer.tape, q), ops.rewrite(layer.tape, k)
    if mixer.rotary == "partial" or layer.dialect.fused_split == "grouped":
        return _rotary_part(layer, q, k, mixer, cos, sin)
    return rotate(layer, q, cos, sin), rotate(layer, k, cos, sin)


def attend(layer: Layer, q: Tensor, k: Tensor, v: Tensor, mixer: Attention, mask: Tensor | None) -> Tensor:
    """The attention kernel; the result lies in the order (batch, length, heads, dim)."""
    tape, n = layer.tape, layer.numerics
    repeats = q.width * mixer.v_head_dim // (v.width * mixer.head_dim)
    dropout = mixer.dropout if n.dropout is None else n.dropout
    if n.attention == "eager":
        return _eager(layer, q, k, v, mixer, mask, dropout)
    if (mask is not None or n.repeat_kv) and repeats > 1:
        k, v = ops.repeat_heads(tape, k, repeats), ops.repeat_heads(tape, v, repeats)
        repeats = 1
    if n.autocast:
        q, k, v = ops.cast(tape, q, n.autocast), ops.cast(tape, k, n.autocast), ops.cast(tape, v, n.autocast)
    if n.exchanged:
        k, v = ops.exchange(tape, k), ops.exchange(tape, v)
    flash = n.attention == "flash" and mask is None and (n.cudnn or mixer.head_dim == mixer.v_head_dim)
    bias = tape.new(mask.rows, mask.width, q.dtype) if mask is not None else None
    out = fused_attention(
        tape, q, k, v, mixer.heads, mixer.head_dim, mixer.v_head_dim, flash=flash, mask=bias, grouped=repeats > 1
    )
    del bias
    return ops.contiguous(tape, ops.transpose_heads(tape, out))


def _eager(
    layer: Layer, q: Tensor, k: Tensor, v: Tensor, mixer: Attention, mask: Tensor | None, dropout: float
) -> Tensor:
    tape, fp32 = layer.tape, layer.dialect.softmax_fp32
    repeats = mixer.heads // mixer.kv_heads
    k_all, v_all = ops.repeat_heads(tape, k, repeats), ops.repeat_heads(tape, v, repeats)
    scores = _product(layer, q, k_all, SCORES, mixer.heads)
    if not layer.dialect.query_scaled:
        scores = ops.scale(tape, scores)
    if mixer.softcap:
        scores = ops.scale(tape, scores)
        scores = ops.unary(tape, scores, "output", "tanh")
        scores = ops.scale(tape, scores)
    if mask is not None:
        scores = ops.add(tape, scores, mask)
    if fp32:
        scores = ops.cast(tape, ops.softmax(tape, ops.cast(tape, scores, "fp32"), "fp32"), q.dtype)
    else:
        scores = ops.softmax(tape, scores, scores.dtype)
        scores = ops.cast(tape, scores, v.dtype)
    scores = ops.dropout(tape, scores, dropout)
    out = _product(layer, scores, v_all, q.rows, mixer.heads * mixer.v_head_dim)
    return ops.contiguous(tape, ops.transpose_heads(tape, out))


def _product(layer: Layer, x: Tensor, y: Tensor, rows: int, width: int) -> Tensor:
    tape, n = layer.tape, layer.numerics
    if n.autocast:
        x, y = ops.cast(tape, x, n.autocast), ops.cast(tape, y, n.autocast)
    if not n.single:
        x, y = ops.contiguous(tape, x), ops.contiguous(tape, y)
    return ops.matmul(tape, x, y, rows, width)


def attention(layer: Layer, hidden: Tensor, mixer: Attention, shared: Shared) -> Tensor:
    tape = layer.tape
    if mixer.query_experts:
        return routed_attention(layer, hidden, mixer, shared)
    qkv = gate = None
    if mixer.fused_qkv or layer.dialect.always_fused:
        qkv, q, k, v = _fused(layer, hidden, mixer)
    else:
        q, gate = _query(layer, hidden, mixer)
        if mixer.shares_kv:
            k, v = shared.kv
        else:
            k = _heads_of(layer, hidden, "k", mixer.kv_heads * mixer.head_dim, mixer)
            v = k if mixer.k_eq_v else _values(layer, hidden, mixer)
    q, turned = rotary(layer, q, k, mixer, shared)
    k = k if mixer.shares_kv else turned  # a shared key is turned already
    del turned
    if layer.numerics.repeat_kv == "in_place" and mixer.heads > mixer.kv_heads:
        k = ops.repeat_heads(tape, k, mixer.heads // mixer.kv_heads)
        v = ops.repeat_heads(tape, v, mixer.heads // mixer.kv_heads)
    out = attend(layer, q, k, v, mixer, shared.mask)
    out = ops.merge_heads(tape, out)
    if gate is not None:
        out = ops.mul(tape, out, ops.unary(tape, gate, "output", "sigmoid"))
    out = layer.linear(out, "o", layer.hidden, bias=layer.output_bias)
    del qkv
    return out


def _values(layer: Layer, hidden: Tensor, mixer: Attention) -> Tensor:
    return _heads(layer, layer.linear(hidden, "v", mixer.kv_heads * mixer.v_head_dim, bias=mixer.bias))


def _query(layer: Layer, hidden: Tensor, mixer: Attention) -> tuple[Tensor, Tensor | None]:
    """Queries, and the output gate where there is one: a projection of its own, or the second half of the query's."""
    tape, width = layer.tape, mixer.heads * mixer.head_dim
    if not mixer.output_gate:
        return _heads_of(layer, hidden, "q", width, mixer), None
    if layer.gate:
        wide = mixer.heads * (1 if layer.gate == "head" else mixer.v_head_dim)
        return _heads_of(layer, hidden, "q", width, mixer), layer.linear(hidden, "other", wide, name="gate")
    both = ops.split_heads(tape, layer.linear(hidden, "q", 2 * width, bias=mixer.bias))
    q, gate = ops.split(tape, both, (width, width))
    if mixer.qk_norm == "head":
        q = layer.norm(q, layer.head_norm, "q_norm", groups=mixer.heads)
    return ops.transpose_heads(tape, q), ops.clone(tape, gate)


def routed_attention(layer: Layer, hidden: Tensor, mixer: Attention, shared: Shared) -> Tensor:
    """Queries and output of the experts that a token is sent to, over keys and values that all share (JetMoE;
    transformers 5.24.0 ``modeling_jetmoe.py``)."""
    tape, times = layer.tape, mixer.heads // mixer.kv_heads
    width, experts = mixer.kv_heads * mixer.head_dim, mixer.query_experts
    layer.part = "routed."
    weights, _ = ops.top_k(
        tape, ops.softmax(tape, ops.cast(tape, layer.router(hidden, experts), "fp32"), "fp32"), times
    )
    layer.part = ""
    order, offsets = tape.new(TOKENS, times, "int64"), tape.new(0, experts, "int32")
    chosen = ops.gather_rows(tape, hidden, order, TOKENS, times * layer.hidden)
    into = layer.experts("query", experts, width, layer.hidden)
    q = ops.gather_rows(
        tape, ops.grouped_linear(tape, chosen, into, offsets, times * width), order, TOKENS, times * width
    )
    del chosen
    q = _heads(layer, q)
    both = layer.linear(hidden, "k", 2 * width, name="kv")
    k, v = (_heads(layer, part) for part in ops.split(tape, both, (width, width)))
    q, k = rotary(layer, q, k, mixer, shared)
    k, v = ops.repeat_heads(tape, k, times), ops.repeat_heads(tape, v, times)
    out = ops.merge_heads(tape, attend(layer, q, k, v, mixer, shared.mask))
    out = ops.gather_rows(tape, out, order, TOKENS, times * width)
    back = layer.experts("output", experts, layer.hidden, width)
    out = ops.grouped_linear(tape, out, back, offsets, times * layer.hidden)
    out = ops.mul(tape, out, weights)
    return ops.sum_parts(tape, ops.gather_rows(tape, out, order, TOKENS, times * layer.hidden), layer.hidden)


def _heads(layer: Layer, x: Tensor) -> Tensor:
    return ops.transpose_heads(layer.tape, ops.split_heads(layer.tape, x))


def _fused(layer: Layer, hidden: Tensor, mixer: Attention) -> tuple[Tensor | None, Tensor, Tensor, Tensor]:
    """A fused projection taken apart the family's way; views of it, whose whole stays while one of them does."""
    tape = layer.tape
    widths = (mixer.heads * mixer.head_dim, mixer.kv_heads * mixer.head_dim, mixer.kv_heads * mixer.v_head_dim)
    qkv = layer.linear(hidden, "q", sum(widths), bias=mixer.bias, name="qkv", parts=widths)
    match layer.dialect.fused_split:
        case "per_head":
            qkv = _heads(layer, qkv)
            q, k, v = ops.split(tape, qkv, widths)
        case "grouped":
            qkv = _heads(layer, qkv)
            q, k, v = ops.split(tape, qkv, widths)
            repeats = mixer.heads // mixer.kv_heads
            if repeats > 1:
                q = ops.copy_heads(tape, q)
                k, v = ops.repeat_heads(tape, k, repeats), ops.repeat_heads(tape, v, repeats)
        case "parts":
            q, k, v = (_heads(layer, part) for part in ops.split(tape, qkv, widths))
            return None, q, k, v
        case _:
            q, k, v = (_heads(layer, ops.narrow(tape, qkv, w)) for w in widths)
    return qkv, q, k, v


def _heads_of(layer: Layer, hidden: Tensor, role: str, width: int, mixer: Attention) -> Tensor:
    """A query or key projection, normed per head or as a whole where the model does so."""
    tape = layer.tape
    x = layer.linear(hidden, role, width, bias=mixer.bias)
    if role == "q" and layer.dialect.query_scaled:
        x = ops.scale(tape, x)
    if mixer.qk_norm == "full":
        x = layer.norm(x, "rms", f"{role}_norm")
    x = ops.split_heads(tape, x)
    if mixer.qk_norm == "head":
        x = layer.norm(x, layer.head_norm, f"{role}_norm", groups=width // mixer.head_dim)
    return ops.transpose_heads(tape, x)
