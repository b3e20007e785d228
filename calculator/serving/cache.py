"""What each layer caches on one rank, before an engine lays it out in blocks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from calculator.model.shape import Attention, Block, LatentAttention, ModelShape, StateMixer
from calculator.precision import KvFormat, kv_format
from calculator.serving.split import ceil_div, kv_heads_per_rank

Kind = Literal["full", "window", "chunk", "state", "cross"]

DTYPE_BYTES = {"float32": 4, "fp32": 4, "float16": 2, "fp16": 2, "bfloat16": 2, "bf16": 2}

INDEXER_SCALE_BYTES = 4
"""One fp32 scale for the 8-bit key of a sparse-attention indexer, 128 wide (DeepSeek-V3.2; vLLM
vllm/model_executor/models/deepseek_v2.py, 0.19.1)."""


@dataclass(frozen=True, slots=True)
class Spec:
    """One layer's cache on one rank: bytes a token, or bytes a sequence for a state. ``window`` in tokens."""

    kind: Kind
    token_bytes: int = 0
    window: int = 0
    state_bytes: int = 0


def cache_format(kv_cache_dtype: str, model_dtype: str) -> KvFormat:
    """The cache format of a plan; "auto" follows the model's compute type: 16 bit, or 32 for a float32 model."""
    if kv_cache_dtype == "auto":
        return kv_format("fp32" if DTYPE_BYTES.get(model_dtype, 2) == 4 else "bf16")
    return kv_format(kv_cache_dtype)


def attention_spec(mixer: Attention, tp: int, form: KvFormat) -> Spec:
    """KV heads per rank x (key + value head) x bytes; a layer that reads another layer's cache holds none."""
    if mixer.shares_kv or not mixer.causal:
        return Spec("full")
    heads = kv_heads_per_rank(mixer.kv_heads, tp)
    size = heads * (form.vector_bytes(mixer.head_dim) + (0 if mixer.one_row else form.vector_bytes(mixer.v_head_dim)))
    if mixer.window:
        return Spec("window", size, mixer.window)
    if mixer.chunk:
        return Spec("chunk", size, mixer.chunk)
    return Spec("cross" if mixer.cross else "full", size)


def latent_spec(mixer: LatentAttention, form: KvFormat) -> Spec:
    """Latent and rotary key, whole on every tensor-parallel rank."""
    return Spec("full", form.vector_bytes(mixer.kv_lora_rank + mixer.qk_rope_head_dim))


def indexer_bytes(mixer: LatentAttention) -> int:
    """Bytes a token of the indexer's 8-bit keys with their scale, and of what is cached beside them in 16 bit; 0
    without indexer."""
    return mixer.indexer_head_dim + INDEXER_SCALE_BYTES + 2 * mixer.indexer_extra if mixer.indexer_head_dim else 0


def state_spec(
    mixer: StateMixer, tp: int, model_dtype: str, *, state_dtype: str | None = None, drafts: int = 0
) -> Spec:
    """Convolution columns and recurrent state of one sequence in one layer.

    conv: channels per rank x (kernel - 1 + drafts) x bytes; state: elements / tp x bytes. Groups of Mamba-2 are
    repeated so that every rank has one. Source: vLLM, vllm/model_executor/layers/mamba/mamba_utils.py (0.33.0).
    """
    wide = DTYPE_BYTES.get(model_dtype, 2)
    state_wide = DTYPE_BYTES.get(state_dtype or mixer.state_dtype or model_dtype, 2)
    channels = ceil_div(mixer.conv_channels, tp)
    if mixer.variant == "mamba2" and mixer.groups % tp:
        inner = mixer.conv_channels - 2 * mixer.groups * mixer.state_size
        channels = inner // tp + 2 * mixer.state_size
    columns = max(mixer.conv_kernel - 1, 0) + drafts if mixer.conv_kernel else 0
    return Spec("state", state_bytes=channels * columns * wide + ceil_div(mixer.state_elements, tp) * state_wide)


def block_specs(block: Block, tp: int, form: KvFormat, model_dtype: str, *, drafts: int = 0) -> Iterable[Spec]:
    """The caches of one layer: its mixers', its cross attention's and its indexer's."""
    for mixer in block.mixers:
        if isinstance(mixer, Attention):
            yield attention_spec(mixer, tp, form)
            if mixer.compress:
                yield from _compressed_specs(mixer, form)
            elif mixer.index_width:
                yield Spec("full", form.vector_bytes(mixer.index_width))
        elif isinstance(mixer, LatentAttention):
            yield latent_spec(mixer, form)
            if mixer.indexer_head_dim:
                yield Spec("full", indexer_bytes(mixer))
        elif isinstance(mixer, StateMixer):
            yield state_spec(mixer, tp, model_dtype, drafts=drafts)
    if block.cross_attention is not None:
        yield attention_spec(block.cross_attention, tp, form)


def _compressed_specs(mixer: Attention, form: KvFormat) -> Iterable[Spec]:
    """Rows and indexer keys that stand for several tokens, and the open blocks of one sequence, in 16 bit."""
    row = form.vector_bytes(mixer.head_dim) + (form.vector_bytes(mixer.index_width) if mixer.index_width else 0)
    yield Spec("full", ceil_div(row, mixer.compress))
    yield Spec("state", state_bytes=2 * mixer.open_elements)


def layer_specs(
    shape: ModelShape, layers: Iterable[int], tp: int, form: KvFormat, *, drafts: int = 0
) -> dict[Spec, int]:
    """How many layers of ``layers`` have each cache. Layers without a cache of their own are left out."""
    counts: dict[int, int] = {}
    for layer in layers:
        counts[shape.order[layer]] = counts.get(shape.order[layer], 0) + 1
    found: dict[Spec, int] = {}
    for index, count in counts.items():
        for spec in block_specs(shape.blocks[index], tp, form, shape.dtype, drafts=drafts):
            if spec.token_bytes or spec.state_bytes:
                found[spec] = found.get(spec, 0) + count
    return found
