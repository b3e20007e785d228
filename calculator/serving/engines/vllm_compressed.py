"""vLLM's cache of DeepSeek-V4: windows, compressed rows, indexer keys and the compressors' open blocks, in one pool.

A block of the pool has pages of three sizes, each as often as the group with most layers of that size needs it. Full
groups hold 256 tokens a block, whose compressed rows are 64 or 2; windows hold 64; the open blocks of the compressors
are kept for every token in flight, 4 or 8 to a block. Source: vLLM, vllm/v1/core/kv_cache_utils.py
(``group_and_unify_kv_cache_specs``), vllm/v1/attention/backends/mla/sparse_swa.py and
vllm/models/deepseek_v4/compressor.py (0.24 to 0.33).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from calculator.model.shape import Attention
from calculator.serving.engines.vllm_cache import Group, VllmCache
from calculator.serving.split import ceil_div, round_up

BLOCK = 256
WINDOW_BLOCK = 64
ALIGNMENT = 576
"""Bytes to which every page is rounded up."""
ROTARY = 64
"""Elements of a row that stay in 16 bit; the others are 8-bit with one scale byte for each 64, and one of padding."""
INDEX_SCALE = 4
STATE_BYTES = 4
"""Open blocks are kept in fp32, value and gate."""
OVERLAP = 4
"""The ratio at which neighbouring blocks overlap, so that two rows are kept for each token."""


def row_bytes(width: int) -> int:
    """One row of keys that are values too: 584 bytes for 512 elements."""
    scaled = width - ROTARY
    return scaled + 2 * ROTARY + ceil_div(scaled, 64) + 1


def lay_out_compressed(mixers: Iterable[Attention], *, in_flight: int, line: str, dcp: int) -> VllmCache:
    """The pool of one stage's layers."""
    found = list(mixers)
    page = _aligned(WINDOW_BLOCK * row_bytes(found[0].head_dim))
    rows = {m.compress: _aligned(max(BLOCK // m.compress, 1) * row_bytes(m.head_dim)) for m in found if m.compress}
    index = max(m.index_width for m in found)
    keys = _aligned(BLOCK // OVERLAP * (index + INDEX_SCALE))
    compressed = Counter(m.compress for m in found if m.compress)
    indexed = sum(1 for m in found if m.compress == OVERLAP and m.index_width)
    # layers of a group: as many as leave the fewest empty places, at least those of the full group
    full = max([*compressed.values(), 1])
    counts = [full, len(found), *(compressed[ratio] for ratio in sorted(compressed))]
    size = min(range(full, max(counts) + 1), key=lambda d: (sum(round_up(n, d) - n for n in counts), d))
    splits = ceil_div(len(found), size)
    pages = Counter({page: min(size, len(found))})
    for ratio, number in compressed.items():
        pages[rows[ratio]] = max(pages[rows[ratio]], number)
    if indexed:
        pages[keys] = max(pages[keys], indexed)
    block_bytes = sum(bytes_ * number for bytes_, number in pages.items())
    window = found[0].window or WINDOW_BLOCK
    groups = [Group("full", 1, BLOCK)] if compressed else []
    groups.append(Group("window", splits, WINDOW_BLOCK, window))
    for ratio in sorted(compressed):
        open_tokens = 4 if ratio == OVERLAP else 8
        kept = 2 * ratio if ratio == OVERLAP else ratio
        groups.append(Group("window", ceil_div(compressed[ratio], size), open_tokens, kept))
    per_token = sum(number * rows[ratio] for ratio, number in compressed.items()) + indexed * keys
    return VllmCache(
        block_bytes, tuple(groups), BLOCK, ceil_div(per_token, BLOCK), 0, in_flight, 1, line, dcp
    )  # fmt: skip


def _aligned(size: int) -> int:
    return round_up(size, ALIGNMENT)
