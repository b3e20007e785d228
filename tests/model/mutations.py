"""Broken configurations: real ones with one key removed, renamed, or given a value that it cannot have."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

KINDS = (
    "removed",
    "renamed",
    "null",
    "negative",
    "zero",
    "text",
    "huge",
    "fraction",
    "boolean",
    "list",
    "shorter",
    "longer",
    "object",
)


@dataclass(frozen=True)
class Mutation:
    model: str
    kind: str
    key: str
    config: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.model}: {self.key} {self.kind}"


def paths(config: Mapping[str, Any], prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every key of the configuration and of the objects in it; quantisation settings and label names are left out."""
    for key, value in config.items():
        if key in ("quantization_config", "compression_config", "quantization", "id2label", "label2id"):
            continue
        yield (*prefix, key)
        if isinstance(value, dict):
            yield from paths(value, (*prefix, key))


def mutate(config: Mapping[str, Any], path: tuple[str, ...], kind: str) -> dict[str, Any] | None:
    """A copy with one key changed; None where the kind does not apply to the value."""
    changed: dict[str, Any] = copy.deepcopy(dict(config))
    place = changed
    for key in path[:-1]:
        place = place[key]
    key, value = path[-1], place[path[-1]]
    if kind == "removed":
        del place[key]
    elif kind == "renamed":
        del place[key]
        place[f"{key}_x"] = value
    elif kind in ("shorter", "longer"):
        if not isinstance(value, list) or not value:
            return None
        place[key] = value[:-1] if kind == "shorter" else [*value, *value[:3]]
    else:
        replacement = {
            "null": None,
            "negative": -abs(value) - 1 if isinstance(value, int) else -1,
            "zero": 0,
            "text": "many",
            "huge": 10**18,
            "fraction": 1.5,
            "boolean": True,
            "list": [1, 2, 3],
            "object": {"a": 1},
        }[kind]
        if replacement == value and type(replacement) is type(value):
            return None
        place[key] = replacement
    return changed


def generate_pairs(configs: Mapping[str, dict[str, Any]], count: int, seed: int) -> list[Mutation]:
    """The same with a second key of the same configuration broken too."""
    chance = random.Random(seed)
    found: list[Mutation] = []
    for first in generate(configs, count, seed):
        path = chance.choice(list(paths(first.config)))
        kind = chance.choice(KINDS)
        changed = mutate(first.config, path, kind)
        if changed is not None:
            key = f"{first.key} {first.kind}, {'.'.join(path)}"
            found.append(Mutation(first.model, kind, key, changed))
    return found


def generate(configs: Mapping[str, dict[str, Any]], count: int, seed: int) -> list[Mutation]:
    """``count`` mutations over all models, the same for the same seed."""
    chance = random.Random(seed)
    models = sorted(configs)
    found: list[Mutation] = []
    while len(found) < count:
        model = chance.choice(models)
        path = chance.choice(list(paths(configs[model])))
        kind = chance.choice(KINDS)
        changed = mutate(configs[model], path, kind)
        if changed is not None:
            found.append(Mutation(model, kind, ".".join(path), changed))
    return found
