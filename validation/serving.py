"""Predicting the start of an inference server.

``kv_tokens`` and ``max_concurrency`` are predicted from the measured pool where the log has one, so that they test the
cache's geometry alone, and once more from nothing measured, as ``kv_tokens_end_to_end`` and
``max_concurrency_end_to_end``. Without a measured pool both are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calculator.bill import Bill, Range, ServingFigures
from calculator.errors import CalculatorError
from calculator.hardware import resolve
from calculator.model.shape import ModelShape
from calculator.serving import bill, geometry
from calculator.serving.plan import ServingPlan
from validation.models import shape_of
from validation.outcome import Missed, Outcome, Scored, UnpredictableError, as_range
from validation.plans import serving_plan
from validation.rows import Row

GEOMETRY = ("kv_tokens", "max_concurrency")
_END_TO_END = "_end_to_end"
_NEEDS_CARD = frozenset({"kv_pool_bytes", "kv_tokens_end_to_end", "max_concurrency_end_to_end", "process_bytes"})


def predict(row: Row) -> Outcome:
    """Every key of the case's ``score``."""
    case = row.data
    measured = case.get("measured") or {}
    asked = tuple(case.get("score") or ())
    keys = asked + tuple(f"{key}{_END_TO_END}" for key in asked if key in GEOMETRY)
    base: dict[str, Any] = {"kind": row.kind, "id": row.id, "complete": bool(case.get("complete"))}
    if not keys:
        return Outcome(**base, wanted=0)
    scored, missed = [], []
    try:
        shape = shape_of(case.get("model"))
        plan = serving_plan(case, shape)
        result = bill(shape, plan, resolve(plan.gpu, plan.gpu_capacity_bytes))
        pool = measured.get("kv_pool_bytes")
        from_pool: dict[str, float] = {}
        if pool is not None and pool > 0:
            held = geometry(shape, plan, resolve(plan.gpu, plan.gpu_capacity_bytes), pool)
            from_pool = dict(zip(GEOMETRY, held, strict=True))
    except UnpredictableError as error:
        return _missed(base, keys, error)
    except CalculatorError as error:
        return _missed(base, keys, UnpredictableError("validation.reason.refused", message=error.message))
    tags = tags_of(case)
    card_known = bool(case.get("gpu") or case.get("gpu_total_bytes") or plan.kv_cache_memory_bytes)
    for key in keys:
        plain = key.removesuffix(_END_TO_END)
        try:
            if plain not in measured:
                raise UnpredictableError("validation.reason.no_reading", quantity=plain)
            fills = key in _NEEDS_CARD or (key in GEOMETRY and key not in from_pool)
            if fills and not card_known and _fills_card(case):
                raise UnpredictableError("validation.reason.no_card")
            value, low, high = as_range(from_pool[key] if key in from_pool else figure(result, plain))
            if plain == "max_concurrency" and key not in from_pool and result.serving is not None:
                low, high = _concurrency_range(shape, plan, result.serving)
        except UnpredictableError as error:
            missed.append(Missed(**base, key=key, reason=error.reason))
            continue
        scored.append(
            Scored(**base, key=key, measured=measured[plain], predicted=value, low=low, high=high, tags=tags)
        )  # fmt: skip
    return Outcome(**base, wanted=len(keys), scored=tuple(scored), missed=tuple(missed))


def figure(result: Bill, key: str) -> Range | int | float:
    """The bill's figure of a name, with its range where it has one. Raises ``UnpredictableError``."""
    serving = result.serving
    if serving is None or not hasattr(serving, key):
        raise UnpredictableError("validation.reason.no_figure", quantity=key)
    value: int | float = getattr(serving, key)
    return serving.ranges.get(key, value)


def _fills_card(case: Mapping[str, Any]) -> bool:
    """llama.cpp and Ollama size their cache by the context, not by the card."""
    return case.get("engine") not in ("llama_cpp", "ollama") and not (case.get("observed") or {}).get(
        "free_before_pool_bytes"
    )


def _concurrency_range(shape: ModelShape, plan: ServingPlan, figures: ServingFigures) -> tuple[float, float]:
    """Concurrency at both ends of the pool's range."""
    pool = figures.ranges.get("kv_pool_bytes")
    if pool is None:
        return figures.max_concurrency, figures.max_concurrency
    gpu = resolve(plan.gpu, plan.gpu_capacity_bytes)
    return geometry(shape, plan, gpu, pool.low)[1], geometry(shape, plan, gpu, pool.high)[1]


def _missed(base: dict[str, Any], keys: tuple[str, ...], error: UnpredictableError) -> Outcome:
    missed = tuple(Missed(**base, key=key, reason=error.reason) for key in keys)
    return Outcome(**base, wanted=len(keys), missed=missed)


def tags_of(case: Mapping[str, Any]) -> dict[str, str]:
    """The groups of a serving case; ``group`` is one model on one card."""
    version = case.get("engine_version")
    return {
        "engine": str(case.get("engine")),
        "engine_version": f"{case.get('engine')} {version or case.get('engine_generation') or '?'}",
        "arch_class": str(case.get("arch_class")),
        "source": _source(case),
        "trust": str(case.get("trust")),
        "model": str(case.get("model")),
        "url": str(case.get("source") or ""),
        "group": f"{case.get('model')} on {case.get('gpu')}",
    }


def _source(case: Mapping[str, Any]) -> str:
    """The publication: for a controlled table its name in the ids, else the repository or site of the address."""
    if str(case.get("id", "")).startswith("tab"):
        return str(case["id"]).split("-")[0]
    written = str(case.get("source") or "")
    parts = written.removeprefix("https://").split("/")
    return "/".join(parts[1:3]) if parts[0] == "github.com" and len(parts) > 2 else parts[0]
