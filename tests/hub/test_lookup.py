"""Whatever a person gives becomes the model it names, or a typed error."""

import contextlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculator import lookup
from calculator.errors import (
    CalculatorError,
    GatedModelError,
    HubAnswerError,
    InputError,
    ModelIdError,
    ModelNotFoundError,
    NotAConfigError,
    NotTrainableError,
    PlanError,
    ShapeError,
    TooLargeError,
)
from calculator.jsonin import LIMIT_BYTES, parse_object
from calculator.lookup import load, load_path, load_preset, load_text
from calculator.presets import presets
from tests.fakehub import GOOD_TOKEN, FakeHub
from tests.fakehub.files import gguf, llama_like, sharded
from tests.fakehub.models import TINY

TINY_TEXT = json.dumps(TINY)


def folder_of(path: Path) -> Path:
    (path / "config.json").write_text(TINY_TEXT)
    for name, file in sharded(llama_like(TINY), shard_bytes=40_000).items():
        (path / name).write_bytes(b"".join(file.read(0, file.size)))
    return path


def test_a_key_needs_no_network(hub: FakeHub) -> None:
    model = load("qwen2.5-7b")
    assert (model.origin, model.preset, model.id) == ("preset", "qwen2.5-7b", "Qwen/Qwen2.5-7B")
    assert not hub.requests


@pytest.mark.parametrize("written", ["Qwen/Qwen2.5-7B", "https://huggingface.co/Qwen/Qwen2.5-7B/tree/main"])
def test_an_id_asks_the_hub(hub: FakeHub, written: str) -> None:
    model = load(written)
    assert model.origin == "hub"
    assert model.commit == hub.repos["Qwen/Qwen2.5-7B"].sha
    assert model.stored is not None
    assert model.stored.total_bytes == 15_231_233_024
    assert model.stored.basis == "header"
    assert not model.notes


def test_the_revision_that_was_asked_is_kept(hub: FakeHub) -> None:
    model = load("fake/tiny", revision="v1.0")
    assert (model.revision, model.commit) == ("v1.0", hub.repos["fake/tiny"].sha)


def test_a_tied_head_stored_twice_is_no_surprise(hub: FakeHub) -> None:
    model = load("Qwen/Qwen3-4B")
    assert model.stored is not None
    assert model.stored.loaded_bytes == 2 * model.shape.parameters.total


def test_totals_without_headers_are_kept_apart(hub: FakeHub) -> None:
    model = load("mistralai/Mixtral-8x7B-Instruct-v0.1")
    assert model.headers is None
    assert model.stored is None
    assert model.hub_totals is not None


def test_a_preset_stands_in_and_says_so(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    model = load("Qwen/Qwen2.5-7B-Instruct")
    assert (model.origin, model.name) == ("preset", "Qwen/Qwen2.5-7B-Instruct")
    note = model.assumptions[0]
    assert note.id == "lookup.preset_instead"
    assert note.values["preset"] == "Qwen/Qwen2.5-7B"
    with pytest.raises(CalculatorError):
        load("Qwen/Qwen2.5-7B@v9")
    assert load_preset("qwen2.5-7b").notes == (), "the preset itself is not changed by it"


def test_a_misspelt_key_is_helped_without_a_network_too(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(CalculatorError) as caught:
        load("qwen2.5-7")
    assert caught.value.key == "hub.offline_near"
    assert caught.value.exit_code == 3


def test_many_visitors_at_once(hub: FakeHub) -> None:
    names = ["Qwen/Qwen2.5-7B", "fake/tiny", "fake/gated", "Qwen/Qwen3-8B"] * 6
    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(_loaded, names))
    assert [type(f).__name__ for f in found[:4]] == ["LoadedModel", "LoadedModel", "GatedModelError", "LoadedModel"]
    assert all(found[i] == found[i % 4] for i in range(24) if i % 4 != 2)


def _loaded(name: str) -> object:
    try:
        return load(name)
    except CalculatorError as error:
        return error


def test_errors_of_the_hub_come_through(hub: FakeHub) -> None:
    with pytest.raises(GatedModelError):
        load("fake/gated")
    assert load("fake/gated", token=GOOD_TOKEN).shape.hidden == 64
    with pytest.raises(ModelNotFoundError) as caught:
        load("qwen2.5-7")
    assert "qwen2.5-7b" in str(caught.value.message.values["near"])


TINY_MATRICES = 2 * 256 * 64 + 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 128)
TINY_NORMS = 64 * 5


