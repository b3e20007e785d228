"""How fast a plan could be: a roofline of weights, cache, arithmetic and communication. An estimate, given as a range.

Decode reads every weight that the batch touches and every request's cache once a step; prefill is arithmetic. Between
the products rows of 16 bit are read and written, which a card with fast products feels most. The share of the card's
peak that engines reach is assumed, and checked against published throughput figures in the tests.
"""

from __future__ import annotations

from typing import Literal, cast

from calculator.base import Frozen
from calculator.errors import PlanError
from calculator.hardware import Gpu
from calculator.model.shape import Attention, DenseMlp, LatentAttention, ModelShape, MoeMlp
from calculator.model.stored import StoredWeights
from calculator.model.weights import WeightLayout
from calculator.precision import weight_format
from calculator.serving.bill import start
from calculator.serving.overheads import is_linked
from calculator.serving.plan import ServingPlan
from calculator.serving.start import Start
from calculator.serving.weights import Recent
from calculator.sources import Source

Bound = Literal["weights", "cache", "compute", "communication"]


class Shares(Frozen):
    """Shares of a card's peaks that an engine reaches: of the memory bandwidth when decoding, of the dense arithmetic
    rate in matrix products of many tokens; seconds of a step outside the kernels (scheduling, launches), and of the
    host's work for each request of it; and of one all-reduce of little data, between linked cards (NVLink or its like)
    and over PCIe."""

    bandwidth: float
    compute: float
    step_s: float
    request_s: float
    linked_latency_s: float
    pcie_latency_s: float


SLOW = Shares(bandwidth=0.48, compute=0.40, step_s=0.0016, request_s=8e-6, linked_latency_s=20e-6,
              pcie_latency_s=60e-6)  # fmt: skip
USUAL = Shares(bandwidth=0.76, compute=0.64, step_s=0.0006, request_s=4e-6, linked_latency_s=12e-6,
               pcie_latency_s=35e-6)  # fmt: skip
FAST = Shares(bandwidth=0.92, compute=0.82, step_s=0.0002, request_s=2.5e-6, linked_latency_s=8e-6,
              pcie_latency_s=20e-6)  # fmt: skip
LLAMA_CPP_COMPUTE = 0.75
"""Of the arithmetic share, what llama.cpp's products reach, which work on 512 tokens at once with weights unpacked as
they go: three quarters of 0.64, the share that stood here when all engines had one."""
HIDDEN_PASSES, WIDTH_PASSES, GATHER_PASSES = 12, 6, 4
"""Reads and writes of a row between the products of a layer: two norms with residuals and quantisation, the MLP's
activation with quantisation, and an expert's gather and weighted sum."""
EFFICIENCY_SOURCE = Source(
    title="Shares of the peak that published throughput tables imply: 40 figures of TensorRT-LLM 1.0's performance "
    "overview and of single streams; figures that were not used are scored apart in the validation",
    url="https://nvidia.github.io/TensorRT-LLM/performance/perf-overview.html", checked_on="2026-11-29",
)  # fmt: skip
NO_EVICTION_SOURCE = Source(
    title="TensorRT-LLM's default scheduler policy GUARANTEED_NO_EVICT admits a request when its whole length fits",
    url="https://nvidia.github.io/TensorRT-LLM/performance/performance-tuning-guide/useful-runtime-flags.html",
    checked_on="2026-11-29",
)  # fmt: skip
ACCUMULATION_SOURCE = Source(
    title="NVIDIA GA102 and Ada whitepapers: GeForce tensor cores run FP16 with FP16 accumulation at twice the rate "
    "with FP32 accumulation, half the INT8 rate; llama.cpp multiplies in FP16 on them",
    url="https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf",
    checked_on="2026-11-29",
)  # fmt: skip

_recent = Recent()


class Estimate(Frozen):
    """A figure with its plausible range."""

    low: float
    value: float
    high: float


class Speed(Frozen):
    """Seconds to the first token of a request that finds a free slot, seconds between tokens at ``batch`` requests a
    replica, and output tokens a second of all replicas when requests never run out. ``bound`` names what limits a
    decode step."""

    ttft_s: Estimate
    tpot_s: Estimate
    tokens_per_s: Estimate
    batch: int
    bound: Bound
    source: Source = EFFICIENCY_SOURCE


