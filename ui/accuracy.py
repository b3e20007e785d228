"""Predicted against measured: the scored cases as a figure, as tables, and each as a link to its own plan."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import plotly.graph_objects as go

from calculator import hardware
from calculator.presets import find_preset
from calculator.training.plan import Adapter
from calculator.units import in_unit
from ui import compact, link
from ui.charts import TEMPLATE
from ui.i18n import Words
from ui.settings import ConfigChoice, ModelChoice, Page, PresetChoice, Settings
from validation import score, throughput
from validation.lab import lab_plan
from validation.models import config_of, lab_config, shape_of
from validation.outcome import Outcome, Scored
from validation.plans import serving_plan, training_plan
from validation.rows import Kind, Row, packaged

QUANTITIES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "training": ("process_bytes", "peak_reserved_bytes", "peak_allocated_bytes", "end_allocated_bytes"),
        "serving": ("weights_bytes", "kv_pool_bytes", "activation_bytes", "kv_tokens", "max_concurrency"),
        "lab": ("peak", "saved_layers"),
        "throughput": ("output_tokens_per_s", "stream_tokens_per_s", "ttft_ms"),
    }
)
"""What can be looked at, by kind of case. A few more are scored; the tables have them all."""

BAND = 0.10
GROUP_TAGS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "training": ("method", "framework", "arch_class", "source"),
        "serving": ("engine", "engine_version", "arch_class", "source"),
        "lab": ("method", "model"),
        "throughput": ("sample", "engine", "source", "model"),
    }
)
COLOUR_TAG: Mapping[str, str] = MappingProxyType(
    {"training": "method", "serving": "engine", "lab": "method", "throughput": "source"}
)

# Okabe and Ito's colours, in an order that keeps neighbours apart; black would vanish in the dark theme.
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#8a94a6", "#b8a800")
_SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross", "x", "star", "hexagon")


def is_bytes(key: str) -> bool:
    """Whether a quantity is memory; the others are tokens and requests."""
    return key.endswith("_bytes") or key.startswith("peak") or key == "saved_layers"


def shown(amount: float, key: str, words: Words) -> str:
    """A value of a quantity as people read it."""
    return words.size(round(amount)) if is_bytes(key) else f"{amount:,.6g}"


def tag_name(tag: str, value: str, words: Words) -> str:
    """The name of a group: "Full" for the method full, a framework's or publication's own name as it is."""
    return words.first(f"validation.tag.{tag}.{value}", fallback=value)


def scatter(values: Sequence[Scored], key: str, words: Words, tag: str = "method") -> go.Figure:
    """Measured across, predicted up, both logarithmic: a point on the diagonal is met, the band is 10 % either way.

    ``customdata`` of a point is its case's id. Each value of ``tag`` has a colour and a symbol of its own.
    """
    figure = go.Figure()
    chosen = [value for value in values if value.key == key and value.measured > 0 and value.predicted > 0]
    scale = (lambda amount: in_unit(round(amount), words.unit)) if is_bytes(key) else float
    numbers = [scale(end) for value in chosen for end in (value.measured, value.predicted)]
    low, high = (min(numbers) / 1.5, max(numbers) * 1.5) if numbers else (1.0, 100.0)
    ends = [low, high]
    figure.add_scatter(
        x=[*ends, *reversed(ends)], y=[low * (1 - BAND), high * (1 - BAND), high * (1 + BAND), low * (1 + BAND)],
        fill="toself", fillcolor="rgba(123, 132, 150, 0.16)", line={"width": 0}, mode="lines", hoverinfo="skip",
        showlegend=False,
    )  # fmt: skip
    figure.add_scatter(
        x=ends, y=ends, mode="lines", line={"width": 1.5, "color": "#7b8496"}, hoverinfo="skip", showlegend=False
    )
    for index, name in enumerate(sorted({value.tags.get(tag, "") for value in chosen})):
        members = [value for value in chosen if value.tags.get(tag, "") == name]
        figure.add_scatter(
            name=tag_name(tag, name, words),
            x=[scale(value.measured) for value in members],
            y=[scale(value.predicted) for value in members],
            mode="markers",
            marker={
                "size": 8, "opacity": 0.8, "color": _COLOURS[index % len(_COLOURS)],
                "symbol": _SYMBOLS[index % len(_SYMBOLS)], "line": {"width": 0.5, "color": "#ffffff"},
            },
            customdata=[value.id for value in members],
            text=[
                f"<b>{value.id}</b><br>{shown(value.measured, key, words)} → {shown(value.predicted, key, words)}"
                f" ({value.error:+.1%})<br>{value.tags.get('source', '')}"
                for value in members
            ],
            hovertemplate="%{text}<extra></extra>",
        )  # fmt: skip
    suffix = f" ({words.unit})" if is_bytes(key) else ""
    ticks = [
        digit * 10.0**power for power in range(-3, 13) for digit in (1, 2, 5) if low <= digit * 10.0**power <= high
    ]
    labels = [f"{tick:,.6g}" if tick < 1e6 else f"{tick:.0e}" for tick in ticks]
    axis: dict[str, Any] = {"type": "log", "tickvals": ticks, "ticktext": labels, "autorange": False}
    figure.update_layout(
        template=TEMPLATE, height=520, showlegend=True, margin={"l": 10, "r": 10, "t": 10, "b": 40},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.01, "x": 0},
    )  # fmt: skip
    span = [math.log10(low), math.log10(high)]
    figure.update_xaxes(title=words("validation.page.measured") + suffix, range=span, **axis)
    figure.update_yaxes(title=words("validation.page.predicted") + suffix, range=span, **axis)
    return figure


def scatter_text(values: Sequence[Scored], key: str, words: Words) -> str:
    """What ``scatter`` shows, as a sentence."""
    chosen = [value for value in values if value.key == key]
    close = sum(abs(value.error) <= BAND for value in chosen)
    return words("validation.page.scatter_text", n_count=len(chosen), close_count=close)


def plan_of(row: Row) -> tuple[Settings, Page]:
    """The settings that open a case's plan in the app, and the page to open them on.

    Raises ``UnpredictableError`` and ``ShapeError`` as predicting the case does.
    """
    if row.kind == "lab":
        return _lab_plan(row)
    if row.kind == "throughput":
        published = throughput.plan_of(row.data).model_copy(update={"gpu": row.data["gpu"]})
        return _settings(row.data["model"], published.gpu, None, published.n_gpus, serving=published), "serving"
    case = row.data
    model = str(case.get("model"))
    if row.kind == "serving":
        serving = serving_plan(case, shape_of(model))
        return _settings(model, serving.gpu, serving.gpu_capacity_bytes, serving.n_gpus, serving=serving), "serving"
    # What the free text says is in the three version fields already.
    plan = training_plan(case).model_copy(update={"framework_version": None})
    page: Page = "training" if plan.method == "full" else "finetuning"
    training = plan.model_copy(update={"adapter": plan.adapter or Adapter()})
    return _settings(model, plan.gpu, plan.gpu_capacity_bytes, plan.n_gpus, training=training), page


def _lab_plan(row: Row) -> tuple[Settings, Page]:
    case = row.data["case"]
    plan = lab_plan(case, row.data)
    page: Page = "training" if plan.method == "full" else "finetuning"
    settings = Settings(
        model=ConfigChoice(config=compact.smallest(lab_config(case))[0]), gpu=plan.gpu,
        training=plan.model_copy(update={"adapter": plan.adapter or Adapter()}),
    )  # fmt: skip
    return settings, page


def address(row: Row) -> tuple[Page, dict[str, str]]:
    """The page of a case and the query that restores its plan there."""
    settings, page = plan_of(row)
    return page, link.encode(settings, page)


def _settings(model: str, gpu: str, capacity: int | None, n_gpus: int, **plans: Any) -> Settings:
    known = gpu != hardware.CUSTOM and capacity == hardware.find(gpu).total_bytes
    return Settings(
        model=_choice(model), gpu=gpu, gpu_capacity_bytes=None if known else capacity, n_gpus=n_gpus, **plans
    )  # fmt: skip


@lru_cache(maxsize=256)
def _choice(model: str) -> ModelChoice:
    """A model of the cases without a request to the hub: a built-in one, else the configuration itself."""
    preset = find_preset(model)
    if preset is not None:
        return PresetChoice(key=preset.key)
    config, _ = config_of(model)
    return ConfigChoice(config=compact.smallest(config)[0])


def row_of(kind: Kind, case_id: str) -> Row:
    """The packaged case of an id."""
    return next(row for row in packaged(kind) if row.id == case_id)


def complete_values(found: Sequence[Outcome], key: str) -> list[Scored]:
    """Scored values of one quantity whose cases leave nothing open."""
    return [value for outcome in found for value in outcome.scored if value.key == key and value.complete]


def figures_of(values: Sequence[Scored]) -> score.Figures | None:
    return score.figures(values) if values else None


def worst_first(values: Sequence[Scored]) -> list[Scored]:
    return sorted(values, key=lambda value: -abs(value.error))


def picked_id(points: Sequence[Mapping[str, Any]]) -> str | None:
    """The case id of the first selected point, if any."""
    if not points:
        return None
    data = points[0].get("customdata")
    return str(data[0] if isinstance(data, list | tuple) else data)


def case_text(value: Scored, words: Words) -> str:
    """A case's numbers as a sentence."""
    sentence = "validation.page.case_text" if value.low == value.high else "validation.page.case_text_range"
    return words(
        sentence, id=value.id, measured=shown(value.measured, value.key, words),
        predicted=shown(value.predicted, value.key, words), low=shown(value.low, value.key, words),
        high=shown(value.high, value.key, words), error=f"{value.error:+.1%}", source=value.tags.get("source", ""),
        model=value.tags.get("model", ""),
    )  # fmt: skip


