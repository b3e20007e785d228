"""The Accuracy page: its figure, its links back into the app, and the page itself."""

from __future__ import annotations

import math
from threading import Event

import pytest
from streamlit.testing.v1 import AppTest

from calculator.errors import CalculatorError
from tests.source_files import ROOT
from ui import accuracy, link, scoring
from ui.i18n import Words
from validation import run, stream
from validation.outcome import Outcome, Scored, UnpredictableError
from validation.rows import Row, packaged

GIB = 1024**3
KEY = "peak_allocated_bytes"


def value(
    id_: str, measured: float, predicted: float, method: str = "full", key: str = "peak_allocated_bytes"
) -> Scored:
    return Scored(
        kind="training", id=id_, key=key, measured=measured * GIB, predicted=predicted * GIB, low=predicted * GIB,
        high=predicted * GIB, tags={"method": method, "source": "somewhere", "model": "m"},
    )  # fmt: skip


def test_the_scatter_puts_measured_across_and_predicted_up_by_method():
    values = [value("a", 10, 11), value("b", 20, 18, "lora"), value("c", 40, 44), value("d", 1, 1, key="other_bytes")]
    figure = accuracy.scatter(values, KEY, Words())
    points = {trace.name: trace for trace in figure.data if trace.mode == "markers"}
    assert sorted(list(trace.customdata) for trace in points.values()) == [["a", "c"], ["b"]]
    by_id = {
        id_: (x, y) for trace in points.values() for id_, x, y in zip(trace.customdata, trace.x, trace.y, strict=True)
    }
    assert by_id == {"a": (10, 11), "b": (20, 18), "c": (40, 44)}
    colours = {trace.marker.color for trace in points.values()}
    assert len(colours) == len({trace.marker.symbol for trace in points.values()}) == 2


def test_the_axes_are_equal_and_the_diagonal_runs_from_corner_to_corner():
    figure = accuracy.scatter([value("a", 10, 30), value("b", 100, 50)], KEY, Words())
    assert figure.layout.xaxis.range == figure.layout.yaxis.range
    low, high = (10**end for end in figure.layout.xaxis.range)
    diagonal = next(trace for trace in figure.data if trace.mode == "lines" and trace.fill is None)
    assert list(diagonal.x) == list(diagonal.y) == pytest.approx([low, high])
    band = next(trace for trace in figure.data if trace.fill == "toself")
    assert [y / x for x, y in zip(band.x, band.y, strict=True)] == pytest.approx([0.9, 0.9, 1.1, 1.1])
    assert low < 10 < 100 < high
    assert all(math.isfinite(tick) for tick in figure.layout.xaxis.tickvals)


def test_an_empty_selection_still_draws():
    assert accuracy.scatter([], KEY, Words()).layout.xaxis.type == "log"


def test_the_sentence_counts_what_lies_in_the_band():
    text = accuracy.scatter_text([value("a", 10, 11), value("b", 10, 12)], KEY, Words())
    assert text.startswith("1 of 2 ")


@pytest.mark.parametrize("kind", ["training", "serving", "lab"])
def test_a_case_opens_as_its_own_plan(kind):
    opened = 0
    for row in packaged(kind)[:: 5 if kind != "lab" else 20]:
        try:
            settings, page = accuracy.plan_of(row)
        except (UnpredictableError, CalculatorError):
            continue
        target, query = accuracy.address(row)
        assert target == page
        again, problems = link.decode(query, page)
        assert not problems
        if kind == "serving":
            assert again.serving_plan() == settings.serving_plan()
        else:
            assert again.training_plan(page) == settings.training_plan(page)
        opened += 1
    assert opened > 12


def test_a_link_says_what_the_case_says():
    row = next(row for row in packaged("training") if row.id == "fms-bench-mistral-7b-v0.1-none-lora-g1-bs4")
    page, query = accuracy.address(row)
    again, _ = link.decode(query, page)
    plan = again.training_plan(page)
    case = row.data
    assert page == "finetuning"
    assert (plan.micro_batch, plan.seq_len, plan.optimizer, plan.loss) == (
        case["micro_batch"], case["seq_len"], case["optimizer"], case["loss"],
    )  # fmt: skip
    assert plan.transformers_version == "4.48.1"
    assert plan.gpu == "a100-80gb-sxm4"


