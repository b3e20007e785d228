"""Figures show what the bill says: every item once, in its colour, adding up, on an axis that holds still."""

import re
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculator.bill import Basis
from calculator.render import catalogue
from calculator.units import GIB
from tests.ui.bills import STEP, bill, item, training_bill
from ui import charts
from ui.i18n import Words
from ui.palette import COLOURS
from ui.views.table import table_data

WORDS = (Words(), Words("zh"), Words("en", "GB"))


@pytest.mark.parametrize("words", WORDS)
def test_the_bar_holds_every_item_once_and_adds_up(words: Words) -> None:
    made = training_bill()
    figure = charts.bill_bar(made, words)
    shown = [i for i in made.items if i.bytes]
    assert [trace.name for trace in figure.data] == [i.key for i in shown]
    size = GIB if words.unit == "GiB" else 10**9
    assert sum(trace.x[0] for trace in figure.data) == pytest.approx(made.process.value / size)
    assert [trace.marker.color for trace in figure.data] == [COLOURS[i.key] for i in shown]
    assert figure.layout.barmode == "stack"


def test_the_capacity_line_stands_at_the_capacity() -> None:
    figure = charts.bill_bar(training_bill(), Words())
    assert [shape.x0 for shape in figure.layout.shapes] == [80.0]
    assert figure.layout.xaxis.range[1] == pytest.approx(88.0)
    assert figure.layout.annotations[0].text == "80.00 GiB capacity"


def test_a_budget_gets_its_own_line() -> None:
    figure = charts.bill_bar(training_bill(), Words(), budget_bytes=72 * GIB)
    assert [(shape.x0, shape.line.dash) for shape in figure.layout.shapes] == [(80.0, "solid"), (72.0, "dot")]


@given(st.floats(1, 79), st.floats(1, 79))
def test_the_axis_holds_still_while_the_plan_fits(one: float, other: float) -> None:
    ends = [charts.bill_bar(bill(item("weights", g)), Words()).layout.xaxis.range for g in (one, other)]
    assert ends[0] == ends[1]


@given(st.floats(0.001, 1e6))
def test_the_axis_holds_everything(gib: float) -> None:
    made = bill(item("weights", gib))
    end = charts.bill_bar(made, Words()).layout.xaxis.range[1]
    assert end >= max(gib, 80.0)


@pytest.mark.parametrize("words", WORDS)
def test_the_step_stacks_what_is_alive(words: Words) -> None:
    figure = charts.step_chart(STEP, training_bill(), words)
    areas = [trace for trace in figure.data if trace.stackgroup]
    size = GIB if words.unit == "GiB" else 10**9
    assert [trace.name for trace in areas] == [
        "parameters",
        "gradients",
        "optimizer_states",
        "checkpoints",
        "logits_loss",
    ]
    for at, point in enumerate(STEP):
        assert sum(trace.y[at] for trace in areas) == pytest.approx(sum(point.items.values()) / size)
    assert {trace.line.shape for trace in areas} == {"hv"}


def test_the_peak_is_marked_where_most_is_alive() -> None:
    figure = charts.step_chart(STEP, training_bill(), Words())
    mark = next(trace for trace in figure.data if trace.name == "peak")
    assert (mark.x[0], mark.y[0]) == (4.5, 62.5)  # six points of equal width, the fifth is the peak
    assert figure.layout.annotations[0].text == "peak 62.50 GiB"
    assert list(figure.layout.xaxis.ticktext) == ["load", "forward", "loss", "backward", "optimizer step"]


def test_figures_have_a_text_twin() -> None:
    said = charts.bar_text(training_bill(), Words())
    assert "Optimizer states 30.00 GiB" in said
    assert "80.00 GiB" in said
    assert "backward 62.50 GiB" in charts.step_text(STEP, Words())


def test_one_order_for_items_in_every_figure() -> None:
    order = [key for key in COLOURS if key in {trace.name for trace in charts.bill_bar(training_bill(), Words()).data}]
    assert [trace.name for trace in charts.bill_bar(training_bill(), Words()).data] == order


@pytest.mark.parametrize("words", WORDS)
def test_the_table_closes_each_layer_with_its_total(words: Words) -> None:
    made = training_bill()
    rows = table_data(made, words)["rows"]
    totals = [row["amount"] for row in rows if row.get("total")]
    assert totals == [words.size(t.value) for t in (made.allocated, made.reserved, made.process)]
    shares = [row["share"] for row in rows if "share" in row]
    assert sum(shares) == pytest.approx(1.0)
    heading = next(index for index, row in enumerate(rows) if row.get("heading"))
    assert [row["amount"] for row in rows[heading + 1 :]] == ["–"]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_basis_has_words(language: str) -> None:
    assert all(f"ui.basis.{basis}" in catalogue(language) for basis in get_args(Basis))


def test_one_template_and_no_style_in_figures() -> None:
    for figure in (charts.bill_bar(training_bill(), Words()), charts.step_chart(STEP, training_bill(), Words())):
        assert figure.layout.template.layout.showlegend is False
        assert figure.layout.font.color is None
        assert figure.layout.paper_bgcolor is None


def test_no_text_of_the_pages_is_missing() -> None:
    """Every message id in the code of the pages stands in both catalogues."""
    from pathlib import Path

    root = Path(__file__).resolve().parents[2]
    sources = [*(root / "ui").rglob("*.py"), *(root / "pages").glob("*.py"), root / "app.py"]
    ids = {i for s in sources for i in re.findall(r'"(ui\.[a-z_0-9.]+[a-z_0-9])"', s.read_text("utf-8"))}
    assert len(ids) > 40
    for language in ("en", "zh"):
        assert not ids - set(catalogue(language))


def test_short_phases_can_be_seen_beside_long_ones() -> None:
    points = [STEP[0], *([STEP[1]] * 80), STEP[3], *([STEP[4]] * 80), STEP[5]]
    edges = charts.step_edges(points)
    assert len(edges) == len(points) + 1
    assert edges == sorted(edges)
    loss = points.index(STEP[3])
    assert (edges[loss + 1] - edges[loss]) / edges[-1] > 0.08
    assert edges[2] - edges[1] == edges[80] - edges[79] == 1.0
