"""LMDeploy: blocks of 64 tokens in a fraction of what is free after loading.

Source: src/turbomind/models/llama/BlockManager.cc (0.2.1, 0.4.0, 0.7.0), lmdeploy/messages.py,
lmdeploy/pytorch/engine/executor/base.py.
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
from calculator.serving.versions import Version, parse
from calculator.sources import Source
from calculator.text import Text, text

NEWEST: Version = (0, 10, 0)
BLOCK = 64
PREFILL_TOKENS = 8192
"""``max_prefill_token_num``."""


def source(path: str) -> Source:
    return Source(
        title=f"LMDeploy source, {path}", url="https://github.com/InternLM/lmdeploy", checked_on="2026-11-29",
        versions="0.2.1 to 0.7 and the main branch of 2026",
    )  # fmt: skip


def batch_size(gpu: Gpu) -> int:
    """``max_batch_size`` by card (lmdeploy/utils.py)."""
    if gpu.key.startswith(("h100", "h200")):
        return 1024
    return 384 if gpu.key.startswith("a100") else 128


def start(shape: ModelShape, plan: ServingPlan, gpu: Gpu, stored: StoredWeights | None = None) -> Start:
    """The start of one rank. To 0.2.1 the fraction is one of the card's total and 0.5 by default, later 0.8 of what is
    free after loading; the PyTorch engine first sets aside the logits of a whole prefill."""
    notes: list[Text] = []
    version = NEWEST
    if plan.engine_version is not None:
        version = parse(plan.engine_version)
    else:
        notes.append(text("serving.assume.version", engine="LMDeploy", version=".".join(map(str, NEWEST))))
    of_total = version < (0, 4, 0)
    split = split_of(plan, shape)
    weights = load(shape, plan, split, stored)
    held = Span.about(weights.largest, 0.01)
    length = plan.max_model_len or shape.max_context or 4096
    seqs = plan.max_num_seqs or batch_size(gpu)
    tokens = plan.max_num_batched_tokens or PREFILL_TOKENS
    notes.append(text("serving.assume.batch", seqs_count=seqs, batched_tokens=tokens, gpu=gpu.name))
    fraction = plan.memory_fraction
    if fraction is None:
        fraction = 0.5 if of_total else 0.8
        notes.append(text("serving.assume.fraction", fraction=fraction))
    logits = (tokens + 2 * seqs) * shape.vocab * 2
    work = Span(logits, 0, 2 * logits)
    links, context = communication_term(gpu, split.tp, node_size(plan, gpu)), context_term(gpu)
    adapters = adapter_rows(shape, weights.layers[0], split, plan, Adapted(experts=False))
    free = (held + extra_span(adapters) + work + links.span + context.span).rest_of(gpu.total_bytes)
    if plan.free_memory_bytes is not None:
        free = Span.exact(plan.free_memory_bytes)
    base = Span.exact(gpu.total_bytes) if of_total else free
    form = cache_format(plan.kv_cache_dtype, plan.weights or shape.dtype)
    specs = layer_specs(shape, weights.layers[0], split.tp, form)
    states = state_bytes(specs.items())
    state, slots = None, Span.exact(states * (seqs + 1))
    if states:
        state = Term(slots, text("serving.item.state", state_bytes=states, slots_count=seqs + 1), "computed",
                     source("lmdeploy/pytorch/engine/executor/base.py"))  # fmt: skip
    divided = tuple(end - slots.value for end in (base.value, base.low, base.high))
    pool = Span(*(int(fraction * end) for end in divided))
    if plan.kv_cache_memory_bytes is not None:
        pool = Span.exact(plan.kv_cache_memory_bytes)
    refusal = None
    if of_total and pool.value > free.value:
        refusal = text("serving.refused.pool_over_free", pool_bytes=pool.value, free_bytes=max(free.value, 0))
    return Start(
        weights=Term(held, text("serving.item.weights.rank", weights_bytes=weights.largest, tp=split.tp,
                                pp=1), "computed", source("lmdeploy/turbomind/deploy"), split.tp),
        activation=Term(work, text("serving.item.workspace", batched_tokens=tokens, seqs_count=seqs), "assumed",
                        source("lmdeploy/pytorch/engine/executor/base.py")),
        non_torch=links,
        cuda_graphs=Term(Span.exact(0), text("serving.item.cuda_graphs.rest"), "assumed",
                         source("lmdeploy/pytorch/backends/cuda")),
        context=context,
        pool=pool,
        pool_formula=text("serving.item.pool.free", fraction=fraction, free_bytes=divided[0]),
        pool_source=source("src/turbomind/models/llama/BlockManager.cc"),
        cache=PagedCache(parts_of(specs, credit_windows=False), plan.block_size or BLOCK, states),
        extras=adapters,
        budget_bytes=pool.value + held.value + extra_span(adapters).value + work.value + links.span.value,
        memory_fraction=fraction,
        max_model_len=length,
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        replicas=replicas_of(plan),
        rank="0",
        state=state,
        needs_whole_request=False,
        assumptions=tuple(notes),
        refusal=refusal,
    )  # fmt: skip
