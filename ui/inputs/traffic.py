"""How long requests are: all alike, a kind of traffic, one's own distribution, or a file of measured lengths."""

from __future__ import annotations

import io

import streamlit as st

from calculator.errors import CalculatorError
from calculator.serving.lengths import Lengths, read_lengths
from calculator.serving.plan import ServingPlan
from calculator.serving.traffic import lengths_of
from ui.i18n import Words
from ui.inputs.form import Form
from ui.markdown import plain

KINDS = (None, "chat", "rag", "code", "long_document", "agent", "lognormal")
MEASURED = "traffic.measured"
_MOST_MB = 2


def traffic_inputs(form: Form, plan: ServingPlan, words: Words) -> None:
    form.select("request_lengths", KINDS, none="explore.traffic.alike")
    if plan.request_lengths == "lognormal":
        left, right = st.columns(2)
        with left:
            form.number("prompt_median_tokens", step=100)
            form.decimal("prompt_spread", 0.0, 4.0)
        with right:
            form.number("output_median_tokens", step=50)
            form.decimal("output_spread", 0.0, 4.0)
    with st.expander(words("explore.traffic.upload"), icon=":material/upload_file:", key="traffic.box"):
        file = st.file_uploader(
            words("explore.traffic.file"), type=["csv", "jsonl", "txt"], key="traffic.file", max_upload_size=_MOST_MB,
            help=words("explore.traffic.file.help"),
        )  # fmt: skip
        st.session_state[MEASURED] = None
        if file is not None:
            try:
                st.session_state[MEASURED] = read_lengths(io.TextIOWrapper(file, "utf-8", errors="replace"))
            except CalculatorError as error:
                said = f"{words.text(error.message)} {words.text(error.remedy)}"
                st.warning(plain(said), icon=":material/error:")


def lengths(plan: ServingPlan) -> Lengths | None:
    """The traffic to plan for: a file's if one was given, else the plan's; None where all requests are alike."""
    measured: Lengths | None = st.session_state.get(MEASURED)
    return measured or lengths_of(plan)
