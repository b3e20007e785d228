"""Bills as figures: pure functions from a bill to a plotly figure, and the same content as text.

One template holds what all figures share. The colours of axes and letters are not in it: they are the app's theme's,
which the browser applies, so that a switch between light and dark needs no run of the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

import plotly.graph_objects as go
import plotly.io as pio

from calculator.bill import Bill, Item, TimePoint
from calculator.units import in_unit
from ui.i18n import Words
from ui.palette import FREE, UNKNOWN, colour, ink

TEMPLATE = "vram_bill"
PLOT_CONFIG = {"displayModeBar": False, "scrollZoom": False, "doubleClick": False, "responsive": True}

_AXIS_STEPS = (1.1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 4096, 65_536)
_STEP_HEIGHTS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8)
"""Shares of the held axis at which the step's axis ends."""
_NARROWEST_PHASE = 0.12
_NAMED_SHARE = 0.18
"""Share of the axis from which a segment has room for its name at desktop width."""

pio.templates[TEMPLATE] = go.layout.Template(
    layout={
        "margin": {"l": 0, "r": 0, "t": 30, "b": 30},
        "showlegend": False,
        "hovermode": "closest",
        "bargap": 0,
        "dragmode": False,
        "uniformtext": {"minsize": 11, "mode": "hide"},
        "xaxis": {"fixedrange": True, "zeroline": False, "ticks": "", "title": {"text": ""}},
        "yaxis": {"fixedrange": True, "zeroline": False, "ticks": "", "title": {"text": ""}},
        "hoverlabel": {"align": "left"},
    }
)


def item_name(words: Words, key: str) -> str:
    """The item's name as a line of the bill begins: "Optimizer states"."""
    name = words.first(f"item.{key}", fallback=key.replace("_", " "))
    return name[:1].upper() + name[1:]


def phase_name(words: Words, name: str) -> str:
    return words.first(f"phase.{name}", fallback=name.replace("_", " "))


def held_axis(capacity_bytes: int, total_bytes: int) -> float:
    """Where the axis ends, in bytes: a step of the card's size that seldom changes while a control moves."""
    step = next((s for s in _AXIS_STEPS if total_bytes <= capacity_bytes * s * 0.985), None)
    return capacity_bytes * step if step else total_bytes * 1.02


def bill_bar(bill: Bill, words: Words, budget_bytes: int | None = None) -> go.Figure:
    """The bill as one stacked bar against the card's capacity; a dotted line marks an engine's memory budget."""
    items = [item for item in bill.items if item.bytes > 0]
    total = sum(item.bytes for item in items if item.layer != "free")
    end = held_axis(bill.capacity_bytes, total)
    unit = words.unit
    figure = go.Figure()
    for item in items:
        name, fill = item_name(words, item.key), FREE if item.layer == "free" else colour(item.key)
        label = words.short(item.bytes)
        if item.bytes / end >= _NAMED_SHARE:
            label = f"{name}  {label}"
        figure.add_bar(
            name=item.key, y=[""], x=[in_unit(item.bytes, unit)], orientation="h", width=0.9,
            marker={"color": fill, "line": {"width": 0}}, text=[label], textposition="inside", textangle=0,
            insidetextanchor="middle", textfont={"color": ink(fill) if item.layer != "free" else UNKNOWN, "size": 13},
            hovertemplate=f"<b>{name}</b><br>{words.size(item.bytes)}<extra></extra>",
        )  # fmt: skip
    marks = [(bill.capacity_bytes, "solid", words("ui.chart.capacity", capacity_bytes=bill.capacity_bytes))]
    if budget_bytes is not None and budget_bytes < bill.capacity_bytes * 0.995:
        marks.append((budget_bytes, "dot", ""))
    for at_bytes, dash, label in marks:
        at = in_unit(at_bytes, unit)
        line = {"width": 2, "dash": dash, "color": "#7b8496"}
        figure.add_shape(type="line", x0=at, x1=at, y0=-0.12, y1=1.12, yref="paper", line=line)
        if label:
            figure.add_annotation(
                x=at, y=1.14, yref="paper", yanchor="bottom", text=label, showarrow=False, font={"size": 13},
                xanchor="right" if at_bytes > end * 0.3 else "left",
            )  # fmt: skip
    figure.update_layout(
        template=TEMPLATE, barmode="stack", height=132,
        xaxis={"range": [0, in_unit(round(end), unit)], "ticksuffix": f" {unit}", "nticks": 6, "showgrid": False},
        yaxis={"visible": False, "range": [-0.5, 0.5]},
    )  # fmt: skip
    return figure


def bar_text(bill: Bill, words: Words) -> str:
    """What ``bill_bar`` shows, as a sentence."""
    parts = ", ".join(f"{item_name(words, i.key)} {words.size(i.bytes)}" for i in bill.items if i.bytes > 0)
    return words("ui.chart.bar_text", parts=parts, capacity_bytes=bill.capacity_bytes)


