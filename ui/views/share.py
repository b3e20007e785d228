"""Share and take away: the link that restores the page, and the bill as a file."""

from __future__ import annotations

import json
from collections.abc import Callable

import streamlit as st

from calculator.bill import Bill
from calculator.jsonout import bill_json
from calculator.serving.plan import ServingPlan
from calculator.training.plan import TrainingPlan
from ui import link, state, takeaway
from ui.components.mount import mount
from ui.screen import Screen
from ui.settings import Page
from ui.views.card import card_line
from ui.views.verdict import need_text, where


def share(
    page: Page,
    screen: Screen,
    bill: Bill,
    plan: TrainingPlan | ServingPlan,
    settled: Callable[[], Bill] | None = None,
) -> None:
    """``settled`` gives the bill that the files hold, where it is another than the one of the first paint."""
    words, model = screen.words, screen.model
    final = settled or (lambda: bill)
    st.subheader(words("ui.section.share"), anchor=False)
    query = link.to_query_string(link.encode(state.current(), page))
    labels = {name: words(f"ui.share.{name}") for name in ("label", "copy", "copied", "failed")}
    mount("share_link", {"query": query, **labels}, key="share.link")
    lines = (
        f"{model.name}: {card_line(model, words)}",
        where(screen.gpu, plan.n_gpus, words),
        need_text(bill, words),
    )

    def as_json() -> str:
        written = bill_json(final(), model, plan, screen.gpu, words.language, words.unit)
        return json.dumps(written, ensure_ascii=False, indent=2)

    files = (
        ("json", "application/json", as_json),
        ("csv", "text/csv", lambda: takeaway.as_csv(final(), words)),
        ("md", "text/markdown", lambda: takeaway.as_markdown(final(), words, words(f"ui.page.{page}.title"), lines)),
    )  # fmt: skip
    with st.container(horizontal=True, gap="small"):
        for ending, kind, write in files:
            st.download_button(
                words(f"ui.share.{ending}"), write, file_name=f"vram-bill-{page}.{ending}", mime=kind,
                key=f"share.{ending}", icon=":material/download:", on_click="ignore",
            )  # fmt: skip
