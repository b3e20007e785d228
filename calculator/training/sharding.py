"""What data parallelism changes: which part of weights, gradients and states a rank holds, and the edits that it
makes to the step's program (a gather before a unit, a reduction after it, a bucket).

Sources: PyTorch 2.14 ``distributed/fsdp`` and ``distributed/fsdp/_fully_shard``, ``nn/parallel/distributed.py``;
accelerate 1.14; DeepSpeed 0.19 ``runtime/zero``; Megatron-LM core 0.19 ``distributed``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from calculator.training.forms import Form, rounded
from calculator.training.parallel import degrees
from calculator.training.plan import TrainingPlan
from calculator.training.recipe import Recipe, adapted
from calculator.training.template import Stretch, edit

FSDP = ("fsdp1", "fsdp2", "hsdp")
ZERO_BUCKET = 500_000_000
"""DeepSpeed's ``reduce_bucket_size`` and ``allgather_bucket_size``, in elements."""
ZERO_LIVE = 1_000_000_000
"""DeepSpeed's ``stage3_max_live_parameters``: what is gathered ahead of use stays below it."""
ZERO_PREFETCH = 50_000_000
"""DeepSpeed's ``stage3_prefetch_bucket_size``."""
ZERO_REUSE = 1_000_000_000
"""DeepSpeed's ``stage3_max_reuse_distance``: weights used again within so many elements are not released."""
SUB_GROUP = 1_000_000_000
"""DeepSpeed's ``sub_group_size``."""


@dataclass(frozen=True)
class UnitBytes:
    """One wrapped unit: its weights in the type that is gathered, and elements that are trained. ``tensors``: its
    weights one by one, in the order in which they are used."""

    gathered: int
    trained: int
    frozen: bool
    tensors: tuple[int, ...] = ()


@dataclass(frozen=True)
class Division:
    """Over how many ranks each kind of memory is spread; experts, cut over ranks already, over fewer."""

    weights: int = 1
    gradients: int = 1
    states: int = 1
    expert_weights: int = 1
    expert_states: int = 1


