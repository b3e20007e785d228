"""Requests of unlike lengths: how many run at once, who waits, who is thrown out; simulated after the first paint."""

from __future__ import annotations

import streamlit as st

from calculator.errors import CalculatorError
from calculator.serving.lengths import Lengths
from calculator.serving.plan import ServingPlan
from calculator.serving.traffic import REQUESTS, Outlook, outlook
from ui import later
from ui.i18n import Words
from ui.kept import Kept
from ui.markdown import plain
from ui.screen import Screen
from ui.views.speed import seconds

_kept: Kept[Outlook | CalculatorError] = Kept(64)


@st.fragment
def traffic(screen: Screen, plan: ServingPlan, lengths: Lengths) -> None:
    words, shape, gpu = screen.words, screen.model.shape, screen.gpu
    st.subheader(words("explore.traffic.title"), anchor=False)
    key = (repr(plan), gpu.key, gpu.total_bytes, hash(lengths), id(screen.stored))
    with st.container(gap=None):
        found = _kept.get(shape, key)
        due = None if found is not None else later.token(id(shape), key)
        if later.asked(due, "traffic.later"):
            found = _kept.make(shape, key, lambda: _outlook(screen, plan, lengths))
        with st.container():
            if isinstance(found, CalculatorError):
                st.caption(plain(f"{words.text(found.message)} {words.text(found.remedy)}"))
                return
            st.table(
                {name: plain(value) for name, value in _rows(found, plan, words)}, border="horizontal",
                alt=words("explore.traffic.title"),
            )  # fmt: skip
            st.caption(plain(words("explore.traffic.about", requests_count=REQUESTS, kind=_kind(lengths, words))))


def _outlook(screen: Screen, plan: ServingPlan, lengths: Lengths) -> Outlook | CalculatorError:
    try:
        return outlook(screen.model.shape, plan, screen.gpu, lengths, screen.stored)
    except CalculatorError as error:
        return error


def _kind(lengths: Lengths, words: Words) -> str:
    return words.option("request_lengths", lengths.name)


def _rows(found: Outlook | None, plan: ServingPlan, words: Words) -> list[tuple[str, str]]:
    """Names and values; before the simulation the values are dots, in the same places."""
    names = ("lengths", "full", "longest", "split", "running", "waiting", "preempted")
    if found is None:
        return [(words(f"explore.traffic.{name}"), "…") for name in names]
    full, run, split = found.full, found.simulated, found.split
    unknown = words("explore.traffic.unknown")
    values = (
        words("explore.traffic.lengths.of", prompt_tokens=found.prompt_tokens, output_tokens=found.output_tokens),
        words("explore.traffic.full.of", p50_count=full.p50, p90_count=full.p90, p99_count=full.p99),
        words("explore.traffic.longest.of", p50_count=found.beside_longest.p50),
        words("explore.traffic.split.none") if not found.long_tokens else words(
            "explore.traffic.split.of", long_tokens=found.long_tokens, mixed_count=split.mixed,
            short_count=split.short_only, long_count=split.long_only,
        ),
        unknown if run is None else words(
            "explore.traffic.running.of", p50_count=run.running_p50, p90_count=run.running_p90,
            p99_count=run.running_p99, wished_count=plan.concurrency,
        ),
        unknown if run is None else words(
            "explore.traffic.overload", arrivals=rate(found.arrivals_per_s), served=rate(found.served_per_s)
        ) if found.overloaded else words(
            "explore.traffic.waiting.of", p50=seconds(run.waiting_p50_s), p90=seconds(run.waiting_p90_s),
            p99=seconds(run.waiting_p99_s),
        ),
        unknown if run is None else f"{run.preempted_share:.1%}",
    )  # fmt: skip
    return [(words(f"explore.traffic.{name}"), value) for name, value in zip(names, values, strict=True)]


def rate(requests_per_s: float) -> str:
    """ "0.042", "1.8", "24": requests a second, two digits."""
    return f"{requests_per_s:.2g}" if requests_per_s < 10 else f"{requests_per_s:,.0f}"
