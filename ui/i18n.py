"""Words of one language and one unit: what every view is given to speak with."""

from __future__ import annotations

from dataclasses import dataclass

from calculator.render import catalogue, format_params, known_language, render, source_title
from calculator.sources import Source
from calculator.text import Text, Value, text
from calculator.units import Unit, format_bytes, in_unit
from ui.settings import Language, Settings


@dataclass(frozen=True, slots=True)
class Words:
    """Sentences and sizes in a person's language and unit. ``words("ui.auto")`` is a catalogue text."""

    language: Language = "en"
    unit: Unit = "GiB"

    def __call__(self, id_: str, **values: Value | Text) -> str:
        return render(text(id_, **values), self.language, self.unit)

    def text(self, message: Text) -> str:
        return render(message, self.language, self.unit)

    def source(self, source: Source) -> str:
        """The title of a source."""
        return source_title(source, self.language)

    def first(self, *ids: str, fallback: str) -> str:
        """The sentence of the first id that the catalogues hold, else ``fallback``."""
        for id_ in ids:
            if id_ in catalogue(self.language):
                return self(id_)
        return fallback

    def option(self, field: str, value: str) -> str:
        """The name of one value of a plan field; values without a sentence are names already ("zero3")."""
        return self.first(f"ui.option.{field}.{value}", f"ui.option.{value}", fallback=value)

    def size(self, amount_bytes: int, digits: int = 2) -> str:
        return format_bytes(amount_bytes, self.unit, digits)

    def short(self, amount_bytes: int) -> str:
        """A size in the unit itself with one decimal and no unit, for labels on an axis that names it."""
        return f"{in_unit(amount_bytes, self.unit):,.1f}"

    def params(self, count: int) -> str:
        return format_params(count)

    def span(self, low_bytes: int, high_bytes: int) -> str:
        """ "46.1 – 55.0 GiB"."""
        return f"{self.short(low_bytes)} – {self.short(high_bytes)} {self.unit}"

    def rough(self, low_bytes: int, high_bytes: int) -> str:
        """ "46–55 GiB": a range in as few characters as a single size."""
        low, high = in_unit(low_bytes, self.unit), in_unit(high_bytes, self.unit)
        digits = 1 if high < 9.95 else 0
        return f"{low:,.{digits}f}–{high:,.{digits}f} {self.unit}"


def language_of(settings: Settings, browser_locale: str | None) -> Language:
    """The language that was chosen, else the browser's, else English."""
    if settings.language is not None:
        return settings.language
    return "zh" if known_language(browser_locale or "en") == "zh" else "en"
