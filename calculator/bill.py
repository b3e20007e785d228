"""What every estimate returns: items, phases, totals with their range, and the verdict.

Definitions: an item's ``bytes`` are those alive at the peak instant on the worst-loaded rank, so the tensor items
add up to ``allocated`` exactly; ``max_bytes`` is the item's own maximum over the step.
"""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from calculator.base import Frozen
from calculator.sources import Source
from calculator.text import Text

Basis = Literal["header", "computed", "calibrated", "assumed"]
"""How an item's bytes are known: read from the files' headers, computed from the shape, fitted on measurements, or
assumed."""

Verdict = Literal["fits", "tight", "does_not_fit"]

Layer = Literal["tensor", "slack", "process", "free"]
"""Where an item counts: ``tensor`` in allocated, ``slack`` from reserved on, ``process`` in the process total only,
``free`` in no total: memory of the card that a serving engine leaves alone, shown so that a bar fills the card."""


class Range(Frozen):
    """Bytes with the lowest and highest plausible value; ``low <= value <= high``."""

    value: int
    low: int
    high: int

    @model_validator(mode="after")
    def _ordered(self) -> Range:
        if not 0 <= self.low <= self.value <= self.high:
            raise ValueError(f"not ordered: {self.low} <= {self.value} <= {self.high}")
        return self

    @staticmethod
    def exact(value: int) -> Range:
        return Range(value=value, low=value, high=value)

    def __add__(self, other: Range) -> Range:
        return Range(value=self.value + other.value, low=self.low + other.low, high=self.high + other.high)

    def __mul__(self, times: int) -> Range:
        return Range(value=self.value * times, low=self.low * times, high=self.high * times)


class Item(Frozen):
    """One line of the bill, in bytes on the worst-loaded GPU.

    ``phases`` names the phases in which the item is alive. ``formula`` holds the rule in words and, in its values,
    this plan's numbers. ``divided_by`` is the number of GPUs over which the whole is spread (1: held whole).
    """

    key: str
    bytes: int
    max_bytes: int
    low: int
    high: int
    layer: Layer = "tensor"
    phases: tuple[str, ...]
    formula: Text
    divided_by: int = 1
    basis: Basis
    source: Source


class Phase(Frozen):
    """A phase of the step and the item bytes at its own highest instant, which add up to ``allocated_bytes``."""

    name: str
    allocated_bytes: int
    items: dict[str, int]


class TimePoint(Frozen):
    """The tensor items alive at one instant of the step. ``label`` says where: a layer, the loss, the optimizer."""

    phase: str
    label: Text
    items: dict[str, int]


Residence = Literal["pinned", "pageable", "managed"]
"""How host memory is held: ``pinned`` cannot be swapped out, ``managed`` moves between card and host page by page."""


class HostItem(Frozen):
    """One thing in host memory, in bytes: of the ``process`` that holds most of it, and of all processes of a ``node``.
    ``phase``: while the model loads, or from then on."""

    key: str
    process: Range
    node: Range
    residence: Residence
    phase: Literal["load", "train"]
    formula: Text
    basis: Basis
    source: Source

    @property
    def bytes(self) -> int:
        return self.process.value


class HostBill(Frozen):
    """Host memory of one process and of a node of ``processes``, at the fuller of the two phases, ``peak_phase``.

    What the interpreter, libraries and data loaders take is not in it, nor files that the system keeps in its cache.
    """

    items: tuple[HostItem, ...]
    processes: int
    process: Range
    node: Range
    peak_phase: Literal["load", "train"]

    @staticmethod
    def of(items: tuple[HostItem, ...], processes: int) -> HostBill:
        nothing = Range.exact(0)
        totals = {
            phase: (
                sum((i.process for i in items if i.phase == phase), nothing),
                sum((i.node for i in items if i.phase == phase), nothing),
            )
            for phase in ("load", "train")
        }
        peak: Literal["load", "train"] = "load" if totals["load"][1].value > totals["train"][1].value else "train"
        process, node = totals[peak]
        return HostBill(items=items, processes=processes, process=process, node=node, peak_phase=peak)

    def notable(self, capacity_bytes: int) -> bool:
        """Whether it asks for more than loading a model onto cards of that capacity always does: something stays on
        the host, or loading may take more than the node's cards hold."""
        return any(i.phase == "train" for i in self.items) or self.node.high > self.processes * capacity_bytes


