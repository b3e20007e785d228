"""How many tokens a step of drafting yields. How often drafts are right depends on model, method and text: assumed."""

from __future__ import annotations

from types import MappingProxyType

from calculator.model.shape import ModelShape
from calculator.serving.cache import cache_format
from calculator.serving.drafts import METHODS, draft_of, drafts_of, method_of
from calculator.serving.plan import ServingPlan
from calculator.serving.split import split_of
from calculator.sources import Source

RATES = MappingProxyType(
    {
        "ngram": (0.1, 0.3, 0.6), "suffix": (0.1, 0.3, 0.6), "medusa": (0.4, 0.55, 0.7),
        "mlp_speculator": (0.4, 0.55, 0.7), "eagle": (0.45, 0.6, 0.75), "eagle3": (0.5, 0.65, 0.8),
        "mtp": (0.7, 0.8, 0.9), "draft_model": (0.5, 0.65, 0.8), "dflash": (0.5, 0.65, 0.8),
    }
)  # fmt: skip
"""Chance that the next draft is right, given that all before it were: low, usual, high. Assumed, but for the upper end
of "mtp" (85 to 90 % of second tokens; DeepSeek-V3 technical report, section 5.4.3)."""
ACCEPTANCE_SOURCE = Source(
    title="Expected tokens of a step with k drafts of acceptance rate a, (1 - a^(k+1)) / (1 - a) (Leviathan et al. "
    "2023); the rates are assumed",
    url="https://arxiv.org/abs/2211.17192", checked_on="2026-11-30",
)  # fmt: skip

AT_ONCE = ("medusa", "mlp_speculator", "dflash")
"""Methods that make all drafts in one pass; the others with weights of their own need a pass for each."""


def tokens_of_step(rate: float, drafts: int) -> float:
    """Expected tokens that a step yields: its own, and the drafts up to the first wrong one."""
    return sum(rate**place for place in range(drafts + 1))


def drafts(plan: ServingPlan) -> int:
    """Tokens that are drafted a step: none on engines whose drafts are not counted."""
    return drafts_of(plan) if plan.engine in METHODS else 0


def rates(plan: ServingPlan) -> tuple[float, float, float]:
    """Low, usual and high acceptance of the plan's method, or the plan's own thrice."""
    if plan.speculative is None or not drafts(plan):
        return (0.0, 0.0, 0.0)
    return RATES[plan.speculative] if plan.draft_acceptance is None else (plan.draft_acceptance,) * 3


def drafting_bytes(shape: ModelShape, plan: ServingPlan, layer_bytes: float) -> float:
    """Weight bytes that one GPU reads to make a step's drafts; ``layer_bytes`` are those that a step reads of one
    layer, which layers for multi-token prediction are like."""
    passes = 1 if plan.speculative in AT_ONCE else drafts(plan)
    if method_of(shape, plan) == "mtp":
        return passes * layer_bytes
    split = split_of(plan, shape)
    return float(passes * draft_of(shape, plan, split, cache_format("auto", shape.dtype)).weights.value)
