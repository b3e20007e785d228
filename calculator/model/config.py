"""Typed access to a config.json: every value that is used is checked, every default that is taken is noted.

A ``Config`` wraps one JSON object of the file. It remembers which keys were asked for, so that the reader can tell
afterwards which keys that matter nobody understood.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from calculator.errors import BadValueError, MissingKeyError, NotAConfigError
from calculator.text import Text, text

MAX_SIZE = 100_000_000
"""No width, count or vocabulary of a real model comes near; a larger value is a mistake."""

MAX_LAYERS = 2_048
MAX_DEPTH = 12
MAX_NODES = 200_000

_REQUIRED: Any = object()


class Notes:
    """What one reading of a file collects: assumptions, and the keys that were asked for, by path."""

    def __init__(self) -> None:
        self.assumptions: list[Text] = []
        self.asked: set[str] = set()
        self.defaulted: set[str] = set()
        self.visited: dict[str, Mapping[str, Any]] = {}

    def assume(self, id_: str, **values: int | float | str) -> None:
        note = text(id_, **values)
        if note not in self.assumptions:
            self.assumptions.append(note)


class Config:
    """One object of the file. ``path`` is the dotted way to it ("text_config."), ``fallback`` the class defaults that
    transformers fills in when the object leaves a key out."""

    def __init__(
        self,
        raw: Mapping[str, Any],
        path: str = "",
        notes: Notes | None = None,
        fallback: Mapping[str, Any] | None = None,
    ) -> None:
        self.raw = raw
        self.path = path
        self.notes = notes if notes is not None else Notes()
        self.notes.visited[path] = raw
        self.fallback = fallback or {}

    # ------------------------------------------------------------------------------------------------ raw access

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return self.get(key) is not None

    def get(self, key: str) -> Any:
        """The raw value, None where absent. Marks the key as understood."""
        self.notes.asked.add(self.path + key)
        return self.raw.get(key)

    def ignore(self, *keys: str) -> None:
        """Declare keys that this family knows and that change no size."""
        self.notes.asked.update(self.path + key for key in keys)

    def bad(self, key: str, reason: str = "type") -> BadValueError:
        return bad_value(self.path + key, self.raw.get(key), reason)

    def missing(self, *keys: str) -> MissingKeyError:
        """The error for an absent key; further ``keys`` are other names for it."""
        return MissingKeyError(
            "shape.missing_key", field=self.path + keys[0], keys=", ".join(self.path + key for key in keys)
        )

    def _lookup(self, keys: Sequence[str]) -> tuple[str, Any]:
        """The first key that holds a value. A second alias that holds another value is a contradiction."""
        found: tuple[str, Any] | None = None
        for key in keys:
            value = self.get(key)
            if value is not None and found is None:
                found = key, value
        if found is not None:
            return found
        self.notes.defaulted.add(self.path + keys[0])
        for key in keys:
            if key in self.fallback:
                value = self.fallback[key]
                if value is not None:
                    self.notes.assume("assumption.class_default", key=self.path + keys[0], value=_show(value))
                return key, value
        return keys[0], None

    def assume_default(self, key: str, value: object) -> None:
        """Note that ``key`` is absent and that its class's ``value`` is taken."""
        self.notes.assume("assumption.default", key=self.path + key, value=_show(value))

    def _default(self, keys: Sequence[str], default: Any, silent: bool) -> Any:
        if default is _REQUIRED:
            raise self.missing(*keys)
        if default is not None and not silent:
            self.assume_default(keys[0], default)
        return default

    # -------------------------------------------------------------------------------------------------- typed access

    def integer(
        self, *keys: str, default: Any = _REQUIRED, low: int = 1, high: int = MAX_SIZE, silent: bool = False
    ) -> int:
        """An integer in [low, high]. ``default`` is taken when absent or null, and noted unless ``silent``."""
        key, value = self._lookup(keys)
        if value is None:
            return self._default(keys, default, silent)  # type: ignore[no-any-return]
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.bad(key, "integer")
        if not low <= value <= high:
            raise self.bad(key, "range")
        return value

    def optional_int(self, *keys: str, low: int = 1, high: int = MAX_SIZE) -> int | None:
        """An integer, or None where the key is absent or null."""
        key, value = self._lookup(keys)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.bad(key, "integer")
        if not low <= value <= high:
            raise self.bad(key, "range")
        return value

    def number(self, *keys: str, default: float | None, low: float = 0.0, high: float = 1e6) -> float:
        """A finite number in [low, high]; a default is not worth a note, and None means that there is none."""
        key, value = self._lookup(keys)
        if value is None:
            if default is None:
                raise self.missing(*keys)
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.bad(key, "number")
        if not low <= value <= high:
            raise self.bad(key, "range")
        return float(value)

    def flag(self, *keys: str, default: bool = False, silent: bool = False) -> bool:
        """A boolean; null is not one. Absent, the class's value is taken, and noted unless ``silent``."""
        key, value = self._lookup(keys)
        if value is None:
            unset = next((k for k in keys if k in self.raw), None)
            if unset is not None:
                raise self.bad(unset, "boolean")
            if not silent:
                word = "true" if default else "false"
                self.assume_default(keys[0], word)
            return default
        if not isinstance(value, bool):
            raise self.bad(key, "boolean")
        return value

    def optional_flag(self, *keys: str) -> bool | None:
        key, value = self._lookup(keys)
        if value is None:
            return None
        if not isinstance(value, bool):
            raise self.bad(key, "boolean")
        return value

    def string(self, *keys: str, default: str) -> str:
        key, value = self._lookup(keys)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.bad(key, "text")
        return value

    def ints(
        self, key: str, *, length: int | None = None, low: int = 0, high: int = MAX_SIZE, at_most: int = 65_536
    ) -> tuple[int, ...] | None:
        """A list of integers, or None where absent or null."""
        _, value = self._lookup((key,))
        if value is None:
            return None
        if not isinstance(value, list):
            raise self.bad(key, "list")
        if len(value) > at_most or (length is not None and len(value) != length):
            raise self.bad(key, "length")
        for item in value:
            if isinstance(item, bool) or not isinstance(item, int) or not low <= item <= high:
                raise self.bad(key, "items")
        return tuple(value)

    def strings(self, key: str, *, at_most: int = 4_096) -> tuple[str, ...] | None:
        """A list of strings, or None where absent or null."""
        _, value = self._lookup((key,))
        if value is None:
            return None
        if not isinstance(value, list):
            raise self.bad(key, "list")
        if len(value) > at_most:
            raise self.bad(key, "length")
        if any(not isinstance(item, str) for item in value):
            raise self.bad(key, "items")
        return tuple(value)

    def layer_kinds(
        self, key: str, names: Mapping[str, str], layers: int, *, spare: int = 0, default: Sequence[str] | None = None
    ) -> tuple[str, ...]:
        """One word per layer, translated by ``names``. A list may name up to ``spare`` multi-token-prediction layers
        more, which are cut off."""
        values = self.strings(key)
        if values is None:
            if default is None:
                raise self.missing(key)
            self.notes.assume("assumption.layer_pattern", key=self.path + key)
            return tuple(default)
        if not layers <= len(values) <= layers + spare:
            raise self.bad(key, "length")
        for value in values:
            if value not in names:
                raise bad_value(self.path + key, value, "choice")
        return tuple(names[v] for v in values[:layers])

    def sub(self, key: str, fallback: Mapping[str, Any] | None = None) -> Config | None:
        """The object under ``key``, or None where absent or null."""
        value = self.get(key)
        if value is None:
            self.notes.defaulted.add(self.path + key)
            return None
        if not isinstance(value, Mapping):
            raise self.bad(key, "object")
        return Config(value, f"{self.path}{key}.", self.notes, fallback)

    def require_sub(self, key: str, fallback: Mapping[str, Any] | None = None) -> Config:
        found = self.sub(key, fallback)
        if found is None:
            raise self.missing(key)
        return found

    def divide(self, key: str, number: int, by: int, *, of: str = "") -> int:
        """``number / by`` where it must come out even; ``key`` is at fault where it does not, ``of`` names the key
        of the number."""
        if number % by:
            raise BadValueError(
                "shape.bad_value.divisible",
                field=self.path + key,
                value=str(by),
                number=str(number),
                other=self.path + of if of else str(number),
            )
        return number // by


def bad_value(field: str, value: Any, reason: str) -> BadValueError:
    """The error for a value that is not what it should be; ``reason`` is a word that the catalogue explains."""
    return BadValueError(f"shape.bad_value.{reason}", field=field, value=_show(value))


def check_is_config(config: object) -> Mapping[str, Any]:
    """The file's top object, after a look at its nesting and size.

    Raises ``NotAConfigError`` if it is no object, nested deeper than ``MAX_DEPTH`` or larger than ``MAX_NODES``.
    """
    if not isinstance(config, Mapping):
        raise NotAConfigError("shape.not_a_config")
    stack: list[tuple[object, int]] = [(config, 0)]
    nodes = 0
    while stack:
        node, depth = stack.pop()
        nodes += 1
        if depth > MAX_DEPTH or nodes > MAX_NODES:
            raise NotAConfigError("shape.too_deep")
        if isinstance(node, Mapping):
            if any(not isinstance(key, str) for key in node):
                raise NotAConfigError("shape.not_a_config")
            stack.extend((value, depth + 1) for value in node.values())
        elif isinstance(node, list | tuple):
            stack.extend((value, depth + 1) for value in node)
    return config


def _show(value: object) -> str:
    shown = str(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
