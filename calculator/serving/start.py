"""What an engine's start comes to, before it is written as a bill."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from calculator.bill import Basis
from calculator.sources import Source
from calculator.text import Text


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes with their lowest and highest plausible value. Unlike ``bill.Range`` it may be negative: a pool that the
    budget cannot pay for."""

    value: int
    low: int
    high: int

    @staticmethod
    def exact(value: int) -> Span:
        return Span(value, value, value)

    @staticmethod
    def about(value: float, share: float) -> Span:
        """``value`` give or take ``share`` of it."""
        return Span(int(value), int(value * (1 - share)), int(value * (1 + share)))

    def __add__(self, other: Span) -> Span:
        return Span(self.value + other.value, self.low + other.low, self.high + other.high)

    def rest_of(self, whole: int) -> Span:
        """What is left of ``whole`` after this."""
        return Span(whole - self.value, whole - self.high, whole - self.low)


ZERO = Span(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Term:
    """One term of an engine's memory on one GPU, with the rule it comes from."""

    span: Span
    formula: Text
    basis: Basis
    source: Source
    divided_by: int = 1


Rows = tuple[tuple[str, Term], ...]
"""Items of a bill by key."""


def extra_span(extras: Iterable[tuple[str, Term]]) -> Span:
    """The terms together."""
    total = ZERO
    for _, term in extras:
        total += term.span
    return total


class Cache(Protocol):
    """How an engine lays out keys, values and states. All bytes are of one GPU, the tightest rank."""

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one more token of one sequence takes while it is inside every window."""

    @property
    def state_bytes_per_sequence(self) -> int:
        """Bytes that a sequence takes whatever its length."""

    @property
    def block_size(self) -> int:
        """Tokens of one block."""

    def tokens(self, pool_bytes: int, max_model_len: int) -> int:
        """The token count that the engine prints for a pool."""

    def concurrency(self, pool_bytes: int, context: int) -> float:
        """Requests of ``context`` tokens that a pool holds."""

    def needed(self, requests: int, context: int) -> int:
        """Bytes of pool that so many requests of ``context`` tokens need."""

    def shared_bytes(self, prefix_tokens: int) -> int:
        """Bytes of the part of a request that others with the same first tokens need not hold again."""

    def longest(self, pool_bytes: int) -> int:
        """The longest single request that a pool holds; at most 2^31 tokens."""


@dataclass(frozen=True, slots=True)
class Start:
    """The memory terms of the worst rank and the settings that the engine ends up with.

    ``pool`` is what the engine gives to the cache; ``budget_bytes`` what its memory setting allows in all.
    ``graphs_reserved`` is held back for CUDA graphs before the pool is sized (0 where they come on top);
    ``graphs_in_activation`` says that the engine prints it as part of the activation peak. ``request_tokens`` is a
    request's length where the plan does not say (0: ``max_model_len``). ``extras`` are further items by key that stand
    beside the weights: "draft", "lora", "encoder_cache", "mmproj", "mmproj_compute". ``pool_follows_wish``: the cache
    is allocated as asked for, whatever is free. Where the engine moved a part of the model to the host to start at all,
    ``moved`` says what, and ``asked`` is the start with all of it on the cards. ``partly_on_host``: for that reason or
    because the plan says so, layers or experts run from host memory. ``streamed_bytes`` of a rank's weights lie on the
    host and are read over PCIe by the card, which does all the work. ``shares_prefixes``: equal first
    tokens of requests are cached once.
    """

    weights: Term
    activation: Term
    non_torch: Term
    cuda_graphs: Term
    context: Term
    pool: Span
    pool_formula: Text
    pool_source: Source
    cache: Cache
    budget_bytes: int
    memory_fraction: float
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    replicas: int
    rank: str
    state: Term | None = None
    extras: Rows = ()
    graphs_reserved: int = 0
    graphs_in_activation: bool = False
    request_tokens: int = 0
    needs_whole_request: bool = True
    pool_follows_wish: bool = False
    host_bytes: int = 0
    kv_full_bytes: int = 0
    kv_swa_bytes: int = 0
    gated_delta_scratch_bytes: int = 0
    rank_spread: dict[str, int] = field(default_factory=dict)
    assumptions: tuple[Text, ...] = ()
    refusal: Text | None = None
    moved: Text | None = None
    partly_on_host: bool = False
    streamed_bytes: int = 0
    shares_prefixes: bool = False
    asked: Start | None = None
