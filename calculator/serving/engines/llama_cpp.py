"""llama.cpp: no pool to fill. The cache has the cells that context, slots, windows and micro-batch ask for.

Source: src/llama-kv-cache.cpp, src/llama-kv-cache-iswa.cpp, src/llama-context.cpp, src/llama-model.cpp,
src/llama-graph.cpp, common/fit.cpp, in the trees of llama-cpp-python 0.2.90 to 0.3.36.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from calculator.errors import PlanError
from calculator.hardware import Gpu
from calculator.model.shape import Attention, DenseMlp, LatentAttention, ModelShape, MoeMlp, StateMixer
from calculator.model.stored import StoredWeights
from calculator.precision import KvFormat, kv_format
from calculator.serving.adapters import Adapted, adapter_rows
from calculator.serving.engines.gguf import Placement, place
from calculator.serving.overheads import context_term
from calculator.serving.plan import ServingPlan
from calculator.serving.split import Split, ceil_div, round_up
from calculator.serving.start import Span, Start, Term, extra_span
from calculator.sources import Source
from calculator.text import Text, text
from calculator.units import GIB, MIB

BATCH, UBATCH = 2048, 512
"""``n_batch`` and ``n_ubatch``."""
TARGET_FREE_BYTES = GIB
"""What the automatic fit leaves free on each device."""

WINDOWS_BUILD, PADDED_BUILD, FLASH_BUILD = 5430, 6900, 6300
"""Builds from which windows are credited (May 2025), cells are padded to 256 (late 2025) and flash attention is on by
default (August 2025); the numbers are those of the months, read to the nearest release seen."""
NEWEST_BUILD = 9000


def source(path: str) -> Source:
    return Source(
        title=f"llama.cpp source, {path}", url="https://github.com/ggml-org/llama.cpp", checked_on="2026-11-29",
        versions="2024 to the tree of llama-cpp-python 0.3.36",
    )  # fmt: skip


def build_of(written: str | None) -> int:
    """The build number of "b6123" or "6123"; the newest where none is given.

    Raises ``PlanError`` ("serving.version_unreadable").
    """
    if written is None:
        return NEWEST_BUILD
    match = re.fullmatch(r"b?(\d{3,6})", written.strip()[:16])
    if match is None:
        raise PlanError("serving.version_unreadable", field="engine_version", text=written[:64])
    return int(match[1])


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
        padding = 256 if self.build >= PADDED_BUILD else 32
        if self.unified or slots == 1:
            return round_up(context, padding), 1
        return round_up(ceil_div(context, slots), padding) * slots, slots

    def window_cells(self, window: int, context: int, slots: int) -> int:
        """Cells of a window layer over all streams: window and micro-batch, rounded to 256, never above the full
        layer's."""
        full, streams = self.cells(context, slots)
        if self.swa_full or self.build < WINDOWS_BUILD:
            return full
        padding = 256 if self.build >= PADDED_BUILD else 32
        held = window * (slots if streams == 1 else 1) + self.ubatch
        return round_up(min(full // streams, held), padding) * streams

    def split_bytes(self, context: int, slots: int) -> tuple[int, int]:
        """Bytes of full and of window layers."""
        full, _ = self.cells(context, slots)
        whole = sum(layer.row_bytes for layer in self.layers if not layer.window) * full
        windows = sum(
            layer.row_bytes * self.window_cells(layer.window, context, slots) for layer in self.layers if layer.window
        )
        return whole, windows

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


def layers_of(shape: ModelShape, form: KvFormat, *, latent: bool = True) -> tuple[Layer, ...]:
    """Every layer's cache row. MLA keeps the latent only; before mid-2025 full keys and values."""
    found = []
    for index in shape.order:
        mixer = shape.blocks[index].mixer
        row, window, state = 0, 0, 0
        if isinstance(mixer, Attention) and not mixer.shares_kv:
            row = form.vector_bytes(mixer.kv_heads * mixer.head_dim)
            row += form.vector_bytes(mixer.kv_heads * mixer.v_head_dim)
            window = mixer.window or mixer.chunk or 0
        elif isinstance(mixer, LatentAttention):
            row = form.vector_bytes(mixer.kv_lora_rank + mixer.qk_rope_head_dim)
            if not latent:
                key = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim
                row = form.vector_bytes(mixer.heads * key) + form.vector_bytes(mixer.heads * mixer.v_head_dim)
        elif isinstance(mixer, StateMixer):
            columns = max(mixer.conv_kernel - 1, 0)
            state = 4 * (mixer.conv_channels * columns + mixer.state_elements)
        found.append(Layer(row, window, state))
    return tuple(found)


def compute_bytes(shape: ModelShape, ubatch: int, context: int, *, flash: bool, head_on_gpu: bool) -> Span:
    """Scratch of the worst-case graph: the largest of logits, attention scores or mask, and MLP rows.

    ggml packs the tensors of a graph into one buffer, so the sum of the largest lies 10 to 40 % above its largest.
    """
    rows = min(ubatch, context)
    logits = rows * shape.vocab * 4 if head_on_gpu else 0
    heads = max((b.mixer.heads for b in shape.blocks if isinstance(b.mixer, Attention | LatentAttention)), default=0)
    scores = rows * context * 2 if flash else heads * rows * context * 4
    width = 0
    for block in shape.blocks:
        if isinstance(block.mlp, DenseMlp):
            width = max(width, block.mlp.width)
        elif isinstance(block.mlp, MoeMlp):
            width = max(width, block.mlp.top_k * block.mlp.width + block.mlp.shared_width)
    mlp = rows * (2 * width + 3 * shape.hidden) * 4
    largest = max(logits, scores, mlp)
    return Span(int(1.25 * largest), largest, int(1.7 * largest + 32 * MIB))


def start(shape: ModelShape, plan: ServingPlan, gpu: Gpu, stored: StoredWeights | None = None) -> Start:
    """One server process. ``max_model_len`` is the context of all slots together, ``max_num_seqs`` the slots."""
    notes: list[Text] = []
    if plan.engine_version is None:
        notes.append(text("serving.assume.version", engine="llama.cpp", version=f"b{NEWEST_BUILD}"))
    build = build_of(plan.engine_version)
    slots = plan.max_num_seqs or plan.concurrency
    return begin(shape, plan, gpu, stored, build=build, slots=slots, context=_context(shape, plan, slots, notes),
                 ubatch=plan.n_ubatch or min(UBATCH, plan.max_num_batched_tokens or BATCH), notes=notes)  # fmt: skip


def _context(shape: ModelShape, plan: ServingPlan, slots: int, notes: list[Text]) -> int:
    if plan.max_model_len is not None:
        return plan.max_model_len
    if plan.context_tokens is not None:
        return plan.context_tokens * slots
    context = shape.max_context or 4096
    notes.append(text("serving.assume.max_model_len", context_tokens=context))
    return context


def begin(
    shape: ModelShape,
    plan: ServingPlan,
    gpu: Gpu,
    stored: StoredWeights | None,
    *,
    build: int,
    slots: int,
    context: int,
    ubatch: int,
    notes: list[Text],
    latent: bool = True,
) -> Start:
    """The start with every setting decided. The bill is of the device that holds the most."""
    unified = plan.kv_unified if plan.kv_unified is not None else plan.max_num_seqs is None
    flash = plan.flash_attn if plan.flash_attn is not None else build >= FLASH_BUILD
    form = kv_format("fp16" if plan.kv_cache_dtype == "auto" else plan.kv_cache_dtype)
    rows = layers_of(shape, form, latent=latent if plan.mla is None else bool(plan.mla))
    whole = CellCache(rows, context, slots, ubatch, unified, plan.swa_full, build)
    placed = place(shape, plan, stored, head_counts=build >= PADDED_BUILD)
    device = max(placed, key=lambda p: p.weights_bytes + _cache_bytes(whole, p, rows))
    on_device = CellCache(tuple(rows[i] for i in device.layers), context, slots, ubatch, unified, plan.swa_full, build)
    full, windows = on_device.split_bytes(context, slots)
    states = on_device.state_bytes_per_sequence * slots
    on_host = sum(whole.split_bytes(context, slots)) - sum(
        sum(_on(whole, p, rows).split_bytes(context, slots)) for p in placed
    )
    cells = on_device.cells(context, slots)[0]
    scratch = compute_bytes(shape, ubatch, cells, flash=flash, head_on_gpu=device.head)
    if plan.flash_attn is None:
        notes.append(text("serving.assume.flash_attn" if flash else "serving.assume.no_flash_attn"))
    held, context_memory = Span.about(device.weights_bytes, 0.01), context_term(gpu)
    pool = Span.exact(full + windows)
    adapters = adapter_rows(shape, device.layers, Split(), plan, Adapted(experts=not plan.experts_on_cpu))
    taken = held + extra_span(adapters) + pool + scratch + context_memory.span + Span.exact(states)
    refusal = None
    if taken.value > gpu.total_bytes:
        refusal = text("serving.refused.over_card", missing_bytes=taken.value - gpu.total_bytes)
    host = placed[0].host_bytes + max(on_host, 0) + slots * (shape.vocab + shape.hidden) * 4
    state = None
    if states:
        state = Term(Span.exact(states),
                     text("serving.item.state", state_bytes=on_device.state_bytes_per_sequence, slots_count=slots),
                     "computed", source("src/llama-hparams.cpp"))  # fmt: skip
    return Start(
        weights=Term(held, text("serving.item.weights.layers", weights_bytes=device.weights_bytes,
                                layers_count=len(device.layers), host_bytes=placed[0].host_bytes),
                     "computed", source("src/llama-model.cpp"), len(placed)),
        activation=Term(scratch, text("serving.item.compute", ubatch_tokens=ubatch, vocab_count=shape.vocab),
                        "assumed", source("src/llama-graph.cpp")),
        non_torch=Term(Span.exact(0), text("serving.item.non_torch", ranks_count=1), "computed",
                       source("ggml/src/ggml-cuda")),
        cuda_graphs=Term(Span.exact(0), text("serving.item.cuda_graphs", sizes_count=0), "computed",
                         source("ggml/src/ggml-cuda")),
        context=context_memory,
        pool=pool,
        pool_formula=text("serving.item.pool.cells", cells_count=on_device.cells(context, slots)[0],
                          slots_count=slots, full_bytes=full, window_bytes=windows),
        pool_source=source("src/llama-kv-cache.cpp, src/llama-kv-cache-iswa.cpp"),
        cache=on_device,
        budget_bytes=gpu.total_bytes,
        memory_fraction=1.0,
        max_model_len=context,
        max_num_seqs=slots,
        max_num_batched_tokens=plan.max_num_batched_tokens or BATCH,
        replicas=1,
        rank=str(placed.index(device)),
        request_tokens=max(context // slots, 1),
        state=state,
        needs_whole_request=False,
        pool_follows_wish=True,
        extras=adapters,
        host_bytes=host,
        kv_full_bytes=full,
        kv_swa_bytes=windows,
        assumptions=tuple(notes),
        refusal=refusal,
    )  # fmt: skip


def _on(cache: CellCache, placement: Placement, rows: tuple[Layer, ...]) -> CellCache:
    layers = tuple(rows[i] for i in placement.layers)
    return CellCache(layers, cache.context, cache.slots, cache.ubatch, cache.unified, cache.swa_full, cache.build)


def _cache_bytes(cache: CellCache, placement: Placement, rows: tuple[Layer, ...]) -> int:
    return sum(_on(cache, placement, rows).split_bytes(cache.context, cache.slots))
