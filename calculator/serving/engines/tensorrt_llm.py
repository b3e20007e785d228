"""TensorRT-LLM: the cache takes a fraction of what is free once engine, context and buffers are in place.

Source: cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp (calculateMaxNumBlocks), tensorrt_llm/llmapi/llm_args.py,
tensorrt_llm/_torch/pyexecutor/_util.py.
"""

from __future__ import annotations

from calculator.hardware import Gpu
from calculator.model.shape import ModelShape
from calculator.model.stored import StoredWeights
from calculator.serving.adapters import widest_rows
from calculator.serving.cache import cache_format, layer_specs
from calculator.serving.context import context_limit
from calculator.serving.drafts import draft_of, draft_rows
from calculator.serving.loaded import load
from calculator.serving.network import node_size
from calculator.serving.overheads import communication_term, context_term
from calculator.serving.pages import PagedCache, parts_of, state_bytes
from calculator.serving.plan import ServingPlan
from calculator.serving.split import replicas_of, split_of
from calculator.serving.start import Span, Start, Term, extra_span
from calculator.serving.versions import Version, parse
from calculator.serving.workspace import logits_bytes, widest_layer
from calculator.sources import Source
from calculator.text import Text, text
from calculator.units import MIB

NEWEST: Version = (1, 2, 1)
FRACTION = 0.9
"""``free_gpu_memory_fraction``."""
PRINTED = 0.005
"""Free memory is printed with two decimals of a GiB."""
BATCH, TOKENS = 2048, 8192
"""``max_batch_size`` and ``max_num_tokens`` of the LLM API."""


def source(path: str) -> Source:
    return Source(
        title=f"TensorRT-LLM source, {path}", url="https://github.com/NVIDIA/TensorRT-LLM", checked_on="2026-11-29",
        versions="0.8 to 1.2",
    )  # fmt: skip


def tokens_per_block(version: Version) -> int:
    """64 in engines of 2024, 32 in the LLM API and later."""
    return 64 if version < (0, 13, 0) else 32


def start(shape: ModelShape, plan: ServingPlan, gpu: Gpu, stored: StoredWeights | None = None) -> Start:
    """The start of the largest stage. ``free_memory_bytes`` replaces the estimate of what is free before the pool."""
    notes: list[Text] = []
    version = NEWEST
    if plan.engine_version is not None:
        version = parse(plan.engine_version)
    else:
        notes.append(text("serving.assume.version", engine="TensorRT-LLM", version=".".join(map(str, NEWEST))))
    split = split_of(plan, shape)
    weights = load(shape, plan, split, stored)
    stage = weights.stages.index(weights.largest)
    form = cache_format(plan.kv_cache_dtype, plan.weights or shape.dtype)
    draft = draft_of(shape, plan, split, form)
    held = Span.about(weights.largest, 0.02)
    extras = (*draft_rows(draft), *widest_rows(shape, weights.layers[stage], split, plan))
    length = plan.max_model_len or context_limit(shape, "tensorrt_llm") or 4096
    seqs = plan.max_num_seqs or BATCH
    tokens = plan.max_num_batched_tokens or TOKENS
    if plan.max_num_seqs is None or plan.max_num_batched_tokens is None:
        notes.append(text("serving.assume.batch", seqs_count=seqs, batched_tokens=tokens, gpu=gpu.name))
    fraction = plan.memory_fraction
    if fraction is None:
        fraction = FRACTION
        notes.append(text("serving.assume.fraction", fraction=fraction))
    work = widest_layer(shape, split, weights.layers[stage], tokens) + logits_bytes(shape, min(seqs, tokens), 1.0)
    activation = Span(work, work // 2, work * 2)
    links, context = communication_term(gpu, split.tp, node_size(plan, gpu)), context_term(gpu)
    buffers = Span(200 * MIB, 50 * MIB, 1200 * MIB)
    taken = held + extra_span(extras) + activation + links.span + buffers
    free = (taken + context.span).rest_of(gpu.total_bytes)
    if plan.free_memory_bytes is not None:
        free = Span.about(plan.free_memory_bytes, PRINTED)
    pool = Span(*(int(fraction * end) for end in (free.value, free.low, free.high)))
    if plan.kv_cache_memory_bytes is not None:
        pool = Span.exact(plan.kv_cache_memory_bytes)
    specs = layer_specs(shape, weights.layers[stage], split.heads_tp, form)
    for spec, count in draft.specs.items():
        specs[spec] = specs.get(spec, 0) + count
    states = state_bytes(specs.items())
    cache = PagedCache(
        parts_of(specs, credit_windows=True), plan.block_size or tokens_per_block(version), states, tokens, True
    )
    graphs = Span(300 * MIB, 0, 1500 * MIB) if plan.cuda_graphs and version >= (1, 0, 0) else Span.exact(0)
    return Start(
        weights=Term(held, text("serving.item.weights.rank", weights_bytes=weights.largest, tp=split.tp, pp=split.pp),
                     "computed", source("tensorrt_llm/models"), split.tp * split.pp),
        activation=Term(activation, text("serving.item.workspace", batched_tokens=tokens, seqs_count=seqs), "assumed",
                        source("docs/source/reference/memory.md")),
        non_torch=Term(links.span + buffers, text("serving.item.runtime_buffers", ranks_count=split.tp), "calibrated",
                       source("docs/source/reference/memory.md")),
        cuda_graphs=Term(graphs, text("serving.item.cuda_graphs.rest"), "assumed",
                         source("tensorrt_llm/_torch/pyexecutor")),
        context=context,
        pool=pool,
        pool_formula=text("serving.item.pool.free", fraction=fraction, free_bytes=free.value),
        pool_source=source("cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp"),
        cache=cache,
        extras=extras,
        budget_bytes=pool.value + taken.value,
        memory_fraction=fraction,
        max_model_len=length,
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        replicas=replicas_of(plan),
        rank=str(stage),
        needs_whole_request=False,
        assumptions=(*notes, *draft.notes),
    )  # fmt: skip
