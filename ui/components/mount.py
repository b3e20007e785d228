"""Registers the components once, from their files in ``assets/components``."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import streamlit as st

_FOLDER = Path(__file__).resolve().parents[2] / "assets" / "components"
_HTML = {
    "bill_table": '<div class="bill"></div>',
    "layer_strip": '<div class="strip"></div>',
    "share_link": '<div class="share"><input readonly><button type="button"></button><span role="status"></span></div>',
    "drawer_button": '<button type="button"></button>',
    "fit_grid": '<div class="grid"></div>',
    "later": "<span></span>",
    "rank_bars": '<div class="ranks"></div>',
}


@cache
def _renderer(name: str) -> Any:
    return st.components.v2.component(
        f"vram_bill.{name}",
        html=_HTML[name],
        css=(_FOLDER / f"{name}.css").read_text("utf-8"),
        js=(_FOLDER / f"{name}.js").read_text("utf-8"),
    )


def mount(name: str, data: dict[str, Any], key: str, **callbacks: Callable[[], None]) -> Any:
    """Shows component ``name`` with ``data``, which reaches the browser as JSON. ``callbacks`` (``on_<name>_change``)
    run when the component sends a value, and the result then holds it."""
    return _renderer(name)(data=data, key=key, **callbacks)
