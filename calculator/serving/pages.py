"""Caches without layer groups: every token of a sequence takes the same bytes, in pages of a few tokens.

SGLang, TensorRT-LLM, LMDeploy, TGI and plain transformers lay out their cache like this; they differ in the page, in
whether windows are credited and in where states live.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil

from calculator.serving.cache import Spec
from calculator.serving.split import ceil_div

LONGEST = 2**31


@dataclass(frozen=True, slots=True)
class Part:
    """Layers that are cached alike: their bytes a token together, and their window (0: every token)."""

    token_bytes: int
    window: int = 0


@dataclass(frozen=True, slots=True)
class PagedCache:
    """``parts`` share one pool. ``in_flight`` tokens stand in a window beside it. ``state_in_pool``: a sequence's
    state comes out of the same pool. ``window_ratio``: the pool is cut in two once and for all, one for full layers and
    one with so many times its tokens for window layers (SGLang); 0: windows take what they need."""

    parts: tuple[Part, ...]
    block_size: int
    state_bytes_per_sequence: int = 0
    in_flight: int = 0
    state_in_pool: bool = False
    window_ratio: float = 0.0

    @property
    def bytes_per_token(self) -> int:
        return sum(part.token_bytes for part in self.parts)

    @property
    def _split_in_two(self) -> bool:
        return self.window_ratio > 0 and any(p.window for p in self.parts) and any(not p.window for p in self.parts)

    @property
    def _pool_token_bytes(self) -> int:
        """Bytes of the divided pool behind one token of its full part."""
        return ceil(sum(p.token_bytes * (self.window_ratio if p.window else 1) for p in self.parts))

    def request_bytes(self, context: int) -> int:
        """Pool bytes of one request, whole pages. In a divided pool the part that it fills first decides."""
        if self._split_in_two:
            window = max(p.window for p in self.parts)
            seen = min(context, window + self.in_flight)
            longest = max(context, ceil(seen / self.window_ratio))
            return ceil_div(longest, self.block_size) * self.block_size * self._pool_token_bytes
        total = self.state_bytes_per_sequence if self.state_in_pool else 0
        for part in self.parts:
            seen = min(context, part.window + self.in_flight) if part.window else context
            total += ceil_div(seen, self.block_size) * self.block_size * part.token_bytes
        return total

    def tokens(self, pool_bytes: int, max_model_len: int) -> int:
        each = self.bytes_per_token
        if not each:
            return 0
        if self._split_in_two:
            return max(pool_bytes, 0) // (self._pool_token_bytes * self.block_size) * self.block_size
        if any(part.window for part in self.parts):
            return int(self.concurrency(pool_bytes, max_model_len) * max_model_len)
        return max(pool_bytes, 0) // (each * self.block_size) * self.block_size

    def concurrency(self, pool_bytes: int, context: int) -> float:
        need = self.request_bytes(context)
        return max(pool_bytes, 0) / need if need else float(LONGEST)

    def needed(self, requests: int, context: int) -> int:
        return requests * self.request_bytes(context)

    def shared_bytes(self, prefix_tokens: int) -> int:
        whole = prefix_tokens // self.block_size * self.block_size
        if self._split_in_two:
            return 0
        return whole * sum(part.token_bytes for part in self.parts if not part.window)

    def longest(self, pool_bytes: int) -> int:
        low, high = 0, LONGEST
        while low < high:
            middle = (low + high + 1) // 2
            if self.request_bytes(middle) <= pool_bytes:
                low = middle
            else:
                high = middle - 1
        return low


def parts_of(specs: Mapping[Spec, int], *, credit_windows: bool) -> tuple[Part, ...]:
    """One part for each window width. Without credit every layer counts as full."""
    sums: dict[int, int] = {}
    for spec, count in specs.items():
        if spec.kind == "state":
            continue
        window = spec.window if credit_windows else 0
        sums[window] = sums.get(window, 0) + spec.token_bytes * count
    return tuple(Part(size, window) for window, size in sorted(sums.items()))


def state_bytes(specs: Iterable[tuple[Spec, int]]) -> int:
    """State bytes of one sequence in all layers."""
    return sum(spec.state_bytes * count for spec, count in specs)
