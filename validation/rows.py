"""Reading files of measured cases: JSON Lines, one case a line, the kind told from the row itself."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from calculator.base import Frozen

Kind = Literal["training", "serving", "facts", "lab", "throughput", "unknown"]
_LAB_DEFAULTS = {
    "batch": 1, "precision": "bf16", "attn": "sdpa", "optim": "adamw", "flow": "trainer", "accum": 1, "steps": 1,
    "accumulate": "inplace",
}  # fmt: skip
PACKAGED: tuple[Kind, ...] = ("training", "serving", "facts", "lab", "throughput")


class Row(Frozen):
    """One case. A field that ``data`` lacks is unknown, as one that is null."""

    kind: Kind
    id: str
    data: dict[str, Any]


def kind_of(data: Mapping[str, Any]) -> Kind:
    """What a row measures: a lab step has ``case`` and ``peaks``, a fact ``quantity`` and ``value``, a published
    speed ``figure`` and ``prompt``, a server's start ``engine``, a training run ``method``; the last two have
    ``measured``."""
    if "case" in data and "peaks" in data:
        return "lab"
    if "figure" in data and "prompt" in data:
        return "throughput"
    if "quantity" in data and "value" in data:
        return "facts"
    if "measured" in data and "engine" in data:
        return "serving"
    if "measured" in data and "method" in data:
        return "training"
    return "unknown"


def lab_id(case: Mapping[str, Any]) -> str:
    """A name for a lab step: the model and every setting that is not the lab's default.

    ``{"model": "gpt2", "seq": 1024, "layers": 2, "ckpt": True}`` is "lab:gpt2 ckpt layers=2 seq=1024".
    """
    parts = []
    for name, value in sorted(case.items()):
        if name in ("model", "detail") or value is None or value is False or _LAB_DEFAULTS.get(name) == value:
            continue
        shown = json.dumps(value, separators=(",", ":")) if isinstance(value, dict | list) else str(value)
        parts.append(name if value is True else f"{name}={shown}")
    return " ".join([f"lab:{case.get('model')}", *parts])


def parse_rows(lines: Iterator[str] | list[str], origin: str) -> list[Row]:
    """The rows of a file's lines. A line that is not a JSON object of a known form becomes an ``unknown`` row named by
    its place, so that the report lists it; blank lines are skipped. A repeated id gets "#2", "#3" ... appended."""
    rows: list[Row] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        place = f"{origin}:{number}"
        try:
            data = json.loads(line)
        except ValueError:
            data = None
        if not isinstance(data, dict):
            rows.append(Row(kind="unknown", id=place, data={}))
            continue
        kind = kind_of(data)
        name = lab_id(data["case"]) if kind == "lab" and isinstance(data["case"], dict) else str(data.get("id", place))
        seen[name] = seen.get(name, 0) + 1
        rows.append(Row(kind=kind, id=name if seen[name] == 1 else f"{name}#{seen[name]}", data=data))
    return rows


def read_file(path: Path) -> list[Row]:
    """The rows of a file. Raises ``OSError`` and ``UnicodeDecodeError`` as opening it does."""
    with path.open(encoding="utf-8") as lines:
        return parse_rows(list(lines), path.name)


@cache
def packaged(kind: Kind) -> tuple[Row, ...]:
    """The cases that the project carries, of one kind."""
    text = files("validation").joinpath(f"data/{kind}.jsonl").read_text("utf-8")
    return tuple(parse_rows(text.splitlines(), f"{kind}.jsonl"))
