"""Texts as sentences: the catalogues of ``assets/locales``, read at run time.

The catalogues are plain gettext ``.po`` files, one domain per part of the project. A message id is looked up in the
asked language, then in English; an id that neither holds is shown as it is, so that a gap is seen and never hides a
number. Values fill ``{named}`` fields and nothing else: no attribute access, no format specification.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

from babel.messages.pofile import read_po

from calculator.sources import Source
from calculator.text import Text, Value
from calculator.units import Unit, format_bytes

LANGUAGES = ("en", "zh")
LOCALES = Path(__file__).resolve().parent.parent / "assets" / "locales"

_FIELD = re.compile(r"\{\{|\}\}|\{([a-z][a-z0-9_]*)\}")
_FILES = re.compile(r"(?P<name>[^,:]+) source, (?P<path>.+)")
_COUNT_STEPS = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K"))


@cache
def catalogue(language: str) -> Mapping[str, str]:
    """Message id -> sentence of one language, all domains together. Unknown languages have none."""
    sentences: dict[str, str] = {}
    if language in LANGUAGES:
        for path in sorted((LOCALES / language / "LC_MESSAGES").glob("*.po")):
            with path.open("rb") as file:
                for message in read_po(file, locale=language, domain=path.stem):
                    if isinstance(message.id, str) and message.id and isinstance(message.string, str):
                        sentences[message.id] = message.string
    return MappingProxyType(sentences)


def known_language(tag: str) -> str:
    """The catalogue for a language tag: "zh-CN" and "zh_Hans" are "zh", anything unknown is "en"."""
    primary = re.split(r"[-_]", tag.strip().lower(), maxsplit=1)[0]
    return primary if primary in LANGUAGES else LANGUAGES[0]


def render(text: Text, language: str = "en", unit: Unit = "GiB") -> str:
    """The sentence of ``text`` in a language, with its values put in.

    Values are formatted by the suffix of their name, see ``format_value``. A field that has no value stays visible.
    """
    language = known_language(language)
    sentence = catalogue(language).get(text.id) or catalogue(LANGUAGES[0]).get(text.id)
    if sentence is None:
        return text.id

    def fill(match: re.Match[str]) -> str:
        name = match.group(1)
        if name is None:
            return match.group(0)[0]
        if name not in text.values:
            return match.group(0)
        value = text.values[name]
        return render(value, language, unit) if isinstance(value, Text) else format_value(name, value, unit)

    return _FIELD.sub(fill, sentence)


def source_title(source: Source, language: str = "en") -> str:
    """The title of ``source`` in a language. Titles are written in English; the catalogues of other languages hold
    those that are sentences under the title itself, and "<project> source, <files>" once for all. Names stay."""
    sentences = catalogue(known_language(language))
    if source.title in sentences:
        return sentences[source.title]
    parts = _FILES.fullmatch(source.title)
    pattern = sentences.get("{name} source, {path}")
    return pattern.format(**parts.groupdict()) if parts and pattern else source.title


def format_value(name: str, value: Value, unit: Unit = "GiB") -> str:
    """A value as people read it: the suffix of its name says what it measures.

    ``*_bytes`` as memory, ``*_params`` as "8.03 B", ``*_count`` and ``*_tokens`` as grouped numbers, ``each`` (bytes
    that one of something takes) as a grouped number with the digits it has. Other values stay as they are, floats with
    up to six digits.
    """
    if isinstance(value, str):
        return value
    kind = name.rpartition("_")[2]
    if kind == "bytes":
        return format_bytes(round(value), unit)
    if kind == "params":
        return format_params(value)
    if kind in ("count", "tokens"):
        return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"
    if kind == "each":
        return f"{value:,.10g}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def format_params(value: float) -> str:
    """A parameter count with three digits: "8.03 B", "494 M"."""
    for size, label in _COUNT_STEPS:
        if abs(value) >= size:
            scaled = value / size
            decimals = 2 if abs(scaled) < 10 else 1 if abs(scaled) < 100 else 0
            return f"{scaled:,.{decimals}f} {label}"
    return f"{value:,.0f}"
