"""Buffers of one forward pass: what the widest layer holds for the tokens of a step."""

from __future__ import annotations

from calculator.model.shape import Attention, DenseMlp, ModelShape, MoeMlp
from calculator.serving.split import Split, round_up


def widest_layer(shape: ModelShape, split: Split, layers: range, tokens: int) -> int:
    """Bytes of MLP intermediates, expert buffers and three hidden rows a token, 16 bit, in the widest layer."""
    widest = 0
    for index in {shape.order[layer] for layer in layers}:
        block = shape.blocks[index]
        per_token = 6 * shape.hidden
        mlp = block.mlp
        if isinstance(mlp, DenseMlp):
            per_token += (6 if mlp.gated else 4) * mlp.width // split.tp
        elif isinstance(mlp, MoeMlp):
            per_token += 6 * (mlp.shared_width + mlp.dense_width) // split.tp
            width = mlp.width // split.width_ranks
            per_token += 2 * mlp.top_k * (max(2 * width, shape.hidden) + width)
        if isinstance(block.mixer, Attention):
            per_token = max(per_token, 4 * block.mixer.heads * block.mixer.head_dim // split.tp)
        widest = max(widest, tokens * per_token)
    return widest


def logits_bytes(shape: ModelShape, rows: int, buffers: float) -> int:
    """``buffers`` fp32 copies of the logits of ``rows`` positions."""
    return int(buffers * rows * round_up(shape.vocab, 64) * 4)
