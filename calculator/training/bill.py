"""The training bill: a plan's step as items, phases, totals and a verdict."""

from __future__ import annotations

from calculator.bill import Bill, Item, Phase, Range, TimePoint, training_verdict
from calculator.hardware import Gpu
from calculator.model.shape import ModelShape
from calculator.sources import Source
from calculator.text import Text, Value, text
from calculator.training import overheads
from calculator.training.check import check
from calculator.training.evaluation import evaluation
from calculator.training.loading import PACKED_LOADING
from calculator.training.phases import Phases
from calculator.training.plan import TrainingPlan
from calculator.training.program import Program
from calculator.training.reserved import REPLAY, replayed_slack
from calculator.training.step import Step, step
from calculator.training.vocabulary import enlarged

PHASES = ("load", "forward", "loss", "backward", "optimizer", "evaluation")

AUTOGRAD = Source(
    title="PyTorch autograd and transformers' modelling code, operation by operation",
    checked_on="2026-11-29",
    url="https://github.com/huggingface/transformers",
    versions="torch 2.14, transformers 5.24",
)
ARITHMETIC = Source(title="Elements times bytes per element, each tensor rounded up to 512 bytes")
OPTIMIZER = Source(
    title="PyTorch torch.optim and bitsandbytes optimizers",
    url="https://github.com/pytorch/pytorch/tree/main/torch/optim",
    checked_on="2026-11-29",
    versions="torch 2.14, bitsandbytes 0.50",
)
SHARDING = Source(
    title="PyTorch FSDP and DDP, DeepSpeed ZeRO and Megatron-LM buffers",
    url="https://github.com/pytorch/pytorch",
    checked_on="2026-11-29",
    versions="torch 2.14, DeepSpeed 0.19, Megatron core 0.19",
)
ORDER = (
    "parameters",
    "adapter_parameters",
    "gradients",
    "optimizer_states",
    "optimizer_temporary",
    "checkpoints",
    "activations",
    "live_layer",
    "logits_loss",
    "backward_temporary",
    "casts",
    "gathered_parameters",
    "predictions",
    "loading_copies",
    "comm_buffers",
    "inputs",
    "kernel_workspace",
)
_SOURCES = {
    "parameters": ARITHMETIC,
    "adapter_parameters": ARITHMETIC,
    "gradients": ARITHMETIC,
    "inputs": ARITHMETIC,
    "optimizer_states": OPTIMIZER,
    "optimizer_temporary": OPTIMIZER,
    "gathered_parameters": SHARDING,
    "comm_buffers": SHARDING,
    "kernel_workspace": overheads.CUBLAS,
    "loading_copies": PACKED_LOADING,
}

_STATIC = ("parameters", "adapter_parameters", "gradients", "optimizer_states", "optimizer_temporary")
"""What tensor and pipeline ranks divide as well."""
_COUNTED_BY = {
    "parameters": ("model_params",),
    "adapter_parameters": ("trained_params",),
    "gradients": ("trained_params",),
    "optimizer_states": ("trained_params",),
    "optimizer_temporary": ("trained_params",),
    "checkpoints": ("tokens_count", "layers_count"),
    "activations": ("tokens_count", "layers_count"),
    "logits_loss": ("tokens_count", "vocab_count"),
}


def bill(shape: ModelShape, plan: TrainingPlan, gpu: Gpu, *, tensors_only: bool = False, replay: bool = False) -> Bill:
    """The itemised memory of one training step on the worst-loaded GPU, in bytes.

    ``tensors_only`` leaves out what kernels allocate inside themselves (cuBLAS workspaces, the scratch of flash
    attention's backward): what a tensor-level tracker sees. ``replay`` runs the step's allocations through the model
    of PyTorch's allocator, some 0.1 s, where the bill else has an estimate; need and verdict do not depend on it.
    Raises ``PlanError`` for a combination that no framework runs.
    """
    shape = enlarged(shape, plan.added_tokens)
    check(shape, plan)
    made = step(shape, plan, gpu, tensors_only=tensors_only)
    seen = Phases.of(made.program)
    if plan.eval_batch is not None:
        seen = seen.beside(Phases.of(evaluation(shape, plan, gpu, tensors_only=tensors_only)))
    if sum(made.loading.values()) > made.program.start_bytes:
        seen = Phases.during("load", made.loading).beside(seen)
    peak_phase = seen.peak
    at_peak, highest = seen.levels[peak_phase], seen.highest
    values = _values(plan, made)
    items = tuple(
        _item(key, at_peak.get(key, 0), highest[key], seen.alive.get(key, ()), plan, made, values)
        for key in (*ORDER, *(k for k in highest if k not in ORDER))
        if highest.get(key, 0)
    )
    allocated = seen.bytes(peak_phase)
    slack, kept = overheads.slack(allocated, plan), overheads.kept_slack(allocated)
    slack_source = overheads.SLACK
    if replay:
        slack, slack_source = replayed_slack(shape, plan, gpu, allocated), REPLAY
    context, nccl = overheads.context(gpu), overheads.nccl(plan)
    items += (
        _overhead("slack", slack, "slack", slack_source, plan),
        _overhead("context", context, "process", overheads.CONTEXT, plan),
    )
    if nccl.value:
        items += (_overhead("nccl", nccl, "process", overheads.NCCL, plan),)
    exact = Range.exact(allocated)
    capacity = plan.gpu_capacity_bytes or gpu.total_bytes
    reserved = exact + slack
    need = exact + kept + context + nccl
    return Bill(
        items=items,
        phases=_phases(seen, made),
        peak_phase=peak_phase,
        allocated=exact,
        reserved=reserved,
        process=reserved + context + nccl,
        need=need,
        capacity_bytes=capacity,
        verdict=training_verdict(need, capacity),
        rank=made.rank,
        rank_spread=made.spread,
        assumptions=made.assumptions,
        host=made.host,
    )


