"""Widgets for the fields of a plan: label, help, options and bounds follow from the field's name and type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st
from pydantic import BaseModel

from calculator.render import catalogue
from calculator.units import from_unit, in_unit
from ui import state
from ui.i18n import Words

_MOST = 2**31
_DEFAULT = "~"


@dataclass(frozen=True, slots=True)
class Form:
    """The widgets of one plan. ``write`` takes a changed field's name and value; ``prefix`` keeps keys apart."""

    plan: BaseModel
    write: Callable[[str, Any], None]
    words: Words
    prefix: str

    def select(self, name: str, options: Sequence[Any], *, none: str = "ui.auto") -> None:
        """One of many; a value that is not on offer (from a link) stays on the list while it is set."""
        value = getattr(self.plan, name)
        offered = list(options) if value in options else [*options, value]

        def write(chosen: Any) -> None:
            self.write(name, None if chosen == _DEFAULT else chosen)

        # A list box takes None for "nothing chosen", so the field's own default has a value of its own here.
        st.selectbox(
            self._label(name), [_DEFAULT if v is None else v for v in offered], help=self._help(name),
            format_func=lambda v: self._option(name, None if v == _DEFAULT else v, none),
            **state.bound(self._worded(name), _DEFAULT if value is None else value, write),
        )  # fmt: skip

    def choose(self, name: str, options: Sequence[Any]) -> None:
        """One of few, all in sight."""
        value = getattr(self.plan, name)
        offered = list(options) if value in options else [*options, value]
        st.segmented_control(
            self._label(name), offered, format_func=lambda v: self._option(name, v, "ui.auto"), required=True,
            help=self._help(name), wrap=True,
            **state.bound(self._worded(name), value, lambda changed: self.write(name, changed)),
        )  # fmt: skip

    def number(self, name: str, *, step: int = 1, optional: bool = False, placeholder: str | None = None) -> None:
        """A whole number within the field's bounds; an optional one may be left empty."""
        low, high = self._bounds(name)
        st.number_input(
            self._label(name), min_value=low, max_value=high, step=step, value=None if optional else "min",
            placeholder=placeholder or (self.words("ui.auto") if optional else None), help=self._help(name),
            **self._bound(name, getattr(self.plan, name)),
        )  # fmt: skip

    def fraction(self, name: str, *, placeholder: str | None = None, optional: bool = True) -> None:
        """A share between 0 and 1."""
        st.number_input(
            self._label(name), min_value=0.01, max_value=1.0, step=0.01, format="%.2f", help=self._help(name),
            value=None if optional else "min", placeholder=placeholder or self.words("ui.auto"),
            **self._bound(name, getattr(self.plan, name)),
        )  # fmt: skip

    def gibibytes(self, name: str, *, optional: bool = False, placeholder: str | None = None) -> None:
        """An amount of memory, kept in bytes and entered in GiB."""
        held = getattr(self.plan, name)

        def write(entered: float | None) -> None:
            self.write(name, None if entered is None else from_unit(entered, "GiB"))

        st.number_input(
            f"{self._label(name)} (GiB)", min_value=0.0, max_value=65_536.0, step=1.0, format="%.2f",
            value=None if optional else "min", placeholder=placeholder or self.words("ui.auto"), help=self._help(name),
            **state.bound(self._key(name), None if held is None else in_unit(held, "GiB"), write),
        )  # fmt: skip

    def decimal(self, name: str, low: float, high: float) -> None:
        """A number between two."""
        st.number_input(
            self._label(name), min_value=low, max_value=high, step=0.1, format="%.2f", help=self._help(name),
            **self._bound(name, getattr(self.plan, name)),
        )  # fmt: skip

    def one_of_or_own(self, name: str, options: Sequence[str], *, placeholder: str) -> None:
        """One of many, or a short text of one's own; empty for none."""
        value = getattr(self.plan, name)

        def write(written: str | None) -> None:
            self.write(name, (written or "").strip()[:40] or None)

        st.selectbox(
            self._label(name), [*options, *([value] if value and value not in options else [])], index=None,
            placeholder=placeholder, accept_new_options=True, help=self._help(name),
            **state.bound(self._key(name), value, write),
        )  # fmt: skip

    def words_of(self, name: str, *, placeholder: str, longest: int = 40) -> None:
        """A short text, empty for none."""

        def write(written: str) -> None:
            self.write(name, written.strip()[:longest] or None)

        st.text_input(
            self._label(name), max_chars=longest, placeholder=placeholder, autocomplete="off", help=self._help(name),
            **state.bound(self._key(name), getattr(self.plan, name) or "", write),
        )  # fmt: skip

    def toggle(self, name: str) -> None:
        st.toggle(self._label(name), help=self._help(name), **self._bound(name, bool(getattr(self.plan, name))))

    def several(self, name: str, options: Sequence[str]) -> None:
        """Any of a few, kept as a tuple in the order of ``options``."""
        value = list(getattr(self.plan, name))
        offered = [*options, *(v for v in value if v not in options)]
        key = self._worded(name)

        def write(chosen: Sequence[str]) -> None:
            self.write(name, tuple(v for v in offered if v in chosen))

        st.multiselect(
            self._label(name), offered, format_func=lambda v: self._option(name, v, "ui.auto"), help=self._help(name),
            placeholder=self.words("ui.none_chosen"), select_all=False, **state.bound(key, value, write),
        )  # fmt: skip

    def _bound(self, name: str, value: Any) -> dict[str, Any]:
        return state.bound(self._key(name), value, lambda changed: self.write(name, changed))

    def _key(self, name: str) -> str:
        return f"{self.prefix}.{name}"

    def _worded(self, name: str) -> str:
        """The key of a widget whose options are words: the browser keeps those it drew, so languages have their own."""
        return self._key(name) if self.words.language == "en" else f"{self._key(name)}.{self.words.language}"

    def _label(self, name: str) -> str:
        return self.words(f"ui.field.{name}")

    def _help(self, name: str) -> str | None:
        id_ = f"ui.help.{name}"
        return self.words(id_) if id_ in catalogue(self.words.language) else None

    def _option(self, name: str, value: Any, none: str) -> str:
        if value is None:
            return self.words(none)
        return self.words.option(name, "_".join(value) if isinstance(value, tuple) else str(value))

    def _bounds(self, name: str) -> tuple[int, int]:
        low, high = 0, _MOST
        for mark in type(self.plan).model_fields[name].metadata:
            low = getattr(mark, "ge", low)
            high = getattr(mark, "le", high)
        return low, high
