"""The step over time: what is alive when, with the peak marked, and the same as a list of phases."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from calculator.bill import Bill, TimePoint
from ui.charts import PLOT_CONFIG, step_chart, step_text
from ui.i18n import Words


def step_over_time(points: Sequence[TimePoint], bill: Bill, words: Words) -> None:
    st.subheader(words("ui.section.step"), anchor=False)
    if not points:
        return
    said = step_text(points, words)
    st.plotly_chart(step_chart(points, bill, words), key="step.chart", config=PLOT_CONFIG, alt=said)
    st.caption(said)