def _phases(seen: Phases, made: Step) -> tuple[Phase, ...]:
    levels = {"load": {key: size for key, size in made.program.start.items() if size}} | seen.levels
    levels = {name: levels[name] for name in PHASES if name in levels} | {"end": made.end}
    return tuple(Phase(name=name, allocated_bytes=sum(items.values()), items=items) for name, items in levels.items())


def _values(plan: TrainingPlan, made: Step) -> dict[str, Value | Text]:
    """The plan's numbers, which every item's formula may name."""
    return {
        "micro_batch": plan.micro_batch,
        "seq_tokens": plan.seq_len,
        "tokens_count": plan.micro_batch * plan.seq_len // plan.cp,
        "gpus_count": plan.n_gpus,
        **made.values,
    }


def _item(
    key: str,
    size: int,
    highest: int,
    phases: tuple[str, ...],
    plan: TrainingPlan,
    made: Step,
    values: dict[str, Value | Text],
) -> Item:
    split = made.divided.get(key, 1) * (plan.tp * plan.pp if key in _STATIC else 1)
    # The working is that of the highest amount: what is left of an item at the peak is seldom round in anything.
    whole = highest * split
    form = f"training.item.{key}"
    own: dict[str, Value | Text]
    if key in made.apart:
        # The formula itself divides, since experts are spread over other ranks than the rest.
        counts, split, form = made.apart[key], 1, "training.item.apart"
        held = counts["dense_params"] / counts["dense_gpus_count"]
        held += counts["expert_params"] / counts["expert_gpus_count"]
        own = {**counts, "each": float(f"{highest / held:.4g}")}
    elif key == "casts" and plan.fp8_compute:
        own = {"copied_params": values["model_params"], "each": _each(whole, _counted("parameters", values))}
    elif key in ("gathered_parameters", "casts"):
        own = {"copied_params": whole // made.compute_item_bytes, "each": made.compute_item_bytes}
    else:
        own = {"each": _each(whole, _counted(key, values))}
    return Item(
        key=key,
        bytes=size,
        max_bytes=highest,
        low=size,
        high=size,
        phases=phases,
        formula=Text(id=form, values={"total_bytes": highest, **values, **own}),
        divided_by=split,
        basis="computed",
        source=_SOURCES.get(key, AUTOGRAD),
    )


def _each(whole: int, count: int) -> float:
    """Bytes that each of ``count`` takes, in four digits."""
    return float(f"{whole / count:.4g}")


def _counted(key: str, values: dict[str, Value | Text]) -> int:
    """What the item's bytes are spread over, so that its formula can say how many bytes each takes."""
    found = 1
    for name in _COUNTED_BY.get(key, ("tokens_count",)):
        value = values[name]
        assert isinstance(value, int)
        found *= value
    return max(found, 1)


def _overhead(key: str, size: Range, layer: str, source: Source, plan: TrainingPlan) -> Item:
    return Item(
        key=key,
        bytes=size.value,
        max_bytes=size.value,
        low=size.low,
        high=size.high,
        layer=layer,  # type: ignore[arg-type]
        phases=PHASES if plan.eval_batch is not None else PHASES[:-1],
        formula=text(f"training.item.{key}", low_bytes=size.low, high_bytes=size.high),
        basis="calibrated",
        source=source,
    )


def timeline(shape: ModelShape, plan: TrainingPlan, gpu: Gpu) -> tuple[TimePoint, ...]:
    """The items alive at the highest instant of every stage of the step, in order.

    A stage that allocates nothing is left out, unless its phase has no other: a fused optimizer's step is one.
    """
    shape = enlarged(shape, plan.added_tokens)
    check(shape, plan)
    made = step(shape, plan, gpu)
    programs = [made.program]
    if plan.eval_batch is not None:
        programs.append(evaluation(shape, plan, gpu))
    points = [TimePoint(phase="load", label=text("training.stage.load"), items=dict(programs[0].start))]
    if sum(made.loading.values()) > made.program.start_bytes:
        points.insert(0, TimePoint(phase="load", label=text("training.stage.loading"), items=dict(made.loading)))
    for program in programs:
        points += _points(program, points[-1].phase)
    return tuple(points)


def _points(program: Program, phase: str) -> list[TimePoint]:
    """The points of a program that follows one in ``phase``."""
    points: list[TimePoint] = []
    now = dict(program.start)
    busy = {stage.phase for stage in program.stages if stage.events.top[1]}
    for stage in program.stages:
        _, count = stage.events.top
        if count or (stage.phase not in busy and stage.phase != phase):
            items = dict(now)
            for key, net in stage.events.upto(count).items():
                items[key] = items.get(key, 0) + net
            label = text(f"training.stage.{stage.name}", number_count=stage.unit)
            points.append(TimePoint(phase=stage.phase, label=label, items={k: v for k, v in items.items() if v}))
            phase = stage.phase
        for key, net in stage.events.net_by_key.items():
            now[key] = now.get(key, 0) + net
    return points
