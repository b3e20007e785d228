"""The packaged cases, predicted in the background: once for all visitors, with the share that is done."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from threading import Thread

import streamlit as st

from validation.outcome import Outcome
from validation.rows import Kind, packaged

_ROOT = Path(__file__).resolve().parents[1]


class Scoring:
    """Collects ``total`` outcomes as they come, in a thread that only waits. Outcomes are frozen, so sharing them is
    safe."""

    def __init__(self, coming: Iterable[Outcome], total: int) -> None:
        self.total = total
        self._done: list[Outcome] = []
        self._thread = Thread(target=self._collect, args=(coming,), daemon=True)
        self._thread.start()

    def _collect(self, coming: Iterable[Outcome]) -> None:
        for outcome in coming:
            self._done.append(outcome)

    @property
    def done(self) -> int:
        """How many rows have their outcome."""
        return len(self._done)

    @property
    def outcomes(self) -> tuple[Outcome, ...] | None:
        """All outcomes in the order of the rows, or None while some are missing."""
        return tuple(self._done) if self.done == self.total else None

    @property
    def broken(self) -> bool:
        """Whether no more will come although some are missing."""
        return not self._thread.is_alive() and self.done < self.total

    def wait(self, seconds: float) -> None:
        """Returns when every row has its outcome, or after ``seconds``."""
        self._thread.join(seconds)


def streamed(kind: Kind) -> Iterator[Outcome]:
    """The outcomes of a kind from a process of its own: in the app's, the replays would keep every visitor waiting."""
    command = [sys.executable, "-m", "validation.stream", kind]
    with subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True, encoding="utf-8") as process:
        assert process.stdout is not None
        for line in process.stdout:
            yield Outcome.model_validate_json(line)


@st.cache_resource(show_spinner=False)
def scoring(kind: Kind) -> Scoring:
    """The scoring of a kind of case, which begins with the first visitor who asks for it."""
    return Scoring(streamed(kind), len(packaged(kind)))
