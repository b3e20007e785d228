"""What llama.cpp puts on each card: layers, their cache cells, the graph's scratch, the projector.

Source: src/llama-kv-cache.cpp, src/llama-kv-cache-iswa.cpp, src/llama-context.cpp, src/llama-model.cpp,
src/llama-graph.cpp, in the trees of llama-cpp-python 0.2.90 to 0.3.36.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import cast

from calculator.model.shape import Attention, DenseMlp, LatentAttention, ModelShape, MoeMlp, StateMixer
from calculator.model.stored import StoredWeights
from calculator.precision import KvFormat, kv_format
from calculator.serving.engines.gguf import Placement, place
from calculator.serving.engines.mmproj import Projected, projected
from calculator.serving.plan import ServingPlan
from calculator.serving.split import ceil_div, round_up
from calculator.serving.start import Span
from calculator.serving.weights import Recent
from calculator.units import GIB, MIB

WINDOWS_BUILD, PADDED_BUILD, FLASH_BUILD = 5430, 6900, 6300
"""Builds from which windows are credited (May 2025), cells are padded to 256 (late 2025; with flash
attention always) and flash attention is on by default (August 2025); the numbers are those of the months, read to the
nearest release seen."""
STREAMED_ROWS = 32
"""Rows from which a matrix on the host is multiplied on the card (ggml/src/ggml-cuda, ``offload_op``)."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's cache row in bytes, its window, and its state in bytes a slot."""

    row_bytes: int
    window: int = 0
    state_bytes: int = 0


