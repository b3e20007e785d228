"""Sentences from texts."""

from collections.abc import Mapping
from types import MappingProxyType

import pytest

from calculator import render as module
from calculator.render import catalogue, format_params, format_value, known_language, render
from calculator.text import text

SENTENCES: Mapping[str, Mapping[str, str]] = {
    "en": {
        "weights": "{total_params} parameters at {each_bytes}: {of}",
        "brace": "{{literal}} {x}",
        "attribute": "{x.__class__} {x[0]} {x!r} {0}",
        "only_english": "English",
        "layer": "layer {number}",
    },
    "zh": {"weights": "{total_params} 参数，每个 {each_bytes}：{of}", "layer": "第 {number} 层"},
}


@pytest.fixture
def sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "catalogue", lambda language: SENTENCES.get(language, {}))


@pytest.mark.usefixtures("sentences")
class TestRender:
    def test_values_are_formatted_by_suffix_and_texts_nest(self) -> None:
        t = text("weights", total_params=8_030_261_248, each_bytes=3 * 2**30, of=text("layer", number=4))
        assert render(t) == "8.03 B parameters at 3.00 GiB: layer 4"
        assert render(t, "zh", "GB") == "8.03 B 参数，每个 3.22 GB：第 4 层"

    def test_an_unknown_id_is_shown(self) -> None:
        assert render(text("no.such_id", n=1)) == "no.such_id"

    def test_chinese_falls_back_to_english(self) -> None:
        assert render(text("only_english"), "zh") == "English"

    def test_a_missing_value_stays_visible(self) -> None:
        assert render(text("layer")) == "layer {number}"

    def test_double_braces_are_literal(self) -> None:
        assert render(text("brace", x="y")) == "{literal} y"

    def test_nothing_but_names_is_a_field(self) -> None:
        assert render(text("attribute", x="y")) == "{x.__class__} {x[0]} {x!r} {0}"

    def test_a_value_is_not_read_as_a_sentence(self) -> None:
        assert render(text("layer", number="{number} {{")) == "layer {number} {{"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(12, "12"), (494_032_768, "494 M"), (8_030_261_248, "8.03 B"), (70_553_706_496, "70.6 B"),
     (1_026_408_232_448, "1.03 T")],
)  # fmt: skip
def test_params(value: int, shown: str) -> None:
    assert format_params(value) == shown


def test_other_values() -> None:
    assert format_value("kv_bytes", 3 * 2**30, "GB") == "3.22 GB"
    assert format_value("bytes", 131_072.4) == "0.12 MiB"
    assert format_value("kv_tokens", 1_234_567) == "1,234,567"
    assert format_value("layer_count", 2.5) == "2.50"
    assert format_value("tokens", 4096) == "4,096"
    assert format_value("ratio", 0.1 + 0.2) == "0.3"
    assert format_value("year", 2026) == "2026"
    assert format_value("name_bytes", "text") == "text"


@pytest.mark.parametrize(
    ("tag", "language"),
    [("zh-CN", "zh"), ("zh_Hans_CN", "zh"), ("EN-gb", "en"), ("fr", "en"), ("", "en"), ("../../etc", "en")],
)
def test_language_tags(tag: str, language: str) -> None:
    assert known_language(tag) == language


def test_catalogues_are_read_once_and_cannot_be_changed() -> None:
    assert catalogue("en") is catalogue("en")
    assert isinstance(catalogue("en"), MappingProxyType)
    assert catalogue("xx") == {}