def speed(
    shape: ModelShape,
    plan: ServingPlan,
    gpu: Gpu,
    *,
    prompt_tokens: int,
    output_tokens: int,
    batch: int | None = None,
    stored: StoredWeights | None = None,
) -> Speed:
    """The speed of a plan for requests of one length.

    ``batch`` running requests on each replica; None: as many as the pool and the engine's slots hold at their mean
    length. ``stored`` are the weights as the files' headers tell them. Raises ``PlanError`` ("speed.unknown_gpu") for a
    card without bandwidth or arithmetic rate, ("speed.nothing_fits") where not one request fits, and ("speed.host")
    where layers or experts run from host memory, whose speed is not the card's.
    """
    begun = start(shape, plan, gpu, stored)
    if begun.partly_on_host:
        raise PlanError("speed.host", field="n_gpu_layers")
    if plan.engine in _IN_TURN:
        plan = plan.model_copy(update={"tp": 1, "pp": plan.n_gpus, "dp": 1, "ep": 1})
    mean_context = prompt_tokens + max(output_tokens // 2, 1)
    if batch is None:
        # An engine that never takes a request back holds its whole length from the start (NO_EVICTION_SOURCE).
        admitted = prompt_tokens + output_tokens if plan.engine == "tensorrt_llm" else mean_context
        batch = min(int(begun.cache.concurrency(begun.pool.value, admitted)), begun.max_num_seqs)
    if batch < 1:
        raise PlanError("speed.nothing_fits", field="gpu", context_tokens=mean_context)
    lengths = (prompt_tokens, output_tokens, batch)
    ends = [point(shape, plan, gpu, begun, *lengths, shares) for shares in (SLOW, USUAL, FAST)]
    ttft, tpot, rate = zip(*[(e.ttft, e.step, e.rate) for e in ends], strict=True)
    return Speed(
        ttft_s=Estimate(low=ttft[2], value=ttft[1], high=ttft[0]),
        tpot_s=Estimate(low=tpot[2], value=tpot[1], high=tpot[0]),
        tokens_per_s=Estimate(low=rate[0], value=rate[1], high=rate[2]),
        batch=batch,
        bound=ends[1].bound,
    )


_IN_TURN = ("llama_cpp", "ollama")
"""Engines whose cards hold layers and work one after the other, whatever degrees a plan names."""


class Point(Frozen):
    """Seconds to the first token, seconds of a step, output tokens a second, under one assumption of shares."""

    ttft: float
    step: float
    rate: float
    bound: Bound


def point(
    shape: ModelShape, plan: ServingPlan, gpu: Gpu, begun: Start, prompt: int, output: int, batch: int, shares: Shares
) -> Point:
    """The estimate under these shares, for ``batch`` requests of one length on each replica of a start.

    Of a step, products of weights are bound by their bytes or their operations; reading the cache, the rows between the
    products, collectives and the host's work for every request come on top, since they run one after the other. Prompts
    are worked on together, as many as a step's tokens hold, so that each pays its part of the weights' bytes.
    """
    bandwidth, peak = _rates(plan, shape, gpu)
    compute = shares.compute * (LLAMA_CPP_COMPUTE if plan.engine in ("llama_cpp", "ollama") else 1.0)
    bandwidth, peak = bandwidth * shares.bandwidth, peak * compute
    attention = _attention_rate(plan, gpu) * compute
    ranks = plan.tp * plan.pp
    weights = begun.weights.span.value
    experts = weights * _expert_share(shape, plan)
    touched = weights - experts + experts * _touched(shape, batch)
    cache = batch * begun.cache.needed(1, prompt + max(output // 2, 1))
    linear = 2.0 * _active(shape) / ranks
    rows = _row_bytes(shape, plan) / bandwidth
    times: dict[Bound, float] = {
        "weights": touched / bandwidth,
        "cache": cache / bandwidth,
        "compute": batch * linear / peak,
        "communication": _communication(shape, plan, gpu, batch, shares),
    }
    stage = max(times["weights"], times["compute"]) + times["cache"] + times["communication"]
    stage += batch * (rows + shares.request_s) + shares.step_s
    alone = _attention_flops(shape, prompt) / ranks / attention + prompt * rows
    first = max(prompt * linear / peak, touched / bandwidth) + alone
    first += _communication(shape, plan, gpu, prompt, shares)
    together = max(1, min(batch, begun.max_num_batched_tokens // prompt))
    group = max(together * prompt * linear / peak, touched / bandwidth)
    group += _communication(shape, plan, gpu, together * prompt, shares) + shares.step_s
    cycle = output * stage + batch * (group / together + alone)
    return Point(
        ttft=plan.pp * first + shares.step_s,
        step=plan.pp * stage,
        rate=begun.replicas * batch * output / cycle,
        bound=max(times, key=lambda name: times[name]),
    )


def _rates(plan: ServingPlan, shape: ModelShape, gpu: Gpu) -> tuple[float, float]:
    """Bytes and operations a second of one card at its peak, for the format that the products run in."""
    flops = gpu.peak_dense_flops
    stored = plan.weights or (shape.quantization.format if shape.quantization is not None else "bf16")
    kind = "bf16"
    if stored.startswith(("fp8", "fbgemm")):
        kind = "fp8"
    elif stored == "int8":
        kind = "int8"
    elif stored.startswith("nvfp4"):
        kind = "fp4"
    plain = _plain_rate(plan, gpu)
    rate = flops.get(kind) or plain
    if rate and gpu.memory_bandwidth_bytes_per_s is not None:
        return float(gpu.memory_bandwidth_bytes_per_s), float(max(rate, plain))
    raise PlanError("speed.unknown_gpu", field="gpu", gpu=gpu.name)


def _plain_rate(plan: ServingPlan, gpu: Gpu) -> int:
    """Operations a second in 16 bit."""
    flops = gpu.peak_dense_flops
    plain = max(flops.get(name) or 0 for name in ("bf16", "fp16", "fp32"))
    if plan.engine == "llama_cpp" and gpu.kind == "consumer":
        return max(plain, (flops.get("int8") or 0) // 2)  # ACCUMULATION_SOURCE
    return plain


def _active(shape: ModelShape) -> int:
    """Parameters that multiply for one token: without the embedding's look-up and the towers."""
    count = shape.parameters
    looked_up = 0 if shape.tied else count.embedding
    return count.active - looked_up - count.vision - count.audio - count.projector


def _attention_flops(shape: ModelShape, prompt: int) -> float:
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


def _attention_rate(plan: ServingPlan, gpu: Gpu) -> float:
    """Operations a second of attention, which stays in 16 bit, or in FP8 beside an FP8 cache, whatever the weights."""
    flops = gpu.peak_dense_flops
    kinds = ("bf16", "fp16", "fp32", "fp8") if plan.kv_cache_dtype == "fp8" else ("bf16", "fp16", "fp32")
    return float(max(flops.get(name) or 0 for name in kinds))


def _row_bytes(shape: ModelShape, plan: ServingPlan) -> float:
    """Bytes that one token moves between the products of all layers on one rank, 16 bit: norms, residuals and
    quantisation read and write the hidden row, rotary and attention queries, keys and values, the activation the MLP's
    width; each routed expert gathers and scatters a hidden row and has a width of its own."""
    total = 0.0
    for block, times in zip(shape.blocks, shape.block_counts, strict=True):
        elements = float(HIDDEN_PASSES * shape.hidden)
        for mixer in block.mixers:
            if isinstance(mixer, Attention):
                heads = mixer.heads * (mixer.head_dim + mixer.v_head_dim)
                elements += (heads + 2 * mixer.kv_heads * (mixer.head_dim + mixer.v_head_dim)) / plan.tp
        for mlp in (block.mlp, block.mixture):
            if isinstance(mlp, DenseMlp):
                elements += WIDTH_PASSES * mlp.width / plan.tp
            elif isinstance(mlp, MoeMlp):
                inner = mlp.latent or shape.hidden
                routed = mlp.top_k * (GATHER_PASSES * inner + WIDTH_PASSES * mlp.width)
                elements += (routed + WIDTH_PASSES * (mlp.shared_width + mlp.dense_width)) / plan.tp
                break
        total += times * elements
    return 2 * total / plan.pp


def _touched(shape: ModelShape, batch: int) -> float:
    """Share of the experts that a batch of tokens with even routing reaches."""
    for block in shape.blocks:
        if (moe := block.mixture) is not None:
            return float(1 - (1 - moe.top_k / (moe.experts + moe.zero_experts)) ** batch)
    return 1.0


def _expert_share(shape: ModelShape, plan: ServingPlan) -> float:
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

    if not any(block.mixture for block in shape.blocks):
        return 0.0
    return cast(float, _recent.get(shape, ("experts", plan.weights), make))


def _communication(shape: ModelShape, plan: ServingPlan, gpu: Gpu, tokens: int, shares: Shares) -> float:
    """Two all-reduces a layer among the tensor-parallel ranks, and one hand-over a pipeline stage."""
    linked = is_linked(gpu)
    link = float((gpu.link_bytes_per_s if linked else None) or gpu.pcie_bytes_per_s or 25e9)
    latency = shares.linked_latency_s if linked else shares.pcie_latency_s
    size = tokens * shape.hidden * 2
    layers = shape.layers / plan.pp
    seconds = 0.0
    if plan.tp > 1:
        each = 2 * (plan.tp - 1) / plan.tp * size / (link * shares.bandwidth) + latency
        seconds += 2 * layers * each
    if plan.pp > 1:
        seconds += size / (link * shares.bandwidth) + latency
    return seconds
