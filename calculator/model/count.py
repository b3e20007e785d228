"""Counting what a shape holds: parameters by component, and the cache as the model defines it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from calculator.errors import UnknownFamilyError
from calculator.model.shape import (
    Attention,
    Block,
    CacheShape,
    LatentAttention,
    ModelShape,
    ParameterCount,
    StateMixer,
    Tensor,
)

HALF = 2
"""Bytes of a 16-bit element, in which the cache shape is stated."""


def _add(counts: Counter[str], tensors: Iterable[Tensor], times: int = 1) -> None:
    for tensor in tensors:
        counts[tensor.component] += tensor.elements * times


def skipped_elements(block: Block) -> int:
    """Elements of the routed experts that one token does not use."""
    moe = block.mixture
    if moe is None:
        return 0
    routed = sum(t.elements for t in block.tensors if t.component == "experts")
    own = routed * moe.width // (moe.width + moe.picture_width)
    return routed - own * moe.top_k // (moe.experts + moe.zero_experts)


def count_parameters(shape: ModelShape) -> ParameterCount:
    """Parameters by component. ``total`` leaves out ``mtp``; a tied head adds nothing, its tensor being the embedding.

    ``active`` = total - routed experts x (1 - top_k / experts), embeddings, head and towers counted in.
    """
    counts: Counter[str] = Counter()
    _add(counts, shape.embedding)
    _add(counts, shape.final)
    if not shape.tied:
        _add(counts, shape.head)
    else:
        _add(counts, (t for t in shape.head if t.kind == "bias"))
    skipped = 0
    for index, uses in Counter((*shape.order, *shape.encoder_order)).items():
        block = shape.blocks[index]
        times = 1 if shape.shared_layers else uses
        _add(counts, block.tensors, times)
        skipped += skipped_elements(block) * times
    for tower in shape.towers:
        _add(counts, tower.tensors)
    _add(counts, shape.projector)
    _add(counts, shape.shared)
    total = sum(counts.values())
    mtp = sum(t.elements for t in shape.mtp)
    return ParameterCount(
        total=total,
        embedding=counts["embedding"],
        attention=counts["attention"],
        mlp=counts["mlp"],
        experts=counts["experts"],
        shared_experts=counts["shared_experts"],
        router=counts["router"],
        norm=counts["norm"],
        ssm=counts["ssm"],
        head=counts["head"],
        vision=counts["vision"],
        audio=counts["audio"],
        projector=counts["projector"],
        mtp=mtp,
        other=counts["other"],
        active=total - skipped,
    )


def cache_elements(mixer: object) -> int:
    """Elements that one token adds to the cache of one layer with this mixer; 0 for state mixers and sharing layers."""
    if isinstance(mixer, Attention):
        if mixer.shares_kv or mixer.cross:
            return 0
        return mixer.kv_heads * (mixer.head_dim + (0 if mixer.one_row else mixer.v_head_dim))
    if isinstance(mixer, LatentAttention):
        return mixer.kv_lora_rank + mixer.qk_rope_head_dim
    return 0


def cache_shape(shape: ModelShape) -> CacheShape:
    """Cache bytes at 16 bit over all decoder layers.

    Full layers count per token; layers with a window or chunk are counted apart; a latent layer is a full layer of its
    latent; a layer with compressed rows beside its window counts as both. States take the full kernel width. In an
    encoder these are the keys and values of one pass, all alive at once whatever the window. Raises
    ``UnknownFamilyError`` where the shape says that no formula fits.
    """
    if shape.cache_refusal is not None:
        field = str(shape.cache_refusal.values.get("field", ""))
        raise UnknownFamilyError(shape.cache_refusal.id, **{**shape.cache_refusal.values, "field": field})  # type: ignore[arg-type]
    per_token = full = windowed = state = indexer = sparse = 0
    windows: set[int] = set()
    mixers = ((m, times) for times, block in zip(shape.block_counts, shape.blocks, strict=True) for m in block.mixers)
    for mixer, times in mixers:
        if isinstance(mixer, StateMixer):
            state += times * (mixer.state_elements + mixer.conv_elements) * HALF
        elements = cache_elements(mixer)
        if not elements:
            continue
        if isinstance(mixer, Attention) and mixer.compress:
            full += times
            per_token += times * elements * HALF // mixer.compress
            state += times * mixer.open_elements * HALF
        if isinstance(mixer, Attention):
            indexer += times * mixer.index_width * HALF // max(mixer.compress, 1)
        if isinstance(mixer, Attention) and mixer.block_sparse:
            sparse += times * elements * HALF
            continue
        limit = (mixer.window or mixer.chunk) if isinstance(mixer, Attention) and mixer.causal else None
        if limit is None:
            full += times
            per_token += times * elements * HALF
        else:
            windowed += times
            windows.add(limit)
        if isinstance(mixer, LatentAttention) and mixer.indexer_head_dim:
            indexer += times * (mixer.indexer_head_dim + mixer.indexer_extra) * HALF
    return CacheShape(
        bytes_per_token_full_layers=per_token,
        full_layers=full,
        window_layers=windowed,
        window=max(windows) if windows else None,
        state_bytes_per_sequence=state,
        indexer_bytes_per_token=indexer,
        sparse_bytes_per_token=sparse,
    )
