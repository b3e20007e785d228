"""Optimizers: bytes of state per trained parameter, and what a step makes for itself.

Sources: PyTorch 2.14 ``torch/optim`` (adam.py, sgd.py, _muon.py), bitsandbytes 0.50 ``optim/optimizer.py``,
transformers 5.24 ``optimization.py`` (Adafactor).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from calculator.training.plan import TrainingPlan
from calculator.training.recipe import BYTES, Recipe
from calculator.training.template import rounded

SMALL_TENSOR = 4096
"""bitsandbytes keeps fp32 states for tensors with fewer elements."""
PAGED_FROM = 100_000
"""bitsandbytes pages the states of tensors with at least this many elements."""


class StepMemory(NamedTuple):
    """``states``: held between steps, ``master`` of them the fp32 weights; ``temporary``: highest within the step, over
    parameters, gradients and states; ``gradients``: those of all trained tensors; ``wide_gradients``: the fp32 copies
    that replace 16-bit gradients one by one while a master copy is updated; ``host_states``: states in host memory."""

    states: int
    temporary: int
    host_states: int = 0
    master: int = 0
    gradients: int = 0
    wide_gradients: int = 0


def _moments(plan: TrainingPlan) -> int:
    return {"sgd": 0, "none": 0, "sgd_momentum": 1, "lion": 1, "muon": 1, "adafactor": 0}.get(plan.optimizer, 2)


def step_memory(tensors: Sequence[tuple[int, ...]], plan: TrainingPlan, recipe: Recipe) -> StepMemory:
    """States and temporaries for trained tensors of the given shapes (as tuples of element counts by dimension)."""
    sizes = [_product(t) for t in tensors]
    item = BYTES[recipe.state]
    name = "galore_adamw" if plan.method == "galore" else plan.optimizer
    if name == "none" or not sizes:
        return StepMemory(0, 0)
    master = sum(rounded(4 * n) for n in sizes) if recipe.master else 0
    working = 4.0 if recipe.master else item
    if name in ("adamw_8bit", "paged_adamw_8bit"):
        return _eight_bit(sizes, paged=name.startswith("paged"))
    if name == "paged_adamw_32bit":
        small = sum(2 * rounded(4 * n) for n in sizes if n < PAGED_FROM)
        return StepMemory(small, 0, host_states=sum(8 * n for n in sizes if n >= PAGED_FROM))
    if name == "adafactor":
        factored = sum(
            rounded(4 * sum(t)) if len(t) > 1 else rounded(4 * n) for t, n in zip(tensors, sizes, strict=True)
        )
        return StepMemory(factored + master, 3 * max(rounded(4 * n) for n in sizes))
    if name in ("galore_adamw", "apollo"):
        return _projected(tensors, item)
    moments = _moments(plan)
    states = moments * sum(rounded(int(item * n)) for n in sizes)
    temporary = 0
    if name == "adamw_fused":
        states += 512 * len(sizes)
    elif name == "adamw_foreach":
        temporary = sum(rounded(int(working * n)) for n in sizes)
    elif name == "adamw_loop":
        temporary = 2 * max(rounded(int(working * n)) for n in sizes)
    elif name == "muon":
        temporary = 4 * max(rounded(2 * n) for n in sizes)
    gradients = sum(rounded(int(BYTES[recipe.gradient] * n)) for n in sizes)
    wide = sum(rounded(4 * n) for n in sizes) if recipe.master and recipe.gradient != "fp32" else 0
    return StepMemory(states + master, temporary, master=master, gradients=gradients, wide_gradients=wide)


def _eight_bit(sizes: Sequence[int], *, paged: bool) -> StepMemory:
    on_card = host = 0
    for n in sizes:
        if n < SMALL_TENSOR:
            on_card += 2 * rounded(4 * n)
            continue
        both = 2 * (rounded(n) + rounded(4 * -(-n // 256)))
        if paged and n >= PAGED_FROM:
            host += 2 * n
            on_card += both - 2 * rounded(n)
        else:
            on_card += both
    return StepMemory(on_card + 2 * 1024, 0, host_states=host)


def _projected(tensors: Sequence[tuple[int, ...]], item: float, rank: int = 128) -> StepMemory:
    states = temporary = 0
    for t in tensors:
        n = _product(t)
        if len(t) == 2 and min(t) > rank:
            long, short = max(t), min(t)
            states += 2 * rounded(int(item * long * rank)) + rounded(int(item * short * rank))
            temporary = max(temporary, rounded(int(item * n)))
        else:
            states += 2 * rounded(int(item * n))
    return StepMemory(states, temporary)


def _product(t: tuple[int, ...]) -> int:
    n = 1
    for d in t:
        n *= d
    return n
