"""How fast a plan could be: a roofline of weights, cache, arithmetic and communication. An estimate, given as a range.

Decode reads every weight that the batch touches and every request's cache once a step; prefill is arithmetic. Between
the products rows of 16 bit are read and written, which a card with fast products feels most. Weights on the host cross
PCIe whenever they are read. Drafts are checked by one step of more tokens. The share of the card's peak that engines
reach is assumed, and checked against published throughput figures in the tests.
"""

from __future__ import annotations

from math import ceil
from typing import Literal

from calculator.base import Frozen
from calculator.errors import PlanError
from calculator.hardware import Gpu
from calculator.model.shape import ModelShape
from calculator.model.stored import StoredWeights
from calculator.serving import acceptance, counts
from calculator.serving.bill import start
from calculator.serving.network import (
    EXCHANGE_SOURCE,
    NETWORK_SOURCE,
    UNKNOWN_PCIE_BYTES_PER_S,
    Layout,
    Links,
    communication,
    layout_of,
)
from calculator.serving.plan import ServingPlan
from calculator.serving.prefix import cached_tokens, held
from calculator.serving.start import Start
from calculator.sources import Source

Bound = Literal["weights", "cache", "compute", "communication", "host", "launches"]


class Shares(Frozen):
    """Shares of a card's peaks that an engine reaches: of the memory bandwidth when decoding, of the dense arithmetic
    rate in matrix products of many tokens; seconds of a step outside the kernels (scheduling, launches), of the host's
    work for each request of it, and of Python for each layer where nothing is captured or compiled; and of one
    collective of little data, between linked cards (NVLink or its like), over PCIe and across nodes (assumed)."""

    bandwidth: float
    compute: float
    step_s: float
    request_s: float
    eager_layer_s: float
    linked_latency_s: float
    pcie_latency_s: float
    network_latency_s: float

    @property
    def links(self) -> Links:
        return Links(
            share=self.bandwidth, linked_latency_s=self.linked_latency_s, pcie_latency_s=self.pcie_latency_s,
            network_latency_s=self.network_latency_s,
        )  # fmt: skip


SLOW = Shares(bandwidth=0.48, compute=0.40, step_s=0.0016, request_s=8e-6, eager_layer_s=1.5e-3,
              linked_latency_s=20e-6, pcie_latency_s=60e-6, network_latency_s=70e-6)  # fmt: skip
USUAL = Shares(bandwidth=0.76, compute=0.64, step_s=0.0006, request_s=4e-6, eager_layer_s=1.0e-3,
               linked_latency_s=12e-6, pcie_latency_s=35e-6, network_latency_s=40e-6)  # fmt: skip
FAST = Shares(bandwidth=0.92, compute=0.82, step_s=0.0002, request_s=2.5e-6, eager_layer_s=0.6e-3,
              linked_latency_s=8e-6, pcie_latency_s=20e-6, network_latency_s=25e-6)  # fmt: skip
LLAMA_CPP_COMPUTE = 0.75
"""Of the arithmetic share, what llama.cpp's products reach, which work on 512 tokens at once with weights unpacked as
they go: three quarters of 0.64, the share that stood here when all engines had one."""
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

EAGER_SOURCE = Source(
    title="Llama-7B in plain PyTorch on an A100, without compilation: 25.5 tokens a second, 1.2 ms for each of its 32 "
    "layers, where its weights alone take 0.2 ms",
    url="https://pytorch.org/blog/accelerating-generative-ai-2/", checked_on="2026-11-30",
)  # fmt: skip
EAGER = ("transformers",)
"""Engines whose Python launches every kernel of every step."""


class Estimate(Frozen):
    """A figure with its plausible range."""

    low: float
    value: float
    high: float


