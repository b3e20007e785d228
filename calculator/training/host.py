"""What a training process holds in the host's memory: what the plan offloads, and what loading takes on the way to the
card.

Sources: DeepSpeed 0.19 ``runtime/zero/stage_1_and_2.py`` and ``stage3.py``, PyTorch 2.14 ``distributed/fsdp``,
torchao ``optim/cpu_offload.py``, Megatron core 0.19 ``optimizer/cpu_offloading``, bitsandbytes 0.50
``optim/optimizer.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from calculator.bill import Basis, HostBill, HostItem, Range, Residence
from calculator.model.shape import ModelShape
from calculator.sources import Source
from calculator.text import Value, text
from calculator.training import loading
from calculator.training.forms import BYTE, NOTHING, Form
from calculator.training.optimizer import StepMemory
from calculator.training.pattern import Stage
from calculator.training.plan import TrainingPlan
from calculator.training.recipe import BYTES, Recipe
from calculator.training.sharding import FSDP, SUB_GROUP, Division, UnitBytes
from calculator.training.stack import accumulates, before
from calculator.training.statics import Statics

ZERO_OFFLOAD = Source(
    title="DeepSpeed, stage_1_and_2.py and stage3.py: what ZeRO-Offload keeps on the host",
    url="https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/runtime/zero/stage_1_and_2.py",
    checked_on="2026-11-29",
    versions="DeepSpeed 0.6 - 0.19",
)
FSDP_OFFLOAD = Source(
    title="PyTorch FSDP: CPUOffload and CPUOffloadPolicy",
    url="https://github.com/pytorch/pytorch/blob/main/torch/distributed/fsdp/_fully_shard/_fsdp_api.py",
    checked_on="2026-11-29",
    versions="torch 2.4 - 2.14",
)
STEP_OFFLOAD = Source(
    title="torchao CPUOffloadOptimizer and Megatron-LM --optimizer-cpu-offload",
    url="https://github.com/pytorch/ao/blob/main/torchao/optim/cpu_offload.py",
    checked_on="2026-11-29",
    versions="torchao 0.7 - 0.14, Megatron core 0.12 - 0.19",
)
PAGED = Source(
    title="bitsandbytes, optim/optimizer.py: paged states in managed memory",
    url="https://github.com/bitsandbytes-foundation/bitsandbytes/blob/main/bitsandbytes/optim/optimizer.py",
    checked_on="2026-11-29",
    versions="bitsandbytes 0.39 - 0.50",
)
ACTIVATIONS = Source(
    title="Activation offloading of Unsloth, torchtune, TRL (pinned), DeepSpeed's ALST and LLaMA-Factory (pageable)",
    url="https://github.com/unslothai/unsloth-zoo/blob/main/unsloth_zoo/gradient_checkpointing.py",
    checked_on="2026-11-29",
)
PINNED = Source(
    title="PyTorch's caching host allocator: pinned blocks are powers of two",
    url="https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/core/CachingHostAllocator.h",
    checked_on="2026-11-29",
    versions="torch 2.1 - 2.12",
)
NODE = 8
"""Processes of a node, one a card, where the job has as many."""
Kind = Literal["zero", "fsdp", "megatron", "other"]


def steps_on_host(plan: TrainingPlan) -> bool:
    """Whether the CPU updates the weights. Weights on the host take the optimizer along: FSDP makes the states where
    the weights are, DeepSpeed offers parameter offload only on top of the optimizer's."""
    return "optimizer" in plan.offload or "parameters" in plan.offload


def host_bill(
    made: Statics, memory: StepMemory, shape: ModelShape, plan: TrainingPlan, recipe: Recipe, by: Division
) -> HostBill | None:
    """What a rank's process holds on the host whatever the length."""
    items = list(loading.host_items(made, shape, plan, recipe, processes(plan)))
    if steps_on_host(plan):
        items += _stepping(made, memory, shape, plan, recipe, by)
    elif memory.host_states:
        items.append(_item(plan, "paged_states", memory.host_states, "managed", PAGED, low=0, basis="assumed"))
    return _added_up(items, processes(plan))


def with_activations(
    host: HostBill | None, moved: Form, rows: Sequence[int], in_flight: float, plan: TrainingPlan
) -> HostBill | None:
    """The same with what layers keep for backward on the host. ``moved``: that of one micro-batch, for the row counts
    ``rows``; ``in_flight``: micro-batches that wait at once."""
    times = max(in_flight, 1.0)
    pageable = plan.framework in PAGEABLE or plan.sharding.startswith("zero")
    size = int(times * moved.at(rows))
    items = list(host.items) if host is not None else []
    items.append(_item(plan, "activations", size, "pageable" if pageable else "pinned", ACTIVATIONS))
    if not pageable:
        sizes = ((Form({each: 1}).at(rows), count) for each, count in moved.terms.items() if each != BYTE)
        more = int(times * sum(count * (power_of_two(one) - one) for one, count in sizes))
        items.append(_rounding(plan, more, high=max(more, 0)))
    return _added_up(items, processes(plan))


PAGEABLE = ("llamafactory", "deepspeed")
"""Frameworks that move checkpoints with a plain copy to the CPU."""


def offloaded(stages: Sequence[Stage]) -> Form:
    """Bytes that the first forward of a step moves to the host."""
    moved = NOTHING
    for stage in stages:
        if stage.phase == "backward":
            break
        if stage.name == "offload":
            moved = sum(stage.events.net_by_key.values(), moved)
    return -moved