@pytest.mark.parametrize(
    ("written", "file", "stored_bytes"),
    [
        ("fake/gguf", "tiny-Q8_0.gguf", TINY_MATRICES * 34 // 32 + 4 * TINY_NORMS),
        ("fake/gguf:f16", "sub/tiny-F16.gguf", TINY_MATRICES * 2 + 4 * TINY_NORMS),
        (
            "https://huggingface.co/fake/gguf/blob/main/sub/tiny-F16.gguf",
            "sub/tiny-F16.gguf",
            TINY_MATRICES * 2 + 4 * TINY_NORMS,
        ),
        ("fake/gguf-and-config", "tiny-F16.gguf", TINY_MATRICES * 2 + 4 * TINY_NORMS),
    ],
)
def test_gguf_repositories(hub: FakeHub, written: str, file: str, stored_bytes: int) -> None:
    model = load(written)
    assert model.shape.parameters.total == TINY_MATRICES + TINY_NORMS
    assert model.stored is not None
    assert (model.gguf_file, model.stored.total_bytes) == (file, stored_bytes)
    assert model.commit == hub.repos[model.name].sha


def test_gguf_of_an_architecture_that_only_its_base_explains(hub: FakeHub) -> None:
    model = load("fake/gguf-of-qwen")
    assert model.shape == load_preset("qwen2.5-7b").shape
    assert model.gguf_file == "new-Q8_0.gguf"
    for written, key in (
        ("fake/gguf-of-none", "gguf.unknown_architecture"),
        ("fake/gguf-garbage", "gguf.not_gguf"),
        ("fake/gguf:Q2_K", "gguf.no_such_file"),
        ("fake/tiny:Q2_K", "gguf.no_files"),
        ("fake/adapter", "hub.adapter_of"),
    ):
        with pytest.raises(CalculatorError) as caught:
            load(written)
        assert caught.value.key == key


@pytest.mark.parametrize(
    ("written", "file", "part"),
    [
        ("fake/gguf-many", "small-Q4_K_M.gguf", 1),
        ("fake/gguf-many:Q8_0", "small-Q8_0.gguf", 1),
        ("fake/gguf-many:small-old-Q8_0.gguf", "old/small-old-Q8_0.gguf", 1),
        ("fake/gguf-many@v2.0:small-Q8_0.gguf", "small-Q8_0.gguf", 1),
        ("fake/gguf-many:small-Q8_0.gguf@v2.0", "small-Q8_0.gguf", 1),
        ("https://huggingface.co/fake/gguf-many/resolve/main/small-Q6_K.gguf?download=true", "small-Q6_K.gguf", 1),
        ("hf.co/fake/gguf-many:bf16", "BF16/small-BF16-00001-of-00003.gguf", 3),
    ],
)
def test_one_of_many_files(hub: FakeHub, written: str, file: str, part: int) -> None:
    model = load(written)
    assert model.gguf_file == file
    chosen = next(f for f in model.gguf_choices if file in f.names)
    assert chosen.part_count == part
    assert load(f"fake/gguf-many:{model.gguf_name(chosen)}").gguf_file == file
    assert model.gguf_named is (written != "fake/gguf-many")
    assert len(model.gguf_choices) == 5


def test_parts_add_up_to_the_whole(hub: FakeHub) -> None:
    matrices = 2 * 256 * 256 + 2 * (2 * 256 * 256 + 2 * 128 * 256 + 3 * 256 * 512)
    model = load("fake/gguf-many:BF16")
    assert model.gguf is not None
    tower = 4096 * 128 * 4 + 256 * 128 * 2 + 2 * ((4 * 128 * 128 + 2 * 128 * 256) * 2 + 2 * 128 * 4)
    assert model.gguf.total_bytes == 2 * matrices + 4 * 5 * 256 + tower
    assert sum(model.gguf.by_component[name] for name in ("vision", "projector")) == tower
    assert (model.gguf.mix, model.mmproj_file) == ("BF16", "mmproj-F16.gguf")
    assert model.gguf.encoder is not None
    assert (model.gguf.encoder.hidden, model.gguf.encoder.image_size, model.gguf.encoder.kind) == (128, 896, "gemma3")


def test_a_file_that_is_not_there_is_refused_with_what_is(hub: FakeHub) -> None:
    for wanted in ("Q2_K", "mmproj-F16.gguf", "no-such.gguf"):
        with pytest.raises(PlanError) as caught:
            load(f"fake/gguf-many:{wanted}")
        assert caught.value.key == "gguf.no_such_file"
        assert caught.value.message.values["candidates"] == "BF16, Q4_K_M, Q6_K, Q8_0"
    with pytest.raises(HubAnswerError) as broken:
        load("fake/gguf-many:Q5_K_M")
    assert broken.value.key == "gguf.missing_part"
    with pytest.raises(ModelIdError):
        load("fake/gguf-many:Q4_K_M@v2.0:Q8_0")


def test_gguf_is_not_trained(hub: FakeHub) -> None:
    for written, key, base in (
        ("fake/gguf-many", "gguf.not_trainable_of", "Qwen/Qwen2.5-7B"),
        ("fake/gguf-of-qwen", "gguf.not_trainable_of", "Qwen/Qwen2.5-7B-Instruct"),
        ("fake/gguf", "gguf.not_trainable", None),
    ):
        with pytest.raises(NotTrainableError) as caught:
            load(written).check_trainable()
        assert (caught.value.key, caught.value.message.values.get("base")) == (key, base)
    for written in ("fake/tiny", "fake/gguf-beside", "fake/gguf-beside:Q8_0", "fake/pickled"):
        load(written).check_trainable()


def test_a_preset_does_not_stand_in_for_a_file(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(CalculatorError):
        load("Qwen/Qwen2.5-7B:Q4_K_M")


def test_a_gguf_file_of_this_machine(tmp_path: Path) -> None:
    file = gguf(TINY)
    (tmp_path / "tiny-Q8_0.gguf").write_bytes(b"".join(file.read(0, file.size)))
    model = load(str(tmp_path / "tiny-Q8_0.gguf"), allow_local=True)
    assert model.origin == "file"
    assert model.stored is not None
    assert model.stored.basis == "header"


def test_pasted_text() -> None:
    model = load(f"  {TINY_TEXT}\n")
    assert (model.origin, model.name, model.shape.hidden) == ("pasted", "config.json", 64)
    assert load(json.dumps(TINY | {"_name_or_path": "me/mine"})).name == "me/mine"
    assert load_text(b"\xef\xbb\xbf" + TINY_TEXT.encode(), "mine.json", "file").name == "mine.json"


@pytest.mark.parametrize(
    ("raw", "kind", "key"),
    [
        ("", NotAConfigError, "json.empty"),
        ("{", NotAConfigError, "json.malformed"),
        ("{'a': 1}", NotAConfigError, "json.malformed"),
        ("[1]", NotAConfigError, "json.not_object"),
        ("null", NotAConfigError, "json.not_object"),
        ('{"a": ' + "[" * 30 + "]" * 30 + "}", NotAConfigError, "json.too_deep"),
        ('{"a": ' * 100_000, NotAConfigError, "json.too_deep"),
        ('{"a": ' + "1" * 5_000 + "}", NotAConfigError, "json.malformed"),
        ("{" + " " * LIMIT_BYTES + "}", TooLargeError, "json.too_large"),
        ('"\ud800"', NotAConfigError, "json.not_object"),
    ],
)
def test_text_that_is_no_config(raw: str, kind: type[CalculatorError], key: str) -> None:
    with pytest.raises(kind) as caught:
        parse_object(raw)
    assert caught.value.key == key


def test_infinity_is_allowed_as_published_files_hold_it() -> None:
    assert parse_object('{"time_step_limit": [0.0, Infinity]}')


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=5))
def test_any_json_is_read_or_refused(value: object) -> None:
    for raw in (json.dumps(value), json.dumps({"model_type": "llama", "hidden_size": value})):
        with contextlib.suppress(ShapeError, InputError):
            load_text(raw)


