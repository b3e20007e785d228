"""The serving bill: an engine's start as items, totals and the capacity that follows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import ceil, floor
from types import MappingProxyType

from calculator.bill import Basis, Bill, Item, Layer, Phase, Range, ServingFigures, Verdict
from calculator.errors import PlanError
from calculator.hardware import Gpu
from calculator.model.shape import Attention, ModelShape
from calculator.model.stored import StoredWeights
from calculator.serving.context import within_limit
from calculator.serving.drafts import method_of
from calculator.serving.engines import llama_cpp, lmdeploy, ollama, sglang, tensorrt_llm, tgi, transformers, vllm
from calculator.serving.host import host_cache
from calculator.serving.plan import ServingPlan
from calculator.serving.prefix import shares_prefixes
from calculator.serving.releases import older
from calculator.serving.split import ranks_of
from calculator.serving.start import ZERO, Cache, Span, Start, Term, extra_span
from calculator.serving.support import check_support
from calculator.serving.unused import unused
from calculator.sources import Source
from calculator.text import Text, text

Begin = Callable[[ModelShape, ServingPlan, Gpu, StoredWeights | None], Start]
_STARTS: MappingProxyType[str, Begin] = MappingProxyType(
    {
        "vllm": vllm.start,
        "sglang": sglang.start,
        "tensorrt_llm": tensorrt_llm.start,
        "llama_cpp": llama_cpp.start,
        "ollama": ollama.start,
        "lmdeploy": lmdeploy.start,
        "tgi": tgi.start,
        "transformers": transformers.start,
    }
)

_RANKED = ("vllm", "sglang", "tensorrt_llm", "tgi", "lmdeploy")
"""Engines that run one process a rank: cards beyond ``tp``, ``pp`` and ``dp`` stay idle."""
_COMPRESSED = ("vllm", "transformers")
"""Engines whose layout of compressed rows (DeepSeek-V4) is known here."""
_FREE_SOURCE = Source(title="The card's total less everything above")
_PHASES = ("load", "profile", "serve")


_DOWNCAST = ("vllm", "sglang")
"""Engines whose ``dtype`` "auto" loads float32 weights as 16-bit ones (vllm/config/model.py, ``_resolve_auto_dtype``;
SGLang ``configs/model_config.py``, ``_get_and_verify_dtype``)."""


def start(shape: ModelShape, plan: ServingPlan, gpu: Gpu, stored: StoredWeights | None = None) -> Start:
    """The engine's start, term by term. Raises ``PlanError`` ("serving.unknown_engine", those of
    ``calculator.serving.support`` and ``calculator.serving.context``, and the engine's own), and ``UnknownFamilyError``
    for a model whose cache no formula covers."""
    if shape.cache_refusal is not None:
        _ = shape.cache
    compressed = any(isinstance(m, Attention) and m.compress for block in shape.blocks for m in block.mixers)
    if compressed and plan.engine not in _COMPRESSED:
        raise PlanError("serving.compressed_cache", field="engine", engine=plan.engine)
    method_of(shape, plan)
    begin = _STARTS.get(plan.engine)
    if begin is None:
        raise PlanError("serving.unknown_engine", field="engine", engine=plan.engine)
    check_support(shape, plan, gpu)
    plan, notes = within_limit(shape, plan)
    if shape.dtype == "float32" and shape.quantization is None and plan.weights is None and plan.engine in _DOWNCAST:
        plan, notes = plan.model_copy(update={"weights": "bf16"}), (*notes, text("serving.assume.downcast"))
    begun = begin(shape, plan, gpu, stored)
    return replace(
        begun, assumptions=(*begun.assumptions, *notes, *older(plan)), shares_prefixes=shares_prefixes(shape, plan, gpu)
    )


def geometry(shape: ModelShape, plan: ServingPlan, gpu: Gpu, pool_bytes: int) -> tuple[int, float]:
    """Tokens and concurrent requests of ``max_model_len`` that a cache pool of ``pool_bytes`` per GPU holds, as the
    engine prints them: the cache's geometry alone."""
    begun = start(shape, plan.model_copy(update={"kv_cache_memory_bytes": pool_bytes, "longer_context": True}), gpu)
    length = begun.max_model_len
    return begun.cache.tokens(pool_bytes, length), begun.cache.concurrency(pool_bytes, length)