def data_parallel(plan: TrainingPlan) -> int:
    """Ranks that hold the same part of the model; context-parallel ranks count among them."""
    return max(1, plan.n_gpus // (plan.tp * plan.pp))


def division(plan: TrainingPlan) -> Division:
    ranks = data_parallel(plan)
    experts = max(1, plan.n_gpus // (plan.pp * plan.ep * degrees(plan).expert_tensor))
    if plan.sharding in ("fsdp1", "fsdp2", "zero3"):
        return Division(ranks, ranks, ranks, experts, experts)
    if plan.sharding == "hsdp":
        group = min(ranks, plan.hsdp_shard_size or 8)
        return Division(group, group, group, min(group, experts), min(group, experts))
    if plan.sharding == "zero2":
        return Division(1, ranks, ranks, 1, experts)
    if plan.sharding in ("zero1", "distributed_optimizer"):
        return Division(1, 1, ranks, 1, experts)
    return Division()


class Edits:
    """The changes that a framework makes around each unit; none by default. Units are numbered 0 (embedding), 1 to L
    (layers) and L + 1 (final norm, head)."""

    keeps_layer_inputs = False
    """Frozen FSDP1 units under reentrant checkpointing hold their input, and its gradient, to the end of backward."""
    waits_for_last = True
    """While gradients accumulate, they stay whole until the last micro-batch (DDP and FSDP without synchronisation)."""

    def start(self) -> Stretch | None:
        return None

    def before_forward(self, unit: int) -> Stretch | None:
        return None

    def after_forward(self, unit: int) -> Stretch | None:
        return None

    def before_backward(self, unit: int) -> Stretch | None:
        return None

    def after_backward(self, unit: int, gradients: Form | int) -> Stretch | None:
        return None

    def end(self) -> Stretch | None:
        return None


class FullyShardedEdits(Edits):
    """FSDP. The root unit (embedding, final norm, head) stays gathered from its forward to the end of backward; each
    layer is gathered while it works. FSDP1 has one layer there; FSDP2 holds the gather buffer beside the copied-out
    weights, and in backward the next layer's. A gradient is computed whole, then reduced to its shard; where parameters
    live on the host it follows them there, micro-batch by micro-batch (``_fsdp_param_group.py`` post_backward,
    ``CPUOffloadPolicy``). Gradients travel in the compute type, at torchtitan in fp32 (its only choice)."""

    def __init__(self, units: Sequence[UnitBytes], plan: TrainingPlan, recipe: Recipe, ranks: int) -> None:
        self.units, self.ranks = units, ranks
        self.second = plan.sharding == "fsdp2"
        self.root = units[0].gathered + units[-1].gathered
        wide = plan.framework == "torchtitan" and not plan.precision.startswith(("bf16", "fp16"))
        self.reduce_bytes = 4 if wide or recipe.weight == "fp32" else 2
        self.shard_bytes = 4 if recipe.gradient == "fp32" else 2
        self.keeps_layer_inputs = (
            plan.sharding == "fsdp1" and adapted(plan) and plan.checkpointing in ("full", "offloaded")
        )
        self.last = len(units) - 1
        self.mixed = plan.framework == "litgpt" and adapted(plan)
        self.whole: set[int] = set()
        self.offloaded = "parameters" in plan.offload
        self.waits_for_last = not self.offloaded

    def start(self) -> Stretch | None:
        return edit(("gathered_parameters", self.root))

    def end(self) -> Stretch | None:
        return edit(("gathered_parameters", -self.root))

    def _layer(self, unit: int, sign: int, copies: int) -> Stretch | None:
        if unit in (0, self.last) or not self.units[unit].gathered:
            return None
        return edit(("gathered_parameters", sign * copies * self.units[unit].gathered))

    def before_forward(self, unit: int) -> Stretch | None:
        return self._layer(unit, 1, 2 if self.second else 1)

    def after_forward(self, unit: int) -> Stretch | None:
        return self._layer(unit, -1, 2 if self.second else 1)

    def before_backward(self, unit: int) -> Stretch | None:
        return self._layer(unit, 1, 2 if self.second else 1)

    def after_backward(self, unit: int, gradients: Form | int) -> Stretch | None:
        release = self._layer(unit, -1, 2 if self.second else 1)
        changes: list[tuple[str, Form | int]] = []
        trained = self.units[unit].trained
        if self.mixed and trained:
            changes += self._mixed(unit, gradients)
        elif gradients and trained:
            shard = rounded(-(-trained // self.ranks) * self.shard_bytes)
            flat = trained * self.reduce_bytes
            changes = [("comm_buffers", flat), ("gradients", -gradients), ("gradients", shard), ("comm_buffers", -flat)]
            if self.offloaded:
                changes.append(("gradients", -shard))
        if release is not None:
            changes += list(zip(release.keys, release.changes, strict=True))
        return edit(*changes) if changes else None

    def _mixed(self, unit: int, gradients: Form | int) -> list[tuple[str, Form | int]]:
        """A flat parameter of frozen and trained weights has a gradient of its whole size, kept until it is reduced."""
        size = self.units[unit].gathered
        changes: list[tuple[str, Form | int]] = []
        if unit not in self.whole:
            self.whole.add(unit)
            changes.append(("gradients", size))
        if gradients:
            changes += [("gradients", -size - gradients), ("gradients", rounded(-(-size // self.ranks)))]
        return changes


class ZeroEdits(Edits):
    """DeepSpeed. Stage 1 and 2 reduce through a bucket, two where communication overlaps. Stage 2 and 3 move a layer's
    gradients on to the own partition. The weights' flat buffer is gathered in place, so ``allgather_bucket_size`` takes
    no memory."""

    def __init__(self, units: Sequence[UnitBytes], plan: TrainingPlan, ranks: int) -> None:
        self.units, self.ranks, self.stage = units, ranks, int(plan.sharding[-1])
        elements = plan.zero_reduce_bucket or ZERO_BUCKET
        trained = sum(u.trained for u in units)
        self.bucket = 2 * min(elements, trained) * (2 if plan.zero_overlap_comm else 1) if trained else 0
        self.waits_for_last = False
        self.offloaded = "optimizer" in plan.offload
        self.weights = LiveWeights(units, plan) if self.stage == 3 else None

    def start(self) -> Stretch | None:
        if self.stage == 3 or not self.bucket:
            return None
        return edit(("comm_buffers", self.bucket))

    def end(self) -> Stretch | None:
        if self.stage == 3 or not self.bucket:
            return None
        return edit(("comm_buffers", -self.bucket))

    def before_forward(self, unit: int) -> Stretch | None:
        return self.weights.fetch(unit, forward=True) if self.weights else None

    def after_forward(self, unit: int) -> Stretch | None:
        return self.weights.release(unit, forward=True) if self.weights else None

    def before_backward(self, unit: int) -> Stretch | None:
        return self.weights.fetch(unit, forward=False) if self.weights else None

    def after_backward(self, unit: int, gradients: Form | int) -> Stretch | None:
        changes: list[tuple[str, Form | int]] = []
        trained = self.units[unit].trained
        if self.stage >= 2 and gradients and trained:
            changes.append(("gradients", -gradients))
            if self.stage == 2 and not self.offloaded:
                changes.append(("gradients", rounded(2 * -(-trained // self.ranks))))
        release = self.weights.release(unit, forward=False) if self.weights else None
        if release is not None:
            changes += list(zip(release.keys, release.changes, strict=True))
        return edit(*changes) if changes else None


class LiveWeights:
    """The weights that ZeRO-3 has gathered. A unit's are gathered before it works, and with them the next tensors,
    until ``stage3_prefetch_bucket_size`` elements are under way or ``stage3_max_live_parameters`` are there. After
    forward they are released, unless backward uses them again within ``stage3_max_reuse_distance`` elements of other
    weights: the head and the last layers stay through the loss.

    Source: DeepSpeed 0.19 ``runtime/zero/partitioned_param_coordinator.py`` fetch_sub_module, __params_to_release.
    """

    def __init__(self, units: Sequence[UnitBytes], plan: TrainingPlan) -> None:
        self.tensors = [unit.tensors for unit in units]
        self.gathered = [0] * len(units)
        """How many of each unit's tensors are there."""
        self.live = 0
        ahead, live = plan.zero_prefetch_bucket, plan.zero_max_live_parameters
        self.ahead = 2 * (ZERO_PREFETCH if ahead is None else ahead)
        self.limit = 2 * (ZERO_LIVE if live is None else live)
        self.stays = self._reused(1 if plan.checkpointing in ("none", "selective") else 2)

    def _reused(self, times: int) -> set[int]:
        """Units that stay from forward to backward; ``times``: how often backward walks through a layer's weights."""
        sizes, last = [sum(tensors) for tensors in self.tensors], len(self.tensors) - 1
        found, passed = {last}, 2 * sizes[last]
        for unit in range(last - 1, -1, -1):
            beside = sizes[unit] - max(self.tensors[unit], default=0)  # the unit's other weights, before and after
            if passed + beside >= 2 * ZERO_REUSE:
                break
            found.add(unit)
            passed += (1 + times) * sizes[unit]
        return found

    def fetch(self, unit: int, *, forward: bool) -> Stretch | None:
        return _gathers(self._take(unit, None) + self._prefetch(unit, forward))

    def release(self, unit: int, *, forward: bool) -> Stretch | None:
        if forward and unit in self.stays:
            return None
        size = sum(self.tensors[unit][: self.gathered[unit]])
        self.gathered[unit] = 0
        self.live -= size
        return _gathers(-size)

    def _take(self, unit: int, wanted: int | None) -> int:
        """Gather a unit's missing tensors, all or until ``wanted`` bytes are taken."""
        taken = 0
        for size in self.tensors[unit][self.gathered[unit] :]:
            if wanted is not None and taken >= wanted:
                break
            taken += size
            self.gathered[unit] += 1
        self.live += taken
        return taken

    def _prefetch(self, unit: int, forward: bool) -> int:
        last = len(self.tensors) - 1
        coming = [*range(unit + 1, last + 1), *range(last, -1, -1)] if forward else range(unit - 1, -1, -1)
        wanted, taken = min(self.ahead, self.limit - self.live), 0
        for following in coming:
            if taken >= wanted:
                break
            taken += self._take(following, wanted - taken)
        return taken


def _gathers(size: int) -> Stretch | None:
    return edit(("gathered_parameters", size)) if size else None


def edits_of(units: Sequence[UnitBytes], plan: TrainingPlan, recipe: Recipe) -> Edits:
    """The edits of a plan's sharding."""
    ranks = division(plan).weights if plan.sharding in FSDP else data_parallel(plan)
    if plan.sharding in FSDP and ranks > 1:
        return FullyShardedEdits(units, plan, recipe, ranks)
    if plan.sharding.startswith("zero") and data_parallel(plan) > 1:
        return ZeroEdits(units, plan, ranks)
    return Edits()
