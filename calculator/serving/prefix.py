"""A prefix that all requests share: cached once, computed once."""

from __future__ import annotations

from dataclasses import dataclass

from calculator.serving.plan import ServingPlan
from calculator.serving.start import Cache


def cached_tokens(plan: ServingPlan, cache: Cache, prompt: int) -> int:
    """Tokens of a prompt that need not be computed again: whole blocks, and never the last token, whose logits are
    wanted. None where the engine keeps nothing for other requests."""
    if plan.prefix_caching is False:
        return 0
    whole = min(plan.shared_prefix_tokens, prompt - 1) // cache.block_size * cache.block_size
    return whole if whole > 0 and cache.shared_bytes(whole) else 0


def held(cache: Cache, pool_bytes: int, context: int, cached: int) -> float:
    """Requests of ``context`` tokens that a pool holds where all but the first save the ``cached`` ones."""
    shared = cache.shared_bytes(cached)
    if not shared:
        return cache.concurrency(pool_bytes, context)
    return max(pool_bytes - shared, 0) / max(cache.needed(1, context) - shared, 1)


@dataclass(frozen=True, slots=True)
class Beside:
    """What requests take of a cache beside the ``cached`` first tokens that it holds for all of them."""

    cache: Cache
    cached: int

    @property
    def block_size(self) -> int:
        return self.cache.block_size

    def needed(self, requests: int, context: int) -> int:
        """Bytes of so many requests of ``context`` tokens, without the prefix itself."""
        shared = self.cache.shared_bytes(min(self.cached, context))
        return requests * max(self.cache.needed(1, context) - shared, 0)
