"""GGUF weights over devices: whole layers on each card, the token embedding and what is not offloaded on the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from calculator.gguf.mixes import Mix, mix_name, mix_weights
from calculator.model.shape import ModelShape, Tensor
from calculator.model.stored import StoredWeights
from calculator.serving.plan import ServingPlan
from calculator.serving.weights import Recent

UNKNOWN_TYPE = "Q4_K_M"
"""Stands for a file whose type is not stated; the most downloaded one."""
_PLAIN = {"bf16": "BF16", "fp16": "F16", "fp32": "F32", "gguf:unknown": UNKNOWN_TYPE, "gguf": UNKNOWN_TYPE}


@dataclass(frozen=True, slots=True)
class Placement:
    """What one card holds: its layers, whether the output head is among it, its weight bytes. ``host_bytes`` are the
    weights that stay in host memory, the same in every placement of a model."""

    layers: tuple[int, ...]
    head: bool
    weights_bytes: int
    host_bytes: int


@dataclass(frozen=True, slots=True)
class _Sizes:
    layers: tuple[int, ...]
    experts: tuple[int, ...]
    embedding: int
    final: int
    head: int


_recent = Recent()


def type_of(plan: ServingPlan) -> str:
    """The mix of the plan's weights, 16 bit where none is named. Raises ``PlanError`` ("gguf.unknown_mix")."""
    if plan.weights is None:
        return "F16"
    return mix_name(_PLAIN.get(plan.weights, plan.weights))


def place(
    shape: ModelShape, plan: ServingPlan, stored: StoredWeights | None, *, head_counts: bool
) -> tuple[Placement, ...]:
    """The cards' shares, first to last.

    ``n_gpu_layers`` are the last layers; ``head_counts``: the output head is the last of them, else it follows once all
    layers are offloaded. Layers go to the cards in contiguous runs, in equal parts or by ``tensor_split``. A tied
    embedding is stored twice, on the host and for the output. ``experts_on_cpu`` keeps expert weights on the host.
    """
    name = type_of(plan)
    made = _recent.get(shape, (name, id(stored)), lambda: _sizes(shape, name, stored if plan.weights is None else None))
    sizes = cast(_Sizes, made)
    total = shape.layers
    offloaded = total + 1 if plan.n_gpu_layers is None else min(plan.n_gpu_layers, total + 1)
    whole = offloaded == total + 1
    head = whole or (head_counts and offloaded > 0)
    count = offloaded - 1 if head else offloaded
    layers = range(total - count, total)
    shares = plan.tensor_split if plan.tensor_split and sum(plan.tensor_split) > 0 else (1.0,) * max(plan.n_gpus, 1)
    runs = _runs(tuple(layers), shares, head)
    head_bytes = sizes.head + sizes.final
    kept = sizes.experts if plan.experts_on_cpu else (0,) * total
    on_cards = [sum(sizes.layers[i] - kept[i] for i in run) for run in runs]
    on_cards[-1] += head_bytes if head else 0
    everything = sum(sizes.layers) + sizes.embedding + head_bytes
    host = max(everything - sum(on_cards), 0)
    last = len(runs) - 1
    return tuple(
        Placement(run, head and number == last, on_cards[number], host) for number, run in enumerate(runs)
    )  # fmt: skip


def _runs(layers: tuple[int, ...], shares: tuple[float, ...], head: bool) -> list[tuple[int, ...]]:
    """Contiguous runs by share; the head counts as one more layer at the end."""
    places = len(layers) + (1 if head else 0)
    runs: list[list[int]] = [[] for _ in shares]
    bounds, running = [], 0.0
    for share in shares:
        running += share / sum(shares)
        bounds.append(running)
    for position, layer in enumerate(layers):
        card = next((i for i, bound in enumerate(bounds) if position / max(places, 1) < bound - 1e-12), len(shares) - 1)
        runs[card].append(layer)
    return [tuple(run) for run in runs]


def _sizes(shape: ModelShape, name: str, stored: StoredWeights | None) -> _Sizes:
    mix = Mix(shape, name)
    factors: dict[str, float] = {}
    if stored is not None:
        computed = mix_weights(shape, name).by_component
        factors = {k: stored.by_component[k] / v for k, v in computed.items() if v and stored.by_component.get(k)}

    def size(tensor: Tensor, layer: int | None) -> float:
        return mix.tensor_bytes(tensor, layer) * factors.get(tensor.component, 1.0)

    def layer_sum(layer: int, wanted: Callable[[Tensor], bool]) -> int:
        return round(sum(size(t, layer) for t in shape.blocks[shape.order[layer]].tensors if wanted(t)))

    embedding = round(sum(size(t, None) for t in shape.embedding))
    head = round(sum(size(t, None) for t in shape.head)) if not shape.tied else embedding
    return _Sizes(
        layers=tuple(layer_sum(i, lambda t: True) for i in range(shape.layers)),
        experts=tuple(layer_sum(i, lambda t: t.component == "experts") for i in range(shape.layers)),
        embedding=embedding,
        final=round(sum(size(t, None) for t in shape.final)),
        head=head,
    )
