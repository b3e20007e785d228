"""Host memory: what the plan keeps there, and what loading takes on the way to the cards."""

from __future__ import annotations

from typing import Any

import streamlit as st

from calculator.bill import Bill, HostItem, Range
from ui.i18n import Words
from ui.markdown import plain


def host_memory(bill: Bill, words: Words) -> None:
    """Items with the sums of a process and of a node; nothing where the host only hands the model on to the cards."""
    host = bill.host
    if host is None or not host.notable(bill.capacity_bytes):
        return
    st.subheader(words("host.title"), anchor=False)
    about = words(
        "host.about", process=amount(host.process, words), node=amount(host.node, words),
        processes_count=host.processes,
    )  # fmt: skip
    st.caption(plain(about))
    st.table([row(item, words) for item in host.items], border="horizontal", alt=words("host.title"))


def row(item: HostItem, words: Words) -> dict[str, Any]:
    values = {
        "item": words(f"host.{item.key}"),
        "process": words.size(item.process.value),
        "node": words.size(item.node.value),
        "held": words(f"host.residence.{item.residence}"),
        "when": words(f"host.phase.{item.phase}"),
    }
    how = f"{words.text(item.formula)} ({words(f'ui.basis.{item.basis}')})"
    named = {words(f"host.column.{name}"): plain(value) for name, value in values.items()}
    return named | {words("ui.column.how"): plain(how)}


def amount(total: Range, words: Words) -> str:
    """A size, with its range where it has one."""
    said = words.size(total.value)
    return said if total.low == total.high else f"{said} ({words.span(total.low, total.high)})"
