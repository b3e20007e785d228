"""The built-in models: whole, unedited, and of the size that is published."""

import hashlib
import json
from importlib.resources import files
from pathlib import Path

import pytest

from calculator.errors import ModelIdError
from calculator.lookup import load_preset
from calculator.presets import find_preset, near, preset, presets

TOTALS: dict[str, int] = json.loads((Path(__file__).parents[1] / "data" / "presets" / "totals.json").read_text())
"""Parameters of each, tied weights once and prediction layers apart, counted on the model classes of transformers
5.24 on the meta device. That release ties the head of Mistral-Small-3.2, whose files hold one of their own as those of
3.1 do, published with 24,011,361,280 parameters: the total here."""

EXTRA_IN_FILES = {
    "tied lm_head", "scale", "MTP", "mask", "small buffers", "k/v projections", "block scales",
}  # fmt: skip


def test_there_are_many_of_many_families() -> None:
    assert len(presets()) >= 30
    assert {p.family for p in presets().values()} >= {
        "Llama", "Qwen", "Mistral", "Gemma", "Phi", "DeepSeek", "GLM", "gpt-oss", "Kimi", "MiniMax", "SmolLM",
    }  # fmt: skip
    assert TOTALS.keys() == presets().keys()


@pytest.mark.parametrize("key", presets())
def test_a_preset_is_whole(key: str) -> None:
    found = presets()[key]
    raw = files("calculator").joinpath(f"data/presets/{key}.json").read_bytes()
    assert hashlib.sha256(raw).hexdigest() == found.sha256, "the copy was edited"
    assert found.source.title
    assert found.config() == json.loads(raw)


@pytest.mark.parametrize("key", presets())
def test_a_preset_has_the_published_size(key: str) -> None:
    model = load_preset(key)
    found = presets()[key]
    assert model.shape.parameters.total == TOTALS[key]
    if found.published_elements is not None:
        if not found.published_also:
            assert found.published_elements == TOTALS[key]
        else:
            assert any(named in found.published_also for named in EXTRA_IN_FILES), found.published_also
            assert TOTALS[key] < found.published_elements < 1.3 * TOTALS[key]
    assert model.shape.cache.bytes_per_token_full_layers >= 0


def test_every_file_is_listed() -> None:
    folder = files("calculator").joinpath("data/presets")
    assert {f.name for f in folder.iterdir()} == {"index.toml", *(f"{key}.json" for key in presets())}


def test_names_are_unambiguous() -> None:
    names = [name.lower() for p in presets().values() for name in (p.key, p.id, *p.also)]
    assert len(names) == len(set(names))


def test_finding() -> None:
    assert find_preset(" Qwen2.5-7B ") is presets()["qwen2.5-7b"]
    assert find_preset("qwen/qwen2.5-7b-instruct") is presets()["qwen2.5-7b"]
    assert find_preset("nothing") is None
    assert "qwen2.5-7b" in near("qwen2.5-7")
    with pytest.raises(ModelIdError) as caught:
        preset("qwen2.5-8b")
    assert "qwen2.5-7b" in str(caught.value.message.values["near"])
