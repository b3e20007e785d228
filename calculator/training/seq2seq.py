"""Encoder-decoder models (T5), recorded whole: every decoder layer reads the encoder's output and the position bias
that the first layer made, so their gradients meet across layers.

Source: transformers 5.24.0 ``modeling_t5.py`` and ``integrations/sdpa_attention.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from calculator.errors import PlanError
from calculator.model.shape import Attention, Block, DenseMlp, ModelShape
from calculator.training import ops
from calculator.training.feedforward import activation
from calculator.training.kernels import biased_attention, log_softmax, nll
from calculator.training.layers import Layer
from calculator.training.numerics import Numerics
from calculator.training.tape import SCORES, SEQ, SEQ_SQUARED, TOKENS, Tape, Tensor

Biases = tuple[Tensor, Tensor, Tensor | None]
"""Hidden states, position bias of self-attention, position bias of cross-attention."""


@dataclass
class Stack:
    """One of the two stacks while it runs."""

    layers: list[Layer]
    blocks: list[Block]
    causal: bool
    caches: list[Tensor]
    use_cache: bool
    marks: dict[str, int]


def simple_norm(layer: Layer, x: Tensor, name: str) -> Tensor:
    """T5's norm: the fp32 copy serves the variance alone; the product is cast back before the weight."""
    tape, n = layer.tape, layer.numerics
    weight = layer.param(f"{name}.weight", x.width, n.norm)
    variance = ops.mean(tape, ops.square(tape, ops.cast(tape, x, "fp32")))
    y = ops.mul(tape, x, ops.rsqrt(tape, ops.shift(tape, variance)))
    if n.norm != "fp32":
        y = ops.cast(tape, y, n.norm)
    return ops.mul(tape, weight.tensor, y)


def relative_bias(layer: Layer, heads: int, buckets: int) -> Tensor:
    """A learned bias for each head and pair of places, from bucketed distances."""
    tape = layer.tape
    distance = tape.new(SEQ_SQUARED, 1, "int64")
    large = tape.new(SEQ_SQUARED, 1, "int64")
    bucket = tape.new(SEQ_SQUARED, 1, "int64")
    del distance, large
    table = layer.param("relative_bias", buckets * heads, layer.numerics.small)
    return ops.embedding(tape, table, heads, SEQ_SQUARED, bucket)


def _bias_mask(layer: Layer, bias: Tensor, causal: bool, learned: bool) -> Tensor:
    """The bias as the kernel takes it: with the causal part put in, and copied into order where it was permuted."""
    tape = layer.tape
    if not learned:
        return bias
    if causal:
        first, second = tape.new(SEQ, 1, "int64"), tape.new(SEQ, 1, "int64")
        seen = tape.new(SEQ_SQUARED, 1, "bool")
        del first, second
        bias = ops.where(tape, seen, bias)
    return ops.clone(tape, bias)


def attention(
    layer: Layer,
    x: Tensor,
    source: Tensor,
    bias: Tensor | None,
    mixer: Attention,
    stack: Stack,
    mask: Tensor | None,
    prefix: str,
) -> tuple[Tensor, Tensor]:
    """Self- or cross-attention; makes the position bias if none is given."""
    tape, n = layer.tape, layer.numerics
    width = mixer.heads * mixer.head_dim
    cross = prefix == "cross_"

    def heads(t: Tensor) -> Tensor:
        return ops.transpose_heads(tape, ops.split_heads(tape, t))

    q = heads(layer.linear(x, "q", width, name=f"{prefix}q"))
    k = heads(layer.linear(source, "k", width, name=f"{prefix}k"))
    v = heads(layer.linear(source, "v", width, name=f"{prefix}v"))
    if stack.use_cache and stack.causal:
        k, v = ops.copy_heads(tape, k), ops.copy_heads(tape, v)
        stack.caches += [k, v]
    if bias is None:
        bias = tape.new(SEQ_SQUARED, mixer.heads, q.dtype) if cross else relative_bias(layer, mixer.heads, 32)
        if cross and not stack.use_cache:  # zeros, but T5's code asks for their gradient under checkpointing
            tape.graph_leaf(bias)
    dropout = mixer.dropout if n.dropout is None else n.dropout
    if n.attention == "eager":
        scores = ops.scale(tape, _product(layer, q, k, SCORES, mixer.heads))
        scores = ops.add(tape, scores, bias)
        if mask is not None:
            scores = ops.add(tape, scores, mask)
        scores = ops.softmax(tape, scores, "fp32" if n.autocast else scores.dtype)
        scores = ops.dropout(tape, scores, dropout)
        out = _product(layer, scores, v, q.rows, width)
        out = ops.contiguous(tape, ops.transpose_heads(tape, out))
    else:
        if n.autocast:
            q, k, v = ops.cast(tape, q, n.autocast), ops.cast(tape, k, n.autocast), ops.cast(tape, v, n.autocast)
        ready = _bias_mask(layer, bias, stack.causal and not cross, not cross)
        if n.autocast:
            ready = ops.cast(tape, ready, n.autocast)
        out = biased_attention(tape, q, k, v, ready, mixer.heads, mixer.v_head_dim)
        del ready
        out = ops.contiguous(tape, ops.transpose_heads(tape, out))
    out = layer.linear(ops.merge_heads(tape, out), "o", layer.hidden, name=f"{prefix}o")
    return out, bias


