"""Published speeds against the roofline: output tokens a second of a full server, a single stream, the first token.

The shares of the cards' peaks were set on the rows with ``tuned``; every other row is out of sample for them. What
those rows did bring to light are two rules, not shares: admission without eviction and FP16 accumulation (see
``calculator.serving.speed``). Rows of TensorRT-LLM's older tables count as they were run, in static batches of
``batch`` requests; single streams of other engines over the same format stand for llama.cpp's plan.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from pydantic import ValidationError

from calculator.errors import CalculatorError
from calculator.hardware import find
from calculator.serving.plan import ServingPlan
from calculator.serving.speed import Estimate, Speed, speed
from validation.models import shape_of
from validation.outcome import Missed, Outcome, Scored, UnpredictableError
from validation.rows import Row

KEYS: Mapping[str, str] = {
    "tokens_per_s": "output_tokens_per_s", "single_stream": "stream_tokens_per_s", "ttft_s": "ttft_ms"
}  # fmt: skip
"""The scored quantity of each published figure; the first token in milliseconds."""

_PLAN = ("engine", "n_gpus", "tp", "pp", "weights", "kv_cache_dtype")


def plan_of(case: Mapping[str, Any]) -> ServingPlan:
    """The plan of a published setup. Raises ``UnpredictableError`` for fields that no plan takes."""
    try:
        fields = {name: case[name] for name in _PLAN}
        if case["engine"] == "llama_cpp":
            fields["fit"] = False  # The published runs had every layer on the card.
        return ServingPlan.model_validate({**fields, "max_model_len": case["prompt"] + case["output"]})
    except (KeyError, TypeError) as error:
        raise UnpredictableError("validation.reason.open", field=str(error.args[0])) from None
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise UnpredictableError("validation.reason.plan", field=field, value=str(first.get("input"))[:80]) from None


def figure(found: Speed, kind: str) -> Estimate:
    """The published figure's counterpart: tokens a second, or milliseconds to the first token."""
    if kind == "single_stream":
        step = found.tpot_s
        return Estimate(low=1 / step.high, value=1 / step.value, high=1 / step.low)
    if kind == "ttft_s":
        first = found.ttft_s
        return Estimate(low=1000 * first.low, value=1000 * first.value, high=1000 * first.high)
    return found.tokens_per_s


def measured(case: Mapping[str, Any]) -> float:
    """The published value in the scored quantity's unit."""
    return float(case["value"]) * (1000 if case["figure"] == "ttft_s" else 1)


def predict(row: Row) -> Outcome:
    """The one figure of a row."""
    case = row.data
    key = KEYS.get(str(case.get("figure")))
    base: dict[str, Any] = {"kind": row.kind, "id": row.id, "complete": True}
    try:
        if key is None:
            raise UnpredictableError("validation.reason.no_figure", quantity=str(case.get("figure")))
        plan = plan_of(case)
        found = speed(
            shape_of(case.get("model")), plan, find(case["gpu"]), prompt_tokens=case["prompt"],
            output_tokens=case["output"], batch=case.get("batch"),
        )  # fmt: skip
    except UnpredictableError as error:
        return Outcome(**base, wanted=1, missed=(Missed(**base, key=key, reason=error.reason),))
    except CalculatorError as error:
        reason = UnpredictableError("validation.reason.refused", message=error.message).reason
        return Outcome(**base, wanted=1, missed=(Missed(**base, key=key, reason=reason),))
    value = figure(found, case["figure"])
    scored = Scored(
        **base, key=key, measured=measured(case), predicted=value.value, low=value.low, high=value.high,
        tags=tags_of(case),
    )  # fmt: skip
    return Outcome(**base, wanted=1, scored=(scored,))


def tags_of(case: Mapping[str, Any]) -> dict[str, str]:
    """The groups of a published figure; ``group`` is the setup: model, format, cards and engine."""
    by = str(case.get("measured_with") or case.get("engine"))
    cards = f"{case.get('n_gpus')} × {case.get('gpu')}"
    return {
        "engine": by,
        "source": str(case.get("publication")),
        "sample": "tuned" if case.get("tuned") else "held_out",
        "model": str(case.get("model")),
        "url": str(case.get("source") or ""),
        "group": f"{case.get('model')} {case.get('weights')}, {cards}, {by}",
    }


def ranges(values: Sequence[Scored]) -> dict[str, Any]:
    """How often the range holds the published figure, and how wide it is: over all figures, by ``sample`` (tuned or
    held out), by quantity and publication, and over setups, each counted once by the median of its errors.

    Each entry has ``n``, ``setups``, ``in_range`` (share of figures), ``setups_in_range`` (share of setups of which at
    least four fifths of the figures lie inside), ``median_error``, ``setup_median_error`` and ``widest`` (the largest
    high over low).
    """
    made: dict[str, list[Scored]] = defaultdict(list)
    for value in values:
        for name in ("all", value.tags["sample"], value.key, value.tags["source"]):
            made[name].append(value)
    return {name: _entry(members) for name, members in made.items()}


def _entry(values: Sequence[Scored]) -> dict[str, Any]:
    setups: dict[str, list[Scored]] = defaultdict(list)
    for value in values:
        setups[value.tags["group"]].append(value)
    inside = [sum(v.in_range for v in members) >= 0.8 * len(members) for members in setups.values()]
    return {
        "n": len(values),
        "setups": len(setups),
        "in_range": sum(v.in_range for v in values) / len(values),
        "setups_in_range": sum(inside) / len(inside),
        "median_error": median(abs(v.error) for v in values),
        "setup_median_error": median(median(abs(v.error) for v in members) for members in setups.values()),
        "widest": max(v.high / v.low for v in values),
    }
