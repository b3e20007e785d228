"""Results that take a moment, kept for whoever asks for the same again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

from calculator.model.shape import ModelShape

T = TypeVar("T")


class Kept(Generic[T]):
    """The last ``limit`` results, by the model's shape (the very object) and a key. Shared by all visits."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = Lock()
        self._found: OrderedDict[tuple[int, Hashable], tuple[ModelShape, T]] = OrderedDict()

    def get(self, shape: ModelShape, key: Hashable) -> T | None:
        """The result if it is there."""
        with self._lock:
            found = self._found.get((id(shape), key))
            # The shape is held with its result, so no other object can have its id.
            if found is None:
                return None
            self._found.move_to_end((id(shape), key))
            return found[1]

    def make(self, shape: ModelShape, key: Hashable, make: Callable[[], T]) -> T:
        """The result, computed if it is not there."""
        found = self.get(shape, key)
        if found is None:
            found = make()
            with self._lock:
                self._found[id(shape), key] = (shape, found)
                while len(self._found) > self._limit:
                    self._found.popitem(last=False)
        return found
