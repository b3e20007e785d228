"""How fast a plan could be: a roofline of weights, cache, arithmetic and communication. An estimate, given as a range.

Decode reads every weight that the batch touches and every request's cache once a step; prefill is arithmetic. The share
of the card's peak that engines reach is assumed, and checked against published throughput figures in the tests.
"""

from __future__ import annotations

from typing import Literal, cast

from calculator.base import Frozen
from calculator.errors import PlanError
from calculator.hardware import Gpu
from calculator.model.shape import Attention, LatentAttention, ModelShape, MoeMlp
from calculator.model.weights import WeightLayout
from calculator.precision import weight_format
from calculator.serving.bill import start
from calculator.serving.overheads import is_linked
from calculator.serving.plan import ServingPlan
from calculator.serving.start import Start
from calculator.serving.weights import Recent
from calculator.sources import Source

Bound = Literal["weights", "cache", "compute", "communication"]

BANDWIDTH_SHARE = (0.45, 0.68, 0.88)
"""Share of the memory bandwidth that decoding reaches: low, usual, high."""
COMPUTE_SHARE = (0.32, 0.48, 0.72)
"""Share of the dense peak that matrix products of large batches reach."""
STEP_SECONDS = (0.002, 0.0006, 0.0002)
"""Time of a step outside the card's kernels: scheduling, sampling, launches (low speed, usual, high)."""
LATENCY_SECONDS = {True: (20e-6, 12e-6, 8e-6), False: (60e-6, 35e-6, 20e-6)}
"""One all-reduce of little data, linked by NVLink or its like, or by PCIe."""
EFFICIENCY_SOURCE = Source(
    title="Shares of the peak that published throughput tables imply (TensorRT-LLM performance overview, MLC and "
    "llama.cpp single-stream figures)",
    url="https://nvidia.github.io/TensorRT-LLM/performance/perf-overview.html", checked_on="2026-11-29",
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
        batch = min(int(begun.cache.concurrency(begun.pool.value, mean_context)), begun.max_num_seqs)
    if batch < 1:
        raise PlanError("speed.nothing_fits", field="gpu", context_tokens=mean_context)
    ends = [_at(shape, plan, gpu, begun, prompt_tokens, output_tokens, batch, end) for end in range(3)]
    ttft, tpot, rate = zip(*[(e.ttft, e.step, e.rate) for e in ends], strict=True)
    return Speed(
        ttft_s=Estimate(low=ttft[2], value=ttft[1], high=ttft[0]),
        tpot_s=Estimate(low=tpot[2], value=tpot[1], high=tpot[0]),
        tokens_per_s=Estimate(low=rate[0], value=rate[1], high=rate[2]),
        batch=batch,
        bound=ends[1].bound,
    )


class _Point(Frozen):
    ttft: float
    step: float
    rate: float
    bound: Bound


def _at(
    shape: ModelShape, plan: ServingPlan, gpu: Gpu, begun: Start, prompt: int, output: int, batch: int, end: int
) -> _Point:
    """The estimate at one end of the assumed shares (0 slow, 1 usual, 2 fast)."""
    bandwidth, peak = _rates(plan, shape, gpu)
    bandwidth, peak = bandwidth * BANDWIDTH_SHARE[end], peak * COMPUTE_SHARE[end]
    weights = begun.weights.span.value
    experts = weights * _expert_share(shape, plan)
    touched = weights - experts + experts * _touched(shape, batch)
    cache = batch * begun.cache.needed(1, prompt + max(output // 2, 1))
    linear = 2 * _active(shape) / (plan.tp * plan.pp)
    times: dict[Bound, float] = {
        "weights": touched / bandwidth,
        "cache": cache / bandwidth,
        "compute": batch * linear / peak,
        "communication": _communication(shape, plan, gpu, batch, end),
    }
    stage = max(times["weights"] + times["cache"], times["compute"]) + times["communication"] + STEP_SECONDS[end]
    first = max(_prefill_flops(shape, prompt) / (plan.tp * plan.pp) / peak, touched / bandwidth)
    first += _communication(shape, plan, gpu, prompt, end)
    cycle = output * stage + batch * first
    return _Point(
        ttft=plan.pp * first + STEP_SECONDS[end],
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
    for index, times in enumerate(shape.block_counts):
        mixer = shape.blocks[index].mixer
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
        if isinstance(block.mlp, MoeMlp):
            return float(1 - (1 - block.mlp.top_k / block.mlp.experts) ** batch)
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

    if not any(isinstance(block.mlp, MoeMlp) for block in shape.blocks):
        return 0.0
    return cast(float, _recent.get(shape, ("experts", plan.weights), make))


def _communication(shape: ModelShape, plan: ServingPlan, gpu: Gpu, tokens: int, end: int) -> float:
    """Two all-reduces a layer among the tensor-parallel ranks, and one hand-over a pipeline stage."""
    linked = is_linked(gpu)
    link = float((gpu.link_bytes_per_s if linked else None) or gpu.pcie_bytes_per_s or 25e9)
    size = tokens * shape.hidden * 2
    layers = shape.layers / plan.pp
    seconds = 0.0
    if plan.tp > 1:
        each = 2 * (plan.tp - 1) / plan.tp * size / (link * BANDWIDTH_SHARE[end]) + LATENCY_SECONDS[linked][end]
        seconds += 2 * layers * each
    if plan.pp > 1:
        seconds += size / (link * BANDWIDTH_SHARE[end]) + LATENCY_SECONDS[linked][end]
    return seconds
