"""vLLM: a budget that is a fraction of the card, a profiling run, and the rest for the cache."""

from __future__ import annotations

from dataclasses import replace

from calculator.errors import PlanError
from calculator.hardware import Gpu
from calculator.model.shape import Attention, LatentAttention, ModelShape, Tensor
from calculator.model.stored import StoredWeights
from calculator.model.weights import WeightLayout
from calculator.serving.adapters import adapter_rows
from calculator.serving.cache import Spec, cache_format, layer_specs
from calculator.serving.drafts import FED_BY_HIDDEN, NOTHING, Draft, draft_of, draft_rows, drafts_of
from calculator.serving.engines import vllm_rules as rules
from calculator.serving.engines.vllm_activation import LAYER_SOURCE, Activation, Run, activation
from calculator.serving.engines.vllm_cache import VllmCache, cache_rules, lay_out
from calculator.serving.engines.vllm_compressed import lay_out_compressed
from calculator.serving.engines.vllm_graphs import NONE as NO_GRAPHS
from calculator.serving.engines.vllm_graphs import SOURCE as GRAPHS_SOURCE
from calculator.serving.engines.vllm_graphs import graphs
from calculator.serving.engines.vllm_multimodal import check_limits, items, limits, without_idle_towers
from calculator.serving.engines.vllm_settings import Settings, settings
from calculator.serving.engines.vllm_weights import (
    adapted,
    check_blocks,
    chosen_format,
    latent_copies,
    mxfp4_kernel,
    tensor_size,
)
from calculator.serving.loaded import load
from calculator.serving.network import node_size
from calculator.serving.overheads import context_term, network_span
from calculator.serving.plan import ServingPlan
from calculator.serving.split import Split, ceil_div, ranks_of, replicas_of, round_up, split_of
from calculator.serving.start import ZERO, Rows, Span, Start, Term, extra_span
from calculator.serving.versions import Version
from calculator.serving.weights import RankWeights
from calculator.sources import Source
from calculator.text import Text, text
from calculator.units import GIB

MLA_BACKEND: Version = (0, 7, 1)
"""Before this release MLA models stored full heads, padded to 256."""

CACHE_SOURCE = rules.source("vllm/v1/core/kv_cache_utils.py, vllm/v1/kv_cache_interface.py", "0.4 to 0.33")
ENCODER_SOURCE = rules.source("vllm/multimodal/encoder_budget.py, vllm/v1/core/encoder_cache_manager.py", "0.9 to 0.33")
WEIGHTS_SOURCE = Source(title="Tensor shapes and their stored format, divided as vLLM's layers do",
                        url="https://github.com/vllm-project/vllm/tree/main/vllm/model_executor/layers",
                        checked_on="2026-11-29")  # fmt: skip


