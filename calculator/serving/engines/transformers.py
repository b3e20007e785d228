"""Plain transformers ``generate``: nothing is reserved; the cache grows with the batch.

Source: src/transformers/cache_utils.py and generation/utils.py (4.44.2, 4.51.3, 4.57.1, 5.24.0).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from calculator.hardware import Gpu
from calculator.model.shape import Attention, LatentAttention, ModelShape
from calculator.model.stored import StoredWeights
from calculator.serving.adapters import Adapted, adapter_rows
from calculator.serving.cache import Spec, cache_format, layer_specs
from calculator.serving.loaded import load
from calculator.serving.overheads import context_term
from calculator.serving.pages import PagedCache, parts_of, state_bytes
from calculator.serving.plan import ServingPlan
from calculator.serving.split import Split
from calculator.serving.start import Span, Start, Term, extra_span
from calculator.serving.versions import Version, parse
from calculator.serving.workspace import widest_layer
from calculator.sources import Source
from calculator.text import Text, text

NEWEST: Version = (5, 24, 0)
LAST_LOGITS: Version = (4, 45, 0)
"""From here on only the last position's logits are made; before, the whole prompt's in 16 and in 32 bit."""
WINDOW_CREDIT: Version = (4, 50, 0)


def source(path: str) -> Source:
    return Source(
        title=f"transformers source, src/transformers/{path}", url="https://github.com/huggingface/transformers",
        checked_on="2026-11-29", versions="4.44 to 5.24",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Batch:
    """One ``generate`` call: every sequence is kept to its full length, and a growing tensor is copied as it grows."""

    cache: PagedCache
    copied_bytes: int
    requests: int

    @property
    def bytes_per_token(self) -> int:
        return self.cache.bytes_per_token

    @property
    def state_bytes_per_sequence(self) -> int:
        return self.cache.state_bytes_per_sequence

    @property
    def block_size(self) -> int:
        return 1

    def tokens(self, pool_bytes: int, max_model_len: int) -> int:
        return self.cache.tokens(pool_bytes, max_model_len)

    def concurrency(self, pool_bytes: int, context: int) -> float:
        need = self.needed(1, context)
        return max(pool_bytes, 0) / need if need else float(self.requests)

    def needed(self, requests: int, context: int) -> int:
        """Every layer's cache, and one more key or value tensor of the widest layer while it is grown."""
        return self.cache.needed(requests, context) + requests * context * self.copied_bytes

    def shared_bytes(self, prefix_tokens: int) -> int:
        return 0

    def longest(self, pool_bytes: int) -> int:
        each = self.bytes_per_token + self.copied_bytes
        return pool_bytes // each if each else 2**31


def start(shape: ModelShape, plan: ServingPlan, gpu: Gpu, stored: StoredWeights | None = None) -> Start:
    """One process that holds the layers of one card; ``n_gpus`` cards hold whole layers each (``device_map``)."""
    notes: list[Text] = []
    version = NEWEST
    if plan.engine_version is not None:
        version = parse(plan.engine_version)
    else:
        notes.append(text("serving.assume.version", engine="transformers", version=".".join(map(str, NEWEST))))
    weights = load(shape, plan, Split(pp=min(plan.n_gpus, shape.layers)), stored)
    stage = weights.stages.index(weights.largest)
    layers = weights.layers[stage]
    held = Span.about(weights.largest, 0.01)
    length = plan.context_tokens or plan.max_model_len or shape.max_context or 2048
    requests = plan.max_num_seqs or plan.concurrency
    form = cache_format(plan.kv_cache_dtype, plan.weights or shape.dtype)
    specs = _uncompressed(shape, layers, layer_specs(shape, layers, 1, form), form.vector_bytes)
    widest = max((spec.token_bytes for spec in specs), default=0)
    cache = Batch(
        PagedCache(parts_of(specs, credit_windows=version >= WINDOW_CREDIT), 1, state_bytes(specs.items()), 0, True),
        widest // 2, requests,
    )  # fmt: skip
    pool = Span.exact(cache.needed(requests, length))
    if plan.kv_cache_memory_bytes is not None:
        pool = Span.exact(plan.kv_cache_memory_bytes)
    prompt = requests * length
    positions, each = (prompt, 6) if version < LAST_LOGITS else (requests, 6)
    work = max(widest_layer(shape, Split(), layers, prompt), positions * shape.vocab * each)
    activation = Span(work, work * 2 // 3, work * 3 // 2)
    context = context_term(gpu)
    adapters = adapter_rows(shape, layers, Split(), plan, Adapted(experts=False))
    taken = held + extra_span(adapters) + pool + activation + context.span
    refusal = None
    if taken.value > gpu.total_bytes:
        refusal = text("serving.refused.over_card", missing_bytes=taken.value - gpu.total_bytes)
    return Start(
        weights=Term(held, text("serving.item.weights.rank", weights_bytes=weights.largest, tp=1,
                                pp=len(weights.stages)), "computed", source("modeling_utils.py"), len(weights.stages)),
        activation=Term(activation, text("serving.item.workspace", batched_tokens=prompt, seqs_count=requests),
                        "computed", source("generation/utils.py")),
        non_torch=Term(Span.exact(0), text("serving.item.non_torch", ranks_count=1), "computed",
                       source("modeling_utils.py")),
        cuda_graphs=Term(Span.exact(0), text("serving.item.cuda_graphs", sizes_count=0), "computed",
                         source("generation/utils.py")),
        context=context,
        pool=pool,
        pool_formula=text("serving.item.pool.grows", requests_count=requests, context_tokens=length),
        pool_source=source("cache_utils.py"),
        cache=cache,
        extras=adapters,
        budget_bytes=gpu.total_bytes,
        memory_fraction=1.0,
        max_model_len=length,
        max_num_seqs=requests,
        max_num_batched_tokens=prompt,
        replicas=1,
        rank=str(stage),
        pool_follows_wish=True,
        needs_whole_request=False,
        assumptions=tuple(notes),
        refusal=refusal,
    )  # fmt: skip


def _uncompressed(
    shape: ModelShape, layers: range, specs: dict[Spec, int], size: Callable[[int], int]
) -> dict[Spec, int]:
    """The library caches the expanded heads of latent attention, not the latent."""
    if not any(isinstance(mixer, LatentAttention) for block in shape.blocks for mixer in block.mixers):
        return specs
    found: dict[Spec, int] = {}
    for mixer in (mixer for layer in layers for mixer in shape.blocks[shape.order[layer]].mixers):
        if isinstance(mixer, LatentAttention):
            key = size(mixer.qk_nope_head_dim + mixer.qk_rope_head_dim)
            spec = Spec("full", mixer.heads * (key + size(mixer.v_head_dim)))
        elif isinstance(mixer, Attention):
            spec = Spec("full", mixer.kv_heads * (size(mixer.head_dim) + size(mixer.v_head_dim)))
        else:
            continue
        found[spec] = found.get(spec, 0) + 1
    return found
