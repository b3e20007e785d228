"""Recurrent and convolutional mixers (Mamba, gated delta networks, short convolutions), as their fused kernels train.

The kernels keep what enters them and recompute the states inside: the projections, the convolution's output, the gate,
and the scan's output before its norm. Sources: state-spaces/mamba ``ssd_combined.py``, fla-org
``flash-linear-attention``, transformers 5.24.0 ``modeling_mamba2.py``, ``modeling_rwkv.py``.
"""

from __future__ import annotations

from calculator.model.shape import Block, StateMixer
from calculator.model.shape import Tensor as Weight
from calculator.training import ops
from calculator.training.layers import Layer
from calculator.training.tape import Param, Tensor


def state_mixer(layer: Layer, hidden: Tensor, mixer: StateMixer, block: Block) -> Tensor:
    """Every projection into the mixer, convolution, projections inside it, scan, norm, projection back."""
    tape = layer.tape
    linears = [t for t in block.tensors if t.component == "ssm" and t.kind == "linear"]
    entering = [t for t in linears if t.in_features == layer.hidden and t.split != "row"]
    leaving = next((t for t in linears if t.out_features == layer.hidden and t.split == "row"), None)
    inner = leaving.in_features if leaving is not None else layer.hidden
    inputs = _mixed(layer, hidden, len(entering)) if mixer.variant in SHIFTED else [hidden] * len(entering)
    streams = [
        layer.linear(inputs.pop(0), "q", t.out_features, name=f"state_in{i}", bias=_has_bias(t, block))
        for i, t in enumerate(entering)
    ]
    turned = _convolved(layer, streams, mixer.conv_channels)
    inside = [t for t in linears if t not in entering and t is not leaving]
    for i, weight in enumerate(inside):
        made = _inside(layer, [*streams, *turned], weight, f"state_inside{i}", bias=_has_bias(weight, block))
        streams.append(made)
    out = ops.scan(tape, [*turned, *streams], inner, _kernel_weights(layer, block))
    normed = next((t.elements for t in block.tensors if t.component == "ssm" and t.kind == "norm"), 0)
    if normed and normed in (inner, mixer.head_dim, mixer.value_dim):
        out = layer.norm(out, "rms", "state_norm", groups=inner // normed)
    bias = leaving is not None and _has_bias(leaving, block)
    return layer.linear(out, "o", layer.hidden, name="state_out", bias=bias)


def _kernel_weights(layer: Layer, block: Block) -> list[Param]:
    """Weights that no projection is: convolutions, decays, gates of one block per head."""
    own = [t for t in block.tensors if t.component == "ssm" and t.kind in ("conv", "other") and "_mix_" not in t.name]
    return [layer.param(f"kernel{i}", t.elements, layer.numerics.weight) for i, t in enumerate(own)]


def _convolved(layer: Layer, streams: list[Tensor], channels: int) -> list[Tensor]:
    """The first ``channels`` of the streams after the convolution and its activation; the first stream itself where
    there is none."""
    if not channels:
        return streams[:1]
    found: list[Tensor] = []
    for stream in streams:
        width = min(channels - sum(t.width for t in found), stream.width)
        if width > 0:
            found.append(ops.unary(layer.tape, ops.narrow(layer.tape, stream, width), "input", "conv"))
    return found


SHIFTED = ("rwkv",)
"""Mixers whose projections each read a blend of a token and the one before."""


def _mixed(layer: Layer, hidden: Tensor, count: int) -> list[Tensor]:
    """For each projection its own blend of every token with the one before, which is a copy of the stream."""
    tape = layer.tape
    shifted = ops.clone(tape, hidden)
    found = []
    for i in range(count):
        share = layer.param(f"blend{i}", hidden.width, layer.numerics.weight).tensor
        found.append(ops.add(tape, ops.mul(tape, hidden, share), ops.mul(tape, shifted, share)))
    return found


def _inside(layer: Layer, streams: list[Tensor], weight: Weight, name: str, *, bias: bool) -> Tensor:
    """A projection of a stream of its width, or of a part of the last one (Mamba's time step)."""
    source = next((s for s in reversed(streams) if s.width == weight.in_features), None)
    if source is None:
        source = ops.narrow(layer.tape, streams[-1], weight.in_features)
    return layer.linear(source, "other", weight.out_features, name=name, bias=bias)


def _has_bias(weight: Weight, block: Block) -> bool:
    name = weight.name.removesuffix("weight") + "bias"
    return any(t.name == name for t in block.tensors)
