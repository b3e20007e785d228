"""Models over real HTTP: what is read, what is refused, and how long anything can take."""

import logging
import socket
import time
import traceback

import pytest

from calculator import hub as hub_package
from calculator.errors import (
    CalculatorError,
    GatedModelError,
    HubAnswerError,
    HubOfflineError,
    HubTimeoutError,
    ModelNotFoundError,
    NoConfigError,
    NotALanguageModelError,
    NotAuthorisedError,
    RateLimitedError,
)
from calculator.hub import HubModel, Limits, clear_cache, fetch_model
from calculator.render import catalogue, render
from tests.fakehub import GOOD_TOKEN, UNLISTED_TOKEN, FakeHub
from tests.fakehub.models import TINY
from tests.hub.conftest import QUICK

pytestmark = pytest.mark.usefixtures("hub")
TINY_ELEMENTS = 2 * 256 * 64 + 64 + 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 128 + 2 * 64)


def fetch(id_: str, **options: object) -> HubModel:
    return fetch_model(id_, limits=QUICK, **options)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------ answers


def test_a_sharded_model(hub: FakeHub) -> None:
    model = fetch("Qwen/Qwen2.5-7B")
    assert model.config["num_hidden_layers"] == 28
    assert model.commit == hub.repos["Qwen/Qwen2.5-7B"].sha
    assert model.headers is not None
    assert model.headers.origin == "headers"
    assert model.headers.files == 4
    assert model.headers.bytes_by_dtype == {"BF16": 15_231_233_024}
    assert model.headers.elements_by_dtype == {"BF16": 7_615_616_512}
    q_bias = next(t for t in model.headers.tensors if t.name.endswith("q_proj.bias"))
    assert (q_bias.name, q_bias.count, q_bias.shape) == ("model.layers.{i}.self_attn.q_proj.bias", 28, (3584,))
    assert not model.facts.notes
    asked = sum(int(path.count("model-0000")) for path in hub.paths())
    assert asked == 4, "one request a shard"


def test_weights_are_never_downloaded(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    served = 0
    original = hub_package.headers.HubFiles.part

    def counted(self: hub_package.headers.HubFiles, name: str, start: int, length: int) -> bytes:
        nonlocal served
        part = original(self, name, start, length)
        served += len(part)
        return part

    monkeypatch.setattr(hub_package.headers.HubFiles, "part", counted)
    fetch("Qwen/Qwen2.5-72B")
    assert 0 < served <= 40 * 100_000


@pytest.mark.parametrize(
    "written",
    ["fake/tiny", "fake/tiny@v1.0", "fake/tiny@refs/pr/2", "hf://fake/tiny", "https://huggingface.co/fake/tiny"],
)
def test_a_single_file_at_any_address(written: str) -> None:
    model = fetch(written)
    assert model.config == TINY
    assert model.headers is not None
    assert model.headers.total_elements == TINY_ELEMENTS
    assert model.headers.total_bytes == 2 * TINY_ELEMENTS


def test_the_commit_is_what_is_read(hub: FakeHub) -> None:
    fetch("fake/tiny@v1.0")
    sha = hub.repos["fake/tiny"].sha
    assert hub.paths("/api/") == ["/api/models/fake/tiny/revision/v1.0?blobs=true"]
    assert all(f"/resolve/{sha}/" in path for path in hub.paths("/resolve/"))


@pytest.mark.parametrize("written", ["fake/old-name", "oldest"])
def test_a_moved_repository(written: str) -> None:
    model = fetch(written)
    assert model.facts.repo == "fake/new-name"
    assert model.address.repo == written


def test_redirects_within_the_hub_are_followed() -> None:
    model = fetch("fake/via-cache")
    assert model.headers is not None
    assert not model.facts.notes


def test_a_server_without_ranges() -> None:
    model = fetch("fake/no-range")
    assert model.headers is not None
    assert model.headers.total_elements == TINY_ELEMENTS


def test_sidecar_and_quantiser() -> None:
    model = fetch("fake/quantised")
    assert model.sidecar == {"quantization": {"quant_algo": "FP8"}}
    assert model.facts.quantized_by == "gptq"
    assert model.headers is not None
    assert model.headers.bytes_by_dtype == {"I32": 2_048, "F16": 128}


def test_totals_of_the_hub_stand_in_for_headers() -> None:
    model = fetch("mistralai/Mixtral-8x7B-Instruct-v0.1")
    assert model.headers is not None
    assert model.headers.origin == "hub_totals"
    assert model.headers.bytes_by_dtype == {"BF16": 2 * 46_702_792_704}
    assert [note.id for note in model.facts.notes] == ["hub.no_safetensors", "hub.totals_used"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("pickled", "hub.no_safetensors"),
        ("bad-index", "hub.malformed"),
        ("missing-shard", "hub.shard_missing"),
        ("garbage-header", "hub.malformed"),
        ("long-header", "hub.malformed"),
        ("short-header", "hub.truncated"),
        ("lying-header", "hub.malformed"),
        ("redirect-shards", "hub.redirect_elsewhere"),
        ("slow-shards", "hub.timeout"),
    ],
)
def test_unreadable_weights_are_said_and_do_not_fail(name: str, reason: str) -> None:
    model = fetch(f"fake/{name}")
    assert model.config == TINY
    assert model.headers is None
    note = model.facts.notes[0]
    inner = note.values.get("reason")
    assert reason == (note.id if inner is None else inner.id)  # type: ignore[union-attr]


