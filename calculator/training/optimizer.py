"""Optimizers: bytes of state per trained parameter, and what a step makes for itself.

Sources: PyTorch 2.14 ``torch/optim`` (adam.py, sgd.py, _muon.py), bitsandbytes 0.50 ``optim/optimizer.py``,
transformers 5.24 ``optimization.py`` (Adafactor) and ``trainer.py`` (embeddings of 8-bit optimizers), GaLore
``galore_torch/adamw.py`` and ``galore_projector.py``, schedule_free ``adamw_schedulefree.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from calculator.training.plan import TrainingPlan
from calculator.training.recipe import BYTES, TRAINERS, Recipe
from calculator.training.template import rounded

SMALL_TENSOR = 4096
"""bitsandbytes keeps fp32 states for tensors with fewer elements."""
PAGED_FROM = 100_000
"""bitsandbytes pages the states of tensors with at least this many elements."""


class StepMemory(NamedTuple):
    """``states``: held between steps, ``master`` of them the fp32 weights; ``temporary``: highest within the step, over
    parameters, gradients and states; ``gradients``: those of all trained tensors; ``wide_gradients``: the fp32 copies
    that replace 16-bit gradients one by one while a master copy is updated; ``host_states``: states in host memory,
    ``host_master`` of them the fp32 weights."""

    states: int
    temporary: int
    host_states: int = 0
    master: int = 0
    gradients: int = 0
    wide_gradients: int = 0
    host_master: int = 0


def together(one: StepMemory, other: StepMemory, plan: TrainingPlan) -> StepMemory:
    """Tensors of two types under one optimizer: foreach AdamW takes one type after the other and still names the
    first's roots while it makes the second's; anything else works tensor by tensor."""
    added = StepMemory(*(a + b for a, b in zip(one, other, strict=True)))
    if plan.optimizer in ("adamw_foreach", "schedule_free"):
        return added
    return added._replace(temporary=max(one.temporary, other.temporary))


Dims = tuple[int, ...]


class Tables(NamedTuple):
    """Shapes of the embeddings and of the head, which optimizers for matrices leave to AdamW."""

    embedding: tuple[Dims, ...] = ()
    head: tuple[Dims, ...] = ()

    def have(self, dims: Dims) -> bool:
        return dims in self.embedding or dims in self.head


NO_TABLES = Tables()


class _Held(NamedTuple):
    """What an optimizer holds between steps and makes within one, a master copy left out."""

    states: int
    temporary: int
    host: int = 0


def step_memory(tensors: Sequence[Dims], plan: TrainingPlan, recipe: Recipe, tables: Tables = NO_TABLES) -> StepMemory:
    """States and temporaries for trained tensors of the given shapes (as tuples of element counts by dimension), in
    their order."""
    sizes = [prod(t) for t in tensors]
    if plan.optimizer == "none" or not sizes:
        return StepMemory(0, 0)
    held = _held(tensors, sizes, plan, recipe, tables)
    copies = _copies(sizes, 4) if recipe.master else 0
    wide = copies if recipe.gradient != "fp32" else 0
    gradients = _copies(sizes, BYTES[recipe.gradient])
    return StepMemory(held.states + copies, held.temporary, held.host, copies, gradients, wide)


def _copies(sizes: Sequence[int], item: float) -> int:
    """Bytes of one tensor of each size, of so many bytes an element."""
    return sum(count * rounded(int(item * n)) for n, count in Counter(sizes).items())


def _held(tensors: Sequence[Dims], sizes: Sequence[int], plan: TrainingPlan, recipe: Recipe, tables: Tables) -> _Held:
    item = BYTES[recipe.state]
    working = 4.0 if recipe.master else item
    match "galore_adamw" if plan.method == "galore" else plan.optimizer:
        case "adamw_8bit" | "paged_adamw_8bit" as name:
            wide = tables.embedding if plan.framework in TRAINERS else ()
            return _eight_bit(tensors, paged=name.startswith("paged"), wide=wide)
        case "paged_adamw_32bit":
            small = sum(2 * rounded(4 * n) for n in sizes if n < PAGED_FROM)
            return _Held(small, 0, sum(8 * n for n in sizes if n >= PAGED_FROM))
        case "adafactor":
            return _adafactor(tensors, copies=working < 4)
        case "galore_adamw":
            return _galore(tensors, item, tables)
        case "apollo":
            return _apollo(tensors, item, tables)
        case "muon":
            return _muon(tensors, item, working, tables)
        case name:
            moments = {"sgd": 0, "sgd_momentum": 1, "lion": 1}.get(name, 2)
            states = moments * _copies(sizes, item)
            return _Held(states + (512 * len(sizes) if name == "adamw_fused" else 0), _temporary(name, sizes, working))


def _temporary(name: str, sizes: Sequence[int], item: float) -> int:
    """AdamW's roots of the second moments: all at once, or one tensor's with the quotient."""
    if name in ("adamw_foreach", "schedule_free"):
        return _copies(sizes, item)
    return 2 * max(rounded(int(item * n)) for n in sizes) if name == "adamw_loop" else 0


def _eight_bit(tensors: Sequence[Dims], *, paged: bool, wide: Sequence[Dims]) -> _Held:
    """``wide``: transformers' Trainer registers fp32 states for every nn.Embedding."""
    on_card = host = 0
    embeddings = Counter(wide)
    for t, count in Counter(tensors).items():
        n = prod(t)
        full = count if n < SMALL_TENSOR else min(count, embeddings[t])
        states = full * 2 * rounded(4 * n) + (count - full) * 2 * rounded(n)
        on_card += (count - full) * 2 * rounded(4 * -(-n // 256))
        if paged and n >= PAGED_FROM:
            host += states
        else:
            on_card += states
    return _Held(on_card + 2 * 1024, 0, host)


def _adafactor(tensors: Sequence[Dims], *, copies: bool) -> _Held:
    """Row and column means of the squared gradient over the last two dimensions, in fp32; a vector keeps its whole
    square. ``copies``: 16-bit gradients and weights are copied to fp32 first. The step squares the gradient and adds a
    constant while the update of the tensor before is still named."""
    states = temporary = before = 0
    for t in tensors:
        n = prod(t)
        states += rounded(4 * n) if len(t) < 2 else rounded(4 * (n // t[-1])) + rounded(4 * (n // t[-2]))
        wide = rounded(4 * n)
        temporary = max(temporary, (4 if copies else 2) * wide + before)
        before = wide
    return _Held(states, temporary)


def _matrix(t: Dims, tables: Tables) -> bool:
    return len(t) == 2 and not tables.have(t)


def _muon(tensors: Sequence[Dims], item: float, working: float, tables: Tables) -> _Held:
    """One momentum for matrices inside layers, AdamW for all else (torch's class refuses other shapes). The iteration
    holds the momentum's look-ahead, the running matrix, two products and their sum in bf16, and two Gram matrices."""
    matrices = [t for t in tensors if _matrix(t, tables)]
    rest = [prod(t) for t in tensors if not _matrix(t, tables)]
    states = sum(rounded(int(item * prod(t))) for t in matrices) + 2 * sum(rounded(int(item * n)) for n in rest)
    turned = (
        rounded(int(working * prod(t))) + 4 * rounded(2 * prod(t)) + 2 * rounded(2 * min(t) ** 2) for t in matrices
    )
    return _Held(states, max([*turned, _temporary("adamw_foreach", rest, working) if rest else 0]))


def _galore(tensors: Sequence[Dims], item: float, tables: Tables, rank: int = 128) -> _Held:
    """GaLore's AdamW: projected moments and the projection; in fp32 that is a slice, which keeps the whole factor
    alive. Every 200 steps a singular value decomposition in fp32: the matrix, its copy and both factors."""
    states = temporary = 0
    for t in tensors:
        n = prod(t)
        if _matrix(t, tables) and min(t) > rank:
            long, short = max(t), min(t)
            kept = short if item == 4 else rank
            states += 2 * rounded(int(item * long * rank)) + rounded(int(item * short * kept))
            factors = rounded(4 * n) + rounded(4 * short * short)
            temporary = max(temporary, factors + (1 if item == 4 else 2) * rounded(4 * n))
        else:
            states += 2 * rounded(int(item * n))
            temporary = max(temporary, 2 * rounded(int(item * n)))
    return _Held(states, temporary)


def _apollo(tensors: Sequence[Dims], item: float, tables: Tables, rank: int = 128) -> _Held:
    """Moments in a randomly projected space; the update is the whole gradient, scaled."""
    states = temporary = 0
    for t in tensors:
        n = prod(t)
        if _matrix(t, tables) and min(t) > rank:
            states += 2 * rounded(int(item * max(t) * rank)) + rounded(int(item * min(t) * rank))
            temporary = max(temporary, rounded(int(item * n)))
        else:
            states += 2 * rounded(int(item * n))
    return _Held(states, temporary)
