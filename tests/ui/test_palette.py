"""Item colours stay apart for colour-blind readers, and are seen on both themes."""

import itertools
import tomllib
from pathlib import Path

import pytest

from ui.palette import COLOURS, ink

ROOT = Path(__file__).resolve().parents[2]

# Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB.
SIGHT = {
    "normal": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
}
TRAINING = list(COLOURS)[: list(COLOURS).index("weights")]
SERVING = ["weights", "kv_cache", "activation", "cuda_graphs", "non_torch", "context"]
LARGE = ["parameters", "gradients", "optimizer_states", "checkpoints", "activations", "logits_loss"]


def linear(colour: str) -> list[float]:
    channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]


def luminance(colour: str) -> float:
    red, green, blue = linear(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def lab(rgb: list[float]) -> tuple[float, float, float]:
    red, green, blue = (min(1.0, max(0.0, c)) for c in rgb)
    xyz = (
        (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.95047,
        0.2126 * red + 0.7152 * green + 0.0722 * blue,
        (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.08883,
    )
    x, y, z = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def distance(one: str, other: str, sight: str) -> float:
    """Colour difference (CIE 1976) as somebody with that sight sees it; 2.3 is just noticeable."""
    seen = [
        [sum(m * c for m, c in zip(row, linear(colour), strict=True)) for row in SIGHT[sight]]
        for colour in (one, other)
    ]
    return sum((a - b) ** 2 for a, b in zip(lab(seen[0]), lab(seen[1]), strict=True)) ** 0.5


@pytest.mark.parametrize("sight", SIGHT)
def test_neighbours_and_large_items_are_told_apart(sight: str) -> None:
    pairs = [*itertools.pairwise(TRAINING), *itertools.pairwise(SERVING), *itertools.combinations(LARGE, 2)]
    close = {(a, b): round(d) for a, b in pairs if (d := distance(COLOURS[a], COLOURS[b], sight)) < 15}
    assert not close


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_item_is_seen_on_the_theme(theme: str) -> None:
    config = tomllib.loads((ROOT / ".streamlit" / "config.toml").read_text())
    ground = luminance(config["theme"][theme]["backgroundColor"])
    for key, colour in COLOURS.items():
        high, low = max(luminance(colour), ground), min(luminance(colour), ground)
        assert (high + 0.05) / (low + 0.05) >= 1.4, key


def test_labels_are_read_on_their_segment() -> None:
    for key, colour in COLOURS.items():
        high, low = sorted((luminance(colour), luminance(ink(colour))), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 4.5, key
