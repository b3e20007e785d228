"""What people paste as a model's address."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculator.errors import ModelIdError
from calculator.hub.address import parse_address

GOOD = [
    ("a/b:Q4_K_M", "a/b", None),
    ("a/b:sub/x.gguf@v1", "a/b", "v1"),
    ("hf.co/a/b:Q8_0", "a/b", None),
    ("Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-7B", None),
    ("  Qwen/Qwen2.5-7B \n", "Qwen/Qwen2.5-7B", None),
    ("'Qwen/Qwen2.5-7B'", "Qwen/Qwen2.5-7B", None),
    ("Qwen/Qwen2.5-7B/", "Qwen/Qwen2.5-7B", None),
    ("gpt2", "gpt2", None),
    ("gpt2@main", "gpt2", "main"),
    ("a/b@refs/pr/12", "a/b", "refs/pr/12"),
    ("a/b@v1.0", "a/b", "v1.0"),
    ("hf://a/b@v1.0", "a/b", "v1.0"),
    ("hf://models/a/b", "a/b", None),
    ("https://huggingface.co/Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-7B", None),
    ("http://www.huggingface.co/Qwen/Qwen2.5-7B?library=vllm#top", "Qwen/Qwen2.5-7B", None),
    ("huggingface.co/Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-7B", None),
    ("hf.co/gpt2", "gpt2", None),
    ("https://hf-mirror.com/Qwen/Qwen2.5-7B/tree/main", "Qwen/Qwen2.5-7B", "main"),
    ("https://huggingface.co/a/b/blob/abc123/config.json", "a/b", "abc123"),
    ("https://huggingface.co/a/b/resolve/main/sub/x.gguf?download=true", "a/b", "main"),
    ("https://huggingface.co/a/b/raw/v1/config.json", "a/b", "v1"),
    ("https://huggingface.co/a/b/commit/0123456789abcdef", "a/b", "0123456789abcdef"),
    ("https://huggingface.co/a/b/tree/refs%2Fpr%2F3", "a/b", "refs/pr/3"),
    ("https://huggingface.co/a/b/tree/refs/pr/3/sub", "a/b", "refs/pr/3"),
    ("https://huggingface.co/a/b/tree", "a/b", None),
    ("https://huggingface.co/a/b/discussions/3", "a/b", None),
    ("https://huggingface.co/gpt2/tree/main", "gpt2", "main"),
    ("https://huggingface.co/api/models/a/b", "a/b", None),
    ("https://huggingface.co/api/models/a/b/revision/v2", "a/b", "v2"),
    ("https://hub.example.org:8443/hf/a/b/tree/v2", "a/b", "v2"),
]

BAD = [
    ("a/b:", "hub.file_malformed"),
    ("a/b:../x.gguf", "hub.file_malformed"),
    ("a/b:x?y", "hub.file_malformed"),
    ("", "hub.id_empty"),
    (" '' ", "hub.id_empty"),
    ("x" * 600, "hub.id_long"),
    ("a/b/c", "hub.id_malformed"),
    ("a b", "hub.id_malformed"),
    ("../etc/passwd", "hub.id_malformed"),
    ("a/..", "hub.id_malformed"),
    ("/etc/passwd", "hub.id_malformed"),
    ("a/b.git", "hub.id_malformed"),
    ("a--b", "hub.id_malformed"),
    ("模型/名", "hub.id_malformed"),
    ("a/b?x=1", "hub.id_malformed"),
    ("a/b#x", "hub.id_malformed"),
    ("a/b%2e", "hub.id_malformed"),
    ("a/b@", "hub.revision_malformed"),
    ("a/b@../x", "hub.revision_malformed"),
    ("a/b@x?y", "hub.revision_malformed"),
    ("a/b@" + "x" * 200, "hub.revision_malformed"),
    ("https://example.com/a/b", "hub.other_host"),
    ("https://huggingface.co.evil.com/a/b", "hub.other_host"),
    ("https://huggingface.co@evil.com/a/b", "hub.other_host"),
    ("http://169.254.169.254/latest/meta-data", "hub.other_host"),
    ("https://hub.example.org/a/b", "hub.other_host"),
    ("modelscope.cn/models/a/b", "hub.other_host"),
    ("https://[::1/a/b", "hub.id_malformed"),
    ("https://huggingface.co/datasets/a/b", "hub.not_a_model"),
    ("https://huggingface.co/", "hub.not_a_model"),
    ("https://huggingface.co/a/%2e%2e/tree/main", "hub.id_malformed"),
]


@pytest.mark.parametrize(("written", "repo", "revision"), GOOD)
def test_understood(written: str, repo: str, revision: str | None) -> None:
    found = parse_address(written, "https://hub.example.org:8443/hf")
    assert (found.repo, found.revision) == (repo, revision)
    assert parse_address(str(found)) == found


@pytest.mark.parametrize(
    ("written", "file"),
    [
        ("a/b", None),
        ("a/b:Q4_K_M", "Q4_K_M"),
        ("a/b:sub/x.gguf@v1", "sub/x.gguf"),
        ("hf.co/a/b:Q8_0", "Q8_0"),
        (
            "https://huggingface.co/a/b/resolve/main/sub/x-00001-of-00002.gguf?download=true",
            "sub/x-00001-of-00002.gguf",
        ),
        ("https://huggingface.co/a/b/blob/main/config.json", None),
    ],
)
def test_a_gguf_file_is_kept(written: str, file: str | None) -> None:
    assert parse_address(written).file == file


@pytest.mark.parametrize(("written", "key"), BAD)
def test_refused(written: str, key: str) -> None:
    with pytest.raises(ModelIdError) as caught:
        parse_address(written, "https://hub.example.org:8443/hf")
    assert caught.value.key == key


@pytest.mark.parametrize("written", ["hf_" + "aB3" * 11, "https://u:hf_" + "x" * 34 + "@huggingface.co/a/b"])
def test_a_token_in_the_wrong_field_is_not_repeated(written: str) -> None:
    with pytest.raises(ModelIdError) as caught:
        parse_address(written)
    assert caught.value.key == "hub.id_is_token"
    assert "hf_" not in str(caught.value)


@given(st.text(max_size=80))
def test_anything_else_is_an_address_or_a_typed_error(written: str) -> None:
    try:
        found = parse_address(written)
    except ModelIdError:
        return
    assert found.repo.isascii()
    assert ".." not in found.repo
    assert not set(found.repo) & set("?#%@ \\:")
    assert parse_address(str(found)) == found