def test_picked_points_give_their_case():
    assert accuracy.picked_id([]) is None
    assert accuracy.picked_id([{"customdata": "x"}]) == "x"
    assert accuracy.picked_id([{"customdata": ["y"]}]) == "y"


def test_what_is_missing_is_listed_with_its_reason():
    outcomes = [Outcome(kind="training", id="a", complete=True, wanted=0)]
    assert accuracy.missed_table(outcomes, Words()) == []
    broken = Row(kind="training", id="b", data={"method": "full", "measured": {}, "score": ["x"], "complete": True})
    (entry,) = accuracy.missed_table([run.predict(broken)], Words())
    assert "b" in entry.values()


@pytest.fixture
def few_rows(monkeypatch):
    """Scores one row in 24, and forgets it afterwards."""
    monkeypatch.setattr(scoring, "packaged", lambda kind: packaged(kind)[::24])
    monkeypatch.setattr(scoring, "streamed", lambda kind: map(run.predict, packaged(kind)[::24]))
    scoring.scoring.clear()
    yield
    scoring.scoring.clear()


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_page_runs_and_shows_every_kind(language, few_rows):
    at = AppTest.from_file(str(ROOT / "app.py"), default_timeout=60)
    at.query_params["l"] = language
    at.run()
    for kind in accuracy.QUANTITIES:
        scoring.scoring(kind).wait(60)
    at.switch_page("pages/accuracy.py").run()
    assert not at.exception
    assert at.metric[0].label in ("Cases", "样本数")
    for kind in ("serving", "lab", "throughput"):
        at.session_state["accuracy_kind"] = kind
        at.run()
        assert not at.exception
        assert at.metric or at.info


def test_the_page_says_how_far_it_is_while_cases_are_missing(few_rows, monkeypatch):
    go_on = Event()
    rows = packaged("training")[::24]
    monkeypatch.setattr(scoring, "streamed", lambda kind: (run.predict(row) for row in rows if go_on.wait(60)))
    at = AppTest.from_file(str(ROOT / "app.py"), default_timeout=60).run()
    at.switch_page("pages/accuracy.py").run()
    assert not at.exception
    assert not at.metric
    found = scoring.scoring("training")
    assert found.outcomes is None
    go_on.set()
    found.wait(60)
    assert [outcome.id for outcome in found.outcomes] == [row.id for row in packaged("training")[::24]]
    at.run()
    assert at.metric


def test_a_reserved_figure_on_the_page_is_the_replayed_one(few_rows):
    found = scoring.scoring("training")
    found.wait(60)
    scored = [value for outcome in found.outcomes for value in outcome.scored if value.key == "process_bytes"]
    assert scored
    rows = {row.id: row for row in packaged("training")}
    for value in scored:
        again = next(v for v in run.predict(rows[value.id], replay=True).scored if v.key == value.key)
        assert value == again


def test_the_stream_gives_what_predicting_gives():
    assert list(scoring.streamed("serving")) == [run.predict(row) for row in packaged("serving")]


def test_a_stream_that_breaks_off_is_said_and_can_be_tried_again(few_rows, monkeypatch):
    monkeypatch.setattr(scoring, "streamed", lambda kind: iter(()))
    scoring.scoring("training").wait(60)
    at = AppTest.from_file(str(ROOT / "app.py"), default_timeout=60).run()
    at.switch_page("pages/accuracy.py").run()
    assert at.error
    monkeypatch.setattr(scoring, "streamed", lambda kind: map(run.predict, packaged(kind)[::24]))
    at.button[-1].click().run()
    scoring.scoring("training").wait(60)
    at.run()
    assert not at.error
    assert at.metric


def test_the_stream_names_the_kinds_that_there_are(capsys):
    assert stream.main(["nothing"]) == 2
    assert "training" in capsys.readouterr().err