def test_a_folder_with_its_weight_headers(tmp_path: Path) -> None:
    model = load(str(folder_of(tmp_path)), allow_local=True)
    assert (model.origin, model.name) == ("file", tmp_path.name)
    assert model.headers is not None
    assert model.headers.files > 1
    assert model.headers.total_elements == model.shape.parameters.total
    assert load_path(tmp_path / "config.json").shape == model.shape


def test_a_folder_of_broken_weights_still_reads(tmp_path: Path) -> None:
    folder_of(tmp_path)
    next(tmp_path.glob("model-*.safetensors")).unlink()
    model = load_path(tmp_path)
    assert model.headers is None
    assert model.notes[0].id == "hub.shard_missing"


def test_paths_are_the_command_lines_alone(hub: FakeHub, tmp_path: Path) -> None:
    folder_of(tmp_path)
    for written in (str(tmp_path), str(tmp_path / "config.json"), "/etc/passwd", "~/x", "./x"):
        with pytest.raises(ModelIdError):
            load(written)
    assert not hub.requests


@pytest.mark.parametrize(
    ("written", "key"),
    [
        ("/" + "x" * 5000, "local.missing"),
        ("x" * 5000 + ".json", "local.missing"),
        ("~nobody-of-that-name/m", "local.missing"),
        ("/a\0b", "local.missing"),
    ],
)
def test_paths_that_no_file_system_takes_are_refused(written: str, key: str) -> None:
    with pytest.raises(ModelIdError) as raised:
        lookup.load(written, allow_local=True)
    assert raised.value.key == key


def test_a_word_too_long_for_a_file_is_no_path() -> None:
    with pytest.raises(ModelIdError):
        lookup.load("x" * 5000, allow_local=True)


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    for path, key in ((tmp_path / "none.json", "local.missing"), (tmp_path, "local.no_config")):
        with pytest.raises(ModelIdError) as caught:
            load(str(path), allow_local=True)
        assert caught.value.key == key
    large = tmp_path / "config.json"
    large.write_bytes(b" " * (LIMIT_BYTES + 10))
    with pytest.raises(TooLargeError):
        load(str(large), allow_local=True)


def test_a_folder_named_like_an_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    folder_of(tmp_path / "org" / "name")
    monkeypatch.chdir(tmp_path)
    assert load("org/name", allow_local=True).origin == "file"


def test_a_shape_by_hand() -> None:
    shape = load_preset("smollm2-135m").shape
    model = lookup.load_shape(shape, "mine")
    assert (model.origin, model.stored, model.assumptions) == ("manual", None, shape.assumptions)


def test_presets_load_by_every_name() -> None:
    for key in list(presets())[:5]:
        assert load_preset(key) is load_preset(key)