def bill(shape: ModelShape, plan: ServingPlan, gpu: Gpu, stored: StoredWeights | None = None) -> Bill:
    """The itemised memory of the tightest GPU of one replica.

    ``need`` is weights, the wished requests' cache, workspace and overheads; ``process`` is the reservation: what the
    engine takes of the card once it runs. The items add up to the reservation: ``kv_cache`` is the pool where the
    engine starts, and what the wish needs where it does not. ``stored`` replaces computed weight bytes by those read
    from the checkpoint's headers.

    Verdict: *fits* if the engine starts with the plan's context and holds the wished requests, *tight* if it starts
    and holds fewer, or only with a part of the model on the host, *does not fit* if it does not start. Raises
    ``PlanError`` for what the engine cannot run.
    """
    begun = start(shape, plan, gpu, stored)
    cache, replicas = begun.cache, begun.replicas
    context = min(plan.context_tokens or begun.request_tokens or begun.max_model_len, begun.max_model_len)
    wished = ceil(plan.concurrency / replicas)
    prefix = min(plan.shared_prefix_tokens, context) if begun.shares_prefixes else 0
    shared = cache.shared_bytes(prefix) if prefix else 0
    running = min(wished, begun.max_num_seqs)
    asked = begun.asked or begun
    needed = _needed(asked, wished, context, shared)
    one = cache.needed(1, begun.max_model_len)
    pool = begun.pool
    refusal = begun.refusal or _refusal(begun, one, _fixed(begun) + pool, gpu)
    starts = refusal is None
    taken = starts or begun.pool_follows_wish
    held = Span(max(pool.value, 0), max(pool.low, 0), max(pool.high, 0)) if taken else Span.exact(needed)
    per_replica = _requests(cache, pool.value, context, shared) if starts else 0.0
    at_context = min(per_replica, float(begun.max_num_seqs)) * replicas
    reserve = int(max(pool.value, 0) * plan.peak_reserve)
    steady = min(_requests(cache, pool.value - reserve, context, shared), float(begun.max_num_seqs)) if starts else 0.0
    hosted = host_cache(plan, begun)
    pool_text = begun.pool_formula
    if plan.kv_cache_memory_bytes is not None and pool == Span.exact(plan.kv_cache_memory_bytes):
        pool_text = text("serving.item.pool.fixed", pool_bytes=plan.kv_cache_memory_bytes)
    if not taken:
        pool_text = text(
            "serving.item.pool.wished", requests_count=running, context_tokens=context, needed_bytes=needed
        )
    items = _items(begun, held, pool_text, gpu)
    if stored is not None and stored.basis == "header" and plan.weights is None:
        read = {"basis": stored.basis, "source": stored.source}
        items = tuple(item.model_copy(update=read) if item.key == "weights" else item for item in items)
    totals = {layer: _sum(items, layer) for layer in ("tensor", "process")}
    allocated = totals["tensor"]
    process = allocated + totals["process"]
    need = _range(_fixed(asked) + Span.exact(needed))
    verdict: Verdict = "does_not_fit"
    if starts:
        held_all = wished <= begun.max_num_seqs and floor(per_replica + 1e-9) >= wished
        verdict = "fits" if held_all and begun.moved is None else "tight"
    tokens = cache.tokens(pool.value, begun.max_model_len)
    cached = bool(cache.bytes_per_token or cache.state_bytes_per_sequence)
    most = cache.concurrency(pool.value, begun.max_model_len) if cached else float(begun.max_num_seqs)
    figures = ServingFigures(
        weights_bytes=_loaded(begun).value, activation_bytes=_printed(begun).value,
        non_torch_bytes=begun.non_torch.span.value, cuda_graph_bytes=begun.cuda_graphs.span.value,
        kv_pool_bytes=pool.value, kv_tokens=tokens, max_concurrency=most, bytes_per_token=cache.bytes_per_token,
        state_bytes_per_sequence=cache.state_bytes_per_sequence, budget_bytes=begun.budget_bytes,
        needed_pool_bytes=needed, wished_requests=plan.concurrency, starts=starts, refusal=refusal,
        moved=begun.moved,
        max_model_len=begun.max_model_len, max_num_seqs=begun.max_num_seqs,
        max_num_batched_tokens=begun.max_num_batched_tokens, memory_fraction=begun.memory_fraction,
        block_size=cache.block_size, kv_needed_bytes=one, requests_at_context=at_context,
        practical_requests=floor(at_context * plan.practical_share + 1e-9),
        peak_reserve_bytes=reserve, steady_requests=floor(steady + 1e-9) * replicas,
        longest_context_tokens=cache.longest(pool.value),
        compute_buffer_bytes=begun.activation.span.value, kv_full_bytes=begun.kv_full_bytes,
        kv_swa_bytes=begun.kv_swa_bytes, gated_delta_scratch_bytes=begun.gated_delta_scratch_bytes,
        state_bytes=begun.state.span.value if begun.state else 0,
        host_bytes=begun.host_bytes + hosted.total_bytes, host_cache_bytes=hosted.total_bytes,
        host_cache_tokens=hosted.tokens, process_bytes=process.value,
        replicas=replicas,
        ranges=_ranges(begun, pool, process),
    )  # fmt: skip
    return Bill(
        items=items, phases=_phases(items), peak_phase="serve", allocated=allocated, reserved=allocated,
        process=process, need=need, capacity_bytes=gpu.total_bytes, verdict=verdict, rank=begun.rank,
        rank_spread=begun.rank_spread, serving=figures,
        assumptions=(*begun.assumptions, *_unused(plan, begun), *hosted.notes),
    )  # fmt: skip