class Speed(Frozen):
    """Seconds to the first token of a request that finds a free slot, seconds between tokens at ``batch`` requests a
    replica, and output tokens a second of all replicas when requests never run out. ``bound`` names what limits a
    decode step, ``step_tokens`` are those that a step with drafts yields for a request (None: nothing drafts);
    the cards of ``nodes`` machines talk to each other in every step."""

    ttft_s: Estimate
    tpot_s: Estimate
    tokens_per_s: Estimate
    batch: int
    bound: Bound
    step_tokens: Estimate | None = None
    nodes: int = 1
    sources: tuple[Source, ...] = (EFFICIENCY_SOURCE,)


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
    mean_context = prompt_tokens + max(output_tokens // 2, 1)
    if batch is None:
        # An engine that never takes a request back holds its whole length from the start (NO_EVICTION_SOURCE).
        admitted = prompt_tokens + output_tokens if plan.engine == "tensorrt_llm" else mean_context
        cached = cached_tokens(plan, begun, prompt_tokens)
        batch = min(int(held(begun.cache, begun.pool.value, admitted, cached)), begun.max_num_seqs)
    if batch < 1:
        raise PlanError("speed.nothing_fits", field="gpu", context_tokens=mean_context)
    lengths = (prompt_tokens, output_tokens, batch)
    ends = [
        point(shape, plan, gpu, begun, *lengths, shares, accepted=accepted)
        for shares, accepted in zip((SLOW, USUAL, FAST), acceptance.rates(plan), strict=True)
    ]
    drafts, layout = acceptance.drafts(plan), layout_of(shape, plan)
    yields = [acceptance.tokens_of_step(rate, drafts) for rate in acceptance.rates(plan)]
    ttft, tpot, rate = zip(*[(e.ttft, e.step, e.rate) for e in ends], strict=True)
    return Speed(
        ttft_s=Estimate(low=ttft[2], value=ttft[1], high=ttft[0]),
        tpot_s=Estimate(low=tpot[2], value=tpot[1], high=tpot[0]),
        tokens_per_s=Estimate(low=rate[0], value=rate[1], high=rate[2]),
        batch=batch,
        bound=ends[1].bound,
        step_tokens=Estimate(low=yields[0], value=yields[1], high=yields[2]) if drafts else None,
        nodes=layout.nodes(plan, gpu),
        sources=_sources(plan, gpu, layout, drafts),
    )


def _sources(plan: ServingPlan, gpu: Gpu, layout: Layout, drafts: int) -> tuple[Source, ...]:
    """What the estimate rests on, as far as this plan needs it."""
    wanted = (
        (EFFICIENCY_SOURCE, True), (EAGER_SOURCE, plan.engine in EAGER),
        (NETWORK_SOURCE, layout.nodes(plan, gpu) > 1), (EXCHANGE_SOURCE, layout.together > 1),
        (acceptance.ACCEPTANCE_SOURCE, drafts > 0),
    )  # fmt: skip
    return tuple(source for source, needed in wanted if needed)


class Point(Frozen):
    """Seconds to the first token, seconds between tokens, output tokens a second, under one assumption of shares."""

    ttft: float
    step: float
    rate: float
    bound: Bound


def point(
    shape: ModelShape, plan: ServingPlan, gpu: Gpu, begun: Start, prompt: int, output: int, batch: int, shares: Shares,
    *, accepted: float = 0.0,
) -> Point:  # fmt: skip
    """The estimate under these shares, for ``batch`` requests of one length on each replica of a start, of whose drafts
    the share ``accepted`` is right.

    A pipeline's running requests are spread over as many batches as it has stages, and a token takes as many turns as
    there are stages, so that ``batch`` tokens come every ``step`` seconds. Where cards work in turn, all requests are
    one batch. Between them prompts are worked on together, as many as a step's tokens hold, so that each pays its part
    of the weights' bytes.
    """
    work = _Work(shape, plan, gpu, begun, shares)
    stages = work.layout.stages
    micro = float(batch) if work.layout.in_turn else max(batch / stages, 1.0)
    drafts = acceptance.drafts(plan)
    seconds, bound = work.decode(micro, prompt + max(output // 2, 1), 1 + drafts)
    step = (stages * seconds + work.drafting(micro)) / acceptance.tokens_of_step(accepted, drafts)
    cached = cached_tokens(plan, begun, prompt)
    fresh = prompt - cached
    alone = work.alone(prompt, cached)
    together = max(1, min(batch, begun.max_num_batched_tokens // fresh))
    each = (work.products(together * fresh) + shares.step_s) / together + alone
    prompts = batch * stages if work.layout.in_turn else max(batch, stages)
    return Point(
        ttft=stages * (work.products(fresh) + alone) + shares.step_s, step=step,
        rate=begun.replicas * batch * output / (output * step + prompts * each), bound=bound,
    )  # fmt: skip


class _Work:
    """Seconds that one stage's cards need, for the tokens of one replica."""

    def __init__(self, shape: ModelShape, plan: ServingPlan, gpu: Gpu, begun: Start, shares: Shares) -> None:
        self.shape, self.plan, self.gpu, self.begun, self.shares = shape, plan, gpu, begun, shares
        self.layout = layout_of(shape, plan)
        peak_bandwidth, peak = _rates(plan, shape, gpu)
        compute = shares.compute * (LLAMA_CPP_COMPUTE if plan.engine in ("llama_cpp", "ollama") else 1.0)
        self.bandwidth, self.peak = peak_bandwidth * shares.bandwidth, peak * compute
        self.attention = _attention_rate(plan, gpu) * compute
        # Memory that card and host share is read at its own rate.
        slot = peak_bandwidth if gpu.unified else float(gpu.pcie_bytes_per_s or UNKNOWN_PCIE_BYTES_PER_S)
        self.host = min(slot, peak_bandwidth) * shares.bandwidth
        ranks, stages = self.layout.ranks, self.layout.stages
        self.linear = 2.0 * counts.active(shape) / (ranks * stages)
        self.rows = counts.row_bytes(shape, ranks) / stages / self.bandwidth
        self.experts = _held_share(counts.expert_share(shape, plan), self.layout)

    def share(self, tokens: float) -> float:
        """Of the weights, those that ``tokens`` of each replica reach: of the experts those of all replicas do."""
        reached = counts.touched(self.shape, tokens * self.layout.together)
        return 1 - self.experts + self.experts * reached

    def weights(self, tokens: float) -> float:
        """Reading what lies on the card, once."""
        return self.begun.weights.span.value * self.share(tokens) / self.bandwidth

    def streamed(self, tokens: float, passes: int = 1) -> float:
        """Reading over PCIe what lies on the host, once a pass."""
        return passes * self.begun.streamed_bytes * self.share(tokens) / self.host

    def talk(self, tokens: float) -> float:
        return communication(self.shape, self.plan, self.gpu, self.layout, tokens, self.shares.links)

    def launched(self, seconds: float) -> float:
        """Where Python launches every kernel, a stage takes no less than that."""
        if self.plan.engine not in EAGER:
            return seconds
        return max(seconds, self.shape.layers / self.layout.stages * self.shares.eager_layer_s)

    def decode(self, requests: float, context: int, checked: int) -> tuple[float, Bound]:
        """A step of ``requests`` with ``checked`` tokens each. Products of weights are bound by their bytes or their
        operations; reading the cache, the rows between the products, collectives and the host's work for every request
        come on top, since they run one after the other."""
        tokens = requests * checked
        times: dict[Bound, float] = {
            "weights": self.weights(tokens),
            "cache": requests * self.begun.cache.needed(1, context) / self.bandwidth,
            "compute": tokens * self.linear / self.peak,
            "communication": self.talk(tokens),
            "host": self.streamed(tokens),
        }
        seconds = max(times["weights"], times["compute"]) + times["cache"] + times["communication"] + times["host"]
        on_card = seconds + tokens * self.rows
        seconds = self.launched(on_card) + requests * self.shares.request_s + self.shares.step_s
        waits = self.launched(on_card) > on_card
        return seconds, "launches" if waits else max(times, key=lambda name: times[name])

    def drafting(self, requests: float) -> float:
        """Making the drafts of a step: reading what drafts, and once more what a step takes outside the kernels."""
        if not acceptance.drafts(self.plan):
            return 0.0
        layer = self.begun.weights.span.value * self.share(requests) * self.layout.stages / self.shape.layers
        return acceptance.drafting_bytes(self.shape, self.plan, layer) / self.bandwidth + self.shares.step_s

    def products(self, tokens: int) -> float:
        """Products, collectives and weights from the host for prompts' ``tokens``."""
        passes = ceil(tokens / max(self.begun.max_num_batched_tokens, 1))
        seconds = max(tokens * self.linear / self.peak, self.weights(tokens)) + self.streamed(tokens, passes)
        return self.launched(seconds + self.talk(tokens))

    def alone(self, prompt: int, cached: int) -> float:
        """Attention and rows of one prompt, of which ``cached`` tokens need no work."""
        flops = counts.attention_flops(self.shape, prompt) - counts.attention_flops(self.shape, cached)
        return flops / (self.layout.ranks * self.layout.stages) / self.attention + (prompt - cached) * self.rows


def _held_share(share: float, layout: Layout) -> float:
    """Share of one card's weight bytes that routed experts take, of which they are ``share`` in the whole model."""
    experts, others = share / layout.expert_ranks, (1 - share) / layout.ranks
    return experts / (experts + others)


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


def _attention_rate(plan: ServingPlan, gpu: Gpu) -> float:
    """Operations a second of attention, which stays in 16 bit, or in FP8 beside an FP8 cache, whatever the weights."""
    flops = gpu.peak_dense_flops
    kinds = ("bf16", "fp16", "fp32", "fp8") if plan.kv_cache_dtype == "fp8" else ("bf16", "fp16", "fp32")
    return float(max(flops.get(name) or 0 for name in kinds))
