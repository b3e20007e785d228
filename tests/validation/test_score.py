"""The scorer's formulas, on sets small enough to work out by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculator.text import text
from validation.outcome import Judged, Missed, Outcome, Scored
from validation.score import by_key, clusters, facts, figures, fits, groups, leave_one_out, percentile, row_counts


def value(
    measured: float, predicted: float, *, key: str = "peak", id_: str = "a", half: float = 0, **tags: str
) -> Scored:
    return Scored(
        kind="training", id=id_, key=key, measured=measured, predicted=predicted, low=predicted - half,
        high=predicted + half, tags=tags,
    )  # fmt: skip


def test_figures_of_five_values_worked_out_by_hand():
    # errors: +2 %, -4 %, +10 %, -20 %, +50 %
    found = figures([value(100, 102), value(100, 96), value(200, 220), value(50, 40), value(10, 15)])
    assert found.n == 5
    assert found.median_ape == pytest.approx(0.10)
    # sizes .02 .04 .10 .20 .50; the 90th percentile lies 0.6 of the way from .20 to .50
    assert found.p90_ape == pytest.approx(0.38)
    assert found.bias == pytest.approx(0.02)
    assert (found.within_5, found.within_10, found.within_20) == (0.4, 0.6, 0.8)
    assert found.worst_ape == pytest.approx(0.5)


def test_an_even_number_of_values_takes_the_middle_of_the_two():
    found = figures([value(100, 101), value(100, 103)])
    assert found.median_ape == pytest.approx(0.02)
    assert found.bias == pytest.approx(0.02)
    assert found.p90_ape == pytest.approx(0.028)


def test_errors_are_relative_to_the_measurement_not_to_the_prediction():
    assert value(50, 100).error == 1.0
    assert value(100, 50).error == -0.5


def test_a_negative_pool_keeps_the_sign_of_the_error():
    assert value(-100, -90).error == pytest.approx(0.1)
    assert value(-100, -120).error == pytest.approx(-0.2)


def test_the_range_counts_its_ends_and_its_half_width_is_over_the_prediction():
    inside, edge, outside = value(100, 110, half=20), value(130, 110, half=20), value(131, 110, half=20)
    found = figures([inside, edge, outside])
    assert found.in_range == pytest.approx(2 / 3)
    assert found.half_width == pytest.approx(20 / 110)


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=40), st.floats(0, 1))
def test_percentile_lies_between_neighbours_and_has_the_share_below_it(values: list[float], share: float):
    found = percentile(values, share)
    ordered = sorted(values)
    place = share * (len(values) - 1)
    assert ordered[math.floor(place)] <= found * (1 + 1e-12) + 1e-12
    assert found <= ordered[math.ceil(place)] * (1 + 1e-12) + 1e-12


def test_percentile_agrees_with_the_textbook():
    assert percentile([15, 20, 35, 40, 50], 0.4) == pytest.approx(29)
    assert percentile([7], 0.9) == 7


def test_keys_and_groups_are_kept_apart():
    values = [
        value(100, 101, key="peak", source="x", method="lora"),
        value(100, 110, key="peak", source="y", method="lora"),
        value(100, 150, key="end", source="y"),
    ]
    assert {key: f.median_ape for key, f in by_key(values).items()} == {
        "peak": pytest.approx(0.055),
        "end": pytest.approx(0.5),
    }
    found = {(g["by"], g["value"], g["quantity"]): (g["n"], g["median_ape"]) for g in groups(values)}
    assert found == {
        ("method", "lora", "peak"): (2, pytest.approx(0.055)),
        ("source", "x", "peak"): (1, pytest.approx(0.01)),
        ("source", "y", "peak"): (1, pytest.approx(0.10)),
        ("source", "y", "end"): (1, pytest.approx(0.5)),
    }


def test_leave_one_out_compares_a_source_with_all_the_others():
    values = [value(100, 101, source="x"), value(100, 103, source="x"), value(100, 110, source="y")]
    table = {row["value"]: row for row in leave_one_out(values, "source")}
    assert table["x"]["median_ape"] == pytest.approx(0.02)
    assert table["x"]["others_median_ape"] == pytest.approx(0.10)
    assert (table["y"]["n"], table["y"]["others_n"]) == (1, 2)


def test_a_long_sweep_counts_once_among_the_groups():
    sweep = [value(100, 100 + e, group="sweep") for e in (10, 20, 30, 40, 50)]
    assert clusters([*sweep, value(100, 102, group="a"), value(100, 104, group="b")]) == {
        "peak": {"n": 3, "median_ape": pytest.approx(0.04)}
    }


def judged(ran: bool, verdict: str) -> Judged:
    return Judged(id="a", ran=ran, verdict=verdict, complete=True)  # type: ignore[arg-type]


def test_verdicts_count_tight_as_right_on_both_sides():
    found = fits(
        [judged(True, "fits"), judged(True, "tight"), judged(True, "does_not_fit"), judged(False, "fits"),
         judged(False, "tight"), judged(False, "does_not_fit"), judged(False, "does_not_fit")]
    )  # fmt: skip
    assert found["ran"] == {"n": 3, "said_fits_or_tight": 2}
    assert found["ran_out"] == {"n": 4, "said_does_not_fit_or_tight": 3}
    assert (found["n"], found["right"], found["wrong_fits"], found["wrong_does_not_fit"]) == (7, 5, 1, 1)


def test_always_fits_gains_nothing_on_runs_that_ran_out():
    found = fits([judged(True, "fits")] * 9 + [judged(False, "fits")] * 5)
    assert (found["right"], found["wrong_fits"]) == (9, 5)


def fact(measured: float, predicted: float, tolerance: float, checked: bool = True) -> Scored:
    return Scored(
        kind="facts", id=f"f{measured}", key="value", measured=measured, predicted=predicted, low=predicted,
        high=predicted, tolerance=tolerance, checked=checked,
    )  # fmt: skip


def test_facts_are_held_to_their_own_tolerance():
    found = facts([fact(1000, 1000, 0), fact(1001, 1000, 0), fact(1002, 1000, 0.01), fact(5000, 1, 0, checked=False)])
    assert found == {"checked": 3, "within_tolerance": 2, "outside": ["f1001"]}


def outcome(id_: str, scored: int, missed: int, *, complete: bool = True) -> Outcome:
    return Outcome(
        kind="training", id=id_, complete=complete, wanted=scored + missed,
        scored=tuple(value(1, 1, id_=id_) for _ in range(scored)),
        missed=tuple(Missed(kind="training", id=id_, key="k", reason=text("r")) for _ in range(missed)),
    )  # fmt: skip


def test_rows_are_counted_once_and_a_partly_predicted_row_is_not_a_predicted_one():
    found = row_counts(
        [outcome("a", 2, 0), outcome("b", 1, 1), outcome("c", 0, 1), outcome("d", 1, 0, complete=False),
         outcome("e", 0, 0), outcome("f", 0, 2, complete=False)]
    )  # fmt: skip
    assert found == {
        "total": 6, "complete": 4, "complete_scored": 3, "predicted": 1, "partly": 1, "unpredicted": 1, "incomplete": 2,
        "incomplete_predicted": 1,
    }  # fmt: skip
