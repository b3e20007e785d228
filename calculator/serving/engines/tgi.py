"""Text Generation Inference: a warm-up prefill, then most of what is still free.

Source: server/text_generation_server/models/flash_causal_lm.py and models/globals.py (2.0.0, 2.4.0, 3.0.0, 3.3.7),
launcher/src/main.rs.
"""

from __future__ import annotations

from calculator.hardware import Gpu
from calculator.model.shape import ModelShape
from calculator.model.stored import StoredWeights
from calculator.serving.adapters import Adapted, adapter_rows
from calculator.serving.cache import cache_format, layer_specs
from calculator.serving.loaded import load
from calculator.serving.network import node_size
from calculator.serving.overheads import communication_term, context_term
from calculator.serving.pages import PagedCache, parts_of, state_bytes
from calculator.serving.plan import ServingPlan
from calculator.serving.split import replicas_of, split_of
from calculator.serving.start import Span, Start, Term, extra_span
from calculator.serving.versions import Rule, Version, at, parse
from calculator.serving.workspace import logits_bytes, widest_layer
from calculator.sources import Source
from calculator.text import Text, text
from calculator.units import MIB

NEWEST: Version = (3, 3, 7)
PREFILL_TOKENS = 4096
"""``max_batch_prefill_tokens`` where no compute estimate sets it."""
GRAPH_SIZES = 6


def source(path: str, versions: str = "2.0 to 3.3.7") -> Source:
    return Source(
        title=f"Text Generation Inference source, {path}",
        url="https://github.com/huggingface/text-generation-inference", checked_on="2026-11-29", versions=versions,
    )  # fmt: skip


ROOM: tuple[Rule[float], ...] = (
    Rule((0, 0, 0), 0.95, source("models/flash_causal_lm.py", "to 2.3")),
    Rule((2, 4, 0), 0.90, source("models/flash_causal_lm.py", "2.4 and later")),
)
"""``TGI_WIGGLE_ROOM``: of the free memory, from 3.0 of the card's total."""


def start(shape: ModelShape, plan: ServingPlan, gpu: Gpu, stored: StoredWeights | None = None) -> Start:
    """The start of one shard; ``memory_fraction`` is ``--cuda-memory-fraction``."""
    notes: list[Text] = []
    version = NEWEST
    if plan.engine_version is not None:
        version = parse(plan.engine_version)
    else:
        notes.append(text("serving.assume.version", engine="TGI", version=".".join(map(str, NEWEST))))
    split = split_of(plan, shape)
    weights = load(shape, plan, split, stored)
    held = Span.about(weights.largest, 0.01)
    length = plan.max_model_len or shape.max_context or 4096
    tokens = plan.max_num_batched_tokens or PREFILL_TOKENS
    fraction, room = plan.memory_fraction or 1.0, at(ROOM, version)
    work = widest_layer(shape, split, weights.layers[0], tokens) + logits_bytes(shape, tokens, 0.5)
    activation = Span(work, work // 2, 2 * work)
    links, context = communication_term(gpu, split.tp, node_size(plan, gpu)), context_term(gpu)
    outside = int((1 - fraction) * gpu.total_bytes)
    adapters = adapter_rows(shape, weights.layers[0], split, plan, Adapted(experts=False, sharded=True))
    free = (held + extra_span(adapters) + activation + links.span + context.span + Span.exact(outside)).rest_of(
        gpu.total_bytes
    )
    if plan.free_memory_bytes is not None:
        free = Span.exact(plan.free_memory_bytes)
    kept = int((1 - room.value) * fraction * gpu.total_bytes)
    ends = (free.value, free.low, free.high)
    pool = Span(*(end - kept if version >= (3, 0, 0) else int(room.value * end) for end in ends))
    if plan.kv_cache_memory_bytes is not None:
        pool = Span.exact(plan.kv_cache_memory_bytes)
    form = cache_format(plan.kv_cache_dtype, plan.weights or shape.dtype)
    specs = layer_specs(shape, weights.layers[0], split.tp, form)
    states = state_bytes(specs.items())
    graphs = Span(GRAPH_SIZES * 30 * MIB, 0, GRAPH_SIZES * 100 * MIB) if plan.cuda_graphs else Span.exact(0)
    cache = PagedCache(parts_of(specs, credit_windows=False), plan.block_size or 16, states)
    seqs = plan.max_num_seqs or 128
    return Start(
        weights=Term(held, text("serving.item.weights.rank", weights_bytes=weights.largest, tp=split.tp,
                                pp=1), "computed", source("server/text_generation_server/layers"), split.tp),
        activation=Term(activation, text("serving.item.workspace", batched_tokens=tokens, seqs_count=seqs), "assumed",
                        source("models/flash_causal_lm.py, warmup")),
        non_torch=links,
        cuda_graphs=Term(graphs, text("serving.item.cuda_graphs", sizes_count=GRAPH_SIZES), "assumed",
                         source("models/flash_causal_lm.py, cuda_graph_warmup")),
        context=context,
        pool=pool,
        pool_formula=(
            text("serving.item.pool.less", free_bytes=free.value, kept_bytes=kept)
            if version >= (3, 0, 0)
            else text("serving.item.pool.free", fraction=room.value, free_bytes=free.value)
        ),
        pool_source=room.source,
        cache=cache,
        extras=adapters,
        budget_bytes=int(fraction * gpu.total_bytes),
        memory_fraction=fraction,
        max_model_len=length,
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        replicas=replicas_of(plan),
        rank="0",
        needs_whole_request=False,
        assumptions=tuple(notes),
    )  # fmt: skip
