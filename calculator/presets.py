"""Popular models whose config.json is built in, so that a bill needs no network.

Data: ``data/presets/index.toml`` with the provenance of each, and one ``<key>.json`` a model as it was published.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from types import MappingProxyType
from typing import Any

from calculator.base import Frozen
from calculator.errors import ModelIdError
from calculator.sources import Source


class Preset(Frozen):
    """One built-in model. ``key`` is short for links and the command line, ``id`` is the hub's.

    ``published_elements`` counts what the hub's safetensors files store, None where no count was found; it exceeds the
    parameters by what ``published_also`` names. ``same_file`` says that the copy is byte for byte the hub's file.
    ``also`` are ids of models with the same tensors: the base of a chat model, or the same under an older name.
    """

    key: str
    id: str
    family: str
    source: Source
    same_file: bool
    sha256: str
    published_elements: int | None = None
    published_source: str = ""
    published_also: str = ""
    also: tuple[str, ...] = ()

    def config_text(self) -> str:
        """The config.json as shipped."""
        return _folder().joinpath(f"{self.key}.json").read_text("utf-8")

    def config(self) -> dict[str, Any]:
        """A fresh copy of the configuration."""
        config: dict[str, Any] = json.loads(self.config_text())
        return config


@cache
def presets() -> Mapping[str, Preset]:
    """All of them by key, grouped by family in the order in which they are shown."""
    index = tomllib.loads(_folder().joinpath("index.toml").read_text("utf-8"))
    return MappingProxyType({key: _preset(key, row) for key, row in index.items()})


def find_preset(key_or_id: str) -> Preset | None:
    """The preset of that key or hub id (also of a model with the same tensors), in any case; None if there is none."""
    return _by_name().get(key_or_id.strip().lower())


def preset(key: str) -> Preset:
    """The preset of a key. Raises ``ModelIdError`` ("preset.unknown") with the nearest keys."""
    found = find_preset(key)
    if found is None:
        raise ModelIdError("preset.unknown", field="model", name=key[:80], near=", ".join(near(key)) or "qwen2.5-7b")
    return found


def near(written: str, count: int = 3) -> tuple[str, ...]:
    """Keys that resemble what was typed, best first."""
    wanted = written.strip().lower()[:80]
    keys = [_by_name()[name].key for name in get_close_matches(wanted, list(_by_name()), n=2 * count, cutoff=0.6)]
    return tuple(dict.fromkeys(keys))[:count]


def _folder() -> Traversable:
    return files("calculator").joinpath("data/presets")


def _preset(key: str, row: Mapping[str, Any]) -> Preset:
    return Preset(
        key=key,
        id=row["id"],
        family=row["family"],
        source=Source(title=row["source"], url=f"https://huggingface.co/{row['id']}"),
        same_file=row["same_file"],
        sha256=row["sha256"],
        published_elements=row.get("published"),
        published_source=row.get("published_source", ""),
        published_also=row.get("published_also", ""),
        also=tuple(row.get("also", ())),
    )


@cache
def _by_name() -> Mapping[str, Preset]:
    return MappingProxyType({name.lower(): p for p in presets().values() for name in (p.key, p.id, *p.also)})