# ------------------------------------------------------------------------------------------------------- errors

ERRORS: list[tuple[str, type[CalculatorError], str]] = [
    ("absent", ModelNotFoundError, "hub.not_found"),
    ("private", ModelNotFoundError, "hub.not_found"),
    ("tiny@nowhere", ModelNotFoundError, "hub.no_revision"),
    ("gated", GatedModelError, "hub.gated"),
    ("forbidden", NotAuthorisedError, "hub.forbidden"),
    ("disabled", ModelNotFoundError, "hub.disabled"),
    ("rate-limited", RateLimitedError, "hub.rate_limited"),
    ("rate-limited-by-policy", RateLimitedError, "hub.rate_limited"),
    ("server-error", HubAnswerError, "hub.server_error"),
    ("slow", HubTimeoutError, "hub.timeout"),
    ("trickle", HubTimeoutError, "hub.timeout"),
    ("truncated", HubAnswerError, "hub.truncated"),
    ("endless", HubAnswerError, "hub.oversized"),
    ("endless-info", HubAnswerError, "hub.oversized"),
    ("huge-config", HubAnswerError, "hub.oversized"),
    ("gzip", HubAnswerError, "hub.malformed"),
    ("portal", HubAnswerError, "hub.malformed"),
    ("html-config", HubAnswerError, "hub.json_malformed"),
    ("malformed", HubAnswerError, "hub.json_malformed"),
    ("list-config", HubAnswerError, "hub.json_malformed"),
    ("deep-config", HubAnswerError, "hub.json_malformed"),
    ("teapot", HubAnswerError, "hub.refused"),
    ("redirect-elsewhere", HubAnswerError, "hub.redirect_elsewhere"),
    ("redirect-loop", HubAnswerError, "hub.redirects"),
    ("no-config", NoConfigError, "hub.no_config"),
    ("adapter", NoConfigError, "hub.adapter_of"),
    ("gguf", NoConfigError, "hub.gguf_only"),
    ("diffusion", NotALanguageModelError, "hub.not_language_model"),
]


@pytest.mark.parametrize(("name", "kind", "key"), ERRORS)
def test_each_trouble_has_its_error(name: str, kind: type[CalculatorError], key: str) -> None:
    started = time.monotonic()
    with pytest.raises(CalculatorError) as caught:
        fetch(f"fake/{name}")
    assert (type(caught.value), caught.value.key) == (kind, key)
    assert time.monotonic() - started < QUICK.overall_s + QUICK.request_s + 1
    for language in ("en", "zh"):
        for said in (caught.value.message, caught.value.remedy):
            sentence = render(said, language)
            assert said.id in catalogue(language), f"no {language} sentence {said.id}"
            assert "{" not in sentence, f"a field of {said.id} has no value"


