"""What vLLM's releases do by default: numbers read off their source, one row each."""

import pytest

from calculator.hardware import find, resolve
from calculator.serving.engines import vllm_rules as rules
from calculator.serving.engines.vllm_settings import settings
from calculator.serving.plan import ServingPlan
from calculator.serving.versions import Version
from tests.serving.shapes import llama
from validation.models import shape_of

H100, A100, RTX = find("h100-80gb-sxm"), find("a100-80gb-sxm4"), find("rtx-4090-24gb")


@pytest.mark.parametrize(
    ("version", "runner", "seqs", "expected"),
    [
        # V0: 1, 2, 4, 8 ... 256.
        ((0, 6, 4), "v0", 256, 35),
        ((0, 7, 0), "v0", 2, 2),
        ((0, 7, 0), "v0", 3, 3),
        ((0, 7, 0), "v0", 5, 4),
        # V1: 67 sizes to 512; from 0.9 never above 2 N; from 0.11.2 sparser above 248.
        ((0, 8, 5), "v1", 256, 67),
        ((0, 9, 0), "v1", 1024, 67),
        ((0, 9, 0), "v1", 16, 7),
        ((0, 11, 2), "v1", 1024, 51),
        ((0, 11, 2), "v1", 4, 4),
    ],
)
def test_captured_batch_sizes(version: Version, runner: str, seqs: int, expected: int) -> None:
    assert len(rules.captured(version, runner, seqs)) == expected


@pytest.mark.parametrize(
    ("version", "card", "usage", "seqs", "tokens"),
    [
        ("0.6.4", H100, "server", 256, 8192),
        ("0.8.5", A100, "server", 1024, 8192),
        ("0.9.2", A100, "server", 256, 2048),
        ("0.9.2", H100, "server", 1024, 8192),
        ("0.9.2", H100, "offline", 1024, 16384),
        ("0.9.2", RTX, "server", 256, 2048),
        ("0.9.2", RTX, "offline", 256, 8192),
        ("0.29.0", H100, "server", 256, 2048),
        ("0.29.0", find("b200-180gb-sxm"), "server", 1024, 16384),
    ],
)
def test_default_sequences_and_tokens(version: str, card: rules.Gpu, usage: str, seqs: int, tokens: int) -> None:
    plan = ServingPlan.model_validate({"engine_version": version, "usage": usage, "max_model_len": 8192})
    found = settings(llama(), plan, card)
    assert (found.seqs, found.tokens) == (seqs, tokens)


@pytest.mark.parametrize(
    ("version", "model", "runner"),
    [
        ((0, 7, 3), "Qwen/Qwen3-8B", "v0"),
        ((0, 21, 0), "Qwen/Qwen3-8B", "v1"),
        ((0, 22, 1), "Qwen/Qwen3-8B", "v2"),
        ((0, 22, 1), "meta-llama/Llama-3.1-8B-Instruct", "v1"),
        ((0, 26, 0), "meta-llama/Llama-3.1-8B-Instruct", "v2"),
        ((0, 26, 0), "Qwen/Qwen3-30B-A3B", "v1"),
        ((0, 26, 0), "Qwen/Qwen3-Next-80B-A3B-Instruct", "v1"),
        ((0, 29, 0), "Qwen/Qwen3-Next-80B-A3B-Instruct", "v2"),
    ],
)
def test_default_runner(version: Version, model: str, runner: str) -> None:
    assert rules.default_runner(version, shape_of(model)) == runner


@pytest.mark.parametrize(
    ("version", "runner", "sampler", "factor"),
    [
        ((0, 6, 4), "v0", "torch", 9.5),
        ((0, 11, 0), "v1", "torch", 9.5),
        ((0, 19, 0), "v1", "triton", 3.5 + 132 / 1024),
        ((0, 21, 0), "v1", "flashinfer", 3.5),
        ((0, 22, 1), "v2", "v2", 1.5),
        ((0, 26, 0), "v2", "v2", 0.5),
    ],
)
def test_sampler_buffers(version: Version, runner: str, sampler: str, factor: float) -> None:
    found, _ = rules.sampler_of(ServingPlan(), version, runner, H100)
    assert found == sampler
    assert rules.sampler_factor(found, version, 1024, 132)[0] == pytest.approx(factor)


@pytest.mark.parametrize(("version", "fraction"), [("0.19.1", 0.90), ("0.20.0", 0.92), ("0.33.0", 0.92)])
def test_default_fraction(version: str, fraction: float) -> None:
    assert settings(llama(), ServingPlan(engine_version=version), H100).fraction == fraction


@pytest.mark.parametrize(
    ("version", "runner", "charged"),
    [
        ((0, 6, 3), "v0", False),
        ((0, 6, 4), "v0", True),
        ((0, 6, 5), "v0", False),
        ((0, 8, 5), "v1", True),
        ((0, 9, 0), "v1", False),
    ],
)
def test_who_pays_for_the_context(version: Version, runner: str, charged: bool) -> None:
    assert rules.context_in_budget(version, runner) is charged


def test_long_contexts_are_chunked_by_themselves_in_v0() -> None:
    shape = llama(max_position_embeddings=131_072)
    for length, tokens in [(32_768, 32_768), (65_536, 2048)]:
        plan = ServingPlan(engine_version="0.7.0", runner="v0", max_model_len=length)
        assert settings(shape, plan, H100).tokens == tokens
    early = ServingPlan(engine_version="0.5.3", runner="v0", max_model_len=65_536)
    assert settings(shape, early, H100).tokens == 65_536


def test_state_pages_by_prefix_caching() -> None:
    gated, mamba = shape_of("Qwen/Qwen3-Next-80B-A3B-Instruct"), shape_of("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16")
    cases = [
        (gated, "0.11.0", None, 1),
        (gated, "0.21.0", None, 2),
        (gated, "0.21.0", False, 1),
        (mamba, "0.21.0", None, None),
        (mamba, "0.33.0", None, 2),
        (gated, "0.11.0", True, None),
    ]
    for shape, version, caching, pages in cases:
        plan = ServingPlan(engine_version=version, prefix_caching=caching)
        assert settings(shape, plan, H100).state_pages == pages


def test_what_was_filled_in_is_listed() -> None:
    bare = {note.id for note in settings(llama(), ServingPlan(), resolve("custom", 80 * 2**30)).assumptions}
    assert {
        "serving.assume.version",
        "serving.assume.max_model_len",
        "serving.assume.batch",
        "serving.assume.fraction",
    } <= bare
    full = ServingPlan(
        engine_version="0.19.0", max_model_len=8192, max_num_seqs=64, max_num_batched_tokens=2048, memory_fraction=0.9
    )
    assert settings(llama(), full, H100).assumptions == ()


@pytest.mark.parametrize(
    ("version", "checked", "largest"), [((0, 13, 0), 4, 64), ((0, 14, 0), 4, 256), ((0, 14, 0), 1, 64)]
)
def test_captured_sizes_count_checked_drafts(version: Version, checked: int, largest: int) -> None:
    assert max(rules.captured(version, "v1", 32, checked)) == largest
