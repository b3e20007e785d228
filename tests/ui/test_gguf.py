"""A GGUF file on the page: typed, pasted, chosen from the list, carried in the link, refused where it is not there."""

from collections.abc import Iterator

import pytest
from streamlit.testing.v1 import AppTest

from calculator.hub import clear_cache
from tests.fakehub import FakeHub, good_repos
from tests.ui.test_pages import checked, figures, opened, query_of


@pytest.fixture(scope="module")
def served() -> Iterator[FakeHub]:
    with FakeHub(good_repos()) as hub:
        yield hub


@pytest.fixture(autouse=True)
def hub(served: FakeHub, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setenv("HF_ENDPOINT", served.endpoint)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    clear_cache()
    yield served
    clear_cache()


def typed(at: AppTest, written: str) -> AppTest:
    return checked(at.text_input(key="model.id").set_value(written).run())


def captions(at: AppTest) -> str:
    return " ".join(caption.value for caption in at.caption).replace("\\", "")


def assumptions(at: AppTest) -> str:
    return " ".join(text.value for text in at.markdown).replace("\\", "")


@pytest.mark.parametrize(
    ("written", "file", "named"),
    [
        ("fake/gguf-many:Q8_0", "small-Q8_0.gguf", "Q8_0"),
        ("fake/gguf-many@v2.0:small-Q6_K.gguf", "small-Q6_K.gguf", "Q6_K"),
        (
            "https://huggingface.co/fake/gguf-many/blob/main/old/small-old-Q8_0.gguf",
            "small-old-Q8_0.gguf",
            "small-old-Q8_0.gguf",
        ),
    ],
)
def test_what_was_typed_is_served_and_travels(written: str, file: str, named: str) -> None:
    at = typed(opened("serving", en="llama_cpp"), written)
    assert f"read from {file} at revision" in captions(at)
    assert query_of(at)["f"] == named
    assert at.selectbox(key="model.gguf").value == named
    again = opened("serving", **query_of(at))
    assert not again.warning
    assert figures(again) == figures(at)
    assert f"read from {file} at revision" in captions(again)
    assert again.text_input(key="model.id").value == f"fake/gguf-many:{named}"


def test_the_list_offers_whole_models_with_sizes() -> None:
    at = typed(opened("serving"), "fake/gguf-many")
    choice = at.selectbox(key="model.gguf")
    assert choice.value == "Q4_K_M"
    assert "small-Q4_K_M.gguf, the usual choice among 5 GGUF models" in captions(at)
    names, sizes = zip(*(label.split(" · ")[:2] for label in choice.options), strict=True)
    assert sorted(names) == ["BF16", "Q4_K_M", "Q6_K", "Q8_0", "small-old-Q8_0.gguf"]
    assert all(size.endswith("iB") for size in sizes)
    assert [label.endswith("3 parts") for label in choice.options] == [name == "BF16" for name in names]
    assert "f" not in query_of(at)
    before = figures(at)
    checked(choice.set_value("BF16").run())
    assert query_of(at)["f"] == "BF16"
    assert figures(at) != before
    assert "BF16/small-BF16-00001-of-00003.gguf" in assumptions(at)


def test_a_chosen_file_wins_over_a_computed_mix() -> None:
    at = typed(opened("serving", en="llama_cpp", w="Q8_0"), "fake/gguf-many")
    assert query_of(at)["w"] == "Q8_0"
    checked(at.selectbox(key="model.gguf").set_value("Q6_K").run())
    assert "w" not in query_of(at)


def test_other_weights_stay_on_offer() -> None:
    at = typed(opened("serving"), "fake/gguf-beside")
    choice = at.selectbox(key="model.gguf")
    assert choice.options[0] == "The original weights, no GGUF"
    before = figures(at)
    checked(choice.set_value("Q8_0").run())
    assert query_of(at)["f"] == "Q8_0"
    checked(at.selectbox(key="model.gguf").set_value("~").run())
    assert "f" not in query_of(at)
    assert figures(at) == before


def test_a_repository_of_one_file_or_none_has_no_list() -> None:
    at = typed(opened("serving"), "fake/tiny")
    assert "model.gguf" not in {e.key for e in at.selectbox}
    assert "serving.weights" in {e.key for e in at.selectbox}


@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
def test_a_file_that_is_not_there_is_named_and_nothing_typed_is_lost(locale: str) -> None:
    at = typed(opened("serving", locale, cc="3"), "fake/gguf-many:Q2_K")
    assert "BF16, Q4\\_K\\_M, Q6\\_K, Q8\\_0" in at.error[0].value
    assert at.text_input(key="model.id").value == "fake/gguf-many:Q2_K"
    assert at.number_input(key="serving.concurrency").value == 3
    checked(next(b for b in at.button if b.key == "ways.file").click().run())
    assert not at.error
    assert at.number_input(key="serving.concurrency").value == 3


@pytest.mark.parametrize("page", ["training", "finetuning"])
@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
def test_gguf_is_not_trained(page: str, locale: str) -> None:
    at = typed(opened(page, locale), "fake/gguf-many")
    assert not at.metric
    assert "Qwen/Qwen2.5-7B" in at.error[0].value.replace("\\", "")
    assert "model.gguf" not in {e.key for e in at.selectbox}
    checked(next(b for b in at.button if b.key == "ways.base").click().run())
    assert at.metric
    assert at.text_input(key="model.id").value == "Qwen/Qwen2.5-7B"


def commands(at: AppTest) -> str:
    return " ".join(block.value.replace("\\\n", "") for block in at.code)


def test_the_commands_name_the_file() -> None:
    at = typed(opened("serving", en="llama_cpp"), "fake/gguf-many:Q8_0")
    assert "llama-server -hf fake/gguf-many:Q8_0" in commands(at)
    assert "ollama run hf.co/fake/gguf-many:Q8_0" in commands(at)
    checked(at.selectbox(key="model.gguf").set_value("small-old-Q8_0.gguf").run())
    assert "llama-server -hf fake/gguf-many -hff small-old-Q8_0.gguf" in " ".join(commands(at).split())


def test_a_pasted_command_brings_its_file() -> None:
    at = opened("serving")
    line = "llama-server -hf fake/gguf-many:Q6_K -c 4096 --no-mmproj -fit off"
    checked(at.text_area(key="command.pasted").set_value(line).run())
    assert "read from small-Q6_K.gguf" in captions(at)
    assert query_of(at)["mm"] == "none"
    assert query_of(at)["fi"] == "0"
    assert not at.warning


@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
def test_ollama_fills_the_page_and_is_written_back(locale: str) -> None:
    at = opened("serving", locale, v="1", p="qwen2.5-0.5b")
    line = "OLLAMA_CONTEXT_LENGTH=4096 OLLAMA_NUM_PARALLEL=2 ollama serve\nollama run llama3.1:8b"
    checked(at.text_area(key="command.pasted").set_value(line).run())
    assert not at.warning
    assert at.text_input(key="model.id").value == "meta-llama/Llama-3.1-8B-Instruct"
    query = query_of(at)
    assert (query["en"], query["w"], query["mq"]) == ("ollama", "Q4_K_M", "2")
    assert at.code[0].value == line
    checked(at.text_area(key="command.pasted").set_value("ollama run nobody:9b").run())
    assert any("nobody" in warning.value for warning in at.warning)


def test_the_projector_and_the_fit_are_on_the_bill() -> None:
    at = typed(opened("serving", en="llama_cpp", ml="4096", cc="1"), "fake/gguf-many")
    assert "mmproj-F16.gguf" in assumptions(at)
    small = opened("serving", v="1", p="llama-3.1-70b", en="llama_cpp", w="Q4_K_M", g="rtx-4090-24gb", cc="1")
    assert not small.error
    assert "with a part of it in host memory" in small.header[0].value


def test_a_mix_of_a_repository_without_gguf_can_be_computed() -> None:
    at = typed(opened("serving", en="llama_cpp"), "fake/tiny:Q8_0")
    assert at.error
    assert at.text_input(key="model.id").value == "fake/tiny:Q8_0"
    checked(next(b for b in at.button if b.key == "ways.computed").click().run())
    assert not at.error
    assert query_of(at)["w"] == "Q8_0"
    assert "f" not in query_of(at)


def test_speed_is_of_the_file_and_not_guessed_for_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    at = typed(opened("serving", en="llama_cpp", ml="4096", cc="1"), "fake/gguf-many")
    assert any(metric.label == "Per output token" for metric in at.metric)
    checked(at.number_input(key="serving.n_gpu_layers").set_value(1).run())
    assert not any(metric.label == "Per output token" for metric in at.metric)
    assert "runs from host memory" in captions(at)


def test_a_file_of_its_own_names_its_projector() -> None:
    query = {"v": "1", "p": "gemma-3-27b", "en": "llama_cpp", "w": "Q4_K_M", "cc": "1"}
    at = opened("serving", **query)
    wanted = "llama-server -m gemma-3-27b-it-Q4_K_M.gguf --ctx-size 8192 --mmproj mmproj-gemma-3-27b-it-F16.gguf"
    assert at.code[0].value.replace("\\\n", "").split() == wanted.split()
    assert "--mmproj " not in opened("serving", **query, mm="none").code[0].value
    assert "--mmproj" not in opened("serving", **(query | {"p": "llama-3.1-8b"})).code[0].value


def test_the_command_of_llama_cpp_holds_the_context_of_all_its_slots() -> None:
    query = {"v": "1", "p": "llama-3.1-8b", "en": "llama_cpp", "w": "Q4_K_M"}
    command = opened("serving", **query).code[0].value.replace("\\\n", "").split()
    assert command[command.index("--ctx-size") + 1] == str(16 * 8192)
    assert command[command.index("--parallel") + 1] == "16"
