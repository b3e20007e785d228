"""The serving rule of thumb, as arithmetic on round numbers: how many requests a card holds in theory.

(total - weights - engine overhead) / cache of one request. The real bill replaces each of the four by what the model
and the engine really take; the card says what a person computes in the head.
"""

from __future__ import annotations

from math import floor

from calculator.base import Frozen
from calculator.errors import PlanError
from calculator.units import GB

CARD_CONTEXT_TOKENS = 16_384
"""The context that the card's request is counted at ("16K")."""


class ServingCard(Frozen):
    """The four numbers of the rule, in bytes, and the share of the theoretical number to plan with.

    The defaults are the card's own example: 80 GB, a 7 B model in 4 bit (4 GB), 6 GB for the engine, 2 GB of cache for
    a request of 16K tokens.
    """

    total_bytes: int = 80 * GB
    weights_bytes: int = 4 * GB
    overhead_bytes: int = 6 * GB
    request_bytes: int = 2 * GB
    practical_share: float = 0.7

    @property
    def requests(self) -> int:
        """Concurrent requests in theory. Raises ``PlanError`` ("serving.card.request") for a request without cache."""
        if self.request_bytes <= 0:
            raise PlanError("serving.card.request", field="request_bytes")
        return max(floor((self.total_bytes - self.weights_bytes - self.overhead_bytes) / self.request_bytes), 0)

    @property
    def practical_requests(self) -> int:
        """Concurrent requests to plan with."""
        return floor(self.requests * self.practical_share + 1e-9)

    def request_bytes_at(self, context_tokens: int) -> int:
        """Cache of a request of another length: it grows in proportion, so 100K take about six times 16K."""
        return round(self.request_bytes * context_tokens / CARD_CONTEXT_TOKENS)
