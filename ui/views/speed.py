"""How fast the plan could be, as ranges: an estimate, with the share of the card's peak that it assumes."""

from __future__ import annotations

import streamlit as st

from calculator.bill import ServingFigures
from calculator.errors import CalculatorError
from calculator.serving.lengths import Lengths
from calculator.serving.plan import ServingPlan
from calculator.serving.speed import FAST, SLOW, Estimate, Speed, speed
from calculator.serving.wish import PROMPT_SHARE
from ui.i18n import Words
from ui.markdown import plain
from ui.screen import Screen


def speed_estimate(screen: Screen, plan: ServingPlan, figures: ServingFigures, lengths: Lengths | None) -> None:
    words = screen.words
    if not figures.starts:
        return
    st.subheader(words("explore.speed.title"), anchor=False)
    if lengths is None:
        context = min(plan.context_tokens or figures.max_model_len, figures.max_model_len)
        prompt = max(int(context * PROMPT_SHARE), 1)
        output = max(context - prompt, 1)
    else:
        pairs = lengths.capped(figures.max_model_len).draw(401, 7)
        prompt, output = (sorted(pair[i] for pair in pairs)[200] for i in (0, 1))
    running = max(1, min(-(-plan.concurrency // figures.replicas), int(figures.requests_at_context / figures.replicas)))
    try:
        found = speed(
            screen.model.shape, plan, screen.gpu, prompt_tokens=prompt, output_tokens=output, batch=running,
            stored=screen.stored,
        )  # fmt: skip
    except CalculatorError as error:
        st.caption(plain(f"{words.text(error.message)} {words.text(error.remedy)}"))
        return
    *times, rate = _rows(found, words)
    with st.container(key="speed"):
        with st.grid(2, min_column_width=175):
            for row in times:
                _tile(*row, words)
        _tile(*rate, words)
    shares = {
        "bandwidth_low": f"{SLOW.bandwidth:.0%}", "bandwidth_high": f"{FAST.bandwidth:.0%}",
        "compute_low": f"{SLOW.compute:.0%}", "compute_high": f"{FAST.compute:.0%}",
    }  # fmt: skip
    st.caption(plain(words(
        "explore.speed.about", prompt_tokens=prompt, output_tokens=output, requests_count=running,
        bound=words(f"explore.speed.bound.{found.bound}"), **shares,
    )))  # fmt: skip
    for note in _notes(found, words):
        st.caption(plain(note))
    for source in found.sources:
        st.caption(f"{plain(words.source(source))} [:material/open_in_new:]({source.url})")


def _notes(found: Speed, words: Words) -> list[str]:
    """What else the estimate takes for granted."""
    notes = []
    if (yields := found.step_tokens) is not None:
        notes.append(words("explore.speed.drafts", low=f"{yields.low:.1f}", value=f"{yields.value:.1f}",
                           high=f"{yields.high:.1f}"))  # fmt: skip
    if found.nodes > 1:
        notes.append(words("explore.speed.nodes", nodes_count=found.nodes))
    return notes


def _tile(name: str, value: str, note: str, words: Words) -> None:
    st.metric(
        words(f"explore.speed.{name}"), value, note, delta_color="off", delta_arrow="off", border=True,
        height="stretch", help=words(f"explore.speed.{name}.help"),
    )  # fmt: skip


def _rows(found: Speed, words: Words) -> list[tuple[str, str, str]]:
    usual = "explore.speed.usual"
    return [
        ("ttft", span(found.ttft_s), words(usual, value=seconds(found.ttft_s.value))),
        ("tpot", span(found.tpot_s), words(usual, value=seconds(found.tpot_s.value))),
        ("rate", f"{_plain(found.tokens_per_s.low)} – {_plain(found.tokens_per_s.high)}",
         words(usual, value=_plain(found.tokens_per_s.value))),
    ]  # fmt: skip


def _plain(number: float) -> str:
    """Three digits are more than an estimate knows."""
    step = 10 ** max(len(str(int(number))) - 2, 0)
    return f"{round(number / step) * step:,.0f}"


def seconds(value: float) -> str:
    """ "21 ms", "0.38 s", "1.4 s"."""
    if value < 0.1:
        return f"{1000 * value:.2g} ms" if value < 0.01 else f"{1000 * value:.0f} ms"
    return f"{value:.2f} s" if value < 1 else f"{value:.1f} s" if value < 10 else f"{value:,.0f} s"


def span(found: Estimate) -> str:
    """ "14 – 22 ms": both ends in the unit of the higher one."""
    high = seconds(found.high)
    unit = high.rpartition(" ")[2]
    scaled = found.low * (1000 if unit == "ms" else 1)
    low = f"{scaled:.1f}" if scaled < 10 and unit == "ms" else f"{scaled:.2f}" if scaled < 1 else f"{scaled:,.0f}"
    if unit == "s" and 1 <= scaled < 10:
        low = f"{scaled:.1f}"
    return f"{low} – {high}"