def _fixed(begun: Start) -> Span:
    """All that is held besides the cache."""
    fixed = begun.weights.span + begun.activation.span + begun.non_torch.span + begun.context.span
    return fixed + begun.cuda_graphs.span + (begun.state.span if begun.state else ZERO) + extra_span(begun.extras)


def _needed(begun: Start, wished: int, context: int, shared: int) -> int:
    """Cache bytes that the wished requests need, at most as many as the engine runs at once. A cache that is allocated
    whole is needed whole, and fewer slots make the wish no smaller."""
    running = wished if begun.pool_follows_wish else min(wished, begun.max_num_seqs)
    needed = begun.cache.needed(running, context) - (running - 1) * shared
    return max(needed, begun.pool.value) if begun.pool_follows_wish else needed


def _requests(cache: Cache, pool: int, context: int, shared: int) -> float:
    """Requests that a pool holds where all but the first save ``shared`` bytes."""
    if not shared:
        return cache.concurrency(pool, context)
    one = cache.needed(1, context)
    return max(pool - shared, 0) / max(one - shared, 1)


def _loaded(begun: Start) -> Span:
    """What an engine's log calls the model's memory: weights, drafts and adapter slots."""
    return begun.weights.span + extra_span([row for row in begun.extras if row[0] in ("draft", "lora")])


