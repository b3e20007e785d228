"""The model's line and strip say what was read, for unusual models too."""

import pytest

from calculator.lookup import load_preset
from calculator.presets import presets
from ui.i18n import Words
from ui.views.card import card_line, strip_data


def test_the_line_of_a_usual_model() -> None:
    assert card_line(load_preset("llama-3.1-8b"), Words()) == (
        "8.03 B parameters · 32 layers · GQA 32/8 × 128 · vocab 128,256 · from the built-in config.json"
    )


@pytest.mark.parametrize("key", presets())
def test_every_built_in_model_has_a_line_and_a_strip(key: str) -> None:
    model = load_preset(key)
    for words in (Words(), Words("zh")):
        assert "ui." not in card_line(model, words)
        strip = strip_data(model.shape, words)
        assert len(strip["layers"]) == model.shape.layers
        assert "ui." not in strip["label"]


def test_windows_and_experts_are_told_apart() -> None:
    strip = strip_data(load_preset("gpt-oss-20b").shape, Words())
    assert {layer["mixer"] for layer in strip["layers"]} == {"full", "window"}
    assert {layer["mlp"] for layer in strip["layers"]} == {"moe"}
    assert strip["label"].startswith("24 layers from first to last: 12 × full attention, 12 × sliding window")
