"""Memory outside an engine's own accounts: the driver's context and communication buffers."""

from __future__ import annotations

from calculator.hardware import Gpu
from calculator.serving.start import ZERO, Span, Term
from calculator.sources import Source
from calculator.text import text
from calculator.units import GIB, MIB

CONTEXT_SMALL = Span(450 * MIB, 140 * MIB, 620 * MIB)
CONTEXT_LARGE = Span(550 * MIB, 300 * MIB, 760 * MIB)
CONTEXT_SOURCE = Source(
    title="Memory in use on an idle card after a process has made its CUDA context, from public logs (141 MiB on a T4, "
    "0.45 GiB on a 24 GB card, 0.6 GiB on data-centre cards)",
    url="https://github.com/vllm-project/vllm/issues",
    checked_on="2026-11-29",
)

NCCL_SOURCE = Source(
    title="Non-torch memory of tensor-parallel vLLM starts: about 2 GiB on NVLink machines, 0.2 to 0.3 GiB on PCIe",
    url="https://github.com/llm-d-incubation/llm-d-planner",
    checked_on="2026-11-29",
)


NETWORK_BUFFERS = Span(24 * MIB, 0, 384 * MIB)
"""What NCCL's connections to other nodes take beside those inside one: some 12 MiB a channel and connection. Usually 8
channels spread their two tree connections over the cards of a node; at most 16 channels have both at one card. More
nodes than two add nothing, since a ring and a tree have as many neighbours at any size. Assumed, of these parts."""
NETWORK_BUFFERS_SOURCE = Source(
    title="NCCL issues 986 and 964: memory grows with channels and connections, no more beyond two nodes; 12 MiB a "
    "connection and channel in 544 MiB for a pair on NVLink",
    url="https://github.com/NVIDIA/nccl/issues/986", checked_on="2026-11-30",
)  # fmt: skip


def is_linked(gpu: Gpu) -> bool:
    """Whether cards of this kind are usually joined by NVLink or its like. An unnamed card counts by its size."""
    if gpu.kind == "custom":
        return gpu.total_bytes >= 70 * GIB
    return gpu.kind == "datacenter" and gpu.link_bytes_per_s is not None


def context_term(gpu: Gpu) -> Term:
    """The context of one process on one card; more multiprocessors keep more."""
    span = CONTEXT_LARGE if gpu.total_bytes >= 70 * GIB else CONTEXT_SMALL
    return Term(span, text("serving.item.context"), "calibrated", CONTEXT_SOURCE)


def network_span(ranks: int, node: int) -> Span:
    """Buffers of ``ranks`` GPUs towards other nodes, of ``node`` GPUs each."""
    return NETWORK_BUFFERS if ranks > node else ZERO


def communication_term(gpu: Gpu, ranks: int, node: int) -> Term:
    """Buffers of the collectives among ``ranks`` GPUs, of which a node holds ``node``."""
    span = ZERO
    if ranks > 1:
        span = Span(2 * GIB, GIB // 2, 5 * GIB // 2) if is_linked(gpu) else Span(GIB // 4, GIB // 8, GIB // 2)
    source = NETWORK_BUFFERS_SOURCE if ranks > node else NCCL_SOURCE
    span = span + network_span(ranks, node)
    return Term(span, text("serving.item.non_torch", ranks_count=ranks), "calibrated", source)
