"""Recurrent and convolutional mixers (Mamba, gated delta networks, short convolutions), as their fused kernels train.

The kernels keep what enters them and recompute the states inside: the joint projection, the convolution's output, the
gate, and the scan's output before its norm. Sources: state-spaces/mamba ``ssd_combined.py``, fla-org
``flash-linear-attention``, transformers 5.24.0 ``modeling_mamba2.py``.
"""

from __future__ import annotations

from calculator.model.shape import Block, StateMixer
from calculator.training import ops
from calculator.training.layers import Layer
from calculator.training.tape import Tensor


def state_mixer(layer: Layer, hidden: Tensor, mixer: StateMixer, block: Block) -> Tensor:
    """Every projection into the mixer, convolution, scan, gated norm, projection back."""
    tape = layer.tape
    linears = [t for t in block.tensors if t.component in ("ssm", "attention") and t.kind == "linear"]
    entering = [t for t in linears if t.in_features == layer.hidden and t.out_features != layer.hidden]
    leaving = [t for t in linears if t.out_features == layer.hidden]
    inner = leaving[-1].in_features if leaving else layer.hidden
    streams = [layer.linear(hidden, "q", t.out_features, name=f"state_in{i}") for i, t in enumerate(entering)]
    if not streams:
        streams = [layer.linear(hidden, "q", inner, name="state_in")]
    if mixer.conv_channels:
        turned = ops.unary(
            tape, ops.narrow(tape, streams[0], min(mixer.conv_channels, streams[0].width)), "input", "conv"
        )
    else:
        turned = streams[0]
    out = ops.scan(tape, [turned, *streams], inner)
    out = layer.norm(out, "rms", "state_norm")
    return layer.linear(out, "o", layer.hidden, name="state_out")
