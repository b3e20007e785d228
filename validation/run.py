"""Scoring rows: one report per kind of case and one over all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from calculator.render import render
from validation import facts, lab, score, serving, throughput, training
from validation.outcome import Missed, Outcome, UnpredictableError
from validation.rows import Kind, Row

_PREDICTORS: dict[Kind, Callable[[Row], Outcome]] = {
    "serving": serving.predict,
    "facts": facts.predict,
    "lab": lab.predict,
    "throughput": throughput.predict,
}


def predict(row: Row, *, replay: bool = True) -> Outcome:
    """The outcome of any row. A malformed row is reported as missed with the reason, never dropped.

    ``replay`` False leaves reserved and process of training runs at the estimate that needs no allocator replay.
    """
    if row.kind == "unknown":
        return _missed(row, UnpredictableError("validation.reason.kind"))
    try:
        if row.kind == "training":
            return training.predict(row, replay=replay)
        return _PREDICTORS[row.kind](row)
    except Exception as error:  # one broken row or prediction must not hide the others
        return _missed(
            row, UnpredictableError("validation.reason.failed", error=f"{type(error).__name__}: {error}"[:200])
        )


def predict_all(rows: Iterable[Row], *, replay: bool = True) -> list[Outcome]:
    """The outcomes of all rows, in order."""
    return [predict(row, replay=replay) for row in rows]


def _missed(row: Row, error: UnpredictableError) -> Outcome:
    complete = row.data.get("complete") is not False
    keys = row.data.get("score") if isinstance(row.data.get("score"), list) else None
    missed = tuple(
        Missed(kind=row.kind, id=row.id, key=str(key) if key else None, reason=error.reason, complete=complete)
        for key in (keys or [None])
    )
    return Outcome(kind=row.kind, id=row.id, complete=complete, wanted=len(missed), missed=missed)


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The machine-readable report: over everything, and under ``kinds`` for each kind of case alone."""
    found = _summary(outcomes)
    kinds = list(dict.fromkeys(o.kind for o in outcomes))
    found["kinds"] = {kind: _summary([o for o in outcomes if o.kind == kind]) for kind in kinds}
    speeds = [value for o in outcomes if o.kind == "throughput" for value in o.scored]
    if speeds:
        found["kinds"]["throughput"]["ranges"] = throughput.ranges(speeds)
    return found


def _summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    values = [value for outcome in outcomes for value in outcome.scored]
    complete = [value for value in values if value.complete]
    rest = [value for value in values if not value.complete]
    return {
        "rows": dict(score.row_counts(outcomes)),
        "quantities": {key: found.model_dump() for key, found in score.by_key(complete).items()},
        "clusters": score.clusters(complete),
        "fits": score.fits([o.judged for o in outcomes if o.judged]),
        "facts": score.facts([value for value in values if value.kind == "facts"]),
        "unpredicted": [_reason(miss) for outcome in outcomes for miss in outcome.missed],
        "groups": score.groups(complete),
        "leave_one_out": score.leave_one_out(complete, "source") + score.leave_one_out(complete, "engine_version"),
        "incomplete": {
            "quantities": {key: found.model_dump() for key, found in score.by_key(rest).items()},
            "rows": len({value.id for value in rest}),
        },
    }


def _reason(miss: Missed) -> dict[str, Any]:
    return {"id": miss.id, "key": miss.key, "complete": miss.complete, "reason": render(miss.reason)}


def lines(outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """One entry per scored value: ``id``, ``key``, ``measured``, ``predicted``, ``low``, ``high``."""
    return [
        {"id": value.id, "key": value.key, "measured": value.measured, "predicted": value.predicted, "low": value.low,
         "high": value.high}
        for outcome in outcomes
        for value in outcome.scored
    ]  # fmt: skip
