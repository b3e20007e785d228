"""What PyTorch's allocator reserves for the step: its allocations, replayed."""

from __future__ import annotations

from calculator.bill import Range
from calculator.hardware import Gpu
from calculator.model.shape import ModelShape
from calculator.sources import Source
from calculator.training import overheads
from calculator.training.allocator import AllocatorSettings, replay
from calculator.training.parts import parts
from calculator.training.plan import TrainingPlan
from calculator.training.sequence import expand
from calculator.training.step import step
from calculator.training.varying import SPREAD_VARYING, beside_loss, lengths_vary, loss_blocks
from calculator.training.vocabulary import enlarged
from calculator.units import MIB

REPLAY = Source(
    title="The step's allocations replayed through the rules of PyTorch's CUDA caching allocator",
    url="https://github.com/pytorch/pytorch/blob/main/c10/cuda/CUDACachingAllocator.cpp",
    checked_on="2026-11-29",
    versions="torch 2.1 - 2.14",
)
SPREAD_ALONE = 0.08
"""Half of the range on one card: of 69 measured process totals (fms-acceleration on A100) nine in ten lie closer."""
SPREAD_SHARED = 0.18
"""The same where cards share the work, whose gathers and buckets come in an order that is known less well (66 runs)."""


def settings_of(plan: TrainingPlan) -> AllocatorSettings:
    limit = plan.max_split_mb * MIB if plan.allocator == "max_split_mb" and plan.max_split_mb else None
    return AllocatorSettings(max_split_bytes=limit, expandable_segments=plan.allocator == "expandable")


def reserved(shape: ModelShape, plan: TrainingPlan, gpu: Gpu) -> Range:
    """Bytes that the allocator holds from the second step on, for as long as shapes stay the same.

    Two steps are replayed on the card's own memory less context and communicators; where they do not fit it, on a card
    without end. The value is the highest since the cache was last given back. It has a range: whether a freed block
    serves the next request hangs on single bytes and on the libraries' order.
    """
    shape = enlarged(shape, plan.added_tokens)
    steps = [step(shape, plan.model_copy(update={"first_step": first}), gpu).program for first in (True, False)]
    events = expand(steps, parts(shape, plan, gpu))
    card = plan.gpu_capacity_bytes or gpu.total_bytes
    room = card - overheads.context(gpu).value - overheads.nccl(plan).value
    settings = settings_of(plan)
    stats = None
    if max(moment.bytes for program in steps for moment in program.moments.values()) <= room:
        stats = replay(events, capacity_bytes=room, card_bytes=card, settings=settings)
    if stats is None or stats.out_of_memory:
        stats = replay(events, settings=settings)
    value = stats.reserved_since_trim_bytes
    spread = SPREAD_ALONE if plan.n_gpus == 1 else SPREAD_SHARED
    if lengths_vary(plan) and plan.tp * plan.cp == 1 and "loss" in steps[-1].moments:
        tokens, beside = plan.micro_batch * plan.seq_len, beside_loss(steps[-1])
        value = max(value, beside + loss_blocks(steps[-1], tokens, shape.vocab, room - beside, settings))
        spread = max(spread, SPREAD_VARYING)
    either_way = int(spread * value)
    low, high = max(stats.allocated_peak_bytes, value - either_way), value + either_way
    return Range(value=value, low=min(low, value), high=high if value > room else min(high, room))


def replayed_slack(shape: ModelShape, plan: TrainingPlan, gpu: Gpu, allocated: int) -> Range:
    """Reserved bytes beyond ``allocated``, the peak of the tensors in a steady step."""
    held = reserved(shape, plan, gpu)
    value, low, high = (max(0, size - allocated) for size in (held.value, held.low, held.high))
    return Range(value=value, low=low, high=high)
