"""Gemma 3n's layer: several residual streams, of which the layer computes one and corrects the others (AltUp), a
low-rank path beside attention (Laurel), and inputs of each layer's own, which Gemma 4's small models have too.

Source: transformers 5.24.0 ``modeling_gemma3n.py``, ``modeling_gemma4.py``.
"""

from __future__ import annotations

from collections.abc import Callable

from calculator.model.shape import Block, DenseMlp
from calculator.training import ops
from calculator.training.feedforward import activation
from calculator.training.layers import Layer, Shared
from calculator.training.tape import Tensor

Part = Callable[[Layer, Tensor, Block, Shared], Tensor]


def _modalities(layer: Layer, x: Tensor, streams: int) -> Tensor:
    """The weights of the streams, one row a token: norm, scale, a small matrix, tanh in fp32."""
    tape = layer.tape
    routed = layer.linear(
        ops.scale(tape, layer.norm(x, "rms", "router_norm")), "other", streams, name="modality_router"
    )
    return ops.cast(tape, ops.unary(tape, ops.cast(tape, routed, "fp32"), "output", "tanh"), x.dtype)


def _predict(layer: Layer, stack: Tensor, streams: int) -> Tensor:
    """Every stream from all of them, by coefficients of each token: a batched product, the sum in place, and a copy in
    the order of the streams."""
    tape = layer.tape
    weights = _modalities(layer, ops.narrow(tape, stack, layer.hidden), streams)
    coefficients = layer.linear(weights, "other", streams**2, name="prediction_coefs")
    predicted = ops.matmul(tape, stack, coefficients, stack.rows, stack.width)
    predicted.heads_first = predicted.heads_first_memory = False
    return ops.clone(tape, ops.added_in_place(tape, predicted, stack))


def _correct(layer: Layer, predicted: Tensor, made: Tensor, streams: int) -> Tensor:
    """What the layer made less what was predicted of it, for every stream, times its coefficient, added."""
    tape = layer.tape
    weights = _modalities(layer, made, streams)
    change = ops.add(tape, made, ops.narrow(tape, predicted, layer.hidden))
    change = ops.repeat_heads(tape, change, streams)
    coefficients = ops.shift(tape, layer.linear(weights, "other", streams, name="correction_coefs"))
    return ops.added_in_place(tape, ops.mul(tape, change, coefficients), predicted)


def own_input(layer: Layer, x: Tensor, block: Block, shared: Shared) -> Tensor:
    """A narrow gate of the stream times the layer's own input, projected back and normed."""
    tape, width = layer.tape, block.per_layer_width
    assert shared.per_layer is not None
    kind = block.mlp.activation if isinstance(block.mlp, DenseMlp) else "gelu_tanh"
    gate = activation(layer, layer.linear(x, "other", width, name="per_layer_input_gate"), kind)
    own = shared.per_layer.alias()
    own.width = width
    projected = layer.linear(ops.mul(tape, gate, own), "other", layer.hidden, name="per_layer_projection")
    return layer.norm(projected, "rms", "per_layer_norm")


def altup(layer: Layer, stack: Tensor, block: Block, shared: Shared, mix: Part, feed: Part) -> Tensor:
    """One layer over the stack of streams; ``mix`` and ``feed`` are attention and MLP."""
    tape, streams = layer.tape, stack.width // layer.hidden
    predicted = _predict(layer, stack, streams)
    del stack
    active = ops.narrow(tape, predicted, layer.hidden)
    normed = layer.norm(active, block.norm, "norm0")
    low = layer.linear(normed, "other", block.laurel_rank, name="laurel_left")
    low = layer.norm(layer.linear(low, "other", layer.hidden, name="laurel_right"), block.norm, "laurel_norm")
    laurel = ops.add(tape, normed, low)
    del low
    mixed = ops.add(tape, active, layer.norm(mix(layer, normed, block, shared), block.norm, "norm1"))
    del normed, active
    mixed = ops.scale(tape, ops.add(tape, mixed, laurel))
    del laurel
    fed = feed(layer, layer.norm(mixed, block.norm, "norm2"), block, shared)
    made = ops.add(tape, mixed, layer.norm(fed, block.norm, "norm3"))
    del mixed, fed
    corrected = _correct(layer, predicted, made, streams)
    del predicted, made
    first = ops.clone(tape, ops.narrow(tape, corrected, layer.hidden))
    first = ops.mul(tape, first, layer.param("correct_output_scale", layer.hidden, layer.numerics.weight).tensor)
    first = own_input(layer, first, block, shared)
    return ops.added_in_place(tape, corrected, first)


def spread(layer: Layer, x: Tensor, streams: int) -> Tensor:
    """The embedding and a projection of it for each further stream, each brought to the first one's magnitude."""
    tape = layer.tape
    target = ops.mean(tape, ops.square(tape, x))
    parts = [x]
    for number in range(streams - 1):
        part = layer.linear(x, "other", layer.hidden, name=f"altup{number}")
        parts.append(
            ops.mul(tape, ops.mul(tape, part, target), ops.rsqrt(tape, ops.mean(tape, ops.square(tape, part))))
        )
    return ops.concat(tape, parts)


def gather(layer: Layer, stack: Tensor, streams: int) -> Tensor:
    """The streams joined into one after the last layer: projected, brought to the first one's magnitude, averaged."""
    tape = layer.tape
    first = ops.narrow(tape, stack, layer.hidden)
    target = ops.mean(tape, ops.square(tape, first))
    parts = [first]
    for number in range(streams - 1):
        own = ops.narrow(tape, stack, layer.hidden)
        part = layer.linear(own, "other", layer.hidden, name=f"altup_out{number}")
        parts.append(
            ops.mul(tape, ops.mul(tape, part, target), ops.rsqrt(tape, ops.mean(tape, ops.square(tape, part))))
        )
    return ops.sum_parts(tape, ops.concat(tape, parts), layer.hidden)


def layer_inputs(layer: Layer, x: Tensor, rows: int, layers: int, width: int) -> Tensor:
    """Every layer's own input: a row of a table that is as wide as all of them, and a projection of the embedding."""
    tape, wide = layer.tape, layers * width
    looked_up = ops.scale(tape, ops.embedding(tape, layer.param("per_layer", rows * wide, layer.numerics.small), wide))
    projected = ops.scale(tape, layer.linear(x, "other", wide, name="per_layer_model"))
    projected = layer.norm(projected, "rms", "per_layer_projection", groups=layers)
    return ops.scale(tape, ops.add(tape, projected, looked_up))