def cache(shape: ModelShape, plan: ServingPlan, gpu: Gpu, split: Split, layers: range, chosen: Settings) -> VllmCache:
    """The cache of one stage's layers."""
    form = cache_format(plan.kv_cache_dtype, plan.weights or shape.dtype)
    if any(isinstance(m, Attention) and m.compress for b in shape.blocks for m in b.mixers):
        own = (m for layer in layers for m in shape.blocks[shape.order[layer]].mixers if isinstance(m, Attention))
        line = cache_rules(chosen.version, chosen.runner).line
        return lay_out_compressed(own, in_flight=_in_flight(chosen, split), line=line, dcp=split.dcp)
    specs = layer_specs(shape, layers, split.tp, form, drafts=drafts_of(plan))
    latent = next((m for b in shape.blocks for m in b.mixers if isinstance(m, LatentAttention)), None)
    version = chosen.version
    if latent is not None and (version < MLA_BACKEND or expanded(plan)):
        count = sum(len(shape.blocks[shape.order[layer]].mixers) for layer in layers)
        specs = {Spec("full", latent.heads // split.tp * 2 * form.vector_bytes(256)): count}
    if layers.stop == shape.layers:
        for spec, count in draft_of(shape, plan, split, form).specs.items():
            specs[spec] = specs.get(spec, 0) + count
    block = plan.block_size or _block(latent, rules.capability_of(gpu), version)
    return lay_out(
        specs, cache_rules(version, chosen.runner, hybrid=plan.hybrid_kv_cache_manager is not False), block=block,
        in_flight=_in_flight(chosen, split), state_pages=_pages(chosen, plan), state_alignment=16, dcp=split.dcp,
    )  # fmt: skip


def _pages(chosen: Settings, plan: ServingPlan) -> int | None:
    """State pages of a request: one more for every drafted token, whose states may have to be taken back."""
    return chosen.state_pages + drafts_of(plan) if chosen.state_pages is not None else None


def _block(latent: LatentAttention | None, capability: float, version: Version) -> int:
    """16 tokens; MLA back ends raise it: FlashMLA 64 on Hopper, CUTLASS 128 on Blackwell (vllm/platforms/cuda.py)."""
    if latent is None or version < (0, 8, 0):
        return 16
    if latent.indexer_head_dim or 9 <= capability < 10:
        return 64
    return 128 if 10 <= capability < 12 else 16


def _in_flight(chosen: Settings, split: Split) -> int:
    """Tokens of a step beside the window: T, from 0.27 T times the batches in flight (vllm/config/vllm.py, 0.29.0)."""
    if chosen.runner == "v0":
        return 0
    if chosen.version < (0, 27, 0):
        return chosen.tokens
    if chosen.runner == "v2":
        return chosen.tokens * (split.pp + 1)
    return chosen.tokens * (2 if split.pp == 1 else split.pp)


def expanded(plan: ServingPlan) -> bool:
    """Whether the plan turns latent attention's back ends off (VLLM_MLA_DISABLE), so that heads are stored whole."""
    return plan.mla is not None and not plan.mla


def drafting(shape: ModelShape, plan: ServingPlan, split: Split, *, last: bool) -> Draft:
    """What is held for drafting on a stage: all of it on the last (vllm/v1/worker/gpu_model_runner.py)."""
    form = cache_format(plan.kv_cache_dtype, plan.weights or shape.dtype)
    return draft_of(shape, plan, split, form) if last else NOTHING


def start(shape: ModelShape, plan: ServingPlan, gpu: Gpu, stored: StoredWeights | None = None) -> Start:
    """The start of the tightest stage."""
    stages = ranks(shape, plan, gpu, stored)
    if plan.pp_rank is not None and plan.pp_rank >= len(stages):
        raise PlanError("serving.pp_rank", field="pp_rank", rank=plan.pp_rank, pp=len(stages))
    context = plan.context_tokens or stages[0].max_model_len
    tightest = (
        stages[plan.pp_rank]
        if plan.pp_rank is not None
        else min(stages, key=lambda s: (s.cache.concurrency(s.pool.value, context), s.pool.value))
    )
    if len(stages) > 1:
        tightest = replace(tightest, host_bytes=sum(stage.host_bytes for stage in stages))
        spread = {f"stage {i}": s.weights.span.value for i, s in enumerate(stages)}
        tightest = replace(tightest, rank_spread=spread)
    return tightest


def ranks(shape: ModelShape, plan: ServingPlan, gpu: Gpu, stored: StoredWeights | None = None) -> tuple[Start, ...]:
    """Every pipeline stage's start, first to last."""
    check_limits(plan)
    split = split_of(plan, shape)
    chosen = settings(shape, plan, gpu)
    shape = without_idle_towers(shape, plan, chosen.version)
    weights = _weights(shape, plan, gpu, split, chosen.version, stored)
    return tuple(_stage(shape, plan, gpu, split, weights, n, chosen) for n in range(len(weights.stages)))


def _weights(
    shape: ModelShape, plan: ServingPlan, gpu: Gpu, split: Split, version: Version, stored: StoredWeights | None
) -> RankWeights:
    check_blocks(shape, split, version)
    kernel = mxfp4_kernel(plan, gpu, version)

    def sizer(layout: WeightLayout, tensor: Tensor, layer: int | None) -> int:
        return tensor_size(layout, tensor, layer, kernel)

    return load(shape, plan, split, stored, sizer=sizer, variant=kernel, chosen=chosen_format(plan))


def _stage(
    shape: ModelShape, plan: ServingPlan, gpu: Gpu, split: Split, weights: RankWeights, number: int, chosen: Settings
) -> Start:
    version, layers = chosen.version, weights.layers[number]
    last = number == len(weights.stages) - 1
    samples = last and not (chosen.runner == "v0" and chosen.chunked)
    draft = drafting(shape, plan, split, last=last)
    allowed = limits(shape, plan, chosen.runner) if layers.start == 0 else {}
    run = Run(
        seqs=chosen.seqs, tokens=chosen.tokens, context=chosen.context, sampler=chosen.sampler,
        guessed_sampler=chosen.guessed_sampler, samples=samples, receives=not last,
        chunked=chosen.chunked, allowed=allowed, states_token_bytes=draft.kept_token_bytes,
        latent=not expanded(plan),
        items=items(shape, allowed, seqs=chosen.seqs, tokens=chosen.tokens, context=chosen.context),
    )  # fmt: skip
    copies = 0 if expanded(plan) else latent_copies(shape, layers, split, version)
    whole = weights.stages[number] + copies
    loaded = max(whole - plan.cpu_offload_bytes, 0)
    held = loaded + rotary_bytes(shape)
    unsure = 1.03 if _unsure_kernel(shape, plan) else 1.01
    held_span = Span(held, int(held * 0.99), int(held * unsure))
    work = activation(shape, split, layers, run, version, chosen.runner, gpu)
    extras = (
        *draft_rows(draft),
        *adapter_rows(shape, layers, split, plan, adapted(version)),
        *_encoder_rows(work, run),
    )
    outside = _non_torch(shape, split, gpu, chosen, samples=last, fed=last and plan.speculative in FED_BY_HIDDEN,
                         latent=not expanded(plan))  # fmt: skip
    outside = outside + network_span(split.tp * split.dp, node_size(plan, gpu))
    context = context_term(gpu).span
    if rules.context_in_budget(version, chosen.runner):
        outside, context = outside + context, ZERO
    taken = graphs(shape, layers, draft.layers, version, chosen.runner, chosen.seqs) if plan.cuda_graphs else NO_GRAPHS
    budget = int(chosen.fraction * gpu.total_bytes)
    charged = held_span + extra_span(extras) + work.total + outside + taken.reserved
    pool = charged.rest_of(budget)
    if plan.kv_cache_memory_bytes is not None:
        pool = Span.exact(plan.kv_cache_memory_bytes)
    return Start(
        weights=Term(
            held_span,
            text("serving.item.weights", weights_bytes=loaded, rotary_bytes=held - loaded, tp=split.tp, pp=split.pp),
            "computed", WEIGHTS_SOURCE, split.tp * split.pp,
        ),
        activation=Term(
            work.total,
            text("serving.item.activation", sampler_bytes=work.sampler, layer_bytes=work.layer, kept_bytes=work.kept,
                 cublas_bytes=work.cublas, seqs_count=chosen.seqs, vocab_count=shape.vocab,
                 batched_tokens=chosen.tokens),
            "calibrated", LAYER_SOURCE,
        ),
        non_torch=Term(outside, text("serving.item.non_torch", ranks_count=split.tp * split.dp), "calibrated",
                       rules.NON_TORCH_SOURCE),
        cuda_graphs=Term(
            taken.used,
            text("serving.item.graphs", pieces_count=taken.pieces, full_count=taken.full, layers_count=len(layers)),
            "calibrated", GRAPHS_SOURCE,
        ),
        context=replace(context_term(gpu), span=context),
        pool=pool,
        pool_formula=text("serving.item.pool.total", fraction=chosen.fraction, total_bytes=gpu.total_bytes,
                          charged_bytes=charged.value),
        pool_source=rules.BUDGET_SOURCE,
        cache=cache(shape, plan, gpu, split, layers, chosen),
        budget_bytes=budget,
        memory_fraction=chosen.fraction,
        max_model_len=chosen.context,
        max_num_seqs=chosen.seqs,
        max_num_batched_tokens=chosen.tokens,
        replicas=replicas_of(plan),
        rank=str(number),
        streamed_bytes=whole - loaded,
        host_bytes=(whole - loaded) * (ranks_of(plan) // plan.pp),
        extras=extras,
        gated_delta_scratch_bytes=work.scratch,
        graphs_reserved=taken.reserved.value,
        graphs_in_activation=version >= rules.PERSISTENT_COUNTED,
        assumptions=(*chosen.assumptions, *draft.notes, *(_verified(shape, plan, chosen, work) if samples else ())),
        refusal=_refused_at_once(gpu, chosen, budget, context),
    )  # fmt: skip


def _verified(shape: ModelShape, plan: ServingPlan, chosen: Settings, work: Activation) -> tuple[Text, ...]:
    """That checking drafts of a full batch takes more logits than the profiling run made: every drafted position and
    one more, in 16 bit and as fp32 copy (vllm/v1/sample/rejection_sampler.py)."""
    rows = min(chosen.seqs * (1 + drafts_of(plan)), chosen.tokens)
    needed = rows * round_up(shape.vocab, 64) * 6
    if not drafts_of(plan) or needed <= work.total.value:
        return ()
    return (text("serving.assume.verify", rows_count=rows, logits_bytes=needed, activation_bytes=work.total.value),)


def _encoder_rows(work: Activation, run: Run) -> Rows:
    """The cache of encoder outputs, in which every item of a step is kept until its tokens are read."""
    if run.items is None or not work.cached:
        return ()
    formula = text("serving.item.encoder_cache", budget_tokens=run.items.budget, items_count=run.items.count,
                   item_tokens=run.items.tokens, modality=run.items.modality)  # fmt: skip
    span = Span(work.cached, 0, 2 * work.cached)
    return (("encoder_cache", Term(span, formula, "calibrated", ENCODER_SOURCE)),)


def _refused_at_once(gpu: Gpu, chosen: Settings, budget: int, context: Span) -> Text | None:
    """From 0.9 the engine refuses to start where less is free than the fraction asks for, even with nothing loaded
    (vllm/v1/worker/gpu_worker.py, init_device). Judged by the smallest context, so only certain cases are refused."""
    free = gpu.total_bytes - context.low
    if chosen.version < (0, 9, 0) or chosen.runner == "v0" or budget <= free:
        return None
    return text("serving.refused.free_at_start", budget_bytes=budget, free_bytes=free, total_bytes=gpu.total_bytes)


def _unsure_kernel(shape: ModelShape, plan: ServingPlan) -> bool:
    """Whether MXFP4 weights may be held by another back end than the usual one, 3 % larger."""
    return plan.kernel is None and shape.quantization is not None and shape.quantization.format == "mxfp4"


def rotary_bytes(shape: ModelShape) -> int:
    """The table of cosines and sines, one row a position of the model's own limit, in the model's dtype; layers that
    rotate alike share it (vllm/model_executor/layers/rotary_embedding)."""
    if not shape.max_context:
        return 0
    widths = set()
    for mixer in (mixer for block in shape.blocks for mixer in block.mixers):
        if isinstance(mixer, Attention) and mixer.rotary != "none":
            widths.add((mixer.rotary_dim or mixer.head_dim, bool(mixer.window)))
        elif isinstance(mixer, LatentAttention):
            widths.add((mixer.qk_rope_head_dim, False))
    return sum(shape.max_context * width * 2 for width, _ in widths)


def _non_torch(
    shape: ModelShape, split: Split, gpu: Gpu, chosen: Settings, *, samples: bool, fed: bool, latent: bool
) -> Span:
    value, low, high = rules.non_torch(chosen.version, chosen.runner, gpu, split.tp * split.dp, samples=samples)
    span = Span(int(value * GIB), int(low * GIB), int(high * GIB))
    if chosen.version >= rules.PERSISTENT_COUNTED:
        kept = persistent_bytes(shape, chosen, latent=latent) + (2 * chosen.tokens * shape.hidden if fed else 0)
        span = span + Span(kept, 0, kept)
    return span


def persistent_bytes(shape: ModelShape, chosen: Settings, *, latent: bool) -> int:
    """Buffers made with the runner: penalty state of the V2 runner (one more logits buffer and a bit mask), and the
    chunked-prefill workspace of MLA (vllm/v1/worker/gpu/sample/penalties.py, vllm/v1/attention/backends/mla)."""
    total = 0
    if chosen.runner == "v2":
        total += chosen.seqs * round_up(shape.vocab, 64) * 4 + ceil_div(chosen.seqs * shape.vocab, 8)
    mixer = next((m for b in shape.blocks for m in b.mixers if isinstance(m, LatentAttention)), None)
    if latent and mixer is not None:
        rows = min(max(8 * chosen.context, 4 * chosen.seqs * 64), 65536)
        total += rows * (mixer.kv_lora_rank + mixer.qk_rope_head_dim) * 2
    if shape.towers:
        total += chosen.tokens * shape.hidden * 2
    return total
