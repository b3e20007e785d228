"""A GGUF file or mix of the hub on the command line."""

from collections.abc import Callable, Iterator

import pytest

from calculator.hub import clear_cache
from tests.cli.conftest import Run
from tests.fakehub import FakeHub, good_repos


@pytest.fixture
def hub_run(run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Run]]:
    with FakeHub(good_repos()) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        clear_cache()
        yield run
        clear_cache()


def test_a_file_is_billed_from_its_header(hub_run: Callable[..., Run]) -> None:
    served = hub_run("serve", "fake/gguf-many@v2.0:small-Q6_K.gguf", "--engine", "llama_cpp", "--json")
    assert served.code == 0
    assert served.json["model"]["gguf_file"] == "small-Q6_K.gguf"
    items = {item["key"]: item for item in served.json["items"]}
    assert items["weights"]["basis"] == items["mmproj"]["basis"] == "header"
    assert served.json["serving"]["moved"] is None


@pytest.mark.parametrize(
    "written",
    ["https://huggingface.co/fake/gguf-many/blob/main/small-Q6_K.gguf", "hf.co/fake/gguf-many:small-Q6_K.gguf",
     "fake/gguf-many:Q6_K"],
)  # fmt: skip
def test_addresses_of_files_are_no_paths(hub_run: Callable[..., Run], written: str) -> None:
    served = hub_run("serve", written, "--engine", "llama_cpp", "--json")
    assert served.json["model"]["gguf_file"] == "small-Q6_K.gguf"


def test_what_is_not_there_and_what_is_not_trained(hub_run: Callable[..., Run]) -> None:
    missing = hub_run("serve", "fake/gguf-many:Q2_K", "--json")
    assert (missing.code, missing.json["error"]["key"]) == (2, "gguf.no_such_file")
    for command in ("train", "finetune"):
        refused = hub_run(command, "fake/gguf-many", "--json")
        assert (refused.code, refused.json["error"]["kind"]) == (2, "NotTrainableError")
        assert "Qwen/Qwen2.5-7B" in refused.json["error"]["remedy"]
