"""What the calculator reaches on the measured cases. A figure that gets worse fails here.

The figures stand in ``validation/thresholds.toml``, each next to what was reached when it was set.
"""

from __future__ import annotations

import tomllib
from functools import cache

import pytest

from tests.source_files import ROOT
from validation.rows import packaged
from validation.run import predict, summary

THRESHOLDS = tomllib.loads((ROOT / "validation" / "thresholds.toml").read_text("utf-8"))
KINDS = [kind for kind in THRESHOLDS if kind != "about"]
BOUNDS = [
    (kind, quantity, name)
    for kind in KINDS
    for quantity, bounds in THRESHOLDS[kind].get("quantities", {}).items()
    for name in bounds
]


@cache
def reached(kind: str) -> dict:
    """The report over the packaged cases of a kind. Runs whose reserved memory is replayed are sampled, since a replay
    takes longer than everything else together."""
    every = THRESHOLDS[kind].get("replay_every", 1)
    outcomes = [predict(row, replay=index % every == 0) for index, row in enumerate(packaged(kind))]
    return summary(outcomes)


@pytest.mark.parametrize(("kind", "quantity", "name"), BOUNDS)
def test_no_figure_got_worse(kind: str, quantity: str, name: str):
    figure = reached(kind)["quantities"][quantity]
    bound = THRESHOLDS[kind]["quantities"][quantity][name]
    if name in ("n", "in_range", "within_5", "within_10", "within_20"):
        assert figure[name] >= bound
    else:
        assert abs(figure[name]) <= bound


@pytest.mark.parametrize("kind", KINDS)
def test_no_fewer_rows_are_predicted(kind: str):
    rows = reached(kind)["rows"]
    assert rows["predicted"] / rows["complete_scored"] >= THRESHOLDS[kind]["predicted_share"]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "fits" in THRESHOLDS[kind]])
def test_no_more_verdicts_are_wrong(kind: str):
    found, bound = reached(kind)["fits"], THRESHOLDS[kind]["fits"]
    assert found["ran"]["said_fits_or_tight"] / found["ran"]["n"] >= bound["ran"]
    assert found["ran_out"]["said_does_not_fit_or_tight"] / found["ran_out"]["n"] >= bound["ran_out"]
    assert found["tight"] / found["n"] <= bound["tight"]


def test_every_checked_fact_is_met():
    assert reached("facts")["facts"]["outside"] == THRESHOLDS["facts"]["outside"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_key_is_scored_or_missed_with_a_reason(kind: str):
    for row in packaged(kind):
        outcome = predict(row, replay=False)
        keys = [value.key for value in outcome.scored] + [miss.key for miss in outcome.missed]
        assert len(keys) == len(set(keys))
        assert outcome.wanted <= len(keys) or not outcome.wanted
        assert all(miss.reason.id for miss in outcome.missed)
        asked = set(row.data.get("score") or ())
        assert not asked or row.data.get("saturated") or asked <= set(keys)
