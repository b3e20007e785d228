"""GGUF weights over devices: whole layers on each card, the token embedding and what is not offloaded on the host."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import accumulate
from math import isfinite
from typing import cast

from calculator.errors import PlanError
from calculator.gguf.mixes import MIXES, Mix, mix_name, mix_weights
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
    weights that stay in host memory and ``streamed_bytes`` the experts of the largest layer there, the same in every
    placement of a model."""

    layers: tuple[int, ...]
    head: bool
    weights_bytes: int
    host_bytes: int
    streamed_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Sizes:
    layers: tuple[int, ...]
    experts: tuple[int, ...]
    embedding: int
    final: int
    head: int


_recent = Recent()


def type_of(shape: ModelShape, plan: ServingPlan, stored: StoredWeights | None = None) -> str:
    """The mix of the plan's weights, else that of the file. Where neither is named, experts that were published in
    MXFP4 keep it, as the converter does, and all else is of 16 bit. Raises ``PlanError`` ("gguf.unknown_mix")."""
    if plan.weights is None:
        known = next((mix for mix in _readings(stored) if mix in MIXES), None)
        if known is not None:
            return known
        published = shape.quantization.format if shape.quantization is not None else ""
        return mix_name("MXFP4") if published == "mxfp4" else "F16"
    return mix_name(_PLAIN.get(plan.weights, plan.weights))


def _readings(stored: StoredWeights | None) -> tuple[str, ...]:
    """A file's mix, and the plain one that a vendor's own starts from: the sizes are the file's, and only how they
    spread over the layers is taken from it."""
    mix = "" if stored is None else stored.mix.removeprefix("UD-")
    return (mix, mix.replace("_XL", "_M").replace("_XXL", "_M"))


def place(
    shape: ModelShape,
    plan: ServingPlan,
    stored: StoredWeights | None,
    *,
    head_counts: bool,
    kept: Collection[int] | None = None,
) -> tuple[Placement, ...]:
    """The cards' shares, first to last.

    ``n_gpu_layers`` are the last layers; ``head_counts``: the output head is the last of them, else it follows once all
    layers are offloaded. Layers go to the cards in contiguous runs, in equal parts or by ``tensor_split``. A tied
    embedding is stored twice, on the host and for the output. ``kept`` are layers whose experts stay on the host, by
    default those that the plan names.
    """
    name = type_of(shape, plan, stored)
    made = _recent.get(shape, (name, id(stored)), lambda: _sizes(shape, name, stored if plan.weights is None else None))
    sizes = cast(_Sizes, made)
    total = shape.layers
    offloaded = total + 1 if plan.n_gpu_layers is None else min(plan.n_gpu_layers, total + 1)
    whole = offloaded == total + 1
    head = whole or (head_counts and offloaded > 0)
    count = offloaded - 1 if head else offloaded
    layers = range(total - count, total)
    shares = _shares(plan)
    runs, end = _runs(tuple(layers), shares, head)
    head_bytes = sizes.head + sizes.final
    hosted = frozenset(kept_experts(plan, total) if kept is None else kept)
    on_cards = [sum(sizes.layers[i] - (sizes.experts[i] if i in hosted else 0) for i in run) for run in runs]
    on_cards[end] += head_bytes if head else 0
    everything = sum(sizes.layers) + sizes.embedding + head_bytes
    host = max(everything - sum(on_cards), 0)
    placed = frozenset(i for run in runs for i in run)
    streamed = max((size for i, size in enumerate(sizes.experts) if i in hosted or i not in placed), default=0)
    return tuple(
        Placement(run, head and number == end, on_cards[number], host, streamed) for number, run in enumerate(runs)
    )  # fmt: skip


def kept_experts(plan: ServingPlan, layers: int) -> range:
    """The layers whose experts the plan leaves on the host."""
    return range(layers if plan.experts_on_cpu else min(plan.n_cpu_moe, layers))


def _shares(plan: ServingPlan) -> tuple[float, ...]:
    """Each card's share of the layers, adding up to 1; cards that the plan's split does not reach get none, as in
    llama.cpp. Raises ``PlanError`` ("serving.tensor_split")."""
    given = plan.tensor_split or (1.0,) * plan.n_gpus
    largest = max(given)
    if len(given) > plan.n_gpus or not all(isfinite(share) and share >= 0 for share in given) or not largest:
        raise PlanError("serving.tensor_split", field="tensor_split", gpus_count=plan.n_gpus)
    # Against the largest first: shares near the end of the floats would add up to infinity.
    whole = sum(share / largest for share in given)
    return (*(share / largest / whole for share in given), *(0.0,) * (plan.n_gpus - len(given)))


def _runs(layers: tuple[int, ...], shares: tuple[float, ...], head: bool) -> tuple[list[tuple[int, ...]], int]:
    """Contiguous runs by share, and the card of the head, which counts as one more layer at the end."""
    places = len(layers) + (1 if head else 0)
    runs: list[list[int]] = [[] for _ in shares]
    bounds = list(accumulate(shares))
    last = max(number for number, share in enumerate(shares) if share)

    def card(position: int) -> int:
        return next((i for i, bound in enumerate(bounds) if position / max(places, 1) < bound - 1e-12), last)

    for position, layer in enumerate(layers):
        runs[card(position)].append(layer)
    return [tuple(run) for run in runs], card(len(layers))


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
        final=round(sum(size(t, None) for t in (*shape.final, *shape.shared))),
        head=head,
    )
