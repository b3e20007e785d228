"""Micro-batch against sequence length: what fits beside the plan, computed after the first paint."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import streamlit as st

from calculator.bill import Bill
from calculator.training.grid import Cell, axes, grid
from calculator.training.plan import TrainingPlan
from ui import later, state
from ui.i18n import Words
from ui.kept import Kept
from ui.screen import Screen
from ui.views.grid import Field, fit_grid, rounded, short_tokens

Grid = tuple[tuple[Cell, ...], ...]
_kept: Kept[Grid] = Kept(128)
_LAST = "neighbours_last"


@st.fragment
def neighbours(screen: Screen, plan: TrainingPlan, bill_of: Callable[..., Bill]) -> None:
    """The table; until it is there, the one before, faintly, or its empty cells."""
    words, shape, gpu = screen.words, screen.model.shape, screen.gpu
    micro_batches, seq_lens = axes(shape, plan)
    rest = plan.model_copy(update={"micro_batch": 1, "seq_len": 1})
    key = (rest, gpu.key, gpu.total_bytes, micro_batches, seq_lens)
    st.subheader(words("explore.grid.title"), anchor=False)
    st.caption(words("explore.grid.about", unit=words.unit))
    with st.container(gap=None):
        found = _kept.get(shape, key)
        due = None if found is not None else later.token(id(shape), key)
        if later.asked(due, "neighbours.later"):
            found = _kept.make(shape, key, lambda: grid(shape, plan, gpu, micro_batches, seq_lens, bill_of))
        shown = found or _earlier(len(seq_lens), len(micro_batches))
        if found is not None:
            st.session_state[_LAST] = found

        def take(row: int, column: int) -> None:
            state.put(state.current().with_training(micro_batch=micro_batches[column], seq_len=seq_lens[row]))

        def fields(seq_len: int, cells: Sequence[Cell]) -> list[Field]:
            own = [(seq_len, count) == (plan.seq_len, plan.micro_batch) for count in micro_batches]
            return [_field(cell, words, mine=mine) for cell, mine in zip(cells, own, strict=True)]

        fit_grid(
            "neighbours.grid", words("explore.grid.title"), (words("explore.grid.rows"), words("explore.grid.columns")),
            [f"{count:,}" for count in micro_batches],
            [(short_tokens(seq_len), fields(seq_len, cells)) for seq_len, cells in zip(seq_lens, shown, strict=True)],
            words, stale=found is None, pick=take,
        )  # fmt: skip


def _earlier(rows: int, columns: int) -> Grid:
    """The last table that was drawn if it is as large, else an empty one."""
    last: Grid | None = st.session_state.get(_LAST)
    if last is not None and len(last) == rows and len(last[0]) == columns:
        return last
    return tuple(tuple(Cell(micro_batch=1, seq_len=1, verdict=None) for _ in range(columns)) for _ in range(rows))


def _field(cell: Cell, words: Words, *, mine: bool) -> Field:
    where = words("explore.grid.cell", micro_batch=cell.micro_batch, seq_tokens=cell.seq_len)
    if cell.verdict is None:
        said = words.text(cell.refusal) if cell.refusal is not None else words("explore.grid.waiting")
        return Field(None, "–" if cell.refusal is not None else "…", f"{where}: {said}", mine)
    fit = words(f"explore.legend.{cell.verdict}")
    mark = f", {words('explore.legend.mine')}" if mine else ""
    return Field(
        cell.verdict, rounded(cell.need_bytes, words), f"{where}: {words.size(cell.need_bytes)}, {fit}{mark}", mine
    )
