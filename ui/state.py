"""One visit's settings in session state, and the address bar as their mirror.

Widgets hold no truth of their own: each shows a field of the settings and, when it changes, writes that field. An
address that differs from what was written last comes from outside (a link, or back and forward) and is decoded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import streamlit as st

from ui import link, sitemap
from ui.i18n import Words, language_of
from ui.link import Problem
from ui.settings import PAGES, Page, Settings

_SETTINGS = "settings"
_WRITTEN = "address_written"
_PROBLEMS = "link_problems"
_ENTERED = "through_entry_point"
_SHOWN = "page_shown"
_FRESH = "page_fresh"


def begin(page: str) -> None:
    """Call first on every run: takes over what the address says if somebody else wrote it."""
    st.session_state[_ENTERED] = True
    st.session_state[_FRESH] = st.session_state.get(_SHOWN) != page
    st.session_state.setdefault(_SETTINGS, Settings())
    query = {key: st.query_params.get_all(key) for key in st.query_params}
    flat = {key: values[-1] for key, values in query.items() if values}
    if flat != st.session_state.get(_WRITTEN, {}):
        settings, problems = link.decode(query, page_of(page), current())
        st.session_state[_SETTINGS] = settings
        st.session_state[_PROBLEMS] = problems
    st.session_state[_WRITTEN] = flat


def mirror(page: str) -> None:
    """Call last: the address shows what the page shows."""
    query = link.encode(current(), page_of(page))
    if query != st.session_state[_WRITTEN]:
        st.query_params.from_dict(query)
        st.session_state[_WRITTEN] = query
    st.session_state[_SHOWN] = page


def page_of(url_path: str) -> Page:
    """The page's name from its address; the start page has none."""
    return cast(Page, url_path) if url_path in PAGES else PAGES[0]


def enter() -> Words:
    """Call first in every page: the words of this visit.

    A page that Streamlit ran without the entry point goes through it: until somebody has run ``app.py``, a server takes
    the files of ``pages/`` for an app of the old kind, and a link to a page would reach the page alone.
    """
    if not st.session_state.pop(_ENTERED, False):
        st.navigation(sitemap.pages(), position="hidden")
        st.rerun()
    return words()


def current() -> Settings:
    return cast(Settings, st.session_state[_SETTINGS])


def put(settings: Settings) -> None:
    st.session_state[_SETTINGS] = settings


def problems() -> tuple[Problem, ...]:
    """What of the last link could not be used."""
    return cast("tuple[Problem, ...]", st.session_state.get(_PROBLEMS, ()))


def forget_problems() -> None:
    st.session_state[_PROBLEMS] = ()


def words() -> Words:
    settings = current()
    return Words(language_of(settings, st.context.locale), settings.unit)


def bound(key: str, value: Any, write: Callable[[Any], None]) -> dict[str, Any]:
    """Arguments that tie a widget to one value of the settings: its key, and the callback that writes a change.

    ``value`` wins over what the widget remembers, so a link or another page's change is seen at once. On a page that
    has not been drawn to its end yet it is always set, since the widget of that key is another one on each page.
    """
    if st.session_state[_FRESH] or key not in st.session_state or st.session_state[key] != value:
        st.session_state[key] = value

    def changed() -> None:
        write(st.session_state[key])

    return {"key": key, "on_change": changed}
