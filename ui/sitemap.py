"""The pages of the app, in the order in which they are shown."""

from __future__ import annotations

from typing import Any

import streamlit as st


def pages() -> list[Any]:
    """A fresh declaration for ``st.navigation``; the first is the start page."""
    return [
        st.Page("pages/training.py", title="Training", default=True),
        st.Page("pages/finetuning.py", title="LoRA / QLoRA"),
        st.Page("pages/serving.py", title="Serving"),
        st.Page("pages/accuracy.py", title="Accuracy"),
    ]