def processes(plan: TrainingPlan) -> int:
    return min(NODE, plan.n_gpus)


def kind_of(plan: TrainingPlan) -> Kind:
    if plan.sharding in FSDP:
        return "fsdp"
    if plan.sharding.startswith("zero") or plan.framework == "deepspeed":
        return "zero"
    return "megatron" if plan.framework == "megatron" else "other"


def _stepping(
    made: Statics, memory: StepMemory, shape: ModelShape, plan: TrainingPlan, recipe: Recipe, by: Division
) -> list[HostItem]:
    """Optimizer on the host: states and fp32 weights, the gradients that it reads, buffers on the way; and the weights
    themselves where they live there. ``memory``: the rank's own."""
    kind, mine = kind_of(plan), -(-made.trained_elements // by.states)
    source = {"zero": ZERO_OFFLOAD, "fsdp": FSDP_OFFLOAD}.get(kind, STEP_OFFLOAD)
    pins = kind != "zero" or not before(_deepspeed(plan), 0, 19)
    held: Residence = "pinned" if pins else "pageable"
    values: dict[str, Value] = {"trained_params": made.trained_elements, "gpus_count": by.states}
    moments: Residence = "pinned" if kind == "other" else "pageable"
    items = [_item(plan, "optimizer_states", memory.host_states - memory.host_master, moments, source, values)]
    buffers: list[int] = []

    def add(key: str, size: int, sizes: Sequence[int], residence: Residence = held) -> None:
        items.append(_item(plan, key, size, residence, source, values))
        buffers.extend(sizes if residence == "pinned" else ())

    if memory.host_master:
        add("master_weights", memory.host_master, _groups(memory.host_master, 4, kind, plan))
    each = 4.0 if kind in ("zero", "megatron") else BYTES[recipe.gradient]
    if kind == "zero" and accumulates(plan):
        each += 2  # what earlier micro-batches added up to
    add("gradients", int(each * mine), _shards(made.units, each, kind, plan, by, trained=True))
    if kind == "zero":
        add("staging", 2 * mine, _groups(2 * mine, 2, kind, plan))
    if kind == "other":
        add("weight_copies", int(BYTES[recipe.weight] * mine), [])
    if "parameters" in plan.offload:
        size = -(-(made.parameters - made.whole) // by.weights) - (-made.expert_parameters // by.expert_weights)
        values = {"model_params": shape.parameters.total, "gpus_count": by.weights}
        # DeepSpeed's flat buffer of the partitions has been pinned in every release.
        add("parameters", size, [size] if kind == "zero" else _shards(made.units, 0, kind, plan, by), "pinned")
    pinned = sum(item.bytes for item in items if item.residence == "pinned")
    more = sum(power_of_two(size) - size for size in buffers if size)
    if pinned:
        items.append(_rounding(plan, min(more, pinned), high=max(more, pinned)))
    return items


def _deepspeed(plan: TrainingPlan) -> str | None:
    return plan.framework_version if plan.framework == "deepspeed" else None


def _groups(size: int, item: int, kind: Kind, plan: TrainingPlan) -> list[int]:
    """Sizes of the buffers that ``size`` bytes lie in: DeepSpeed's partition, in stage 3 cut into sub-groups."""
    if kind != "zero":
        return []
    most = SUB_GROUP * item if plan.sharding == "zero3" else size
    return [min(most, size - at) for at in range(0, size, most or 1)]


def _shards(
    units: Sequence[UnitBytes], each: float, kind: Kind, plan: TrainingPlan, by: Division, *, trained: bool = False
) -> list[int]:
    """The same of FSDP's shards, unit by unit."""
    if kind == "zero":
        total = int(each * sum(unit.trained for unit in units)) // by.states
        return _groups(total, int(each), kind, plan)
    if kind != "fsdp":
        return []
    whole = (int(each * unit.trained) if trained else unit.gathered for unit in units)
    return [-(-size // by.weights) for size in whole]


def power_of_two(size: int) -> int:
    """The next power of two, as ``CachingHostAllocator`` rounds a pinned block up."""
    return 1 << max(0, size - 1).bit_length()


def _item(
    plan: TrainingPlan,
    key: str,
    size: int,
    residence: Residence,
    source: Source,
    values: dict[str, Value] | None = None,
    *,
    low: int | None = None,
    high: int | None = None,
    basis: Basis = "computed",
) -> HostItem:
    """An item that every process of the node has alike while it trains."""
    held = Range(value=size, low=size if low is None else low, high=size if high is None else high)
    return HostItem(
        key=key,
        process=held,
        node=held * processes(plan),
        residence=residence,
        phase="train",
        formula=text(f"training.host.{key}", **_worked(values or {}, size)),
        basis=basis,
        source=source,
    )


def _worked(values: dict[str, Value], size: int) -> dict[str, Value]:
    """The plan's numbers with the bytes that each weight takes."""
    counted, ranks = values.get("trained_params", values.get("model_params")), values.get("gpus_count")
    if not isinstance(counted, int) or not isinstance(ranks, int) or not counted:
        return {"total_bytes": size}
    return {"total_bytes": size, **values, "each": float(f"{size * ranks / counted:.4g}")}


def _rounding(plan: TrainingPlan, size: int, *, high: int) -> HostItem:
    return _item(plan, "pinned_rounding", max(size, 0), "pinned", PINNED, low=0, high=high, basis="assumed")


def _added_up(items: Sequence[HostItem], count: int) -> HostBill | None:
    kept = tuple(item for item in items if item.process.high)
    return HostBill.of(kept, count) if kept else None
