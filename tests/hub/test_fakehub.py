"""The fake hub speaks the real one's protocol: ``huggingface_hub``'s own calls work on it and raise their errors."""

from pathlib import Path

import pytest
from huggingface_hub import HfApi, hf_hub_download
from huggingface_hub.errors import (
    GatedRepoError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from tests.fakehub import GOOD_TOKEN, FakeHub


@pytest.fixture
def api(hub: FakeHub) -> HfApi:
    return HfApi(endpoint=hub.endpoint, token=False)


def test_model_info_follows_a_move(api: HfApi) -> None:
    info = api.model_info("oldest", files_metadata=True)
    assert info.id == "fake/new-name"
    assert {s.rfilename: s.size for s in info.siblings or []}["config.json"]


def test_safetensors_of_a_sharded_model(api: HfApi) -> None:
    metadata = api.get_safetensors_metadata("Qwen/Qwen2.5-7B")
    assert metadata.sharded
    assert metadata.parameter_count == {"BF16": 7_615_616_512}


def test_download_and_its_checks(hub: FakeHub, tmp_path: Path) -> None:
    path = hf_hub_download("fake/tiny", "config.json", endpoint=hub.endpoint, local_dir=tmp_path, token=False)
    assert Path(path).read_text().startswith("{")
    weights = hf_hub_download("fake/tiny", "model.safetensors", endpoint=hub.endpoint, local_dir=tmp_path, token=False)
    assert Path(weights).stat().st_size > 100_000


def test_errors(hub: FakeHub, api: HfApi, tmp_path: Path) -> None:
    with pytest.raises(RevisionNotFoundError):
        api.model_info("fake/tiny", revision="nowhere")
    with pytest.raises(GatedRepoError):
        hf_hub_download("fake/gated", "config.json", endpoint=hub.endpoint, local_dir=tmp_path, token=False)
    with pytest.raises(RepositoryNotFoundError):
        hf_hub_download("fake/private", "config.json", endpoint=hub.endpoint, local_dir=tmp_path, token=False)
    with pytest.raises(RemoteEntryNotFoundError):
        hf_hub_download("fake/tiny", "nothing.json", endpoint=hub.endpoint, local_dir=tmp_path, token=False)
    assert HfApi(endpoint=hub.endpoint, token=GOOD_TOKEN).model_info("fake/private").private