def _printed(begun: Start) -> Span:
    """The activation peak as the engine's log states it."""
    extra = begun.graphs_reserved if begun.graphs_in_activation else 0
    cached = extra_span([row for row in begun.extras if row[0] == "encoder_cache"])
    return begun.activation.span + cached + Span(extra, extra // 2, 2 * extra)


def _unused(plan: ServingPlan, begun: Start) -> tuple[Text, ...]:
    """What the plan asks for in vain: tokens beyond the engine's limit, a prefix that is not shared, cards that the
    layout leaves idle."""
    said = [*unused(plan)]
    if plan.shared_prefix_tokens and not begun.shares_prefixes:
        said.append(text("serving.assume.prefix_apart", prefix_tokens=plan.shared_prefix_tokens))
    if plan.context_tokens is not None and plan.context_tokens > begun.max_model_len:
        limit = begun.max_model_len
        said.append(text("serving.assume.context_cut", context_tokens=plan.context_tokens, limit_tokens=limit))
    ranks = ranks_of(plan)
    if plan.engine in _RANKED and ranks < plan.n_gpus:
        said.append(text("serving.assume.idle_gpus", ranks_count=ranks, gpus_count=plan.n_gpus))
    return tuple(said)


def _refusal(begun: Start, one: int, taken: Span, gpu: Gpu) -> Text | None:
    """Why the engine would not start, or None. ``taken`` is all that it would hold. An empty pool is a reason only
    where a request needs some of it: with every layer on the host nothing is cached on the card."""
    if begun.pool.value < 0 or (begun.pool.value == 0 < one and not begun.needs_whole_request):
        return text("serving.refused.no_pool", budget_bytes=begun.budget_bytes, missing_bytes=-begun.pool.value)
    if begun.needs_whole_request and one > begun.pool.value:
        return text(
            "serving.refused.one_request", context_tokens=begun.max_model_len, needed_bytes=one,
            pool_bytes=begun.pool.value, longest_tokens=begun.cache.longest(begun.pool.value),
        )  # fmt: skip
    if taken.value > gpu.total_bytes:
        return text("serving.refused.over_card", missing_bytes=taken.value - gpu.total_bytes)
    return None


def _items(begun: Start, held: Span, pool_text: Text, gpu: Gpu) -> tuple[Item, ...]:
    rows: list[tuple[str, Term, Layer, tuple[str, ...]]] = [
        ("weights", begun.weights, "tensor", _PHASES),
        ("kv_cache", Term(held, pool_text, "computed", begun.pool_source), "tensor", ("serve",)),
        ("activation", begun.activation, "tensor", ("profile", "serve")),
        ("cuda_graphs", begun.cuda_graphs, "tensor", ("serve",)),
        ("non_torch", begun.non_torch, "process", _PHASES),
        ("context", begun.context, "process", _PHASES),
    ]
    if begun.state is not None:
        rows.insert(2, ("state", begun.state, "tensor", ("serve",)))
    for key, term in reversed(begun.extras):
        rows.insert(1, (key, term, "tensor", _PHASES))
    items = [_item(key, term, layer, phases) for key, term, layer, phases in rows]
    taken = Span(0, 0, 0)
    for _, term, _, _ in rows:
        taken += term.span
    free = taken.rest_of(gpu.total_bytes)
    unused = Term(
        Span(max(free.value, 0), max(free.low, 0), max(free.high, 0)),
        text("serving.item.unused", total_bytes=gpu.total_bytes), "computed", _FREE_SOURCE,
    )  # fmt: skip
    items.append(_item("unused", unused, "free", _PHASES))
    return tuple(item for item in items if item.high > 0 or item.key == "kv_cache")


def _item(key: str, term: Term, layer: Layer, phases: tuple[str, ...]) -> Item:
    span, basis = term.span, term.basis
    plain: Basis = basis
    return Item(
        key=key, bytes=span.value, max_bytes=span.value, low=max(span.low, 0), high=span.high, layer=layer,
        phases=phases, formula=term.formula, divided_by=term.divided_by, basis=plain, source=term.source,
    )  # fmt: skip


def _sum(items: tuple[Item, ...], layer: str) -> Range:
    chosen = [item for item in items if item.layer == layer]
    return Range(value=sum(i.bytes for i in chosen), low=sum(i.low for i in chosen), high=sum(i.high for i in chosen))


def _range(span: Span) -> Range:
    return Range(value=span.value, low=max(span.low, 0), high=span.high)


def _phases(items: tuple[Item, ...]) -> tuple[Phase, ...]:
    found = []
    for name in _PHASES:
        alive = {i.key: i.bytes for i in items if i.layer == "tensor" and name in i.phases}
        found.append(Phase(name=name, allocated_bytes=sum(alive.values()), items=alive))
    return tuple(found)


def _ranges(begun: Start, pool: Span, process: Range) -> dict[str, Range]:
    """Low and high of every figure that is not exact. A pool below nothing counts as empty."""
    found = {
        "weights_bytes": _range(_loaded(begun)),
        "activation_bytes": _range(_printed(begun)),
        "compute_buffer_bytes": _range(begun.activation.span),
        "non_torch_bytes": _range(begun.non_torch.span),
        "cuda_graph_bytes": _range(begun.cuda_graphs.span),
        "process_bytes": process,
    }
    if pool.value >= 0 and pool.low != pool.high:
        found["kv_pool_bytes"] = _range(pool)
        length, cache = begun.max_model_len, begun.cache
        low, high = (cache.tokens(max(end, 0), length) for end in (pool.low, pool.high))
        found["kv_tokens"] = Range(value=cache.tokens(pool.value, length), low=low, high=high)
    return found
