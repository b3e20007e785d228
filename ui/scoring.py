"""The packaged cases, predicted in the background: once for all visitors, with the share that is done."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Thread

import streamlit as st

from validation.outcome import Outcome
from validation.rows import Kind, Row, packaged
from validation.run import predict


class Scoring:
    """Predicts ``rows`` one after another in a thread of its own. Outcomes are frozen, so sharing them is safe."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.total = len(rows)
        self._done: list[Outcome] = []
        self._thread = Thread(target=self._run, args=(rows,), daemon=True)
        self._thread.start()

    def _run(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._done.append(predict(row))

    @property
    def done(self) -> int:
        """How many rows have their outcome."""
        return len(self._done)

    @property
    def outcomes(self) -> tuple[Outcome, ...] | None:
        """All outcomes in the order of the rows, or None while some are missing."""
        return tuple(self._done) if self.done == self.total else None

    def wait(self, seconds: float) -> None:
        """Returns when every row has its outcome, or after ``seconds``."""
        self._thread.join(seconds)


@st.cache_resource(show_spinner=False)
def scoring(kind: Kind) -> Scoring:
    """The scoring of a kind of case, which begins with the first visitor who asks for it."""
    return Scoring(packaged(kind))
