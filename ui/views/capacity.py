"""Context length against concurrent requests: what the engine would hold, computed after the first paint."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import streamlit as st

from calculator.axes import around
from calculator.bill import Bill
from calculator.errors import CalculatorError
from calculator.serving.capacity import Cell, cell, matrix
from calculator.serving.context import TOGETHER, context_limit
from calculator.serving.plan import ServingPlan
from ui import later, state
from ui.i18n import Words
from ui.kept import Kept
from ui.screen import Screen
from ui.views.grid import Field, fit_grid, rounded, short_tokens

CONTEXTS = (1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072, 262_144, 524_288, 1_048_576)
REQUESTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_ROWS, _COLUMNS = 7, 7

Matrix = tuple[tuple[Cell, ...], ...]
_kept: Kept[Matrix] = Kept(128)
_LAST = "capacity_last"


@st.fragment
def capacity(screen: Screen, plan: ServingPlan, bill: Bill, bill_of: Callable[..., Bill]) -> None:
    """The table; until it is there, the one before, faintly, or its empty cells."""
    words, shape, gpu = screen.words, screen.model.shape, screen.gpu
    figures = bill.serving
    assert figures is not None
    own = (min(plan.context_tokens or figures.max_model_len, figures.max_model_len), plan.concurrency)
    longest = max(context_limit(shape, plan.engine) or CONTEXTS[-1], own[0])
    contexts = around(own[0], [c for c in CONTEXTS if c <= longest], _ROWS)
    requests = around(own[1], REQUESTS, _COLUMNS)
    key = (repr(plan.model_copy(update={"context_tokens": 1, "concurrency": 1, "max_model_len": 1})), gpu.key,
           gpu.total_bytes, contexts, requests, id(screen.stored))  # fmt: skip
    st.subheader(words("explore.matrix.title"), anchor=False)
    st.caption(words("explore.matrix.about", unit=words.unit))
    with st.container(gap=None):
        found = _kept.get(shape, key)
        due = None if found is not None else later.token(id(shape), key)
        if later.asked(due, "capacity.later"):
            try:
                found = _kept.make(shape, key, lambda: matrix(shape, plan, gpu, contexts, requests, screen.stored))
            except CalculatorError:
                found = _kept.make(shape, key, lambda: _empty(contexts, requests))
        if found is not None:
            st.session_state[_LAST] = found
        shown = found or _earlier(contexts, requests)
        mine = cell(*own, bill)

        def take(row: int, column: int) -> None:
            together = plan.engine in TOGETHER
            state.put(state.current().with_serving(
                max_model_len=None if together else contexts[row],
                context_tokens=contexts[row] if together else None, concurrency=requests[column],
            ))  # fmt: skip

        def fields(context: int, cells: Sequence[Cell]) -> list[Field]:
            here = [(context, count) == own for count in requests]
            return [_field(mine if own_one else c, words, own_one) for c, own_one in zip(cells, here, strict=True)]

        fit_grid(
            "capacity.grid", words("explore.matrix.title"),
            (words("explore.matrix.rows"), words("explore.matrix.columns")), [f"{count:,}" for count in requests],
            [(short_tokens(context), fields(context, cells)) for context, cells in zip(contexts, shown, strict=True)],
            words, stale=found is None, pick=take, names="explore.matrix.legend",
        )  # fmt: skip


def _empty(contexts: Sequence[int], requests: Sequence[int]) -> Matrix:
    blank = Cell(context_tokens=1, requests=1, verdict="does_not_fit", need_bytes=0)
    return tuple(tuple(blank for _ in requests) for _ in contexts)


def _earlier(contexts: Sequence[int], requests: Sequence[int]) -> Matrix:
    last: Matrix | None = st.session_state.get(_LAST)
    if last is not None and len(last) == len(contexts) and len(last[0]) == len(requests):
        return last
    return _empty(contexts, requests)


def _field(found: Cell, words: Words, mine: bool) -> Field:
    if not found.need_bytes:
        return Field(None, "…", words("explore.grid.waiting"), mine)
    mark = f", {words('explore.legend.mine')}" if mine else ""
    title = words(
        f"explore.matrix.{found.verdict}", requests_count=found.requests, context_tokens=found.context_tokens,
        need_bytes=found.need_bytes, share=f"{found.pool_share:.0%}", held_count=found.held,
    )  # fmt: skip
    return Field(found.verdict, rounded(found.need_bytes, words), title + mark, mine)