def table(found: Sequence[Outcome], tag: str | None, words: Words) -> list[dict[str, str | int]]:
    """Figures by quantity, and by a tag if one is given, as rows for a table."""
    values = [value for outcome in found for value in outcome.scored if value.complete]
    if tag is None:
        entries = [("", key, figure) for key, figure in score.by_key(values).items()]
    else:
        entries = [
            (
                tag_name(tag, group["value"], words),
                group["quantity"],
                score.Figures.model_validate(_figures_only(group)),
            )
            for group in score.groups(values, (tag,))
        ]
    rows = []
    for name, key, figure in entries:
        row: dict[str, str | int] = {words(f"validation.by.{tag}"): name} if tag else {}
        row[words("validation.column.key")] = words(f"validation.key.{key}")
        row["n"] = figure.n
        for column in ("median_ape", "p90_ape", "bias", "within_5", "within_10", "within_20", "in_range"):
            row[words(f"validation.column.{column}")] = f"{getattr(figure, column):.1%}".replace("-0.0%", "0.0%")
        if not figure.half_width:  # an exact figure has no range to lie in
            row[words("validation.column.in_range")] = "–"
        rows.append(row)
    return rows


def _figures_only(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: group[name] for name in score.Figures.model_fields}


def verdicts(found: Sequence[Outcome], words: Words) -> str:
    """How often the verdict was right, or nothing where no case says whether it ran."""
    counts = score.fits([outcome.judged for outcome in found if outcome.judged])
    return verdict_text(counts, words) if counts["n"] else ""


def verdict_text(counts: Mapping[str, Any], words: Words) -> str:
    return words(
        "validation.fits", n_count=counts["n"], right_count=counts["right"], ran_count=counts["ran"]["n"],
        ran_right_count=counts["ran"]["said_fits_or_tight"], out_count=counts["ran_out"]["n"],
        out_right_count=counts["ran_out"]["said_does_not_fit_or_tight"], tight_count=counts["tight"],
    )  # fmt: skip


def missed_table(found: Sequence[Outcome], words: Words) -> list[dict[str, str]]:
    """Cases that were not predicted, with the reason."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for outcome in found:
        for miss in outcome.missed:
            reasons.setdefault((miss.id, words.text(miss.reason)), []).append(miss.key or "")
    columns = ["id", "reason"] if not any(key for keys in reasons.values() for key in keys) else ["id", "key", "reason"]
    rows = [
        {"id": name, "key": ", ".join(words.first(f"validation.key.{key}", fallback=key) for key in keys),
         "reason": reason}
        for (name, reason), keys in reasons.items()
    ]  # fmt: skip
    return [{words(f"validation.column.{column}"): row[column] for column in columns} for row in rows]
