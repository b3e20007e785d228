"""What the cards of a plan say to each other in a step: over NVLink or PCIe inside a node, over the network outside."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from calculator.base import Frozen
from calculator.hardware import Gpu
from calculator.model.shape import ModelShape
from calculator.serving.counts import mixtures
from calculator.serving.overheads import is_linked
from calculator.serving.plan import ServingPlan
from calculator.serving.split import split_of
from calculator.sources import Source

UNKNOWN_PCIE_BYTES_PER_S = 25e9
"""A card whose slot is not known: PCIe 4.0 x16, less its overhead."""
USUAL_NODE = 8
NODES = (("gb200", 72), ("gb300", 72), ("gh200", 1))
"""Cards of one NVLink domain where that is not the usual box of eight (NVL72 racks; one Grace Hopper a node)."""
ADAPTERS = (
    ("gb300", 100e9), ("b300", 100e9), ("gb200", 50e9), ("gh200", 50e9), ("b200", 50e9), ("h200", 50e9), ("h100", 50e9),
    ("h20", 50e9), ("mi3", 50e9), ("a100", 25e9), ("v100", 6.25e9),
)  # fmt: skip
"""Bytes a second of the network adapter that each card has to itself, one direction, by the card's key."""
SHARED_ADAPTER_BYTES_PER_S = 12.5e9
"""Other machines: one adapter of 100 Gbit/s for all cards of a node. Assumed."""
NETWORK_SOURCE = Source(
    title="Usual boxes: eight cards and an adapter of 400 Gbit/s for each (DGX H100, H200, B200), 200 (DGX A100), 800 "
    "(DGX B300); 100 Gbit/s a node assumed elsewhere",
    url="https://docs.nvidia.com/dgx/dgxh100-user-guide/introduction-to-dgxh100.html", checked_on="2026-11-30",
)  # fmt: skip
EXCHANGE_SOURCE = Source(
    title="vLLM, expert parallel deployment: tokens reach the experts by all-gather and return by reduce-scatter where "
    "no other back end is chosen",
    url="https://docs.vllm.ai/en/latest/serving/expert_parallel_deployment/", checked_on="2026-11-30",
    versions="0.11 to 0.33",
)  # fmt: skip


class Links(Frozen):
    """Share of a link's rate that collectives reach, and seconds of one with little data: between linked cards (NVLink
    or its like), over PCIe, and across nodes."""

    share: float
    linked_latency_s: float
    pcie_latency_s: float
    network_latency_s: float


@dataclass(frozen=True, slots=True)
class Layout:
    """``ranks`` cards share one request's heads, ``group`` of them one tensor-parallel group (more where attention is
    data-parallel inside it), ``stages`` hold layers one after the other, ``together`` replicas send their tokens to the
    same experts, which ``expert_ranks`` cards hold. ``in_turn``: one batch passes through all cards before the next
    step, so that only one works at a time; else as many batches as stages are under way."""

    ranks: int = 1
    group: int = 1
    stages: int = 1
    together: int = 1
    expert_ranks: int = 1
    in_turn: bool = False

    def nodes(self, plan: ServingPlan, gpu: Gpu) -> int:
        """Machines whose cards talk to each other in a step."""
        whole = self.together if self.group == self.ranks else 1
        return ceil(self.group * self.stages * whole / node_size(plan, gpu))


IN_TURN = ("llama_cpp", "ollama", "transformers")
"""Engines whose cards hold layers and work one after the other, whatever degrees a plan names (llama.cpp's split mode
"layer"; the device maps of transformers)."""


def layout_of(shape: ModelShape, plan: ServingPlan) -> Layout:
    """The work of a plan that its engine has accepted."""
    if plan.engine in IN_TURN:
        return Layout(stages=min(max(plan.n_gpus, plan.pp), shape.layers), in_turn=True)
    split = split_of(plan, shape)
    return Layout(
        ranks=split.heads_tp, group=split.tp, stages=split.pp, together=split.dp * (split.tp // split.heads_tp),
        expert_ranks=split.tp * split.dp,
    )  # fmt: skip


def node_size(plan: ServingPlan, gpu: Gpu) -> int:
    """Cards of one node: the plan's, or the card's usual box."""
    usual = next((size for name, size in NODES if gpu.key.startswith(name)), USUAL_NODE)
    return plan.gpus_per_node or usual


def adapter_rate(gpu: Gpu, node: int) -> float:
    """Network bytes a second, one direction, that a card of a full node has on average."""
    own = next((rate for name, rate in ADAPTERS if gpu.key.startswith(name)), None)
    return SHARED_ADAPTER_BYTES_PER_S / node if own is None else own


def ring(gpu: Gpu, node: int, members: int, apart: int, links: Links) -> tuple[float, float]:
    """Bytes a second of each member of a ring, and a collective's latency.

    ``members`` stand ``apart`` ranks from each other, and as many such rings run at once. A ring that leaves the node
    crosses its border over the adapters of all its members there, one part of the data each.
    """
    linked = is_linked(gpu)
    inside = float((gpu.link_bytes_per_s if linked else None) or gpu.pcie_bytes_per_s or UNKNOWN_PCIE_BYTES_PER_S)
    if members * apart <= node:
        return inside * links.share, links.linked_latency_s if linked else links.pcie_latency_s
    local = max(node // apart, 1)
    return min(inside, local * adapter_rate(gpu, node)) * links.share, links.network_latency_s


def communication(shape: ModelShape, plan: ServingPlan, gpu: Gpu, layout: Layout, tokens: float, links: Links) -> float:
    """Seconds of one stage: two all-reduces a layer among the cards that share a request, for every mixture an
    all-gather and a reduce-scatter among the replicas that share its experts (EXCHANGE_SOURCE), and the hand-over to
    the next stage. ``tokens`` are those of one replica's step."""
    node, size = node_size(plan, gpu), tokens * shape.hidden * 2
    seconds = 0.0
    if layout.ranks > 1:
        rate, latency = ring(gpu, node, layout.ranks, 1, links)
        each = 2 * (layout.ranks - 1) / layout.ranks * size / rate + latency
        seconds += 2 * shape.layers / layout.stages * each
    if layout.together > 1:
        # Replicas inside one tensor-parallel group lie side by side, whole ones behind all their stages.
        apart = layout.ranks if layout.group > layout.ranks else layout.group * layout.stages
        rate, latency = ring(gpu, node, layout.together, apart, links)
        each = (layout.together - 1) * size / rate + latency
        seconds += 2 * mixtures(shape) / layout.stages * each
    if layout.stages > 1:
        rate, latency = ring(gpu, node, layout.stages, layout.group, links)
        if layout.group * layout.stages > node:
            rate = min(rate, adapter_rate(gpu, node) * links.share)
        seconds += size / rate + latency
    return seconds
