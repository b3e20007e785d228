"""llama.cpp's automatic fit: what of a plan stays on the cards so that some memory of each is left free.

An open context is shortened first, as far as a straight line between the least and the whole one says. If that is not
enough, layers stay on the host, from the first on; of a mixture of experts only experts do where that is enough. What
somebody has set is never changed: with a number of layers, a split or experts named, nothing is moved.

Source: common/fit.cpp, tools/server (the projector's memory joins the target). Left out: a layer that is split between
card and host, which fills a card by less than one layer more.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from calculator.hardware import Gpu
from calculator.serving.engines.cells import Setup
from calculator.serving.overheads import context_term
from calculator.text import Text, text

BUILD = 7410
"""Build from which the fit is on by default (December 2025, llama.cpp pull request 16653), to the month."""
PROJECTOR_BUILD = 8700
"""Build from which it leaves room for the projector (April 2026, pull request 21489), to the month."""
MIN_CONTEXT = 4096
Counts = list[int]
"""Layers by card."""


@dataclass(frozen=True, slots=True)
class Fit:
    """``whole`` has every layer where the plan wants it, with the context that the fit arrives at; ``setup`` is what is
    started, and ``moved`` says what of it went to the host (None: nothing)."""

    whole: Setup
    setup: Setup
    moved: Text | None = None


def fitted(setup: Setup, gpu: Gpu) -> Fit:
    """The setup as the fit leaves it on cards of this kind."""
    room = gpu.total_bytes - context_term(gpu).span.value - setup.target_bytes
    if all(used <= room for used in _used(setup)):
        return Fit(setup, setup)
    whole = _shortened(setup, room) if setup.open_context else setup
    plan = setup.plan
    named = plan.n_gpu_layers is not None or plan.tensor_split is not None or plan.experts_on_cpu or plan.n_cpu_moe
    if named or all(used <= room for used in _used(whole)):
        return Fit(whole, whole)
    made = _Layers(whole, room).fill()
    on_cards = sum(len(card.placement.layers) for card in made.cards())
    layers, hosted = whole.shape.layers, len(made.kept or ())
    if on_cards < layers:
        said = text("serving.moved.layers", layers_count=on_cards, all_count=layers)
    else:
        said = text("serving.moved.experts", layers_count=hosted, all_count=layers)
    return Fit(whole, made, said)


def _used(setup: Setup) -> Counts:
    """What the fit believes each card to hold."""
    seen = setup.build >= PROJECTOR_BUILD
    return [card.used - (0 if seen else card.projector_bytes) for card in setup.cards()]


def _shortened(setup: Setup, room: int) -> Setup:
    """The context by a straight line between the least and the whole one; the least if nothing else would do."""
    streams = 1 if setup.unified else setup.slots
    least = (setup.plan.fit_min_context or MIN_CONTEXT) * streams
    if setup.context <= least:
        return setup
    shortest = replace(setup, context=least)
    wanted, low, high = room * setup.plan.n_gpus, sum(_used(shortest)), sum(_used(setup))
    if setup.plan.n_gpus > 1:
        per_layer = sum(card.placement.weights_bytes for card in setup.cards()) // setup.shape.layers
        wanted -= (setup.plan.n_gpus + 1) * per_layer // (6 if _experts(setup) else 2)
    if not low < wanted or low >= high:
        return shortest
    context = least + (setup.context - least) * (wanted - low) // (high - low)
    return replace(setup, context=max(context - context % (256 * streams), least))


def _experts(setup: Setup) -> bool:
    return not setup.whole_layers and any(block.mixture for block in setup.shape.blocks)


class _Layers:
    """Layers on cards: on each some whole ones and behind them some without their experts. The output counts as the
    last layer of all."""

    def __init__(self, setup: Setup, room: int) -> None:
        self.setup, self.room = setup, room
        self.places = setup.shape.layers + 1
        self.cards = setup.plan.n_gpus
        self.experts = _experts(setup)

    def fill(self) -> Setup:
        """Back to front with what must be on a card, then front to back with the experts."""
        whole, bare = [0] * self.cards, [0] * self.cards
        for card in reversed(range(self.cards)):
            change = partial(self._filled, whole, bare, card)
            whole, bare = change(self._most(self.places - sum(whole) - sum(bare), card, change))
        if sum(whole) + sum(bare) == self.places:
            for card in range(self.cards):
                change = partial(_turned, whole, bare, card)
                whole, bare = change(self._most(sum(bare), card, change))
        return self._made(whole, bare)

    def _filled(self, whole: Counts, bare: Counts, card: int, count: int) -> tuple[Counts, Counts]:
        """``count`` layers on a card that has none yet, without their experts but for the output."""
        full = count if not self.experts else min(count, 1) if card == self.cards - 1 else 0
        return _put(whole, card, full), _put(bare, card, count - full)

    def _most(self, limit: int, card: int, change: Callable[[int], tuple[Counts, Counts]]) -> int:
        """The most layers with which the card is not over its room."""

        def over(count: int) -> bool:
            return _used(self._made(*change(count)))[card] > self.room

        return bisect_left(range(1, limit + 1), True, key=over)

    def _made(self, whole: Counts, bare: Counts) -> Setup:
        counts = tuple(w + b for w, b in zip(whole, bare, strict=True))
        kept, at = set[int](), self.places - sum(counts)
        for card, (full, without) in enumerate(zip(whole, bare, strict=True)):
            first = at + full - (1 if card == self.cards - 1 and full else 0)  # the output is behind them
            kept |= set(range(first, first + without))
            at += full + without
        changes = {"n_gpu_layers": sum(counts), "tensor_split": tuple(map(float, counts)) if sum(counts) else None}
        return replace(self.setup, plan=self.setup.plan.model_copy(update=changes), kept=frozenset(kept))


def _put(counts: Counts, card: int, count: int) -> Counts:
    return [count if number == card else own for number, own in enumerate(counts)]


def _turned(whole: Counts, bare: Counts, card: int, count: int) -> tuple[Counts, Counts]:
    """``count`` layers without experts, from the first card that has some, become whole layers of ``card``."""
    full, without = list(whole), list(bare)
    for number in range(len(without)):
        taken = min(count, without[number])
        without[number] -= taken
        full[card] += taken
        count -= taken
    return full, without
