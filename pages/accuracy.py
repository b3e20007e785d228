"""Accuracy: predicted memory against what real runs were measured to hold."""

from collections.abc import Sequence

import streamlit as st

from calculator.errors import CalculatorError
from ui import accuracy, state, throughput
from ui.charts import PLOT_CONFIG
from ui.scoring import Scoring, scoring
from validation.outcome import Outcome, UnpredictableError
from validation.rows import Kind

words = state.enter()
say = words

st.caption(say("validation.page.intro"))

with st.container(horizontal=True, vertical_alignment="bottom"):
    kind = st.selectbox(
        say("validation.page.kind"),
        list(accuracy.QUANTITIES),
        format_func=lambda name: say(f"validation.kind.{name}"),
        key="accuracy_kind",
    )
    key = st.selectbox(
        say("validation.column.key"),
        accuracy.QUANTITIES[kind],
        format_func=lambda name: say(f"validation.key.{name}"),
        key=f"accuracy_key_{kind}",
    )


@st.fragment(run_every=1.0)
def progress(scored: Scoring) -> None:
    """How far the scoring is; the page runs again when it is done."""
    if scored.outcomes is not None or scored.broken:
        st.rerun()
    share = scored.done / max(scored.total, 1)
    st.progress(share, text=say("validation.page.computing", done_count=scored.done, total_count=scored.total))


def one_quantity(kind: Kind, key: str, outcomes: Sequence[Outcome]) -> None:
    """The figures of one quantity, its scatter, and the case that was picked."""
    values = accuracy.complete_values(outcomes, key)
    found = accuracy.figures_of(values)
    if found is None:
        st.info(say("validation.page.nothing"), icon=":material/info:")
        return
    with st.container(horizontal=True):
        st.metric(say("validation.page.cases"), found.n, border=True)
        st.metric(say("validation.column.median_ape"), f"{found.median_ape:.2%}", border=True)
        st.metric(say("validation.column.p90_ape"), f"{found.p90_ape:.1%}", border=True)
        st.metric(say("validation.column.bias"), f"{found.bias:+.2%}", border=True)
        st.metric(say("validation.page.within_10"), f"{found.within_10:.0%}", border=True)
    event = st.plotly_chart(
        accuracy.scatter(values, key, words, accuracy.COLOUR_TAG[kind]),
        config=PLOT_CONFIG,
        on_select="rerun",
        selection_mode="points",
        key=f"accuracy_scatter_{key}",
    )
    st.caption(f"{accuracy.scatter_text(values, key, words)} {say('validation.page.pick')}")
    points = event.selection.points
    picked = accuracy.picked_id(points)
    ids = [value.id for value in accuracy.worst_first(values)]
    chosen = st.selectbox(
        say("validation.page.case"),
        ids,
        index=ids.index(picked) if picked in ids else 0,
        key=f"accuracy_case_{key}_{picked}",
    )
    case = next(value for value in values if value.id == chosen)
    with st.container(border=True):
        st.markdown(accuracy.case_text(case, words))
        with st.container(horizontal=True):
            if case.tags.get("url", "").startswith("https://"):
                st.link_button(say("validation.page.source"), case.tags["url"], icon=":material/link:")
            try:
                page, query = accuracy.address(accuracy.row_of(kind, chosen))
            except (UnpredictableError, CalculatorError):
                page, query = "", {}
            if page:
                st.page_link(
                    f"pages/{page}.py",
                    label=say("validation.page.open"),
                    icon=":material/open_in_new:",
                    query_params=query,
                )


def everything(kind: Kind, outcomes: Sequence[Outcome]) -> None:
    """The tables over all quantities, the verdicts, and what could not be predicted."""
    st.subheader(say("validation.page.tables"))
    tags = accuracy.GROUP_TAGS[kind]
    for tab, tag in zip(
        st.tabs([say("validation.page.all"), *(say(f"validation.by.{tag}") for tag in tags)]),
        [None, *tags],
        strict=True,
    ):
        with tab:
            st.dataframe(accuracy.table(outcomes, tag, words), hide_index=True, width="stretch")

    if kind == "throughput":
        st.subheader(say("validation.speed.ranges"))
        st.dataframe(throughput.table(outcomes, words), hide_index=True, width="stretch")
        st.caption(say("validation.speed.text"))

    judged = accuracy.verdicts(outcomes, words)
    if judged:
        st.subheader(say("validation.page.verdicts"))
        st.markdown(judged)

    st.subheader(say("validation.page.missing"))
    st.markdown(say(f"validation.page.missing.{kind}"))
    missed = accuracy.missed_table(outcomes, words)
    if missed:
        st.dataframe(missed, hide_index=True, width="stretch")


scored = scoring(kind)
if scored.broken:
    st.error(say("validation.page.broken"), icon=":material/error:")
    st.button(say("ui.try_again"), icon=":material/refresh:", on_click=scoring.clear)
elif scored.outcomes is None:
    progress(scored)
else:
    one_quantity(kind, key, scored.outcomes)
    everything(kind, scored.outcomes)
