"""Predicting a measured training run.

The readings, per GPU: ``peak_allocated_bytes`` (live tensors), ``peak_active_bytes`` (with blocks that still wait for
another stream: between allocated and reserved), ``peak_reserved_bytes`` (the allocator's total), ``process_bytes``
(what nvidia-smi shows), ``end_allocated_bytes`` (live tensors after the run) and ``unspecified_bytes`` (a published
figure of unknown kind: compared with reserved, in range anywhere between allocated and process).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calculator.bill import Bill, Range
from calculator.errors import CalculatorError
from calculator.hardware import resolve
from calculator.model.shape import ModelShape
from calculator.training import bill
from calculator.training.plan import TrainingPlan
from validation.models import arch_class, shape_of
from validation.outcome import Judged, Missed, Outcome, Scored, UnpredictableError, as_range
from validation.plans import training_plan
from validation.rows import Row

REPLAYED = frozenset({"peak_reserved_bytes", "process_bytes", "peak_active_bytes", "unspecified_bytes"})
"""Readings whose prediction goes through the allocator's replay."""
_GROUP = (
    "source_group", "model", "framework", "method", "base_quant", "sharding", "n_gpus", "checkpointing", "loss",
    "attention", "adapter",
)  # fmt: skip


def predict(row: Row, *, replay: bool = True) -> Outcome:
    """Every key of the case's ``score``, and the verdict where it is known whether the run fitted its card."""
    case = row.data
    keys = () if case.get("saturated") else tuple(case.get("score") or ())
    complete = bool(case.get("complete"))
    judged_wanted = case.get("fits") is not None
    base: dict[str, Any] = {"kind": row.kind, "id": row.id, "complete": complete}
    if not keys and not judged_wanted:
        return Outcome(**base, wanted=0)
    try:
        shape = shape_of(case.get("model"))
        plan = training_plan(case)
        # The verdict does not depend on the replay, so rows scored on nothing else go without it.
        result = predicted_bill(shape, plan, replay=replay and not REPLAYED.isdisjoint(keys))
    except UnpredictableError as error:
        return _missed(base, keys, error)
    except CalculatorError as error:
        return _missed(base, keys, UnpredictableError("validation.reason.refused", message=error.message))
    tags = tags_of(case) | {"arch_class": arch_class(shape)}
    scored, missed = [], []
    for key in keys:
        measured = (case.get("measured") or {}).get(key)
        try:
            if measured is None:
                raise UnpredictableError("validation.reason.no_reading", quantity=key)
            value, low, high = as_range(reading(result, key))
        except UnpredictableError as error:
            missed.append(Missed(**base, key=key, reason=error.reason))
            continue
        scored.append(Scored(**base, key=key, measured=measured, predicted=value, low=low, high=high, tags=tags))
    judged = None
    if judged_wanted:
        judged = Judged(id=row.id, ran=bool(case["fits"]), verdict=result.verdict, complete=complete, tags=tags)
    return Outcome(**base, wanted=len(keys), scored=tuple(scored), missed=tuple(missed), judged=judged)


def predicted_bill(shape: ModelShape, plan: TrainingPlan, *, replay: bool) -> Bill:
    """The bill of a plan on its own card, with reserved and process replayed or estimated."""
    gpu = resolve(plan.gpu, plan.gpu_capacity_bytes)
    return bill(shape, plan, gpu, replay=replay)


def reading(result: Bill, key: str) -> Range:
    """What the bill predicts for a reading. Raises ``UnpredictableError`` for a reading that it has no figure for."""
    if key == "peak_allocated_bytes":
        return result.allocated
    if key == "peak_reserved_bytes":
        return result.reserved
    if key == "process_bytes":
        return result.process
    if key == "peak_active_bytes":
        low, high = result.allocated.low, max(result.allocated.value, result.reserved.high)
        return Range(value=result.allocated.value, low=low, high=high)
    if key == "unspecified_bytes":
        return Range(value=result.reserved.value, low=result.allocated.low, high=result.process.high)
    if key == "end_allocated_bytes":
        for phase in result.phases:
            if phase.name == "end":
                return Range.exact(phase.allocated_bytes)
    raise UnpredictableError("validation.reason.no_figure", quantity=key)


def tags_of(case: Mapping[str, Any]) -> dict[str, str]:
    """The groups of a training case; ``group`` is the runs that differ only in batch and length."""
    tags = {
        "method": str(case.get("method")),
        "framework": str(case.get("framework")),
        "source": str(case.get("source_group") or case.get("source")),
        "trust": str(case.get("trust")),
        "model": str(case.get("model")),
        "url": str(case.get("source") or ""),
    }
    tags["group"] = " ".join(str(case.get(field)) for field in _GROUP)
    return tags


def _missed(base: dict[str, Any], keys: tuple[str, ...], error: UnpredictableError) -> Outcome:
    missed = [Missed(**base, key=key, reason=error.reason) for key in keys] or [
        Missed(**base, key=None, reason=error.reason)
    ]
    return Outcome(**base, wanted=len(keys), missed=tuple(missed))