@dataclass(frozen=True, slots=True)
class CellCache:
    """Cells by context: every slot's stream in every layer. ``slots`` requests share ``context`` cells in all."""

    layers: tuple[Layer, ...]
    context: int
    slots: int
    ubatch: int
    unified: bool
    swa_full: bool
    build: int
    flash: bool = True

    @property
    def padding(self) -> int:
        """What a stream's cells are rounded up to."""
        return 256 if self.build >= PADDED_BUILD or self.flash else 32

    @property
    def bytes_per_token(self) -> int:
        return sum(layer.row_bytes for layer in self.layers)

    @property
    def state_bytes_per_sequence(self) -> int:
        return sum(layer.state_bytes for layer in self.layers)

    @property
    def block_size(self) -> int:
        return 1

    def cells(self, context: int, slots: int) -> tuple[int, int]:
        """Cells of a full layer over all streams, and the streams. ``context`` is that of all slots together."""
        padding = self.padding
        if self.unified or slots == 1:
            return round_up(context, padding), 1
        return round_up(ceil_div(context, slots), padding) * slots, slots

    def window_cells(self, window: int, context: int, slots: int) -> int:
        """Cells of a window layer over all streams: window and micro-batch, rounded to 256, never above the full
        layer's."""
        full, streams = self.cells(context, slots)
        if self.swa_full or self.build < WINDOWS_BUILD:
            return full
        padding = self.padding
        held = window * (slots if streams == 1 else 1) + self.ubatch
        return round_up(min(full // streams, held), padding) * streams

    def split_bytes(self, context: int, slots: int) -> tuple[int, int]:
        """Bytes of full and of window layers."""
        full, _ = self.cells(context, slots)
        rows: Counter[int] = Counter()
        for layer in self.layers:
            rows[layer.window] += layer.row_bytes
        windows = sum(
            size * self.window_cells(window, context, slots) for window, size in rows.items() if window and size
        )
        return rows[0] * full, windows

    def tokens(self, pool_bytes: int, max_model_len: int) -> int:
        return self.cells(self.context, self.slots)[0]

    def concurrency(self, pool_bytes: int, context: int) -> float:
        """Requests of ``context`` tokens: as many as there are slots, while their cells last."""
        return min(self.slots, self.cells(self.context, self.slots)[0] / max(context, 1))

    def needed(self, requests: int, context: int) -> int:
        return sum(self.split_bytes(requests * context, requests))

    def shared_bytes(self, prefix_tokens: int) -> int:
        return 0

    def longest(self, pool_bytes: int) -> int:
        full, streams = self.cells(self.context, self.slots)
        return full // streams


def streamed(experts_bytes: int) -> Span:
    """Room in the first card's graph for experts that stay on the host: batches of prompts are computed on the card,
    which takes a layer's experts over for it. Printed are about one layer's (2026) and more than three (2025), none
    with ``--no-op-offload``."""
    return Span(experts_bytes, 0, int(3.5 * experts_bytes))


def layers_of(shape: ModelShape, keys: KvFormat, values: KvFormat, *, latent: bool = True) -> tuple[Layer, ...]:
    """Every layer's cache row: keys and values are tensors of their own, each in its type (``--cache-type-k``,
    ``--cache-type-v``). MLA keeps the latent only, as keys; before mid-2025 full keys and values."""
    found = []
    for index in shape.order:
        row, window, state = 0, 0, 0
        for mixer in shape.blocks[index].mixers:
            if isinstance(mixer, Attention) and not mixer.shares_kv:
                row += keys.vector_bytes(mixer.kv_heads * mixer.head_dim)
                row += values.vector_bytes(mixer.kv_heads * mixer.v_head_dim)
                window = mixer.window or mixer.chunk or 0
            elif isinstance(mixer, LatentAttention) and latent:
                row += keys.vector_bytes(mixer.kv_lora_rank + mixer.qk_rope_head_dim)
            elif isinstance(mixer, LatentAttention):
                key = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim
                row += keys.vector_bytes(mixer.heads * key) + values.vector_bytes(mixer.heads * mixer.v_head_dim)
            elif isinstance(mixer, StateMixer):
                columns = max(mixer.conv_kernel - 1, 0)
                state += 4 * (mixer.conv_channels * columns + mixer.state_elements)
        found.append(Layer(row, window, state))
    return tuple(found)


def compute_bytes(shape: ModelShape, ubatch: int, context: int, *, flash: bool, head_on_gpu: bool) -> Span:
    """Scratch of the worst-case graph: the largest of logits, attention scores or mask, and MLP rows.

    ggml packs the tensors of a graph into one buffer, so the sum of the largest lies 10 to 40 % above its largest.
    """
    rows = min(ubatch, context)
    logits = rows * shape.vocab * 4 if head_on_gpu else 0
    mixers = (mixer for block in shape.blocks for mixer in block.mixers)
    heads = max((m.heads for m in mixers if isinstance(m, Attention | LatentAttention)), default=0)
    scores = rows * context * 2 if flash else heads * rows * context * 4
    width = 0
    for mlp in (mlp for block in shape.blocks for mlp in block.mlps):
        if isinstance(mlp, DenseMlp):
            width = max(width, mlp.width)
        elif isinstance(mlp, MoeMlp):
            width = max(width, mlp.top_k * mlp.width + mlp.shared_width)
    wide = rows * (2 * width + 3 * shape.hidden) * 4
    largest = max(logits, scores, wide)
    return Span(int(1.25 * largest), largest, int(1.7 * largest + 32 * MIB))


@dataclass(frozen=True, slots=True)
class Card:
    """What one card holds: its layers, their cache, the graph's scratch, and whether the projector is on it."""

    placement: Placement
    cache: CellCache
    full: int
    windows: int
    states: int
    scratch: Span
    projector_bytes: int

    @property
    def used(self) -> int:
        """Everything but the driver's context."""
        held = self.placement.weights_bytes + self.full + self.windows + self.states
        return held + self.scratch.value + self.projector_bytes


_recent = Recent()


@dataclass(frozen=True)
class Setup:
    """A server with every setting decided. ``open_context``: nobody has named one, so that it may be shortened.
    ``kept`` are layers whose experts stay on the host (None: as the plan has it), ``target_bytes`` what the automatic
    fit leaves free on each card; ``whole_layers``: it moves layers only, never their experts alone."""

    shape: ModelShape
    plan: ServingPlan
    stored: StoredWeights | None
    build: int
    slots: int
    context: int
    ubatch: int
    open_context: bool
    latent: bool = True
    target_bytes: int = GIB
    whole_layers: bool = False
    kept: frozenset[int] | None = None

    @cached_property
    def unified(self) -> bool:
        return self.plan.kv_unified if self.plan.kv_unified is not None else self.plan.max_num_seqs is None

    @cached_property
    def flash(self) -> bool:
        return self.plan.flash_attn if self.plan.flash_attn is not None else self.build >= FLASH_BUILD

    @cached_property
    def rows(self) -> tuple[Layer, ...]:
        keys = "fp16" if self.plan.kv_cache_dtype == "auto" else self.plan.kv_cache_dtype
        values = self.plan.v_cache_dtype or keys
        latent = self.latent if self.plan.mla is None else bool(self.plan.mla)
        made = _recent.get(
            self.shape, ("rows", keys, values, latent),
            lambda: layers_of(self.shape, kv_format(keys), kv_format(values), latent=latent),
        )  # fmt: skip
        return cast("tuple[Layer, ...]", made)

    @cached_property
    def projector(self) -> Projected | None:
        key = ("projector", self.plan.mmproj, self.plan.flash_attn, id(self.stored), self.build)
        made = _recent.get(self.shape, key, lambda: projected(self.shape, self.plan, self.stored, self.build))
        return cast("Projected | None", made)

    def cache(self, layers: Iterable[int]) -> CellCache:
        rows = tuple(self.rows[i] for i in layers)
        return CellCache(
            rows, self.context, self.slots, self.ubatch, self.unified, self.plan.swa_full, self.build, self.flash
        )

    def cards(self) -> tuple[Card, ...]:
        """What each card holds, first to last."""
        placed = place(self.shape, self.plan, self.stored, head_counts=self.build >= PADDED_BUILD, kept=self.kept)
        return tuple(self._card(placement, number == 0) for number, placement in enumerate(placed))

    def _card(self, placement: Placement, first: bool) -> Card:
        cache = self.cache(placement.layers)
        full, windows = cache.split_bytes(self.context, self.slots)
        cells = cache.cells(self.context, self.slots)[0]
        scratch = compute_bytes(self.shape, self.ubatch, cells, flash=self.flash, head_on_gpu=placement.head)
        if first and self.ubatch >= STREAMED_ROWS:
            scratch += streamed(placement.streamed_bytes)
        beside = self.projector.card_bytes if first and self.projector is not None else 0
        states = cache.state_bytes_per_sequence * self.slots
        return Card(placement, cache, full, windows, states, scratch, beside)
