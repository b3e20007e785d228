"""Release numbers, and rules that hold for a range of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from calculator.errors import PlanError
from calculator.sources import Source

T = TypeVar("T")
Version = tuple[int, int, int]

_NUMBER = re.compile(r"v?(\d{1,6})(?:\.(\d{1,6}))?(?:\.(\d{1,6}))?(?:[.\-+]?[a-z][a-z0-9.+\-]*)?", re.IGNORECASE)


def parse(written: str) -> Version:
    """The first three numbers of a release: "0.6.3.post1" is (0, 6, 3), "0.7" is (0, 7, 0), "v0.15.2rc1" (0, 15, 2).

    Raises ``PlanError`` ("serving.version_unreadable").
    """
    match = _NUMBER.fullmatch(written.strip()[:64])
    if match is None:
        raise PlanError("serving.version_unreadable", field="engine_version", text=written[:64])
    major, minor, patch = (int(part or 0) for part in match.groups())
    return major, minor, patch


@dataclass(frozen=True, slots=True)
class Rule(Generic[T]):
    """A value that an engine's releases share from ``since`` on, until the next rule of its table begins."""

    since: Version
    value: T
    source: Source


def at(rules: Sequence[Rule[T]], version: Version) -> Rule[T]:
    """The rule in force at a version: the last one that begins at or before it, else the first."""
    found = rules[0]
    for rule in rules:
        if rule.since > version:
            break
        found = rule
    return found
