"""Bytes and their text. The only module that knows what a kibibyte is.

GiB (2^30 bytes) and GB (10^9 bytes) are different units and are never mixed in one number: a text names its unit, and
``parse_bytes`` takes each at its word.
"""

from __future__ import annotations

import re
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from typing import Literal

from calculator.errors import PlanError

KIB = 1024
MIB = 1024**2
GIB = 1024**3
TIB = 1024**4
KB = 1000
MB = 1000**2
GB = 1000**3
TB = 1000**4

Unit = Literal["GiB", "GB"]

_SIZES: dict[str, int] = {
    "B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB, "KB": KB, "MB": MB, "GB": GB, "TB": TB,
}  # fmt: skip
_LADDERS: dict[str, tuple[str, ...]] = {"GiB": ("GiB", "MiB", "KiB", "B"), "GB": ("GB", "MB", "KB", "B")}
_BY_LOWER = {name.lower(): size for name, size in _SIZES.items()} | {"": 1, "bytes": 1, "byte": 1}
_SHORT = {"k": KIB, "m": MIB, "g": GIB, "t": TIB, "ki": KIB, "mi": MIB, "gi": GIB, "ti": TIB}
_TEXT = re.compile(r"\s*([+-]?[0-9][0-9,_]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?|[+-]?\.[0-9]+)\s*([A-Za-z]*)\s*")
_LONGEST_TEXT = 64


def in_unit(value_bytes: int, unit: Unit = "GiB") -> float:
    """The same amount as a plain number of ``unit``, for axes and tables."""
    return value_bytes / _SIZES[unit]


def from_unit(value: float, unit: Unit = "GiB") -> int:
    """Whole bytes nearest to ``value`` of ``unit``."""
    return int((Decimal(repr(value)) * _SIZES[unit]).to_integral_value(ROUND_HALF_EVEN))


def format_bytes(value_bytes: int, unit: Unit = "GiB", digits: int = 2) -> str:
    """``value_bytes`` in ``unit``, as "14.96 GiB" or "1,024.00 GiB".

    An amount that would lose its meaning at ``digits`` decimals (under a tenth of the unit) is written in the next
    smaller unit of the same family: "52.31 MiB" beside "14.96 GiB", never "0.05 GiB". Rounded half to even.
    """
    sign = "-" if value_bytes < 0 else ""
    amount = abs(value_bytes)
    ladder = _LADDERS[unit]
    name = next((n for n in ladder if amount * 10 >= _SIZES[n]), "B") if amount else unit
    if name == "B":
        return f"{sign}{amount} B"
    rounded = (Decimal(amount) / _SIZES[name]).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_EVEN)
    return f"{sign}{rounded:,} {name}"


def parse_bytes(written: str, field: str = "", default_unit: str = "B") -> int:
    """Bytes of a text such as "24 GiB", "80GB", "1,024 MiB", "48g" or "25769803776".

    A unit with an i, or a single letter as container tools write it, is binary; GB and MB are decimal. A number
    without a unit is in ``default_unit``. A fraction of a byte rounds to the nearest.

    Raises ``PlanError`` ("units.unreadable", "units.unknown_unit" or "units.negative"), naming ``field``.
    """
    shown = written[:_LONGEST_TEXT]
    match = _TEXT.fullmatch(written) if len(written) <= _LONGEST_TEXT else None
    if match is None:
        raise PlanError("units.unreadable", field=field, text=shown)
    digits, name = match.groups()
    lowered = (name or default_unit).lower()
    size = _BY_LOWER.get(lowered) or _SHORT.get(lowered)
    if size is None:
        raise PlanError("units.unknown_unit", field=field, text=shown, unit=name)
    try:
        amount = Decimal(digits.replace(",", "").replace("_", ""))
    except InvalidOperation as error:
        raise PlanError("units.unreadable", field=field, text=shown) from error
    if amount < 0:
        raise PlanError("units.negative", field=field, text=shown)
    if amount > Decimal("1e30"):
        raise PlanError("units.unreadable", field=field, text=shown)
    return int((amount * size).to_integral_value(ROUND_HALF_EVEN))
