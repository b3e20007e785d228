"""One colour for each item of a bill, the same in every chart and table of the app.

Hues start from Okabe and Ito's palette for colour-blind readers (https://jfly.uni-koeln.de/color/) and are spread in
lightness, so that items that stand side by side differ in more than hue and each is seen on white and on near-black.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

COLOURS: Mapping[str, str] = MappingProxyType({})

UNKNOWN = "#8a94a6"
FREE = "rgba(138, 148, 166, 0.22)"


def colour(key: str) -> str:
    """The colour of an item key."""
    return COLOURS.get(key, UNKNOWN)


def ink(background: str) -> str:
    """Black or white, whichever is read better on ``background`` ("#rrggbb"); relative luminance as WCAG 2 has it."""
    if not background.startswith("#"):
        return "#1a1d29"
    channels = (int(background[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return "#ffffff" if 1.05 / (luminance + 0.05) >= (luminance + 0.05) / 0.05 else "#111318"