def test_every_error_of_the_hub_is_met() -> None:
    assert {kind.__name__ for _, kind, _ in ERRORS} >= {
        "ModelNotFoundError", "GatedModelError", "NotAuthorisedError", "RateLimitedError", "HubTimeoutError",
        "HubAnswerError", "NoConfigError", "NotALanguageModelError",
    }  # fmt: skip


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(HubOfflineError) as caught:
            fetch("fake/tiny")
    assert caught.value.key == "hub.offline"


def test_offline_mode_asks_nobody(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(HubOfflineError) as caught:
        fetch("fake/tiny")
    assert caught.value.key == "hub.offline_mode"
    assert not hub.requests


@pytest.mark.parametrize("endpoint", ["ftp://127.0.0.1", "nonsense", "http://"])
def test_an_endpoint_that_is_none(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with pytest.raises(HubOfflineError) as caught:
        fetch("fake/tiny")
    assert caught.value.key == "hub.bad_endpoint"


# ------------------------------------------------------------------------------------------------------ retries


@pytest.mark.parametrize("name", ["flaky", "rate-limited-once", "truncated-once"])
def test_passing_trouble_is_retried(name: str) -> None:
    assert fetch(f"fake/{name}").config == TINY


def test_a_long_wait_is_not_waited(hub: FakeHub) -> None:
    started = time.monotonic()
    with pytest.raises(RateLimitedError) as caught:
        fetch("fake/rate-limited")
    assert caught.value.message.values["seconds_count"] == 3600
    assert len(hub.requests) == 1
    assert time.monotonic() - started < 1


def test_attempts_are_counted(hub: FakeHub) -> None:
    with pytest.raises(HubAnswerError):
        fetch("fake/server-error")
    assert len(hub.requests) == QUICK.attempts


def test_waits_grow_and_end() -> None:
    waited: list[float] = []
    client = hub_package.client.Client(
        hub_package.endpoint_from_environment(),
        hub_package.Address(repo="fake/server-error"),
        limits=Limits(attempts=5, first_wait_s=1, longest_wait_s=3),
        sleep=waited.append,
    )
    with pytest.raises(HubAnswerError):
        client.api("models/fake/server-error", 1000)
    assert waited == [1, 2, 3, 3]


def test_the_deadline_covers_all_requests() -> None:
    limits = Limits(request_s=5, overall_s=1.0)
    started = time.monotonic()
    with pytest.raises(HubTimeoutError):
        fetch_model("fake/trickle", limits=limits)
    assert time.monotonic() - started < 3


# ------------------------------------------------------------------------------------------------ tokens, memory


def test_a_token_opens_what_it_may(hub: FakeHub) -> None:
    for name in ("gated", "private"):
        assert fetch(f"fake/{name}", token=GOOD_TOKEN).config == TINY
    assert all(sent == f"Bearer {GOOD_TOKEN}" for _, _, sent in hub.requests)


def test_a_token_of_the_environment(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", GOOD_TOKEN)
    assert fetch("fake/gated").facts.gated == "manual"
    monkeypatch.setenv("HF_TOKEN", UNLISTED_TOKEN)
    assert fetch("fake/gated", token=GOOD_TOKEN).config == TINY, "a typed token wins"


@pytest.mark.parametrize("stale", ["hf_stalestalestalestalestalestale", "not a token"])
def test_a_stale_token_of_the_environment_is_not_the_visitors_fault(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, stale: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", stale)
    assert fetch("fake/tiny").config == TINY
    with pytest.raises(GatedModelError):
        fetch("fake/gated")
    assert hub.requests[-1][2] is None


@pytest.mark.parametrize(
    ("name", "token", "key"),
    [
        ("gated", UNLISTED_TOKEN, "hub.gated_token"),
        ("private", UNLISTED_TOKEN, "hub.not_found_token"),
        ("tiny", "hf_wrongwrongwrongwrongwrongwrong", "hub.token_refused"),
        ("tiny", "two words", "hub.token_malformed"),
        ("tiny", "line\r\nx-injected: 1", "hub.token_malformed"),
        ("tiny", "ключ", "hub.token_malformed"),
    ],
)
def test_tokens_that_do_not_open(name: str, token: str, key: str, hub: FakeHub) -> None:
    with pytest.raises(CalculatorError) as caught:
        fetch(f"fake/{name}", token=token)
    assert caught.value.key == key
    if key == "hub.token_malformed":
        assert not hub.requests


@pytest.mark.parametrize("name", ["gated", "private", "server-error", "slow", "truncated", "absent", "tiny"])
def test_a_token_is_never_told(name: str, caplog: pytest.LogCaptureFixture) -> None:
    secret = UNLISTED_TOKEN if name != "tiny" else GOOD_TOKEN
    told = ""
    with caplog.at_level(logging.DEBUG):
        try:
            told = repr(fetch(f"fake/{name}", token=secret))
        except CalculatorError as error:
            told = "".join(traceback.format_exception(error)) + repr(error.message) + repr(error.remedy)
    assert secret not in told + caplog.text
    assert secret not in repr(hub_package.client.Client("http://x", hub_package.Address(repo="a/b"), secret))


def test_a_token_stays_with_the_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's redirect to its storage is followed without the token; anywhere else is not followed at all."""
    client = hub_package.client.Client("https://hub.example", hub_package.Address(repo="a/b"), GOOD_TOKEN)
    headers = {"authorization": f"Bearer {GOOD_TOKEN}"}
    assert client._redirected("https://hub.example/a", "/b", headers) == "https://hub.example/b"
    assert headers
    assert client._redirected("https://hub.example/a", "https://cdn-lfs.hf.co/x?sig=1", headers)
    assert not headers
    assert client._redirected("https://hub.example/a", "https://cdn-lfs.hub.example/x", headers)
    for elsewhere in (
        "https://evilhf.co/x", "https://hf.co.evil.com/x", "http://cdn-lfs.hf.co/x", "https://hub.example:444/x",
        "https://user@evil.com/x", "file:///etc/passwd", "//evil.com/x", "http://hub.example/x",
    ):  # fmt: skip
        with pytest.raises(HubAnswerError):
            client._redirected("https://hub.example/a", elsewhere, headers)


def test_what_is_public_is_remembered_for_a_while(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    first = fetch("fake/tiny")
    asked = len(hub.requests)
    assert fetch("fake/tiny") is first
    assert len(hub.requests) == asked
    now = time.monotonic()
    monkeypatch.setattr("calculator.hub.repository.time.monotonic", lambda: now + 700)
    assert fetch("fake/tiny") is not first
    clear_cache()


def test_nothing_private_is_remembered(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch("fake/private", token=GOOD_TOKEN)
    with pytest.raises(ModelNotFoundError):
        fetch("fake/private")
    fetch("fake/tiny", token=GOOD_TOKEN)
    asked = len(hub.requests)
    fetch("fake/tiny")
    assert len(hub.requests) > asked, "what one person's token fetched is not shared, even if it is public"
    monkeypatch.setenv("HF_TOKEN", GOOD_TOKEN)
    fetch("fake/private")
    fetch("fake/gated")
    monkeypatch.delenv("HF_TOKEN")
    for name in ("private", "gated"):
        with pytest.raises(CalculatorError):
            fetch(f"fake/{name}")


def test_a_remembered_model_cannot_be_changed() -> None:
    model = fetch("fake/tiny")
    model.config["hidden_size"] = 0
    assert fetch("fake/tiny").config == TINY


def test_nothing_is_written_to_disk(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path_factory.mktemp("hf")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(home))
    fetch("Qwen/Qwen2.5-7B")
    assert not list(home.iterdir())


@pytest.mark.parametrize("id_", ["../x", "a/b/c", "http://169.254.169.254/a/b", "a b"])
def test_a_bad_id_reaches_nobody(hub: FakeHub, id_: str) -> None:
    with pytest.raises(CalculatorError) as caught:
        fetch(id_)
    assert caught.value.exit_code == 2
    assert not hub.requests