class ServingFigures(Frozen):
    """What a serving engine's log prints, per GPU, and the capacity that follows from it.

    ``kv_pool_bytes`` is negative where weights and workspace alone exceed the budget. ``kv_tokens`` and
    ``max_concurrency`` (requests of ``max_model_len``) are those of one replica, as its engine prints them;
    ``requests_at_context`` counts requests of the wished context over all replicas, capped by the slots that the
    engine opens. ``kv_needed_bytes`` is the cache of one request of ``max_model_len`` on one GPU,
    ``needed_pool_bytes`` that of all wished requests. ``starts`` is False where the engine refuses, and ``refusal``
    then says why; ``moved`` says what of the model the engine moved to the host to start. ``longest_context_tokens`` is
    the longest single request that the pool holds. ``practical_requests`` and ``steady_requests`` are two rules of
    thumb for the same: a share of the requests that fit, or what fits beside ``peak_reserve_bytes`` of the pool, kept
    for peaks. ``host_bytes`` are those of all ranks: weights and cache (``host_cache_bytes``, which keep
    ``host_cache_tokens`` of a replica). ``ranges`` holds low and high of the figures that are not exact, by
    their names here.
    """

    weights_bytes: int
    activation_bytes: int
    non_torch_bytes: int
    cuda_graph_bytes: int
    kv_pool_bytes: int
    kv_tokens: int
    max_concurrency: float
    bytes_per_token: int
    state_bytes_per_sequence: int
    budget_bytes: int
    needed_pool_bytes: int
    wished_requests: int
    starts: bool = True
    refusal: Text | None = None
    moved: Text | None = None
    max_model_len: int = 0
    max_num_seqs: int = 0
    max_num_batched_tokens: int = 0
    memory_fraction: float = 0.0
    block_size: int = 0
    kv_needed_bytes: int = 0
    requests_at_context: float = 0.0
    practical_requests: int = 0
    peak_reserve_bytes: int = 0
    steady_requests: int = 0
    longest_context_tokens: int = 0
    compute_buffer_bytes: int = 0
    kv_full_bytes: int = 0
    kv_swa_bytes: int = 0
    gated_delta_scratch_bytes: int = 0
    state_bytes: int = 0
    host_bytes: int = 0
    host_cache_bytes: int = 0
    host_cache_tokens: int = 0
    process_bytes: int = 0
    replicas: int = 1
    ranges: dict[str, Range] = {}


class Bill(Frozen):
    """The itemised memory of one GPU, the worst-loaded of the job."""

    items: tuple[Item, ...]
    phases: tuple[Phase, ...]
    peak_phase: str
    allocated: Range
    reserved: Range
    process: Range
    need: Range
    capacity_bytes: int
    verdict: Verdict
    rank: str = "0"
    rank_spread: dict[str, int] = {}
    assumptions: tuple[Text, ...] = ()
    serving: ServingFigures | None = None
    host: HostBill | None = None

    @model_validator(mode="after")
    def _adds_up(self) -> Bill:
        total = sum(item.bytes for item in self.items if item.layer == "tensor")
        if total != self.allocated.value:
            raise ValueError(f"tensor items add up to {total}, allocated is {self.allocated.value}")
        return self

    @property
    def spare_bytes(self) -> int:
        """Capacity less need; negative when the plan does not fit."""
        return self.capacity_bytes - self.need.value


def training_verdict(need: Range, capacity_bytes: int) -> Verdict:
    """*fits* if even the high end fits, *tight* if only the low end does, else *does not fit*."""
    if need.high <= capacity_bytes:
        return "fits"
    return "tight" if need.low <= capacity_bytes else "does_not_fit"
