"""What PyTorch's allocator reserves for the step: its allocations, replayed."""

from __future__ import annotations

from calculator.bill import Range
from calculator.hardware import Gpu
from calculator.model.shape import ModelShape
from calculator.sources import Source
from calculator.training import overheads
from calculator.training.allocator import AllocatorSettings, replay
from calculator.training.evaluation import evaluation
from calculator.training.parts import parts
from calculator.training.plan import TrainingPlan
from calculator.training.program import Program
from calculator.training.sequence import Expansion, expand
from calculator.training.sharding import data_parallel
from calculator.training.stack import expandable
from calculator.training.step import step
from calculator.training.varying import lengths_vary, replayed
from calculator.training.vocabulary import enlarged
from calculator.units import MIB

REPLAY = Source(
    title="The step's allocations replayed through the rules of PyTorch's CUDA caching allocator",
    url="https://github.com/pytorch/pytorch/blob/main/c10/cuda/CUDACachingAllocator.cpp",
    checked_on="2026-11-29",
    versions="torch 2.1 - 2.14",
)
SPREAD_ALONE = 0.08
"""Half of the range on one card: of 90 measured process and reserved totals of runs with equal lengths nine in ten lie
within half of that (fms-acceleration on A100, T4 runs)."""
SPREAD_VARYING = 0.1
"""The same where rows are not packed, beside what their order makes: the data's own lengths are not known."""
SPREAD_SHARED = 0.2
"""The same where cards share the work, whose gathers and buckets come in an order that is known less well: of 98
measured totals nine in ten lie closer."""


def settings_of(plan: TrainingPlan) -> AllocatorSettings:
    limit = plan.max_split_mb * MIB if plan.allocator == "max_split_mb" and plan.max_split_mb else None
    return AllocatorSettings(max_split_bytes=limit, expandable_segments=expandable(plan))


def reserved(shape: ModelShape, plan: TrainingPlan, gpu: Gpu) -> Range:
    """Bytes that the allocator holds from the second step on, for as long as shapes stay the same.

    Two steps, and an evaluation where the plan counts one, are replayed on the card's own memory less context and
    communicators; where they do not fit it, on a card without end. The value is the highest since the cache was
    last given back. It has a range: whether a freed block serves the next request hangs on single bytes and on the
    libraries' order; without packing also on theirs.
    """
    shape = enlarged(shape, plan.added_tokens)
    each = parts(shape, plan, gpu)
    sharding = plan.sharding if data_parallel(plan) > 1 else "none"

    rank = step(shape, plan, gpu).rank

    def programs(length: int) -> list[Program]:
        at = plan.model_copy(update={"seq_len": length})
        both = [at.model_copy(update={"first_step": first}) for first in (True, False)]
        return [step(shape, one, gpu, rank=rank).program for one in both]

    def expanded(length: int) -> Expansion:
        return expand(programs(length), each, brief=True, sharding=sharding)

    steps = programs(plan.seq_len)
    if plan.eval_batch is not None:
        steps.append(evaluation(shape, plan, gpu))
    whole = expand(steps, each, sharding=sharding)
    card = plan.gpu_capacity_bytes or gpu.total_bytes
    room = card - overheads.context(gpu).value - overheads.nccl(plan).value
    settings = settings_of(plan)
    stats = None
    if max(moment.bytes for program in steps for moment in program.moments.values()) <= room:
        stats = replay(whole.events, capacity_bytes=room, card_bytes=card, settings=settings, streams=whole.streams)
    if stats is None or stats.out_of_memory:
        stats = replay(whole.events, settings=settings, streams=whole.streams)
    value = stats.reserved_since_trim_bytes
    either_way = int((SPREAD_ALONE if plan.n_gpus == 1 else SPREAD_SHARED) * value)
    low, high = max(stats.allocated_peak_bytes, value - either_way), value + either_way
    if lengths_vary(plan) and plan.tp * plan.cp == 1:
        orders = replayed(expanded, plan.seq_len, plan.micro_batch, capacity_bytes=room, settings=settings)
        if orders:
            value = max(value, orders[len(orders) // 2].reserved_since_trim_bytes)
            low = min(int((1 - SPREAD_VARYING) * value), orders[0].reserved_since_trim_bytes)
            high = max(int((1 + SPREAD_VARYING) * value), orders[-2].reserved_peak_bytes)
            if any(order.trims for order in orders):  # growth ends where the card is full
                high = max(high, room)
    return Range(value=value, low=min(low, value), high=high if value > room else min(high, room))


def replayed_slack(shape: ModelShape, plan: TrainingPlan, gpu: Gpu, allocated: int) -> Range:
    """Reserved bytes beyond ``allocated``, the peak of the tensors in a steady step."""
    held = reserved(shape, plan, gpu)
    value, low, high = (max(0, size - allocated) for size in (held.value, held.low, held.high))
    return Range(value=value, low=low, high=high)
