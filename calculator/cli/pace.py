"""How fast a served plan could be, what its traffic does, and whether its goals are met."""

from __future__ import annotations

from typing import Any, Literal

from calculator.base import Frozen
from calculator.bill import ServingFigures
from calculator.errors import CalculatorError
from calculator.hardware import Gpu
from calculator.lookup import LoadedModel
from calculator.serving.plan import ServingPlan
from calculator.serving.speed import Estimate, Speed, speed
from calculator.serving.traffic import Outlook, lengths_of, outlook
from calculator.serving.wish import PROMPT_SHARE
from calculator.text import Text

Judged = Literal["met", "likely", "unlikely", "missed"]


class Pace(Frozen):
    """``speed`` for requests of ``prompt_tokens`` and ``output_tokens`` (medians where lengths differ); ``outlook``
    where the plan describes its traffic; ``goals`` judged by field. ``reason`` says why there is no speed."""

    prompt_tokens: int
    output_tokens: int
    speed: Speed | None = None
    outlook: Outlook | None = None
    goals: dict[str, Judged] = {}
    reason: Text | None = None


def pace(model: LoadedModel, plan: ServingPlan, gpu: Gpu, figures: ServingFigures) -> Pace | None:
    """None where the engine does not start."""
    if not figures.starts:
        return None
    lengths, found = lengths_of(plan), None
    context = min(plan.context_tokens or figures.max_model_len, figures.max_model_len)
    prompt = max(int(context * PROMPT_SHARE), 1)
    output = max(context - prompt, 1)
    try:
        if lengths is not None:
            found = outlook(model.shape, plan, gpu, lengths, model.stored)
            prompt, output = found.prompt_tokens, found.output_tokens
        running = min(-(-plan.concurrency // figures.replicas), int(figures.requests_at_context / figures.replicas))
        rate = (found and found.speed) or speed(
            model.shape, plan, gpu, prompt_tokens=prompt, output_tokens=output, batch=max(1, running),
            stored=model.stored,
        )  # fmt: skip
    except CalculatorError as error:
        return Pace(prompt_tokens=prompt, output_tokens=output, reason=error.message)
    goals = {
        name: judged(estimate, goal)
        for name, estimate, goal in (("ttft_goal_s", rate.ttft_s, plan.ttft_goal_s),
                                     ("tpot_goal_s", rate.tpot_s, plan.tpot_goal_s)) if goal is not None
    }  # fmt: skip
    return Pace(prompt_tokens=prompt, output_tokens=output, speed=rate, outlook=found, goals=goals)


def judged(found: Estimate, goal_s: float) -> Judged:
    """A goal against the estimate: met by all of its range, by its usual value, by its best end alone, or not."""
    if found.high <= goal_s:
        return "met"
    if found.value <= goal_s:
        return "likely"
    return "unlikely" if found.low <= goal_s else "missed"


def pace_json(found: Pace) -> dict[str, Any]:
    """The fields without their sentence."""
    return found.model_dump(mode="json", exclude={"reason"})
