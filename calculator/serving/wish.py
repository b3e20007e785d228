"""Backwards: from a wish (requests, context, time to first token, time between tokens) to the fewest cards."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil

from calculator.base import Frozen
from calculator.errors import PlanError
from calculator.hardware import Gpu
from calculator.model.shape import ModelShape
from calculator.model.stored import StoredWeights
from calculator.serving.bill import bill
from calculator.serving.plan import ServingPlan
from calculator.serving.speed import Speed, speed

DEGREES = (1, 2, 4, 8, 16)
PROMPT_SHARE = 0.75
"""Of a request's context, what is taken as its prompt where only the whole is wished."""


class Option(Frozen):
    """One way to fulfil the wish: ``plan`` starts it on ``plan.n_gpus`` cards of ``plan.gpu``; ``requests`` is what all
    replicas hold at the wished context; ``speed`` None where the card's rates are unknown."""

    plan: ServingPlan
    requests: int
    need_bytes: int
    speed: Speed | None
    fast_enough: bool


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

    Tensor parallelism is tried over legal degrees, then whole replicas are added. ``stored`` as for a bill.
    """
    found = []
    for card in cards:
        best: Option | None = None
        for tp in DEGREES:
            if tp > most_cards or (best is not None and tp >= best.plan.n_gpus):
                break
            option = _with(shape, plan, card, tp, most_cards, stored)
            if option is not None and (best is None or option.plan.n_gpus < best.plan.n_gpus):
                best = option
        if best is not None:
            found.append(best)
    return tuple(sorted(found, key=lambda o: (o.plan.n_gpus, o.need_bytes)))


def _with(
    shape: ModelShape, plan: ServingPlan, card: Gpu, tp: int, most_cards: int, stored: StoredWeights | None
) -> Option | None:
    context = plan.context_tokens or plan.max_model_len
    moe = any(block.mixture for block in shape.blocks)
    changes = {"tp": tp, "pp": 1, "dp": 1, "n_gpus": tp, "gpu": card.key, "gpu_capacity_bytes": None,
               "ep": tp if moe and plan.ep > 1 else 1, "dcp": 1,
               "max_model_len": plan.max_model_len or context}  # fmt: skip
    alone = plan.model_copy(update=changes)
    try:
        held = bill(shape, alone, card, stored).serving
    except PlanError:
        return None
    if held is None or not held.starts or held.moved is not None or held.requests_at_context < 1:
        return None
    each = int(held.requests_at_context)
    replicas = ceil(plan.concurrency / each)
    if tp * replicas > most_cards:
        return None
    running = ceil(plan.concurrency / replicas)
    rate, fast = _speed(shape, alone, card, context or held.max_model_len, running, stored)
    while not fast and rate is not None and running > 1 and tp * (replicas + 1) <= most_cards:
        replicas += 1
        running = ceil(plan.concurrency / replicas)
        rate, fast = _speed(shape, alone, card, context or held.max_model_len, running, stored)
    if not fast:
        return None
    chosen = alone.model_copy(update={"dp": replicas, "n_gpus": tp * replicas})
    need = bill(shape, alone.model_copy(update={"concurrency": running}), card, stored).need.value
    return Option(plan=chosen, requests=each * replicas, need_bytes=need, speed=rate, fast_enough=fast)


def _speed(
    shape: ModelShape, plan: ServingPlan, card: Gpu, context: int, batch: int, stored: StoredWeights | None
) -> tuple[Speed | None, bool]:
    """The speed of a replica and whether it meets the goals; unknown rates meet only the absence of goals."""
    prompt = max(int(context * PROMPT_SHARE), 1)
    goals = plan.ttft_goal_s is not None or plan.tpot_goal_s is not None
    try:
        found = speed(
            shape, plan, card, prompt_tokens=prompt, output_tokens=max(context - prompt, 1), batch=batch, stored=stored
        )
    except PlanError:
        return None, not goals
    ttft = plan.ttft_goal_s is None or found.ttft_s.value <= plan.ttft_goal_s
    tpot = plan.tpot_goal_s is None or found.tpot_s.value <= plan.tpot_goal_s
    return found, ttft and tpot
