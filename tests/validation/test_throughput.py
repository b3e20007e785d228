"""Published speeds as a kind of case: their sources, their scores, their ranges."""

from __future__ import annotations

import pytest

from ui import accuracy, throughput
from ui.i18n import Words
from validation.outcome import Scored
from validation.rows import Row, packaged
from validation.run import predict, summary
from validation.throughput import measured, ranges

ROWS = packaged("throughput")


def value(name: str, inside: bool, setup: str, sample: str = "held_out") -> Scored:
    told = 100.0 if inside else 300.0
    return Scored(
        kind="throughput", id=name, key="output_tokens_per_s", measured=told, predicted=110, low=80, high=160,
        tags={"group": setup, "sample": sample, "source": "somewhere"},
    )  # fmt: skip


def test_every_figure_has_a_public_address_and_few_set_the_shares():
    assert all(row.data["source"].startswith("https://") and row.data["publication"] for row in ROWS)
    assert sum(row.data["tuned"] for row in ROWS) == 40


def test_first_tokens_are_scored_in_milliseconds():
    row = next(row for row in ROWS if row.data["figure"] == "ttft_s" and row.data["gpu"] == "l40s-48gb")
    found = predict(row).scored[0]
    assert found.key == "ttft_ms"
    assert found.measured == measured(row.data) == row.data["value"] * 1000
    assert 1 < found.low < found.high < 1000


def test_ranges_count_figures_and_setups():
    values = [value("a", True, "x"), value("b", True, "x"), value("c", False, "y"), value("d", True, "z", "tuned")]
    found = ranges(values)
    assert found["all"] | {"n": 4, "setups": 3, "in_range": 0.75, "widest": 2.0} == found["all"]
    assert found["all"]["setups_in_range"] == pytest.approx(2 / 3)
    assert found["tuned"]["in_range"] == 1.0
    assert found["held_out"]["n"] == 3
    assert found["held_out"]["median_error"] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"figure": "watts"}, "validation.reason.no_figure"),
        ({"model": "nobody/nothing"}, "validation.reason.model"),
        ({"tp": "many"}, "validation.reason.plan"),
        ({"gpu": "no-such-card"}, "validation.reason.refused"),
    ],
)
def test_a_damaged_row_is_missed_with_a_reason(change, reason):
    row = ROWS[0]
    outcome = predict(Row(kind="throughput", id="x", data={**row.data, **change}))
    assert not outcome.scored
    assert outcome.missed[0].reason.id == reason


def test_the_report_and_the_page_show_the_ranges():
    outcomes = [predict(row) for row in ROWS[::20]]
    found = summary(outcomes)["kinds"]["throughput"]
    assert found["ranges"]["all"]["n"] == len(outcomes)
    table = throughput.table(outcomes, Words())
    assert [row["Figures"] for row in table[:2]] == ["All figures", "Used to set the shares of the peak"]
    assert table[0]["n"] == str(len(outcomes))


def test_a_published_setup_opens_as_its_plan():
    row = next(row for row in ROWS if row.data["tp"] == 2)
    settings, page = accuracy.plan_of(row)
    assert page == "serving"
    assert (settings.gpu, settings.n_gpus, settings.serving.tp) == (row.data["gpu"], 2, 2)
