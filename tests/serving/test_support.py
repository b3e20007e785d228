"""Cards, formats and block sizes that an engine lacks are refused by name; prefixes are shared by default or not."""

from __future__ import annotations

from typing import Any

import pytest

from calculator.errors import PlanError
from calculator.hardware import find, resolve
from calculator.lookup import load_preset
from calculator.render import render
from calculator.serving import bill
from calculator.serving.plan import ServingPlan
from tests.serving.shapes import llama

SHAPE = llama()


def refused(gpu: str, shape: Any = SHAPE, **fields: Any) -> PlanError | None:
    try:
        bill(shape, ServingPlan(max_model_len=4096, concurrency=1, **fields), find(gpu))
    except PlanError as error:
        for language in ("en", "zh"):
            for said in (error.message, error.remedy):
                assert render(said, language) != said.id
        return error
    return None


@pytest.mark.parametrize(("engine", "gpu"), [
    ("vllm", "apple-m4-max"), ("sglang", "apple-m4-max"), ("tgi", "apple-m4-max"), ("tensorrt_llm", "apple-m4-max"),
    ("tensorrt_llm", "mi300x-192gb"), ("lmdeploy", "mi300x-192gb"), ("ollama", "tpu-v5e-16gb"),
])  # fmt: skip
def test_makers_that_an_engine_does_not_run_on(engine: str, gpu: str) -> None:
    error = refused(gpu, engine=engine)
    assert error is not None
    assert (error.key, error.field) == ("serving.card_vendor", "gpu")


@pytest.mark.parametrize(("engine", "gpu"), [
    ("vllm", "mi300x-192gb"), ("sglang", "mi300x-192gb"), ("tgi", "mi300x-192gb"), ("llama_cpp", "apple-m4-max"),
    ("ollama", "rx-7900-xtx-24gb"), ("vllm", "gaudi3-128gb"), ("transformers", "apple-m4-max"),
])  # fmt: skip
def test_makers_that_it_runs_on(engine: str, gpu: str) -> None:
    assert refused(gpu, engine=engine) is None


V100, T4, A100, L40S, B200 = "v100-32gb-sxm2", "t4-16gb", "a100-80gb-sxm4", "l40s-48gb", "b200-180gb-sxm"
SMALL = load_preset("qwen2.5-0.5b").shape


@pytest.mark.parametrize(("engine", "version", "gpu", "weights", "key"), [
    ("vllm", "0.8.5", V100, None, None), ("vllm", None, V100, None, "serving.card_capability"),
    ("sglang", None, V100, None, "serving.card_capability"),
    ("tensorrt_llm", None, T4, None, "serving.card_capability"),
    ("vllm", "0.8.5", V100, "fp8", "serving.card_format"), ("vllm", "0.8.5", T4, "fp8", "serving.card_format"),
    ("vllm", "0.8.5", A100, "fp8", None), ("vllm", None, A100, "fp8", None), ("vllm", None, A100, "nvfp4", None),
    ("vllm", "0.8.5", A100, "nvfp4", "serving.card_format"), ("sglang", None, A100, "fp8", None),
    ("sglang", None, A100, "nvfp4", "serving.card_format"), ("sglang", None, B200, "nvfp4", None),
    ("tensorrt_llm", None, A100, "fp8", "serving.card_format"), ("tensorrt_llm", None, L40S, "fp8", None),
    ("tgi", None, T4, "fp8", "serving.card_format"), ("tgi", None, A100, "fp8", None),
])  # fmt: skip
def test_formats_by_compute_capability(engine: str, version: Any, gpu: str, weights: Any, key: str | None) -> None:
    error = refused(gpu, SMALL, engine=engine, engine_version=version, weights=weights)
    assert (error and error.key) == key
    if error is not None and weights is not None:
        assert error.field == "weights"


def test_weights_stay_packed_where_the_card_lacks_the_arithmetic() -> None:
    sizes = []
    for gpu in (A100, "h100-80gb-sxm"):
        found = bill(SHAPE, ServingPlan(max_model_len=4096, weights="fp8"), find(gpu)).serving
        assert found is not None
        sizes.append(found.weights_bytes)
    assert sizes[0] == sizes[1]


def test_the_files_own_format_counts_too() -> None:
    error = refused(A100, load_preset("deepseek-v3").shape, engine="tensorrt_llm", tp=8, n_gpus=8)
    assert error is not None
    assert (error.key, error.field) == ("serving.card_format", "gpu")


