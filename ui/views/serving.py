"""The result of the serving page."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from calculator.bill import Bill, ServingFigures
from calculator.errors import CalculatorError
from calculator.serving.plan import ServingPlan
from ui.i18n import Words
from ui.inputs.traffic import lengths
from ui.markdown import plain
from ui.screen import Screen
from ui.views import notes, share, table, verdict
from ui.views.capacity import capacity
from ui.views.cards import fewest_cards
from ui.views.speed import speed_estimate
from ui.views.start import start_it
from ui.views.traffic import traffic

BillOf = Callable[..., Bill]


def serving_page(screen: Screen, bill_of: BillOf) -> None:
    words, shape, gpu = screen.words, screen.model.shape, screen.gpu
    plan = screen.settings.serving_plan(shape)
    try:
        bill = bill_of(shape, plan, gpu, screen.stored)
    except CalculatorError as error:
        notes.refusal(error, words)
        return
    figures = bill.serving
    if figures is None:
        return
    named = {"model": verdict.short_name(screen.model), "where": verdict.where(gpu, plan.n_gpus, words)}
    verdict.headline(bill.verdict, _sentence(bill, figures, named, words), _detail(bill, figures, words))
    _figures(bill, figures, words)
    table.bar(bill, words, budget_bytes=figures.budget_bytes)
    traffic_lengths = lengths(plan)
    left, right = st.columns([5, 4], gap="large")
    with left:
        capacity(screen, plan, bill, bill_of)
        start_it(screen, plan)
    with right:
        speed_estimate(screen, plan, figures, traffic_lengths)
    if traffic_lengths is not None:
        traffic(screen, plan, traffic_lengths)
    table.bill_table(bill, words)
    fewest_cards(screen, plan)
    left, right = st.columns(2, gap="large")
    with left:
        _budget(figures, plan, words)
    with right:
        notes.assumptions((*screen.model.assumptions, *bill.assumptions), words)
    share.share("serving", screen, bill, plan)


def _sentence(bill: Bill, figures: ServingFigures, named: dict[str, str], words: Words) -> str:
    """The answer to the wish: held or not, the most that fits, and the figure to plan with."""
    if not figures.starts:
        return words("ui.serving.no", **named)
    if figures.moved is not None:
        return words("ui.serving.moved", **named)
    return words(
        f"ui.serving.{bill.verdict}", **named, wished_count=figures.wished_requests,
        most_count=int(figures.requests_at_context), practical_count=figures.practical_requests,
    )  # fmt: skip


def _detail(bill: Bill, figures: ServingFigures, words: Words) -> str:
    if figures.refusal is not None:
        return words.text(figures.refusal)
    moved = "" if figures.moved is None else words.text(figures.moved) + " "
    return moved + words(
        "ui.serving.detail", need_bytes=bill.need.value, process_bytes=bill.process.value,
        capacity_bytes=bill.capacity_bytes,
    )  # fmt: skip


def _figures(bill: Bill, figures: ServingFigures, words: Words) -> None:
    """The pool, what it holds, what the wish needs, and what the engine takes."""
    ranges = figures.ranges
    pool = ranges.get("kv_pool_bytes")
    exact = words("ui.figure.exact")
    token = words("ui.serving.per_token", token_bytes=figures.bytes_per_token)
    rows = (
        ("pool", words.size(max(figures.kv_pool_bytes, 0)), verdict.spread(pool, words) if pool else exact),
        ("tokens", f"{max(figures.kv_tokens, 0):,}", token),
        ("need", words.size(bill.need.value), words("ui.serving.for_wish", wished_count=figures.wished_requests)),
        ("process", words.size(bill.process.value), verdict.over_card(bill, words) or words("ui.serving.reserves")),
    )  # fmt: skip
    name = "ui.serving.figure."
    verdict.tiles([(words(name + key), value, note, words(f"{name}{key}.help")) for key, value, note in rows])


def _budget(figures: ServingFigures, plan: ServingPlan, words: Words) -> None:
    """How the engine's memory budget is split, what the pool comes to, and what to plan with: two rules of thumb, each
    on its own."""
    st.subheader(words("ui.section.budget"), anchor=False)
    rows = {
        "budget": words("ui.budget.of", share=f"{figures.memory_fraction:.0%}", budget_bytes=figures.budget_bytes),
        "weights": words.size(figures.weights_bytes),
        "workspace": words.size(figures.activation_bytes),
        "non_torch": words.size(figures.non_torch_bytes),
        "pool": words.size(max(figures.kv_pool_bytes, 0)),
        "request": words("ui.budget.request", context_tokens=figures.max_model_len, kv_bytes=figures.kv_needed_bytes),
        "wished": words.size(figures.needed_pool_bytes),
        "most": f"{figures.max_concurrency:,.1f}",
        "longest": words("ui.budget.tokens", longest_tokens=figures.longest_context_tokens),
        "practical": words("ui.budget.practical", share=f"{plan.practical_share:.0%}",
                           requests_count=figures.practical_requests),
        "reserve": words("ui.budget.reserve", share=f"{plan.peak_reserve:.0%}",
                         reserve_bytes=figures.peak_reserve_bytes, requests_count=figures.steady_requests),
    }  # fmt: skip
    if figures.host_bytes:
        rows["host"] = words.size(figures.host_bytes)
    if figures.host_cache_tokens:
        rows["host_cache"] = words("ui.budget.tokens", longest_tokens=figures.host_cache_tokens)
    st.table(
        {words(f"ui.budget.{key}.name"): plain(value) for key, value in rows.items()}, border="horizontal",
        alt=words("ui.section.budget"),
    )  # fmt: skip
    st.caption(words("ui.budget.rules"))
