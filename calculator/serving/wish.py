"""Backwards: from a wish (requests, context, time to first token, time between tokens) to the fewest cards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import ceil
from typing import Any

from calculator.base import Frozen
from calculator.errors import PlanError
from calculator.hardware import Gpu
from calculator.model.shape import ModelShape
from calculator.model.stored import StoredWeights
from calculator.serving.bill import bill, start
from calculator.serving.plan import LONGEST_TOKENS, ServingPlan
from calculator.serving.speed import Speed, speed
from calculator.serving.split import ATTENTION_REPLICAS, BY_CARD, experts_over_replicas, replicas_of

DEGREES = (1, 2, 4, 8, 16)
PROMPT_SHARE = 0.75
"""Of a request's context, what is taken as its prompt where only the whole is wished."""
_SLOTS = ("llama_cpp", "ollama")
"""Engines that are given the context of all slots together."""


class Option(Frozen):
    """One way to fulfil the wish: ``plan`` starts it on ``plan.n_gpus`` cards of ``plan.gpu``, and its bill is one that
    fits; ``requests`` is what all replicas hold at the wished context; ``speed`` None where the card's rates are
    unknown."""

    plan: ServingPlan
    requests: int
    need_bytes: int
    speed: Speed | None
    fast_enough: bool


def wished_context(plan: ServingPlan) -> int | None:
    """Tokens of one wished request; None: as long as the engine takes them. Where ``max_model_len`` is the context of
    all slots together, a request gets its slot's part."""
    if plan.context_tokens is not None or plan.max_model_len is None:
        return plan.context_tokens
    slots = (plan.max_num_seqs or plan.concurrency) if plan.engine in _SLOTS else 1
    return max(plan.max_model_len // slots, 1)


def options(
    shape: ModelShape,
    plan: ServingPlan,
    cards: Iterable[Gpu],
    *,
    most_cards: int = 64,
    stored: StoredWeights | None = None,
) -> tuple[Option, ...]:
    """The fewest cards of each kind that hold the plan's requests at its context and, where the card's rates are known,
    meet its goals at the usual end of the estimate. Fewest first; kinds that cannot are left out.

    Every number of cards is tried, from the least that could hold the weights, in the layouts that the engine has:
    tensor parallelism times replicas, with whole experts where their widths do not divide; whole layers on each card
    where an engine has nothing else. What is returned has been billed as it stands. ``stored`` as for a bill.
    """
    found = (_Search(shape, plan, card, stored).fewest(most_cards) for card in cards)
    return tuple(sorted((o for o in found if o is not None), key=lambda o: (o.plan.n_gpus, o.need_bytes)))


class _Search:
    """The search on cards of one kind."""

    def __init__(self, shape: ModelShape, plan: ServingPlan, card: Gpu, stored: StoredWeights | None) -> None:
        self.shape, self.card, self.stored = shape, card, stored
        self.moe = any(block.mixture for block in shape.blocks)
        self.context = wished_context(plan)
        self.plan = _alone(plan, card, self.context)
        self.held: dict[tuple[int, int], int] = {}

    def fewest(self, most: int) -> Option | None:
        """The first number of cards that does, in its least divided layout."""
        if (self.plan.max_model_len or 0) > LONGEST_TOKENS:
            return None
        for count in range(self.least(), most + 1):
            for degrees in self.layouts(count):
                option = self.option(self.plan.model_copy(update={**degrees, "n_gpus": count}))
                if option is not None:
                    return option
        return None

    def least(self) -> int:
        """Cards below which the weights alone do not fit, nor the cache where it is divided with them."""
        if self.plan.cpu_offload_bytes:
            return 1  # of every rank
        try:
            begun = start(self.shape, self.plan, self.card, self.stored)
        except PlanError:
            return 1
        whole = begun.asked or begun
        held = whole.weights.span.low + (whole.pool.low if self.plan.engine in BY_CARD else 0)
        return max(ceil(held / self.card.total_bytes), 1)

    def layouts(self, count: int) -> Iterator[dict[str, Any]]:
        """The engine's ways to use so many cards."""
        if self.plan.engine in BY_CARD:
            yield {}
        elif self.plan.dp_attention and self.plan.engine in ATTENTION_REPLICAS:
            if count in DEGREES:
                yield from self.experts({"tp": count, "dp": count, "dp_attention": count > 1}, count)
        else:
            for tp in DEGREES:
                if count % tp == 0:
                    ranks = count if self.plan.engine == "vllm" else tp
                    yield from self.experts({"tp": tp, "dp": count // tp, "dp_attention": False}, ranks)

    def experts(self, degrees: dict[str, int], ranks: int) -> Iterator[dict[str, Any]]:
        """Experts cut by width, or whole ones over ``ranks``: as the plan has it first."""
        ways = (1, ranks) if self.moe and ranks > 1 and self.plan.engine != "tgi" else (1,)
        for ep in reversed(ways) if self.plan.ep > 1 else ways:
            yield {**degrees, "ep": ep}

    def option(self, chosen: ServingPlan) -> Option | None:
        """The plan as an option, if its bill fits and its speed will do."""
        replicas = replicas_of(chosen)
        running = ceil(chosen.concurrency / replicas)
        apart = replicas > 1 and not chosen.dp_attention and not experts_over_replicas(chosen, self.shape)
        if apart and self.replica_holds(chosen) < running:
            return None
        try:
            if chosen.engine in _SLOTS and self.context is not None and not self.starts_whole(chosen):
                return None
            found = bill(self.shape, chosen, self.card, self.stored)
        except PlanError:
            return None
        if found.verdict != "fits" or found.serving is None:
            return None
        rate, fast = self.speed(chosen, self.context or found.serving.max_model_len, running)
        if not fast:
            return None
        each = int(found.serving.requests_at_context / replicas + 1e-9)
        return Option(
            plan=chosen, requests=each * replicas, need_bytes=found.need.value, speed=rate, fast_enough=fast
        )  # fmt: skip

    def starts_whole(self, chosen: ServingPlan) -> bool:
        """Whether the model starts without the automatic fit, whose trials of what to move are far slower."""
        bare = chosen.model_copy(update={"fit": False})
        return bill(self.shape, bare, self.card, self.stored).verdict == "fits"

    def replica_holds(self, chosen: ServingPlan) -> int:
        """Requests of one of several whole replicas, so that numbers of them that cannot do need no bill: none where
        it would be too slow even with one request."""
        key = (chosen.tp, chosen.ep)
        if key not in self.held:
            one = chosen.model_copy(update={"dp": 1, "n_gpus": chosen.tp})
            try:
                found = bill(self.shape, one, self.card, self.stored).serving
            except PlanError:
                found = None
            self.held[key] = 0
            if found is not None and found.starts and self.speed(one, self.context or found.max_model_len, 1)[1]:
                self.held[key] = int(found.requests_at_context + 1e-9)
        return self.held[key]

    def speed(self, plan: ServingPlan, context: int, batch: int) -> tuple[Speed | None, bool]:
        """The speed of a replica and whether it meets the goals; unknown rates meet only the absence of goals."""
        prompt = max(int(context * PROMPT_SHARE), 1)
        goals = plan.ttft_goal_s is not None or plan.tpot_goal_s is not None
        try:
            found = speed(
                self.shape, plan, self.card, prompt_tokens=prompt, output_tokens=max(context - prompt, 1), batch=batch,
                stored=self.stored,
            )  # fmt: skip
        except PlanError:
            return None, not goals
        ttft = plan.ttft_goal_s is None or found.ttft_s.value <= plan.ttft_goal_s
        tpot = plan.tpot_goal_s is None or found.tpot_s.value <= plan.tpot_goal_s
        return found, ttft and tpot


def _alone(plan: ServingPlan, card: Gpu, context: int | None) -> ServingPlan:
    """The wish on one card, without what belongs to the plan's own cards. Slots are as many as the wished requests
    where there is one process for all of them."""
    changes: dict[str, Any] = {
        "tp": 1, "pp": 1, "dp": 1, "dcp": 1, "n_gpus": 1, "gpu": card.key, "gpu_capacity_bytes": None,
        "free_memory_bytes": None, "pp_rank": None, "pp_layer_partition": None, "tensor_split": None,
    }  # fmt: skip
    if plan.engine in _SLOTS:
        changes |= {"max_num_seqs": plan.concurrency, "context_tokens": context}
        changes["max_model_len"] = context * plan.concurrency if context is not None else None
    else:
        changes["max_model_len"] = max(plan.max_model_len or 0, context or 0) or None
    if plan.engine == "transformers" and (plan.max_num_seqs or plan.concurrency) < plan.concurrency:
        changes["max_num_seqs"] = None
    return plan.model_copy(update=changes)
