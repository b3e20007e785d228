"""Sentences as message ids with named values.

The core never builds a sentence. It returns a ``Text``; the catalogues in ``assets/locales`` hold the English and
Chinese sentences, and whoever shows one (page, command line, JSON) renders it. A value may be a ``Text`` itself.

A value's name says its unit, and the renderer formats by that suffix: ``*_bytes`` as memory, ``*_tokens`` and
``*_count`` as grouped integers, ``*_params`` as "8.03 B"; anything else is shown as it is.
"""

from __future__ import annotations

from calculator.base import Frozen

Value = int | float | str


class Text(Frozen):
    """A message id of the catalogues and the values that its sentence names."""

    id: str
    values: dict[str, Value | Text] = {}


def text(id_: str, **values: Value | Text) -> Text:
    """Shorthand: ``text("item.weights", total_params=8_030_261_248)``."""
    return Text(id=id_, values=values)
