"""The bill as a table: each item with its colour, its share, how it comes about, and how well that is known."""

from __future__ import annotations

from typing import Any

import streamlit as st

from calculator.bill import Bill, Item
from ui.charts import PLOT_CONFIG, bar_text, bill_bar, item_name, share
from ui.components.mount import mount
from ui.i18n import Words
from ui.palette import FREE, colour

_TOTALS = ("tensor", "slack", "process")


def bar(bill: Bill, words: Words, budget_bytes: int | None = None) -> None:
    """The stacked bar against the card's capacity."""
    st.plotly_chart(bill_bar(bill, words, budget_bytes), key="bill.bar", config=PLOT_CONFIG, alt=bar_text(bill, words))


def bill_table(bill: Bill, words: Words) -> None:
    st.subheader(words("ui.section.bill"), anchor=False)
    mount("bill_table", table_data(bill, words), key="bill.table")


def table_data(bill: Bill, words: Words) -> dict[str, Any]:
    """Rows of the table as the component takes them: items layer by layer, each layer closed by its running total."""
    whole = sum(item.bytes for item in bill.items if item.layer != "free")
    present = [layer for layer in _TOTALS if any(i.layer == layer for i in bill.items)]
    totals = {"tensor": bill.allocated.value, "slack": bill.reserved.value, "process": bill.process.value}
    rows: list[dict[str, Any]] = []
    for layer in present:
        rows += [_row(item, whole, words) for item in bill.items if item.layer == layer and item.bytes]
        rows.append({
            "total": True, "name": words(f"ui.total.{layer}"), "amount": words.size(totals[layer]),
            "how": words(f"ui.total.{layer}.help"),
        })  # fmt: skip
    rows += [_row(item, whole, words) for item in bill.items if item.layer == "free"]
    absent = [item for item in bill.items if not item.bytes and item.layer != "free"]
    if absent:
        rows.append({"heading": True, "name": words("ui.table.absent")})
        rows += [_row(item, whole, words) for item in absent]
    labels = {key: words(f"ui.column.{key}") for key in ("item", "amount", "share", "how", "basis")}
    return {"caption": words("ui.section.bill"), "labels": labels, "rows": rows}


def _row(item: Item, whole_bytes: int, words: Words) -> dict[str, Any]:
    part = 0.0 if item.layer == "free" else share(item, whole_bytes)
    return {
        "name": item_name(words, item.key),
        "color": FREE if item.layer == "free" else colour(item.key),
        "amount": words.size(item.bytes) if item.bytes else "–",
        "share": part,
        "percent": "" if item.layer == "free" or not item.bytes else f"{part:.1%}",
        "how": words.text(item.formula),
        "detail": _detail(item, words),
        "basis": words(f"ui.basis.{item.basis}"),
        "source": {"title": words.source(item.source), "url": item.source.url},
    }


def _detail(item: Item, words: Words) -> str:
    """The range where there is one, and the higher amount that the item has at another time."""
    parts = []
    if item.divided_by > 1:
        parts.append(words("ui.table.divided", gpus_count=item.divided_by))
    if item.low != item.high:
        parts.append(words("ui.table.range", span=words.span(item.low, item.high)))
    if item.max_bytes > item.bytes:
        parts.append(words("ui.table.more_later", max_bytes=item.max_bytes))
    return " · ".join(parts)
