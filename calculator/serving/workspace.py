"""Buffers of one forward pass: what the widest layer holds for the tokens of a step."""

from __future__ import annotations

from calculator.model.shape import Attention, DenseMlp, Mlp, ModelShape, MoeMlp
from calculator.serving.split import Split, round_up


def widest_layer(shape: ModelShape, split: Split, layers: range, tokens: int) -> int:
    """Bytes of MLP intermediates, expert buffers and three hidden rows a token, 16 bit, in the widest layer."""
    widest = 0
    for index in {shape.order[layer] for layer in layers}:
        block = shape.blocks[index]
        per_token = 6 * shape.hidden + max(_mlp_bytes(mlp, shape.hidden, split) for mlp in block.mlps)
        for mixer in block.mixers:
            if isinstance(mixer, Attention):
                per_token = max(per_token, 4 * mixer.heads * mixer.head_dim // split.heads_tp)
        widest = max(widest, tokens * per_token)
    return widest


def _mlp_bytes(mlp: Mlp, hidden: int, split: Split) -> int:
    if isinstance(mlp, DenseMlp):
        return (6 if mlp.gated else 4) * mlp.width // split.width_tp
    if isinstance(mlp, MoeMlp):
        width = mlp.width // split.width_ranks
        always = 6 * (mlp.shared_width + mlp.dense_width) // split.width_tp
        return always + 2 * mlp.top_k * (max(2 * width, hidden) + width)
    return 0


def logits_bytes(shape: ModelShape, rows: int, buffers: float) -> int:
    """``buffers`` fp32 copies of the logits of ``rows`` positions."""
    return int(buffers * rows * round_up(shape.vocab, 64) * 4)
