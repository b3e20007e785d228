"""JSON from strangers: bounded in length and depth, and an object."""

from __future__ import annotations

import json
from typing import Any

from calculator.errors import NotAConfigError, TooLargeError

LIMIT_BYTES = 8_000_000
"""Well over the longest published config.json known: 3.1 MB, the NVFP4 edition of MiniMax-M3 with an entry a module."""
DEEPEST = 24


def parse_object(
    raw: str | bytes, field: str = "config", limit_bytes: int = LIMIT_BYTES, *, unique_keys: bool = False
) -> dict[str, Any]:
    """The JSON object of a text. ``unique_keys`` refuses an object that says a key twice; else the last one counts.

    Raises ``TooLargeError`` ("json.too_large") and ``NotAConfigError``: "json.empty", "json.malformed" with line and
    column, "json.not_object", "json.too_deep", "json.repeated".
    """
    size = len(raw) if isinstance(raw, bytes) else len(raw.encode("utf-8", errors="surrogatepass"))
    if size > limit_bytes:
        raise TooLargeError("json.too_large", field=field, size_bytes=size, limit_bytes=limit_bytes)
    if isinstance(raw, bytes):
        raw = raw.decode("utf-8-sig", errors="replace")
    raw = raw.removeprefix("\ufeff")
    if not raw.strip():
        raise NotAConfigError("json.empty", field=field)
    try:
        value = json.loads(raw, object_pairs_hook=_once if unique_keys else None)
    except json.JSONDecodeError as error:
        raise NotAConfigError("json.malformed", field=field, line=error.lineno, column=error.colno) from None
    except RecursionError:
        raise NotAConfigError("json.too_deep", field=field, limit_count=DEEPEST) from None
    except _RepeatedKeyError as error:
        raise NotAConfigError("json.repeated", field=field, name=error.key[:60]) from None
    except ValueError:  # an integer of thousands of digits
        raise NotAConfigError("json.malformed", field=field, line=1, column=1) from None
    if not isinstance(value, dict):
        raise NotAConfigError("json.not_object", field=field, found=type(value).__name__)
    if _deeper_than(value, DEEPEST):
        raise NotAConfigError("json.too_deep", field=field, limit_count=DEEPEST)
    return value


class _RepeatedKeyError(ValueError):
    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _RepeatedKeyError(key)
        found[key] = value
    return found


def _deeper_than(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [c for v in level for c in (v.values() if isinstance(v, dict) else v if isinstance(v, list) else ())]
        if not level:
            return False
    return True
