"""What stands around every page: navigation with the settings in it, language and unit, title, phone buttons."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import streamlit as st

from ui import link, state
from ui.components.mount import mount
from ui.i18n import Words
from ui.settings import PLAN_PAGES, Page

ASSETS = Path(__file__).resolve().parents[1] / "assets"
ICONS: dict[Page, str] = {
    "training": ":material/model_training:",
    "finetuning": ":material/tune:",
    "serving": ":material/dns:",
    "accuracy": ":material/target:",
}
LANGUAGES = {"en": "English", "zh": "中文"}


def style() -> None:
    """Figures of equal width, and what only a phone or only a wide screen shows."""
    st.html(ASSETS / "app.css")


def navigation_places(pages: Sequence[Any]) -> list[Any]:
    """One place for each link, so that links can be drawn before the model is read and again when it is."""
    with st.container(horizontal=True, gap="small", key="nav"):
        return [st.empty() for _ in pages]


def navigation(places: Sequence[Any], pages: Sequence[Any], words: Words) -> None:
    """Links to the pages, each with the settings in it, so that one step in the browser's history is one page."""
    settings = state.current()
    for place, page in zip(places, pages, strict=True):
        name = state.page_of(page.url_path)
        place.page_link(
            page, label=words(f"ui.page.{name}"), icon=ICONS[name], help="",
            query_params=link.encode(settings, name) or None,
        )  # fmt: skip


def switches(words: Words) -> None:
    """Language and unit."""
    settings = state.current()

    def put(**changes: Any) -> None:
        state.put(state.current().model_copy(update=changes))

    with st.container(horizontal=True, gap="small", key="switches", width="content"):
        st.segmented_control(
            words("ui.field.language"), tuple(LANGUAGES), required=True, label_visibility="collapsed",
            format_func=lambda code: LANGUAGES[code],
            **state.bound("language", words.language, lambda code: put(language=code)),
        )  # fmt: skip
        st.segmented_control(
            words("ui.field.unit"), ("GiB", "GB"), required=True, label_visibility="collapsed",
            help=None, **state.bound("unit", settings.unit, lambda unit: put(unit=unit)),
        )  # fmt: skip


def title(page: Page, words: Words) -> None:
    """What the page is about, and on a phone the button to its inputs, which lie in a drawer there."""
    with st.container(gap=None, key="title"):
        st.title(words(f"ui.page.{page}.title"), anchor=False)
        st.caption(words(f"ui.page.{page}.about"))
        if page in PLAN_PAGES:
            with st.container(key="phone.open"):
                mount("drawer_button", {"label": words("ui.phone.open"), "place": "page"}, key="drawer.open")


def close_inputs(words: Words) -> None:
    with st.container(key="phone.close"):
        mount("drawer_button", {"label": words("ui.phone.close"), "place": "sidebar"}, key="drawer.close")
