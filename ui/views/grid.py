"""A table of plans coloured by fit: the plan's own cell is marked, and a click on another takes it over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st

from calculator.bill import Verdict
from calculator.units import in_unit
from ui.components.mount import mount
from ui.i18n import Words


@dataclass(frozen=True, slots=True)
class Field:
    """What a cell shows and says. ``verdict`` None: nothing to show."""

    verdict: Verdict | None
    text: str
    title: str
    mine: bool = False


def short_tokens(count: int) -> str:
    """ "8K" where it is a whole number of 1,024, else the number."""
    return f"{count // 1024}K" if count >= 1024 and count % 1024 == 0 else f"{count:,}"


def rounded(amount_bytes: int, words: Words) -> str:
    """A size in few characters, without its unit."""
    amount = in_unit(amount_bytes, words.unit)
    return f"{amount:,.1f}" if amount < 9.95 else f"{amount:,.0f}"


def fit_grid(
    key: str,
    caption: str,
    titles: tuple[str, str],
    columns: Sequence[str],
    rows: Sequence[tuple[str, Sequence[Field]]],
    words: Words,
    *,
    stale: bool = False,
    pick: Callable[[int, int], None] | None = None,
    names: str = "explore.legend",
) -> None:
    """Draws the table. ``titles`` name the rows' and the columns' axis; ``pick`` is told the row and column of a
    clicked cell; ``names`` are the legend's texts; a ``stale`` table is that of an earlier plan and is shown
    faintly."""

    def picked() -> None:
        place = getattr(st.session_state.get(key), "pick", None)
        if pick is not None and isinstance(place, list) and len(place) == 2 and all(isinstance(p, int) for p in place):
            row, column = place
            if 0 <= row < len(rows) and 0 <= column < len(columns):
                pick(row, column)
                st.session_state[_PICKED] = True

    mount("fit_grid", grid_data(caption, titles, columns, rows, words, stale, names), key, on_pick_change=picked)
    if st.session_state.pop(_PICKED, False):
        st.rerun()


_PICKED = "grid_picked"


def grid_data(
    caption: str,
    titles: tuple[str, str],
    columns: Sequence[str],
    rows: Sequence[tuple[str, Sequence[Field]]],
    words: Words,
    stale: bool,
    names: str = "explore.legend",
) -> dict[str, Any]:
    kinds = ("fits", "tight", "does_not_fit", "mine")
    return {
        "caption": caption, "rowTitle": titles[0], "columnTitle": titles[1], "columns": list(columns), "stale": stale,
        "rows": [
            {"label": label, "cells": [
                {"verdict": f.verdict, "text": f.text, "title": f.title, "mine": f.mine} for f in fields
            ]} for label, fields in rows
        ],
        "legend": [{"kind": kind, "name": words(f"{names}.{kind}")} for kind in kinds],
    }  # fmt: skip
