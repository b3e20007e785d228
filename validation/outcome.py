"""What predicting a row yields: values beside their measurement, verdicts, and what could not be predicted."""

from __future__ import annotations

from typing import Literal

from calculator.base import Frozen
from calculator.bill import Range, Verdict
from calculator.text import Text, Value, text
from validation.rows import Kind


class UnpredictableError(Exception):
    """A row, or one of its values, cannot be predicted; ``reason`` says why."""

    def __init__(self, key: str, **values: Value | Text) -> None:
        self.reason = text(key, **values)
        super().__init__(f"{key} {values}")


class Scored(Frozen):
    """One measured value and its prediction. Bytes, tokens or requests, as ``key`` says.

    ``complete``: the case says everything that a prediction needs. ``tags`` are the groups that the row belongs to.
    ``tolerance`` is the difference, relative to the measurement, that the case itself allows (facts).
    """

    kind: Kind
    id: str
    key: str
    measured: float
    predicted: float
    low: float
    high: float
    complete: bool = True
    tags: dict[str, str] = {}
    tolerance: float | None = None
    checked: bool = True

    @property
    def error(self) -> float:
        """(predicted - measured) / |measured|: -0.03 is three percent too low."""
        return (self.predicted - self.measured) / max(abs(self.measured), 1.0)

    @property
    def in_range(self) -> bool:
        return self.low <= self.measured <= self.high

    @property
    def half_width(self) -> float:
        """Half of the predicted range over the predicted value."""
        return (self.high - self.low) / 2 / max(abs(self.predicted), 1.0)


class Missed(Frozen):
    """A row, or one key of it, without a prediction."""

    kind: Kind
    id: str
    key: str | None
    reason: Text
    complete: bool = True


class Judged(Frozen):
    """A run that is known to have fitted its card or not, and the verdict on its plan."""

    id: str
    ran: bool
    verdict: Verdict
    complete: bool
    tags: dict[str, str] = {}


class Outcome(Frozen):
    """Everything that one row gave. ``wanted`` counts the keys to score; each is in ``scored`` or in ``missed``."""

    kind: Kind
    id: str
    complete: bool
    wanted: int
    scored: tuple[Scored, ...] = ()
    missed: tuple[Missed, ...] = ()
    judged: Judged | None = None


Key = Literal["peak", "peak_forward", "peak_loss", "peak_backward", "peak_optimizer", "saved_layers"]


def as_range(value: Range | int | float) -> tuple[float, float, float]:
    """Value, low and high of a prediction; a plain number is exact."""
    if isinstance(value, Range):
        return value.value, value.low, value.high
    return value, value, value
