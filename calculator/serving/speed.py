"""How fast a plan could be: a roofline of weights, cache, arithmetic and communication. An estimate, given as a range.

Decode reads every weight that the batch touches and every request's cache once a step; prefill is arithmetic. The share
of the card's peak that engines reach is assumed, and checked against published throughput figures in the tests.
"""

from __future__ import annotations

from typing import Literal, cast

from calculator.base import Frozen
from calculator.errors import PlanError
from calculator.hardware import Gpu
from calculator.model.shape import Attention, LatentAttention, ModelShape
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
    rate in matrix products of many tokens; seconds of a step outside the kernels (scheduling, sampling, launches); and
    of one all-reduce of little data, between linked cards (NVLink or its like) and over PCIe."""

    bandwidth: float
    compute: float
    step_s: float
    linked_latency_s: float
    pcie_latency_s: float


SLOW = Shares(bandwidth=0.45, compute=0.32, step_s=0.0016, linked_latency_s=20e-6, pcie_latency_s=60e-6)
USUAL = Shares(bandwidth=0.68, compute=0.48, step_s=0.0006, linked_latency_s=12e-6, pcie_latency_s=35e-6)
FAST = Shares(bandwidth=0.88, compute=0.72, step_s=0.0002, linked_latency_s=8e-6, pcie_latency_s=20e-6)
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
    shape: ModelShape, plan: ServingPlan, gpu: Gpu, *, prompt_tokens: int, output_tokens: int, batch: int | None = None
) -> Speed:
    """The speed of a plan for requests of one length.

    ``batch`` running requests on each replica; None: as many as the pool and the engine's slots hold at their mean
    length. Raises ``PlanError`` ("speed.unknown_gpu") for a card without bandwidth or arithmetic rate, and
    ("speed.nothing_fits") where not one request fits.
    """
    begun = start(shape, plan, gpu)
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


class Point(Frozen):
    """Seconds to the first token, seconds of a step, output tokens a second, under one assumption of shares."""

    ttft: float
    step: float
    rate: float
    bound: Bound


def point(
    shape: ModelShape, plan: ServingPlan, gpu: Gpu, begun: Start, prompt: int, output: int, batch: int, shares: Shares
) -> Point:
    """The estimate under these shares, for ``batch`` requests of one length on each replica of a start."""
    bandwidth, peak = _rates(plan, shape, gpu)
    bandwidth, peak = bandwidth * shares.bandwidth, peak * shares.compute
    weights = begun.weights.span.value
    experts = weights * _expert_share(shape, plan)
    touched = weights - experts + experts * _touched(shape, batch)
    cache = batch * begun.cache.needed(1, prompt + max(output // 2, 1))
    linear = 2 * _active(shape) / (plan.tp * plan.pp)
    times: dict[Bound, float] = {
        "weights": touched / bandwidth,
        "cache": cache / bandwidth,
        "compute": batch * linear / peak,
        "communication": _communication(shape, plan, gpu, batch, shares),
    }
    stage = max(times["weights"] + times["cache"], times["compute"]) + times["communication"] + shares.step_s
    first = max(_prefill_flops(shape, prompt) / (plan.tp * plan.pp) / peak, touched / bandwidth)
    first += _communication(shape, plan, gpu, prompt, shares)
    cycle = output * stage + batch * first
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
    plain = max(flops.get(name) or 0 for name in ("bf16", "fp16", "fp32"))
    if plan.engine == "llama_cpp" and gpu.kind == "consumer":
        plain = max(plain, (flops.get("int8") or 0) // 2)  # ACCUMULATION_SOURCE
    rate = flops.get(kind) or plain
    if rate and gpu.memory_bandwidth_bytes_per_s is not None:
        return float(gpu.memory_bandwidth_bytes_per_s), float(max(rate, plain))
    raise PlanError("speed.unknown_gpu", field="gpu", gpu=gpu.name)


def _active(shape: ModelShape) -> int:
    """Parameters that multiply for one token: without the embedding's look-up and the towers."""
    count = shape.parameters
    looked_up = 0 if shape.tied else count.embedding
    return count.active - looked_up - count.vision - count.audio - count.projector


def _prefill_flops(shape: ModelShape, prompt: int) -> float:
    """Operations of one prompt: two a weight and token, and causal attention over the window that each layer sees."""
    total = 2.0 * _active(shape) * prompt
    mixers = ((m, times) for times, block in zip(shape.block_counts, shape.blocks, strict=True) for m in block.mixers)
    for mixer, times in mixers:
        if isinstance(mixer, Attention):
            seen = min(mixer.window or mixer.chunk or prompt, prompt)
            total += times * 2.0 * mixer.heads * (mixer.head_dim + mixer.v_head_dim) * prompt * seen / 2
        elif isinstance(mixer, LatentAttention):
            width = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim + mixer.v_head_dim
            total += times * 2.0 * mixer.heads * width * prompt * prompt / 2
    return total


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
