"""The pages of the app, in the order in which they are shown."""

from __future__ import annotations

from typing import Any

import streamlit as st

START = "pages/training.py"


def pages() -> list[Any]:
    """A fresh declaration for ``st.navigation``. The start page answers at its own name too, as people type it."""
    return [*_shown(), st.Page(START, title="Training", url_path="training", visibility="hidden")]


def _shown() -> list[Any]:
    return [
        st.Page(START, title="Training", default=True, url_path="start"),
        st.Page("pages/finetuning.py", title="LoRA / QLoRA"),
        st.Page("pages/serving.py", title="Serving"),
        st.Page("pages/accuracy.py", title="Accuracy"),
    ]


def links(current: Any) -> list[Any]:
    """The pages to link to; the start page under the name by which it is being looked at."""
    shown = _shown()
    return [current, *shown[1:]] if current.url_path == "training" else shown
