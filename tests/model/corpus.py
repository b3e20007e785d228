"""The corpus of published configurations that the tests of shapes read, and what is known of each."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "data" / "models"


@cache
def configs() -> dict[str, dict[str, Any]]:
    """Configurations by model id, without settings that size nothing."""
    lines = (FOLDER / "configs.jsonl").read_text(encoding="utf-8").splitlines()
    return {row["id"]: row["config"] for row in map(json.loads, lines)}


@cache
def index() -> dict[str, dict[str, Any]]:
    """Parameters (counted from the classes of transformers, or by formula), and cache sizes, by model id."""
    lines = (FOLDER / "index.jsonl").read_text(encoding="utf-8").splitlines()
    return {row["id"]: row for row in map(json.loads, lines)}


@cache
def class_defaults() -> list[dict[str, Any]]:
    """Configurations that transformers' classes make by default, with the parameters that the classes then build."""
    lines = (FOLDER / "class_defaults.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@cache
def resaved() -> list[dict[str, Any]]:
    """One configuration of each family as transformers 5.24 writes it after reading the published one: every default
    spelt out, some keys renamed."""
    lines = (FOLDER / "resaved.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]