def _product(layer: Layer, x: Tensor, y: Tensor, rows: int, width: int) -> Tensor:
    tape, n = layer.tape, layer.numerics
    if n.autocast:
        x, y = ops.cast(tape, x, n.autocast), ops.cast(tape, y, n.autocast)
    if not n.single:
        x, y = ops.contiguous(tape, x), ops.contiguous(tape, y)
    return ops.matmul(tape, x, y, rows, width)


def _mlp(layer: Layer, x: Tensor, mlp: DenseMlp, p: float) -> Tensor:
    tape = layer.tape
    if mlp.gated:
        gate = activation(layer, layer.linear(x, "gate", mlp.width), mlp.activation)
        linear = layer.linear(x, "up", mlp.width)
        x = ops.mul(tape, gate, linear)
        x = ops.dropout(tape, x, p)
        return layer.linear(x, "down", layer.hidden)
    x = layer.linear(x, "up", mlp.width)
    x = activation(layer, x, mlp.activation)
    x = ops.dropout(tape, x, p)
    return layer.linear(x, "down", layer.hidden)


def block_forward(
    layer: Layer,
    x: Tensor,
    block: Block,
    stack: Stack,
    bias: Tensor | None,
    encoded: Tensor | None,
    cross_bias: Tensor | None,
    mask: Tensor | None,
) -> Biases:
    """Self-attention, cross-attention in a decoder, MLP; each after a norm, with dropout, added to the stream."""
    tape, n = layer.tape, layer.numerics
    assert isinstance(block.mixer, Attention)
    if not isinstance(block.mlp, DenseMlp):
        raise PlanError("training.layer_unknown", field="model", kind=block.mlp.kind)
    p = block.dropout if n.dropout is None else n.dropout
    normed = simple_norm(layer, x, "norm0")
    mixed, bias = attention(layer, normed, normed, bias, block.mixer, stack, mask, "")
    x = ops.add(tape, x, ops.dropout(tape, mixed, p))
    del mixed, normed
    if encoded is not None and block.cross_attention is not None:
        normed = simple_norm(layer, x, "norm1")
        mixed, cross_bias = attention(layer, normed, encoded, cross_bias, block.cross_attention, stack, None, "cross_")
        x = ops.add(tape, x, ops.dropout(tape, mixed, p))
        del mixed, normed
    fed = simple_norm(layer, x, "norm2")
    fed = _mlp(layer, fed, block.mlp, p)
    return ops.add(tape, x, ops.dropout(tape, fed, p)), bias, cross_bias


def run_stack(
    tape: Tape,
    embedded: Tensor,
    stack: Stack,
    owner: Layer,
    name: str,
    encoded: Tensor | None,
    p: float,
    checkpoint: str,
    mask: Tensor | None,
) -> Tensor:
    x = ops.dropout(tape, embedded, p)
    bias: Tensor | None = None
    cross: Tensor | None = None
    for layer, block in zip(stack.layers, stack.blocks, strict=True):
        body = _body(layer, block, stack, bias, encoded, cross, mask)
        number = sum(key.startswith("block") for key in stack.marks)
        stack.marks[f"block{number}"] = len(tape.storages)
        x, bias, cross = tape.checkpoint_many(body, x) if checkpoint else body(x)
        stack.marks[f"end{number}"] = len(tape.storages)
        del body
    x = simple_norm(owner, x, name)
    return ops.dropout(tape, x, p)


def _body(
    layer: Layer,
    block: Block,
    stack: Stack,
    bias: Tensor | None,
    encoded: Tensor | None,
    cross: Tensor | None,
    mask: Tensor | None,
) -> Callable[[Tensor], Biases]:
    def body(x: Tensor) -> Biases:
        return block_forward(layer, x, block, stack, bias, encoded, cross, mask)

    return body


def forward(
    tape: Tape, shape: ModelShape, n: Numerics, checkpoint: str, held: list[Tensor], marks: dict[str, int]
) -> Tensor:
    """Encoder, decoder, head and loss."""
    owner = Layer(tape, n, shape.hidden)
    p = shape.embedding_dropout if n.dropout is None else n.dropout
    table = owner.param("embedding", shape.vocab * shape.hidden, n.small)
    table.adds_in_place = n.autocast is not None
    stacks = [
        Stack(
            [Layer(tape, n, shape.hidden) for _ in order],
            [shape.blocks[i] for i in order],
            causal,
            held,
            not checkpoint,
            marks,
        )
        for order, causal in ((shape.encoder_order, False), (shape.order, True))
    ]
    embedded = ops.embedding(tape, table, shape.hidden)
    encoded = run_stack(tape, embedded, stacks[0], owner, "encoder_norm", None, p, checkpoint, None)
    del embedded
    shifted = tape.new(TOKENS, 1, "int64")
    embedded = ops.embedding(tape, table, shape.hidden, TOKENS, shifted)
    mask = tape.new(SCORES, 1, n.small) if n.attention == "eager" else None
    decoded = run_stack(tape, embedded, stacks[1], owner, "decoder_norm", encoded, p, checkpoint, mask)
    del embedded, mask, stacks
    with tape.label("logits_loss", backward=True):
        scaled = ops.scale(tape, decoded) if shape.tied else decoded
        weight = table if shape.tied else owner.param("head", shape.vocab * shape.hidden, n.small)
        logits = ops.linear(tape, scaled, weight, shape.vocab)
        marks["loss"] = len(tape.events)
        labels = tape.outside(TOKENS, 1, "int64", "inputs")
        labels.storage.tape = None
        loss = nll(tape, log_softmax(tape, logits), labels)
        marks["after_loss"] = len(tape.events)
        held += [logits, encoded]
    return loss
