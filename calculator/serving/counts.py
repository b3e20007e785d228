"""What one token or prompt costs a model: operations, and bytes that are read and written between its products."""

from __future__ import annotations

from typing import cast

from calculator.model.shape import Attention, DenseMlp, LatentAttention, ModelShape, MoeMlp
from calculator.model.weights import WeightLayout
from calculator.precision import weight_format
from calculator.serving.plan import ServingPlan
from calculator.serving.weights import Recent

HIDDEN_PASSES, WIDTH_PASSES, GATHER_PASSES = 12, 6, 4
"""Reads and writes of a row between the products of a layer: two norms with residuals and quantisation, the MLP's
activation with quantisation, and an expert's gather and weighted sum."""

_recent = Recent()


def active(shape: ModelShape) -> int:
    """Parameters that multiply for one token: without the embedding's look-up and the towers."""
    count = shape.parameters
    looked_up = 0 if shape.tied else count.embedding
    return count.active - looked_up - count.vision - count.audio - count.projector


def attention_flops(shape: ModelShape, prompt: int) -> float:
    """Operations of one prompt's causal attention, over the window that each layer sees."""
    total = 0.0
    mixers = ((m, times) for times, block in zip(shape.block_counts, shape.blocks, strict=True) for m in block.mixers)
    for mixer, times in mixers:
        if isinstance(mixer, Attention):
            seen = min(mixer.window or mixer.chunk or prompt, prompt)
            total += times * 2.0 * mixer.heads * (mixer.head_dim + mixer.v_head_dim) * prompt * seen / 2
        elif isinstance(mixer, LatentAttention):
            width = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim + mixer.v_head_dim
            total += times * 2.0 * mixer.heads * width * prompt * prompt / 2
    return total


def row_bytes(shape: ModelShape, ranks: int) -> float:
    """Bytes that one token moves between the products of all layers, 16 bit, where ``ranks`` share heads and widths:
    norms, residuals and quantisation read and write the hidden row, rotary and attention queries, keys and values, the
    activation the MLP's width; each routed expert gathers and scatters a hidden row and has a width of its own."""
    total = 0.0
    for block, times in zip(shape.blocks, shape.block_counts, strict=True):
        elements = float(HIDDEN_PASSES * shape.hidden)
        for mixer in block.mixers:
            if isinstance(mixer, Attention):
                heads = mixer.heads * (mixer.head_dim + mixer.v_head_dim)
                elements += (heads + 2 * mixer.kv_heads * (mixer.head_dim + mixer.v_head_dim)) / ranks
        for mlp in (block.mlp, block.mixture):
            if isinstance(mlp, DenseMlp):
                elements += WIDTH_PASSES * mlp.width / ranks
            elif isinstance(mlp, MoeMlp):
                inner = mlp.latent or shape.hidden
                routed = mlp.top_k * (GATHER_PASSES * inner + WIDTH_PASSES * mlp.width)
                elements += (routed + WIDTH_PASSES * (mlp.shared_width + mlp.dense_width)) / ranks
                break
        total += times * elements
    return 2 * total


def touched(shape: ModelShape, tokens: float) -> float:
    """Share of the experts that ``tokens`` of a step with even routing reach."""
    for block in shape.blocks:
        if (moe := block.mixture) is not None:
            return float(1 - (1 - moe.top_k / (moe.experts + moe.zero_experts)) ** tokens)
    return 1.0


def mixtures(shape: ModelShape) -> int:
    """Layers that route tokens to experts."""
    return sum(times for block, times in zip(shape.blocks, shape.block_counts, strict=True) if block.mixture)


def expert_share(shape: ModelShape, plan: ServingPlan) -> float:
    """Share of the weight bytes that routed experts take."""

    def make() -> object:
        chosen = None
        if plan.weights is not None and not plan.weights.startswith("gguf"):
            chosen = weight_format(plan.weights)
        layout = WeightLayout(shape, chosen)
        experts = total = 0
        for index, times in enumerate(shape.block_counts):
            for tensor in shape.blocks[index].tensors:
                size = times * layout.tensor_bytes(tensor, shape.order.index(index))
                total += size
                experts += size if tensor.component == "experts" else 0
        return experts / total if total else 0.0

    if not mixtures(shape):
        return 0.0
    return cast(float, _recent.get(shape, ("experts", plan.weights), make))
