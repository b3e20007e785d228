"""The first thing to read: one sentence with the answer, and the four figures that people compare."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from calculator.bill import Bill, Range
from calculator.hardware import Gpu
from calculator.lookup import LoadedModel
from ui.charts import phase_name
from ui.i18n import Words
from ui.inputs.hardware import card_name
from ui.markdown import plain

ICONS = {
    "fits": (":material/check_circle:", "green"),
    "tight": (":material/error:", "orange"),
    "does_not_fit": (":material/cancel:", "red"),
}


def where(gpu: Gpu, count: int, words: Words) -> str:
    """ "8 × H100 80GB SXM"."""
    name = card_name(gpu.key, words)
    return name if count == 1 else f"{count} × {name}"


def short_name(model: LoadedModel) -> str:
    """The model's name without its owner."""
    return model.name.rpartition("/")[2]


def verdict_text(bill: Bill, model: LoadedModel, gpu: Gpu, count: int, words: Words) -> str:
    """The answer of a training bill: what fits or does not, on what, by how much."""
    return words(
        f"ui.verdict.{bill.verdict}.{'one' if count == 1 else 'many'}", model=short_name(model),
        where=where(gpu, count, words), spare_bytes=abs(bill.spare_bytes),
        short_bytes=max(bill.need.high - bill.capacity_bytes, 0),
    )  # fmt: skip


def need_text(bill: Bill, words: Words) -> str:
    """What is needed of what there is, with the range."""
    if bill.need.low == bill.need.high:
        return words("ui.verdict.need_exact", need_bytes=bill.need.value, capacity_bytes=bill.capacity_bytes)
    return words(
        "ui.verdict.need", need_bytes=bill.need.value, span=words.span(bill.need.low, bill.need.high),
        capacity_bytes=bill.capacity_bytes,
    )  # fmt: skip


def headline(verdict: str, sentence: str, detail: str) -> None:
    icon, colour = ICONS[verdict]
    with st.container(key="verdict", gap="xsmall"):
        st.header(f":{colour}[{icon}] {plain(sentence)}", anchor=False)
        st.caption(plain(detail))


def training_figures(bill: Bill, gpu: Gpu, words: Words, *, estimating: bool = False) -> None:
    """Allocated, reserved, process, and the card. While ``estimating``, reserved and process are ranges, so marked."""
    peak = words("ui.figure.in_phase", phase=phase_name(words, bill.peak_phase))

    def known(total: Range) -> tuple[str, str]:
        if estimating:
            return words.rough(total.low, total.high), words("explore.replay.estimating")
        return words.size(total.value), spread(total, words)

    figures = (
        ("allocated", words.size(bill.allocated.value), peak),
        ("reserved", *known(bill.reserved)),
        ("process", *_process(bill, known, words)),
        ("capacity", words.size(bill.capacity_bytes), _sold_as(gpu, words)),
    )  # fmt: skip
    tiles([(words(f"ui.figure.{key}"), value, note, words(f"ui.figure.{key}.help")) for key, value, note in figures])


def _process(bill: Bill, known: Callable[[Range], tuple[str, str]], words: Words) -> tuple[str, str]:
    """What nvidia-smi would show, and plainly where the card cannot show it."""
    value, note = known(bill.process)
    return value, over_card(bill, words) or note


def over_card(bill: Bill, words: Words) -> str | None:
    """That the process would take more than the card has, which nvidia-smi never shows; None where it does not."""
    if bill.process.value <= bill.capacity_bytes:
        return None
    return words("ui.figure.over_card", capacity_bytes=bill.capacity_bytes)


def tiles(figures: list[tuple[str, str, str, str]]) -> None:
    """Cards of label, value, note and help; four in a row where there is room, two on a phone."""
    with st.container(key="figures"), st.grid(4, min_column_width=150):
        for label, value, note, explained in figures:
            st.metric(
                label, value, note or None, delta_color="off", delta_arrow="off", border=True, height="stretch",
                help=explained,
            )  # fmt: skip


def spread(total: Range, words: Words) -> str:
    """The range of a figure, or that it has none."""
    return words("ui.figure.exact") if total.low == total.high else words.span(total.low, total.high)


def _sold_as(gpu: Gpu, words: Words) -> str:
    if gpu.marketed_bytes == gpu.total_bytes:
        return words("ui.figure.as_given")
    return words("ui.figure.sold_as", size=f"{round(gpu.marketed_bytes / 1024**3)} GB")
