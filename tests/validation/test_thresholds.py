"""What the calculator reaches on the measured cases. A figure that gets worse fails here."""

from __future__ import annotations

import tomllib

import pytest

from validation import thresholds
from validation.rows import PACKAGED, packaged
from validation.run import predict
from validation.thresholds import reached

pytestmark = pytest.mark.xdist_group("thresholds")
BOUNDS = thresholds.load()
QUANTITIES = [
    (kind, quantity, name)
    for kind, bounds in BOUNDS.items()
    for quantity, figures in bounds["quantities"].items()
    for name in figures
]


@pytest.mark.parametrize(("kind", "quantity", "name"), QUANTITIES)
def test_no_figure_got_worse(kind, quantity, name):
    figure = reached(kind)["quantities"][quantity][name]
    bound = BOUNDS[kind]["quantities"][quantity][name]
    assert figure >= bound if name in ("n", "in_range") else abs(figure) <= bound


@pytest.mark.parametrize("kind", PACKAGED)
def test_no_fewer_rows_are_predicted(kind):
    rows = reached(kind)["rows"]
    assert rows["predicted"] / rows["complete_scored"] >= BOUNDS[kind]["predicted_share"]


def test_no_more_verdicts_are_wrong():
    found, bound = reached("training")["fits"], BOUNDS["training"]["fits"]
    assert found["ran"]["said_fits_or_tight"] / found["ran"]["n"] >= bound["ran"]
    assert found["ran_out"]["said_does_not_fit_or_tight"] / found["ran_out"]["n"] >= bound["ran_out"]
    assert found["tight"] / found["n"] <= bound["tight"]


def test_no_further_fact_is_missed():
    assert set(reached("facts")["facts"]["outside"]) <= set(BOUNDS["facts"]["outside"])


@pytest.mark.parametrize("kind", PACKAGED)
def test_every_key_is_scored_or_missed_with_a_reason(kind):
    for row in packaged(kind)[::3]:
        outcome = predict(row, replay=False)
        keys = [value.key for value in outcome.scored] + [miss.key for miss in outcome.missed]
        assert len(keys) == len(set(keys))
        asked = set(row.data.get("score") or ())
        assert row.data.get("saturated") or asked <= set(keys)


def test_bounds_are_close_to_what_is_reached():
    figure = {"n": 9, "median_ape": 0.02, "p90_ape": 0.1, "bias": -0.01, "in_range": 0.8, "half_width": 0.05}
    exact = {
        "n": 9, "median_ape": 0.0, "p90_ape": 0.0, "bias": 0.0, "in_range": 0.1, "half_width": 0.0, "worst_ape": 0.02,
    }  # fmt: skip
    found = {
        "rows": {"predicted": 9, "complete_scored": 10}, "facts": {"checked": 2, "outside": ["a"]},
        "fits": {"n": 10, "tight": 1, "ran": {"n": 8, "said_fits_or_tight": 8},
                 "ran_out": {"n": 2, "said_does_not_fit_or_tight": 1}},
        "quantities": {"peak": figure, "rare": figure | {"n": 4}, "exact": exact},
    }  # fmt: skip
    made = tomllib.loads(thresholds.as_toml({"training": thresholds.bounds(found)}))["training"]
    assert made == {
        "predicted_share": 0.89, "outside": ["a"], "fits": {"ran": 0.99, "ran_out": 0.49, "tight": 0.1052},
        "quantities": {
            "peak": {
                "median_ape": 0.0212, "p90_ape": 0.1052, "bias": 0.0107, "half_width": 0.0527, "in_range": 0.79, "n": 9,
            },
            "exact": {"median_ape": 0.0002, "p90_ape": 0.0002, "bias": 0.0002, "worst_ape": 0.0212, "n": 9},
        },
    }  # fmt: skip
