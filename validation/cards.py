"""The card of a case: a key of the catalogue, a short key, or only a size."""

from __future__ import annotations

import re
from functools import cache
from statistics import median

from calculator.errors import UnknownGpuError
from calculator.hardware import catalogue, find
from calculator.units import GIB

CUSTOM = "custom"


@cache
def usual_total(marketed_gib: int) -> int:
    """What programs see of a card sold with this many GiB: the median over the catalogue, or 98 % where it has none."""
    same = [gpu for gpu in catalogue().values() if gpu.marketed_bytes == marketed_gib * GIB and not gpu.unified]
    totals = [gpu.total_bytes for gpu in same]
    return int(median(totals)) if totals else marketed_gib * GIB * 98 // 100


def card_fields(key: str | None, total_bytes: int | None) -> dict[str, str | int]:
    """The plan's ``gpu`` and ``gpu_capacity_bytes`` of a case. Empty where neither card nor size is known."""
    if key:
        try:
            found = find(key).key
        except UnknownGpuError:
            found = ""
        if found:
            return {"gpu": found} | ({"gpu_capacity_bytes": total_bytes} if total_bytes else {})
        size = re.search(r"(\d+)gb\b", key)
        if total_bytes is None and size:
            total_bytes = usual_total(int(size[1]))
    return {"gpu": CUSTOM, "gpu_capacity_bytes": total_bytes} if total_bytes else {}
