"""SGLang: a static share of the memory that is free before loading holds weights and cache; nothing is measured.

Source: python/sglang/srt/server_args.py, model_executor/model_runner.py, mem_cache/, releases 0.3.6 to 0.5.23.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from calculator.hardware import Gpu
from calculator.model.shape import LatentAttention, ModelShape
from calculator.model.stored import StoredWeights
from calculator.serving.adapters import Adapted, adapter_rows
from calculator.serving.cache import cache_format, layer_specs
from calculator.serving.context import context_limit
from calculator.serving.drafts import WITHOUT_MODEL, Draft, draft_of, draft_rows, drafts_of, method_of
from calculator.serving.loaded import load
from calculator.serving.network import node_size
from calculator.serving.overheads import communication_term, context_term
from calculator.serving.pages import PagedCache, Part, parts_of, state_bytes
from calculator.serving.plan import ServingPlan
from calculator.serving.split import attention_apart, ranks_of, replicas_of, split_of
from calculator.serving.start import ZERO, Span, Start, Term, extra_span
from calculator.serving.versions import Version, parse
from calculator.serving.workspace import logits_bytes, widest_layer
from calculator.sources import Source
from calculator.text import Text, text
from calculator.units import GIB, MIB

NEWEST: Version = (0, 5, 23)
STATE_RATIO = 0.9
"""``mamba_full_memory_ratio``: state memory over cache memory."""
WINDOW_POOLS: Version = (0, 5, 0)
"""From here on window layers have a pool of their own; before, they were kept like full ones."""
WINDOW_RATIO = 0.8
"""``swa_full_tokens_ratio``: tokens of the window pool over those of the full pool."""

DRAFTS_INSIDE: Version = (0, 5, 15)
"""From here on a draft model's weights and cache come out of the static share (model_executor/pool_configurator.py);
before, the draft worker loaded them after the pool was sized, into a flat reserve."""
EXPERTS_ADAPTED: Version = (0, 5, 10)
"""From here on routed experts have adapter slots too (lora/mem_pool.py)."""
DRAFTING_SEQS = 48
"""``max_running_requests`` where a model drafts and nobody sets it (server_args.py)."""


def source(path: str, versions: str = "0.3.6 to 0.5.23") -> Source:
    return Source(
        title=f"SGLang source, python/sglang/srt/{path}", url="https://github.com/sgl-project/sglang",
        checked_on="2026-11-29", versions=versions,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Settings:
    version: Version
    context: int
    chunk: int
    graph_batch: int
    fraction: float
    assumptions: tuple[Text, ...]


def chunk_size(version: Version, total_bytes: int) -> int:
    """``chunked_prefill_size`` by card memory."""
    gib = total_bytes / GIB
    if version >= (0, 5, 4):
        small = 4096 if version >= (0, 5, 23) else 2048
        for limit, size in ((20, 2048), (35, small), (60, 4096), (160, 8192)):
            if gib < limit:
                return size
        return 16384
    if version >= (0, 4, 8) and gib >= 160:
        return 16384
    return 2048 if gib < (35 if version >= (0, 4, 8) else 25) else 8192


def graph_batch(version: Version, total_bytes: int, tp: int) -> int:
    """The largest batch size captured as a CUDA graph."""
    gib = total_bytes / GIB
    if version < (0, 5, 4):
        if gib < (35 if version >= (0, 4, 8) else 25):
            return 8 if tp < 4 else 80
        return 256 if version >= (0, 4, 8) and gib >= 90 else 160
    double = 2 if version >= (0, 5, 23) else 1
    for limit, few, many in ((20, 8, 8), (35, 24 * double, 80 * double), (60, 32, 160), (160, 256, 512)):
        if gib < limit:
            return few if tp < 4 else many
    return 512


def default_fraction(version: Version, total_bytes: int, plan: ServingPlan, chunk: int, batch: int) -> float:
    """``mem_fraction_static`` where it is not set: the card less a reserve that grows with chunk, graphs and ranks."""
    mib, ranks = total_bytes / MIB, plan.tp * plan.pp
    if version < (0, 4, 8):
        for least, share in ((16, 0.79), (8, 0.81), (4, 0.85), (2, 0.87)):
            if plan.tp >= least:
                return share
        return 0.88
    drafts = plan.speculative not in (None, *WITHOUT_MODEL)
    whole = plan.speculative == "draft_model"
    if version < (0, 5, 4):
        gib = mib / 1024
        reserve = 32.0
        for limit, base in ((35, 2.8 + ranks / 10), (90, 9.5 + ranks / 2), (160, 12 + ranks / 2)):
            if gib < limit:
                reserve = base
                break
        reserve += (6 if whole else 2 if drafts else 0) + (4 if attention_apart(plan) else 0)
        return round((gib - reserve) / gib, 3)
    reserve = 512 + 1.5 * max(chunk, 2048) + 2 * batch + 1024 * ranks / 8
    if attention_apart(plan):
        reserve += 3 * batch * plan.dp + (1.5 * batch * plan.dp if batch > 300 else 0)
    if mib > 60 * 1024:
        reserve = max(reserve, 10 * 1024)
    if drafts and version < DRAFTS_INSIDE:
        reserve += 1024 * (6 if whole else 4 if version >= (0, 5, 10) else 2)
    return round((mib - reserve) / mib, 3)


def settings(shape: ModelShape, plan: ServingPlan, gpu: Gpu) -> Settings:
    notes: list[Text] = []
    version = NEWEST
    if plan.engine_version is not None:
        version = parse(plan.engine_version)
    else:
        notes.append(text("serving.assume.version", engine="SGLang", version=".".join(map(str, NEWEST))))
    context = plan.max_model_len or context_limit(shape, "sglang") or 4096
    if plan.max_model_len is None:
        notes.append(text("serving.assume.max_model_len", context_tokens=context))
    chunk = plan.chunked_prefill_size or plan.max_num_batched_tokens or chunk_size(version, gpu.total_bytes)
    batch = graph_batch(version, gpu.total_bytes, plan.tp)
    fraction = plan.memory_fraction
    if fraction is None:
        fraction = default_fraction(version, gpu.total_bytes, plan, chunk, batch)
        if shape.towers:
            fraction = round(fraction * 0.95 * _tower_factor(shape), 3)
        notes.append(text("serving.assume.fraction", fraction=fraction))
    return Settings(version, context, chunk, batch, fraction, tuple(notes))


def _tower_factor(shape: ModelShape) -> float:
    """``adjust_mem_fraction_for_vlm``: larger vision towers leave less to the static share."""
    size = max((t.layers * t.hidden**2 for t in shape.towers if t.modality == "vision"), default=0)
    return min(max(1 - 0.1 * (size / (24 * 1024**2) - 1), 0.8), 1.05)


def _page(shape: ModelShape, plan: ServingPlan) -> int:
    latent = any(isinstance(mixer, LatentAttention) for b in shape.blocks for mixer in b.mixers)
    return plan.block_size or (64 if latent and plan.gpu.startswith(("h100", "h200", "h20", "gh200")) else 1)


def start(shape: ModelShape, plan: ServingPlan, gpu: Gpu, stored: StoredWeights | None = None) -> Start:
    """The start of the tightest stage. ``free_memory_bytes`` is what is free after loading."""
    split = split_of(plan, shape)
    chosen = settings(shape, plan, gpu)
    form = cache_format(plan.kv_cache_dtype, plan.weights or shape.dtype)
    draft, method = draft_of(shape, plan, split, form), method_of(shape, plan)
    weights = load(shape, plan, split, stored)
    stays = max(weights.largest - plan.cpu_offload_bytes, 0)
    moved = sum(min(each, plan.cpu_offload_bytes) for each in weights.stages) * (ranks_of(plan) // plan.pp)
    held = Span.about(stays, 0.01)
    stage = weights.stages.index(weights.largest)
    layers = weights.layers[stage]
    context, links = context_term(gpu), communication_term(gpu, split.tp, node_size(plan, gpu))
    before = (context.span + links.span).rest_of(gpu.total_bytes)
    if plan.free_memory_bytes is not None:
        before = Span.exact(plan.free_memory_bytes + held.value)
    static = Span(*(int(chosen.fraction * end) for end in (before.value, before.low, before.high)))
    inside = chosen.version >= DRAFTS_INSIDE
    slots_of = Adapted(experts=chosen.version >= EXPERTS_ADAPTED)
    adapters = adapter_rows(shape, layers, split, plan, slots_of)
    charged = held + extra_span(adapters) + (draft.weights if inside else ZERO)
    pool = Span(static.value - charged.value, static.low - charged.high, static.high - charged.low)
    specs = layer_specs(shape, layers, split.heads_tp, form)
    states = state_bytes(specs.items())
    state = None
    if states:
        state, pool = _state(pool, states, plan)
    if plan.kv_cache_memory_bytes is not None:
        pool = Span.exact(plan.kv_cache_memory_bytes)
    two_pools = chosen.version >= WINDOW_POOLS
    parts = parts_of(specs, credit_windows=two_pools)
    if inside and draft.layers:
        parts = _with_draft(parts, draft.layers, len(layers))
    cache = PagedCache(
        parts, _page(shape, plan), states, chosen.chunk, False, WINDOW_RATIO if two_pools else 0.0,
    )  # fmt: skip
    tokens = cache.tokens(pool.value, chosen.context)
    seqs = plan.max_num_seqs or max(1, min(max(int(tokens / chosen.context * 512), 2048), 4096))
    if plan.max_num_seqs is None and method not in (None, *WITHOUT_MODEL):
        seqs = DRAFTING_SEQS // (plan.dp if attention_apart(plan) else 1)
    drafting = 0 if inside else (tokens + 2 * seqs * drafts_of(plan) + 100) * _token_bytes(draft)
    slots = (seqs + 1) * (chosen.context + 4) * 4
    rows = min(seqs, chosen.graph_batch)
    work = widest_layer(shape, split, layers, chosen.chunk) + logits_bytes(shape, rows, 2.5)
    graphs = Span(300 * MIB + 4 * MIB * len(graph_sizes(chosen.graph_batch)), 100 * MIB, 3 * GIB)
    if not plan.cuda_graphs:
        graphs = Span.exact(0)
    return Start(
        weights=Term(held, text("serving.item.weights.rank", weights_bytes=stays, tp=split.tp, pp=split.pp),
                     "computed", source("model_loader, utils/offloader.py"), split.tp * split.pp),
        activation=Term(Span(work, work // 2, 2 * work),
                        text("serving.item.workspace", batched_tokens=chosen.chunk, seqs_count=rows), "computed",
                        source("model_executor/model_runner.py")),
        non_torch=Term(links.span + Span.exact(slots + 384 * MIB),
                       text("serving.item.sglang_buffers", slots_bytes=slots, ranks_count=split.tp),
                       "calibrated", source("mem_cache/memory_pool.py")),
        cuda_graphs=Term(graphs, text("serving.item.cuda_graphs", sizes_count=len(graph_sizes(chosen.graph_batch))),
                         "calibrated", source("model_executor/cuda_graph_runner.py")),
        context=context,
        pool=pool,
        pool_formula=text("serving.item.pool.static", fraction=chosen.fraction, free_bytes=before.value,
                          weights_bytes=charged.value + (state.span.value if state else 0)),
        pool_source=source("model_executor/model_runner.py, profile_max_num_token"),
        cache=cache,
        budget_bytes=static.value,
        memory_fraction=chosen.fraction,
        max_model_len=chosen.context,
        max_num_seqs=seqs,
        max_num_batched_tokens=chosen.chunk,
        replicas=replicas_of(plan),
        rank=str(stage),
        state=state,
        extras=(*draft_rows(draft, drafting), *adapters),
        needs_whole_request=False,
        host_bytes=moved,
        streamed_bytes=weights.largest - stays,
        assumptions=(*chosen.assumptions, *draft.notes),
    )  # fmt: skip


def _with_draft(parts: tuple[Part, ...], drafting: int, layers: int) -> tuple[Part, ...]:
    """A token's bytes raised by the layers that draft, each counted like one of the model's own
    (model_executor/pool_configurator.py)."""
    return tuple(replace(part, token_bytes=int(part.token_bytes * (1 + drafting / layers))) for part in parts)


def _token_bytes(draft: Draft) -> int:
    return sum(spec.token_bytes * count for spec, count in draft.specs.items())


def _state(pool: Span, states: int, plan: ServingPlan) -> tuple[Term, Span]:
    """State slots take 0.9/1.9 of the pool, or what the running requests need where their number is set."""
    drafts = 1 + drafts_of(plan)
    if plan.max_num_seqs is not None:
        # The pool allocates one slot more than it hands out.
        span = Span.exact((plan.max_num_seqs + 1) * states * drafts)
    else:
        share = STATE_RATIO / (1 + STATE_RATIO)
        span = Span(*(max(int(end * share), 0) for end in (pool.value, pool.low, pool.high)))
    rest = Span(pool.value - span.value, pool.low - span.high, pool.high - span.low)
    term = Term(span, text("serving.item.state", state_bytes=states, slots_count=span.value // max(states, 1)),
                "computed", source("mem_cache/memory_pool.py"))  # fmt: skip
    return term, rest


def graph_sizes(largest: int) -> list[int]:
    """Captured batch sizes: 1, 2, 4, 8, 12, then by 8 to 256, by 16 to 496, by 32."""
    sizes = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 497, 16), *range(512, max(largest, 512) + 1, 32)]
    return [size for size in sizes if size <= largest]