def items_over_time(points: Sequence[TimePoint], order: Iterable[str]) -> list[str]:
    """Keys of the items that live at some point of the step, in the bill's order, others after it."""
    alive = {key for point in points for key, amount in point.items.items() if amount > 0}
    ordered = [key for key in dict.fromkeys(order) if key in alive]
    return ordered + sorted(alive.difference(ordered))


def peak_index(points: Sequence[TimePoint]) -> int:
    """The first point at which most is allocated."""
    totals = [sum(point.items.values()) for point in points]
    return totals.index(max(totals))


def step_chart(points: Sequence[TimePoint], bill: Bill, words: Words) -> go.Figure:
    """What is allocated at each instant of a step, as stacked straight steps, with the peak marked.

    The bill gives the order of the items and the height that the axis is held at.
    """
    unit = words.unit
    figure = go.Figure()
    edges = step_edges(points)
    labels = [words.text(point.label) for point in points]
    for key in items_over_time(points, (item.key for item in bill.items)):
        heights = [in_unit(point.items.get(key, 0), unit) for point in points]
        figure.add_scatter(
            name=key, x=edges, y=[*heights, heights[-1]], mode="lines", stackgroup="alive",
            line={"shape": "hv", "width": 0}, fillcolor=colour(key), hoveron="points",
            text=[*labels, labels[-1]],
            hovertemplate=f"%{{text}}<br><b>{item_name(words, key)}</b> %{{y:.2f}} {unit}<extra></extra>",
        )  # fmt: skip
    at = peak_index(points)
    middle, height_bytes = (edges[at] + edges[at + 1]) / 2, sum(points[at].items.values())
    height = in_unit(height_bytes, unit)
    figure.add_scatter(
        name="peak", x=[middle], y=[height], mode="markers", hoverinfo="skip",
        marker={"symbol": "circle", "size": 9, "color": "#d1435b", "line": {"width": 2, "color": "#ffffff"}},
    )  # fmt: skip
    figure.add_annotation(
        x=middle, y=height, text=words("ui.chart.peak", peak_bytes=height_bytes), showarrow=False, yshift=16,
        xanchor="right" if middle > edges[-1] / 2 else "left", font={"size": 13},
    )  # fmt: skip
    starts = _phase_starts(points, edges)
    for _, start, _ in starts[1:]:
        figure.add_vline(x=start, line={"width": 1, "color": "rgba(123, 132, 150, 0.45)"})
    end = held_axis(bill.capacity_bytes, height_bytes)
    part = next((step for step in _STEP_HEIGHTS if height_bytes * 1.12 <= end * step), 1.0)
    figure.update_layout(
        template=TEMPLATE, height=340,
        xaxis={
            "tickvals": [(start + stop) / 2 for _, start, stop in starts], "showgrid": False, "tickangle": 0,
            "ticktext": [phase_name(words, phase) for phase, _, _ in starts], "range": [0, edges[-1]],
        },
        yaxis={"range": [0, in_unit(round(end * part), unit)], "ticksuffix": f" {unit}", "nticks": 6},
    )  # fmt: skip
    return figure


def step_edges(points: Sequence[TimePoint]) -> list[float]:
    """Where each point begins on the axis, and where the last one ends: points of a phase are equally wide, and no
    phase is narrower than a share of the whole, so that short ones can be seen."""
    runs = [len(list(run)) for _, run in groupby(points, key=lambda point: point.phase)]
    least = len(points) * _NARROWEST_PHASE
    edges = [0.0]
    for length in runs:
        width = max(1.0, least / length)
        edges += [edges[-1] + width * (number + 1) for number in range(length)]
    return edges


def _phase_starts(points: Sequence[TimePoint], edges: Sequence[float]) -> list[tuple[str, float, float]]:
    """Each run of one phase with its two ends on the axis."""
    found, first = [], 0
    for phase, run in groupby(points, key=lambda point: point.phase):
        last = first + len(list(run))
        found.append((phase, edges[first], edges[last]))
        first = last
    return found


def step_text(points: Sequence[TimePoint], words: Words) -> str:
    """What ``step_chart`` shows, as a sentence: the highest instant of each phase and the peak."""
    highest: dict[str, int] = {}
    for point in points:
        highest[point.phase] = max(highest.get(point.phase, 0), sum(point.items.values()))
    parts = ", ".join(f"{phase_name(words, phase)} {words.size(amount)}" for phase, amount in highest.items())
    peak = points[peak_index(points)]
    return words(
        "ui.chart.step_text", parts=parts, phase=phase_name(words, peak.phase), peak_bytes=sum(peak.items.values())
    )


def share(item: Item, whole_bytes: int) -> float:
    """An item's part of the whole, from 0 to 1."""
    return item.bytes / whole_bytes if whole_bytes else 0.0
