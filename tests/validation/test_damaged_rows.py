"""Rows with fields missing, null or of the wrong kind: each still gives an outcome that says what became of it."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from validation.rows import PACKAGED, Row, kind_of, packaged
from validation.run import predict, summary

ODD = [None, "", "?", -1, 0, 3.5, 10**30, True, [], ["x"], {}, {"x": 1}]


@st.composite
def damaged(draw) -> Row:
    kind = draw(st.sampled_from(PACKAGED))
    row = draw(st.sampled_from(packaged(kind)[:60]))
    data = dict(row.data)
    for name in draw(st.lists(st.sampled_from(sorted(data)), min_size=1, max_size=4, unique=True)):
        value = draw(st.sampled_from(["drop", *ODD]))
        if value == "drop":
            data.pop(name, None)
        else:
            data[name] = value
    return Row(kind=kind_of(data), id=row.id, data=data)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(damaged())
def test_a_damaged_row_is_scored_or_missed_never_lost(row: Row):
    outcome = predict(row, replay=False)
    assert outcome.id == row.id
    assert outcome.scored or outcome.missed or outcome.judged or not outcome.wanted
    report = summary([outcome])
    assert report["rows"]["total"] == 1
    assert len(report["unpredicted"]) == len(outcome.missed)
