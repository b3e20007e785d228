"""Measured starts and exact facts, as the project's own validation data holds them, with their sources."""

import math
from collections import defaultdict
from statistics import median

import pytest

from validation import facts, serving
from validation.outcome import Outcome, Scored
from validation.rows import Row, packaged

FACTS = packaged("facts")


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    return [serving.predict(row) for row in packaged("serving")]


@pytest.fixture(scope="module")
def scored(outcomes: list[Outcome]) -> dict[str, list[Scored]]:
    found: dict[str, list[Scored]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.complete:
            for score in outcome.scored:
                found[score.key].append(score)
    return found


def _errors(scores: list[Scored]) -> list[float]:
    return sorted(abs(s.predicted / s.measured - 1) for s in scores)


def _percentile(errors: list[float], share: float) -> float:
    place = (len(errors) - 1) * share
    low = math.floor(place)
    return errors[low] + (errors[min(low + 1, len(errors) - 1)] - errors[low]) * (place - low)


@pytest.mark.parametrize(
    ("key", "at_median", "at_p90"),
    [
        ("weights_bytes", 0.007, 0.025),
        ("kv_pool_bytes", 0.02, 0.12),
        ("kv_tokens", 0.005, 0.05),
        ("max_concurrency", 0.005, 0.05),
        ("kv_tokens_end_to_end", 0.03, 0.15),
        ("max_concurrency_end_to_end", 0.03, 0.15),
        ("activation_bytes", 0.06, 0.60),
    ],
)  # fmt: skip
def test_errors_stay_below(scored: dict[str, list[Scored]], key: str, at_median: float, at_p90: float) -> None:
    errors = _errors(scored[key])
    assert len(errors) >= 10
    assert median(errors) <= at_median
    assert _percentile(errors, 0.9) <= at_p90


def test_pools_lie_in_their_range_and_the_range_is_narrow(scored: dict[str, list[Scored]]) -> None:
    pools = scored["kv_pool_bytes"]
    assert sum(s.low <= s.measured <= s.high for s in pools) >= 0.85 * len(pools)
    assert median((s.high - s.low) / 2 / s.predicted for s in pools) <= 0.06


def test_nearly_every_complete_start_is_predicted(outcomes: list[Outcome]) -> None:
    complete = [o for o in outcomes if o.complete and o.wanted]
    assert sum(not o.missed for o in complete) >= 0.95 * len(complete)


@pytest.mark.parametrize("row", FACTS, ids=[row.id for row in FACTS])
def test_checked_facts(row: Row) -> None:
    outcome = facts.predict(row)
    if not row.data["checked"]:
        pytest.skip("not recomputed by its source")
    assert not outcome.missed, outcome.missed
    for score in outcome.scored:
        assert score.predicted == pytest.approx(score.measured, rel=row.data["tolerance"], abs=0)