def test_a_card_of_unknown_make_is_not_judged() -> None:
    plan = ServingPlan(engine="tensorrt_llm", max_model_len=4096, weights="fp8")
    assert bill(SHAPE, plan, resolve("custom", 80 << 30)).serving is not None


@pytest.mark.parametrize(("engine", "version", "chosen", "fits"), [
    ("llama_cpp", None, "fp8", False), ("llama_cpp", None, "int8", False), ("llama_cpp", None, "q8_0", True),
    ("ollama", None, "fp8", False), ("ollama", None, "q5_1", False), ("ollama", None, "q4_0", True),
    ("transformers", None, "q4_0", False), ("transformers", None, "fp8", False), ("transformers", None, "bf16", True),
    ("vllm", "0.9.2", "int8", False), ("vllm", "0.21.0", "int8", True), ("vllm", "0.9.2", "fp8", True),
    ("lmdeploy", None, "q8_0", False), ("lmdeploy", None, "int8", True), ("sglang", None, "int8", False),
])  # fmt: skip
def test_formats_of_the_cache(engine: str, version: Any, chosen: Any, fits: bool) -> None:
    error = refused("h100-80gb-sxm", engine=engine, engine_version=version, kv_cache_dtype=chosen)
    assert (error is None) is fits
    if error is not None:
        assert error.field == "kv_cache_dtype"
        assert chosen not in str(error.remedy.values["candidates"])


@pytest.mark.parametrize("gpu", [A100])
def test_an_fp8_cache_needs_kernels(gpu: str) -> None:
    error = refused(gpu, engine="tensorrt_llm", kv_cache_dtype="fp8")
    assert error is not None
    assert error.field == "kv_cache_dtype"
    assert refused(gpu, engine="vllm", kv_cache_dtype="fp8") is None


@pytest.mark.parametrize(("engine", "size", "fits"), [
    ("vllm", 7, False), ("vllm", 16, True), ("vllm", 1, True), ("vllm", 544, True), ("tensorrt_llm", 48, False),
    ("tensorrt_llm", 64, True), ("sglang", 7, True),
])  # fmt: skip
def test_block_sizes(engine: str, size: int, fits: bool) -> None:
    error = refused("h100-80gb-sxm", engine=engine, block_size=size)
    assert (error is None) is fits
    assert error is None or error.field == "block_size"


@pytest.mark.parametrize(("fields", "shared"), [
    ({"engine": "vllm"}, True), ({"engine": "vllm", "engine_version": "0.7.3"}, False),
    ({"engine": "vllm", "engine_version": "0.8.5"}, True),
    ({"engine": "vllm", "engine_version": "0.7.3", "prefix_caching": True}, True),
    ({"engine": "vllm", "prefix_caching": False}, False), ({"engine": "sglang"}, True),
    ({"engine": "tensorrt_llm"}, True), ({"engine": "tensorrt_llm", "engine_version": "0.13.0"}, False),
    ({"engine": "lmdeploy"}, False), ({"engine": "lmdeploy", "prefix_caching": True}, True),
    ({"engine": "tgi"}, True), ({"engine": "tgi", "engine_version": "2.2.0"}, False),
    ({"engine": "tgi", "max_loras": 1}, False), ({"engine": "llama_cpp"}, False), ({"engine": "transformers"}, False),
])  # fmt: skip
def test_a_common_prefix_is_held_once_only_where_it_is_shared(fields: Any, shared: bool) -> None:
    plan = ServingPlan(max_model_len=8192, concurrency=8, max_num_seqs=8, **fields)
    apart, common = (
        bill(SHAPE, plan.model_copy(update={"shared_prefix_tokens": tokens}), find("h100-80gb-sxm"))
        for tokens in (0, 1024)
    )
    assert (common.need.value < apart.need.value) is shared
    assert any(a.id == "serving.assume.prefix_apart" for a in common.assumptions) is not shared


@pytest.mark.parametrize(("engine", "version", "said"), [
    ("vllm", "0.3.0", True), ("vllm", "0.6.4", False), ("sglang", "0.3.6", True), ("llama_cpp", "b3000", True),
    ("llama_cpp", "b4000", False), ("tgi", "1.4.0", True),
])  # fmt: skip
def test_releases_older_than_the_known_ones_are_said(engine: Any, version: str, said: bool) -> None:
    result = bill(SHAPE, ServingPlan(engine=engine, engine_version=version, max_model_len=8192), find("h100-80gb-sxm"))
    assert any(a.id == "serving.assume.older_release" for a in result.assumptions) is said
