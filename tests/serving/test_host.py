"""Host memory: the weights that really move, of all ranks; cache that leaves the card, and the tokens it holds."""

from __future__ import annotations

from typing import Any

import pytest

from calculator.bill import Bill, ServingFigures
from calculator.hardware import find
from calculator.serving import bill
from calculator.serving.plan import ServingPlan
from tests.serving.shapes import llama

GIB = 2**30
SHAPE, H100 = llama(), find("h100-80gb-sxm")


def found(**fields: Any) -> tuple[Bill, ServingFigures]:
    result = bill(SHAPE, ServingPlan(max_model_len=8192, **fields), H100)
    assert result.serving is not None
    return result, result.serving


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_what_moves_is_what_leaves_the_card(engine: str) -> None:
    (_, whole), (_, part), (_, all_) = (found(engine=engine, cpu_offload_bytes=b) for b in (0, 4 * GIB, 400 * GIB))
    assert whole.host_bytes == 0
    assert part.host_bytes == 4 * GIB
    assert whole.weights_bytes - part.weights_bytes == 4 * GIB
    assert part.kv_pool_bytes > whole.kv_pool_bytes + 3.9 * GIB
    # No more than there is: 8.03e9 parameters of two bytes.
    assert all_.host_bytes == pytest.approx(8_030_261_248 * 2, rel=1e-6)


@pytest.mark.parametrize(("layout", "ranks"), [({"tp": 8}, 8), ({"tp": 2, "dp": 2}, 4), ({"pp": 2}, 2)])
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_every_rank_moves_its_share(engine: str, layout: dict[str, int], ranks: int) -> None:
    _, figures = found(engine=engine, n_gpus=8, cpu_offload_bytes=GIB // 2, **layout)
    assert figures.host_bytes == ranks * GIB // 2


@pytest.mark.parametrize("engine", ["tensorrt_llm", "tgi", "lmdeploy", "llama_cpp", "ollama", "transformers"])
def test_engines_without_it_move_nothing_and_say_so(engine: str) -> None:
    _, plain = found(engine=engine)
    result, figures = found(engine=engine, cpu_offload_bytes=4 * GIB)
    assert figures.host_bytes == plain.host_bytes
    assert any("cpu_offload_bytes" in str(a.values.get("names")) for a in result.assumptions)


def test_a_host_cache_holds_tokens() -> None:
    # 128 KiB a token: 64 GiB hold 524,288. vLLM's size is that of all ranks, the others' of each.
    for engine, tp, tokens, host in (("vllm", 1, 524_288, 64), ("vllm", 8, 524_288, 64), ("sglang", 8, 4_194_304, 512),
                                     ("tensorrt_llm", 2, 1_048_576, 128)):  # fmt: skip
        result, figures = found(engine=engine, tp=tp, n_gpus=tp, kv_offload_bytes=64 * GIB)
        assert figures.host_cache_tokens == tokens
        assert figures.host_bytes == figures.host_cache_bytes == host * GIB
        assert any(a.id == "serving.assume.host_cache" for a in result.assumptions)


def test_a_host_cache_adds_no_running_request() -> None:
    (_, without), (_, with_) = (found(kv_offload_bytes=b) for b in (0, 64 * GIB))
    assert without.requests_at_context == with_.requests_at_context


def test_releases_before_it_have_none() -> None:
    result, figures = found(engine_version="0.9.2", kv_offload_bytes=64 * GIB)
    assert figures.host_bytes == figures.host_cache_tokens == 0
    assert any("kv_offload_bytes" in str(a.values.get("names")) for a in result.assumptions)


def test_sglang_wants_more_on_the_host_than_on_the_card() -> None:
    for size, said in ((GIB, True), (200 * GIB, False)):
        result, _ = found(engine="sglang", kv_offload_bytes=size)
        assert any(a.id == "serving.assume.hicache_small" for a in result.assumptions) is said


@pytest.mark.parametrize("reserve", [0.0, 0.3, 0.9])
def test_the_reserve_for_peaks_is_kept_out_of_the_pool(reserve: float) -> None:
    _, figures = found(peak_reserve=reserve, max_num_seqs=1024)
    assert figures.peak_reserve_bytes == int(figures.kv_pool_bytes * reserve)
    left = figures.kv_pool_bytes - figures.peak_reserve_bytes
    assert figures.steady_requests == left // (8192 * 131_072)


def test_the_reserve_and_the_practical_share_are_not_applied_to_each_other() -> None:
    (_, usual), (_, other) = found(max_num_seqs=1024), found(max_num_seqs=1024, peak_reserve=0.6)
    assert usual.practical_requests == other.practical_requests == int(usual.requests_at_context * 0.7)
    (_, half) = found(max_num_seqs=1024, practical_share=0.5)
    assert half.steady_requests == usual.steady_requests
