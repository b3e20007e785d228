"""A memory of the last answers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, TypeVar

T = TypeVar("T")


class Recent:
    """Answers by question, at most ``most`` of them: the one that was not asked for the longest goes first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def ask(self, question: Hashable, make: Callable[[], T]) -> T:
        """The kept answer, or the one that ``make`` gives. Two threads with one question may both make it."""
        with self._lock:
            if question in self._kept:
                self._kept.move_to_end(question)
                kept: T = self._kept[question]
                return kept
        made = make()
        with self._lock:
            self._kept[question] = made
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return made
