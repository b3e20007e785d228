"""The bill to take away: rows for a spreadsheet, and a page of Markdown."""

from __future__ import annotations

import csv
import io

from calculator.bill import Bill
from calculator.units import in_unit
from ui.charts import item_name
from ui.i18n import Words
from ui.markdown import plain

_ACTIVE_CELL = ("=", "+", "-", "@", "\t", "\r")


def as_csv(bill: Bill, words: Words) -> str:
    """One line an item, bytes as whole numbers, with a header line of field names."""
    written = io.StringIO()
    rows = csv.writer(written)
    rows.writerow(
        ("item", "layer", "bytes", "low_bytes", "high_bytes", words.unit, "formula", "basis", "source", "url")
    )
    for item in bill.items:
        rows.writerow((
            item_name(words, item.key), item.layer, item.bytes, item.low, item.high,
            f"{in_unit(item.bytes, words.unit):.4f}", _cell(words.text(item.formula)), item.basis,
            _cell(words.source(item.source)), item.source.url,
        ))  # fmt: skip
    return written.getvalue()


def _cell(text: str) -> str:
    """Text that a spreadsheet does not take for a formula."""
    return f"'{text}" if text.startswith(_ACTIVE_CELL) else text


def as_markdown(bill: Bill, words: Words, heading: str, lines: tuple[str, ...]) -> str:
    """The heading, what it was computed for, the table and the totals."""
    columns = [words(f"ui.column.{key}") for key in ("item", "amount", "how", "basis")]
    out = [f"# {plain(heading)}", "", *(f"- {plain(line)}" for line in lines), ""]
    out += [f"| {' | '.join(columns)} |", "| --- | ---: | --- | --- |"]
    for item in bill.items:
        source = plain(words.source(item.source))
        if item.source.url.startswith("https://"):
            source = f"[{source}]({item.source.url})"
        cells = (
            plain(item_name(words, item.key)), words.size(item.bytes), plain(words.text(item.formula)),
            f"{words(f'ui.basis.{item.basis}')}, {source}",
        )  # fmt: skip
        out.append(f"| {' | '.join(cells)} |")
    totals = (
        ("allocated", bill.allocated),
        ("reserved", bill.reserved),
        ("process", bill.process),
        ("need", bill.need),
    )
    out += ["", *(f"- {words(f'ui.figure.{name}')}: {words.size(total.value)}" for name, total in totals), ""]
    return "\n".join(out)
