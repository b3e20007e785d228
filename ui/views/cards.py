"""Which cards would do for the wish, and how many: asked for by a button, since every card is tried."""

from __future__ import annotations

from typing import Any

import streamlit as st

from calculator import hardware
from calculator.errors import CalculatorError
from calculator.serving.plan import ServingPlan
from calculator.serving.split import BY_CARD
from calculator.serving.wish import Option, options, wished_context
from ui import state
from ui.i18n import Words
from ui.inputs.serving import goal_inputs
from ui.kept import Kept
from ui.markdown import plain
from ui.screen import Screen
from ui.views.speed import seconds
from ui.views.start import command_of, show

CARDS = (
    "t4-16gb", "l4-24gb", "a10g-24gb", "rtx-3090-24gb", "rtx-4090-24gb", "rtx-5090-32gb", "l40s-48gb",
    "rtx-a6000-48gb", "rtx-pro-6000-96gb", "a100-40gb-sxm4", "a100-80gb-sxm4", "h100-80gb-sxm", "h200-141gb-sxm",
    "b200-180gb-sxm", "mi300x-192gb",
)  # fmt: skip
"""The cards that people choose between, besides the plan's own."""

_kept: Kept[tuple[Option, ...]] = Kept(64)
_ASKED = "cards_asked"


@st.fragment
def fewest_cards(screen: Screen, plan: ServingPlan) -> None:
    words = screen.words
    st.subheader(words("explore.cards.title"), anchor=False)
    context = wished_context(plan)
    st.caption(plain(words("explore.cards.about", wished_count=plan.concurrency, context_tokens=context or 0)))
    goal_inputs(words)
    plan = state.current().serving_plan(screen.model.shape)
    key = repr(plan.model_copy(update={"gpu": "", "n_gpus": 1, "tp": 1, "pp": 1, "dp": 1}))
    st.button(
        words("explore.cards.find"), icon=":material/search:", key="cards.find", on_click=_ask, args=(key,),
    )  # fmt: skip
    found = _kept.get(screen.model.shape, key)
    if found is None and st.session_state.get(_ASKED) == key:
        try:
            found = _kept.make(screen.model.shape, key, lambda: _search(screen, plan))
        except CalculatorError as error:
            st.caption(plain(f"{words.text(error.message)} {words.text(error.remedy)}"))
            return
    if found is None:
        return
    if not found:
        st.caption(words("explore.cards.none"))
        return
    st.table([_row(option, words) for option in found], border="horizontal", alt=words("explore.cards.title"))
    best = found[0]
    st.caption(plain(words("explore.cards.start", cards=_cards(best))))
    try:
        command = command_of(screen, best.plan)
    except CalculatorError as error:
        st.caption(plain(words.text(error.message)))
    else:
        show(command, words)


def _ask(key: str) -> None:
    st.session_state[_ASKED] = key


def _search(screen: Screen, plan: ServingPlan) -> tuple[Option, ...]:
    own = [screen.gpu] if screen.gpu.key not in (*CARDS, "custom") else []
    cards = [*own, *(hardware.find(key) for key in CARDS)]
    return options(screen.model.shape, plan, cards, stored=screen.stored)


def _cards(option: Option) -> str:
    return f"{option.plan.n_gpus} × {hardware.find(option.plan.gpu).name}"


def _layout(plan: ServingPlan) -> str:
    degrees = f"TP {plan.tp} × DP {plan.dp}"
    return f"{degrees} × EP {plan.ep}" if plan.ep > 1 else degrees


def _row(option: Option, words: Words) -> dict[str, Any]:
    rate = option.speed
    unknown = words("explore.cards.unknown")
    values = {
        "cards": _cards(option),
        "layout": words("explore.cards.by_layer") if option.plan.engine in BY_CARD else _layout(option.plan),
        "requests": f"{option.requests:,}",
        "need": words.size(option.need_bytes),
        "ttft": seconds(rate.ttft_s.value) if rate else unknown,
        "tpot": seconds(rate.tpot_s.value) if rate else unknown,
    }
    return {words(f"explore.cards.column.{name}"): plain(value) for name, value in values.items()}
