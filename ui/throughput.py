"""Published speeds on the Accuracy page: how often the stated range holds them."""

from __future__ import annotations

from collections.abc import Sequence

from ui.i18n import Words
from validation import checks
from validation.outcome import Outcome
from validation.throughput import ranges


def table(found: Sequence[Outcome], words: Words) -> list[dict[str, str]]:
    """Rows for a table: all figures, those that set the shares, those that did not, by quantity and publication."""
    values = [value for outcome in found for value in outcome.scored]
    return checks.range_rows(ranges(values), words) if values else []
