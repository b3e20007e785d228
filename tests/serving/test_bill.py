"""The serving bill: totals, verdict, need and reservation, and the laws that hold whatever the numbers are."""

import cProfile
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculator.bill import Bill, ServingFigures
from calculator.errors import PlanError, UnknownFamilyError
from calculator.hardware import Gpu, find, resolve
from calculator.model import read
from calculator.model.shape import ModelShape
from calculator.render import render
from calculator.serving import bill, geometry
from calculator.serving.plan import Engine, ServingPlan
from tests.model.corpus import configs
from tests.serving.shapes import llama
from validation.models import shape_of

GIB = 2**30
SHAPE = llama()
H100 = find("h100-80gb-sxm")
ENGINES: tuple[Engine, ...] = (
    "vllm", "sglang", "tensorrt_llm", "llama_cpp", "ollama", "tgi", "lmdeploy", "transformers",
)  # fmt: skip


def figures(result: Bill) -> ServingFigures:
    assert result.serving is not None
    return result.serving


def billed(plan: ServingPlan, gpu: Gpu = H100, shape: ModelShape = SHAPE) -> Bill:
    return bill(shape, plan, gpu)


# vLLM on one H100 of 79.19 GiB: printed weights, activation peak, pool in GiB and tokens
# (tables of https://github.com/llm-d-incubation/llm-d-planner).
STARTS = [
    ("0.19.0", 0.95, 8192, "meta-llama/Llama-3.1-8B-Instruct", 14.99, 1.89, 58.11, 476_016),
    ("0.19.0", 0.95, 8192, "Qwen/Qwen2.5-7B-Instruct", 14.25, 2.21, 58.53, 1_096_000),
    ("0.11", 0.9, 16000, "meta-llama/Llama-3.1-8B-Instruct", 14.99, 4.76, 51.38, None),
    ("0.11", 0.9, 16000, "Qwen/Qwen3-0.6B", 1.12, 5.56, 64.45, None),
    ("0.11", 0.9, 16000, "Qwen/Qwen3-32B", 61.03, 5.64, 4.45, None),
]


@pytest.mark.parametrize(("version", "fraction", "length", "model", "weights", "activation", "pool", "tokens"), STARTS)
def test_terms_of_a_start_as_printed(
    version: str, fraction: float, length: int, model: str, weights: float, activation: float, pool: float,
    tokens: int | None,
) -> None:  # fmt: skip
    plan = ServingPlan(engine_version=version, memory_fraction=fraction, max_model_len=length)
    serving = figures(bill(shape_of(model), plan, resolve("h100-80gb-sxm", int(79.19 * GIB))))
    assert serving.weights_bytes / GIB == pytest.approx(weights, rel=0.005)
    assert serving.activation_bytes / GIB == pytest.approx(activation, rel=0.005)
    assert serving.kv_pool_bytes / GIB == pytest.approx(pool, rel=0.01)
    if tokens is not None:
        assert serving.kv_tokens == pytest.approx(tokens, rel=0.001)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("length", [2048, 131_072])
def test_items_add_up(engine: Engine, length: int) -> None:
    result = billed(ServingPlan(engine=engine, max_model_len=length, concurrency=4))
    by_layer = {
        layer: sum(i.bytes for i in result.items if i.layer == layer) for layer in ("tensor", "process", "free")
    }
    assert result.allocated.value == by_layer["tensor"]
    assert result.process.value == by_layer["tensor"] + by_layer["process"]
    assert result.process.value + by_layer["free"] == max(H100.total_bytes, result.process.value)
    assert all(i.low <= i.bytes <= i.high for i in result.items)
    assert {i.key for i in result.items} <= {
        "weights", "kv_cache", "state", "activation", "non_torch", "cuda_graphs", "context", "unused",
    }  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES)
def test_every_text_of_a_bill_has_a_sentence_in_both_languages(engine: Engine) -> None:
    plans = [ServingPlan(engine=engine), ServingPlan(engine=engine, max_model_len=4096, gpu="a2-16gb", n_gpus=1)]
    for plan in plans:
        result = billed(plan, find(plan.gpu))
        refusal = figures(result).refusal
        texts = [i.formula for i in result.items] + list(result.assumptions) + ([refusal] if refusal else [])
        for text in texts:
            for language in ("en", "zh"):
                sentence = render(text, language)
                assert sentence != text.id
                assert "{" not in sentence, sentence


def test_need_and_reservation_are_two_numbers() -> None:
    few = billed(ServingPlan(max_model_len=8192, concurrency=1))
    many = billed(ServingPlan(max_model_len=8192, concurrency=32))
    assert few.process == many.process
    assert many.need.value - few.need.value == 31 * 8192 * 131_072
    assert few.need.value < few.process.value


def test_verdicts() -> None:
    # 131,072 tokens of 128 KiB are 16 GiB a request; about 51 GiB of pool hold three of them and not four.
    plan = ServingPlan(max_model_len=131_072, engine_version="0.19.0", memory_fraction=0.9)
    assert billed(plan.model_copy(update={"concurrency": 3})).verdict == "fits"
    assert billed(plan.model_copy(update={"concurrency": 4})).verdict == "tight"
    small = billed(plan, find("rtx-4090-24gb"))
    assert small.verdict == "does_not_fit"
    refusal = figures(small).refusal
    assert refusal is not None
    assert refusal.id == "serving.refused.one_request"
    longest = figures(small).longest_context_tokens
    fits = billed(plan.model_copy(update={"max_model_len": longest, "concurrency": 1}), find("rtx-4090-24gb"))
    assert fits.verdict == "fits"


def test_a_model_larger_than_the_card_does_not_start() -> None:
    result = bill(shape_of("meta-llama/Llama-3.1-70B-Instruct"), ServingPlan(max_model_len=4096), H100)
    assert result.verdict == "does_not_fit"
    assert figures(result).kv_pool_bytes < 0
    refusal = figures(result).refusal
    assert refusal is not None
    assert refusal.id == "serving.refused.no_pool"


def test_more_requests_than_slots_are_tight() -> None:
    plan = ServingPlan(max_model_len=1024, max_num_seqs=8, concurrency=9)
    assert billed(plan).verdict == "tight"
    assert figures(billed(plan)).requests_at_context == 8


@given(st.floats(0.3, 0.99), st.floats(0.3, 0.99), st.integers(24, 200), st.integers(24, 200))
def test_the_pool_grows_with_fraction_and_card(one: float, other: float, small: int, large: int) -> None:
    small, large = sorted((small, large))
    low, high = sorted((one, other))
    pools = []
    for fraction, size in [(low, small), (high, small), (high, large)]:
        plan = ServingPlan(engine_version="0.19.0", memory_fraction=fraction, max_model_len=4096, max_num_seqs=64,
                           max_num_batched_tokens=2048)  # fmt: skip
        pools.append(figures(billed(plan, resolve("custom", size * GIB))).kv_pool_bytes)
    assert pools[0] <= pools[1]
    if (small >= 60) == (large >= 60) and (small >= 70) == (large >= 70):
        assert pools[1] <= pools[2]


@given(st.integers(1, 131_072), st.integers(1, 131_072), st.sampled_from(ENGINES))
def test_concurrency_falls_with_context(one: int, other: int, engine: Engine) -> None:
    short, long = sorted((one, other))
    plan = ServingPlan(engine=engine, max_model_len=131_072, max_num_seqs=64)
    found = [figures(billed(plan.model_copy(update={"context_tokens": c}))).requests_at_context for c in (short, long)]
    if engine != "transformers":
        assert found[0] >= found[1]


@given(st.integers(1, 200), st.integers(16, 32_768))
def test_round_trip_of_a_wish(requests: int, context: int) -> None:
    plan = ServingPlan(engine_version="0.19.0", max_model_len=context, concurrency=requests, max_num_seqs=1024)
    needed = figures(billed(plan)).needed_pool_bytes
    _, most = geometry(SHAPE, plan, H100, needed)
    assert int(most + 1e-9) == requests
    held = billed(plan.model_copy(update={"kv_cache_memory_bytes": needed}))
    assert held.verdict == ("fits" if held.need.value <= held.capacity_bytes else "does_not_fit")


@given(st.integers(2, 64), st.integers(0, 8192))
def test_a_shared_prefix_is_held_once(requests: int, prefix: int) -> None:
    plan = ServingPlan(max_model_len=8192, concurrency=requests, max_num_seqs=256)
    alone = figures(billed(plan)).needed_pool_bytes
    shared = figures(billed(plan.model_copy(update={"shared_prefix_tokens": prefix}))).needed_pool_bytes
    assert alone - shared == (requests - 1) * (prefix // 16 * 16) * 131_072


def test_cuda_graphs_are_on_top_of_the_budget_before_they_are_in_it() -> None:
    for version, on_top in [("0.19.0", True), ("0.20.0", False)]:
        plan = ServingPlan(engine_version=version, memory_fraction=0.9, max_model_len=8192)
        with_graphs, without = billed(plan), billed(plan.model_copy(update={"cuda_graphs": False}))
        same = figures(with_graphs).kv_pool_bytes == figures(without).kv_pool_bytes
        assert same is on_top


def test_the_tightest_stage_is_billed_and_any_can_be_asked_for() -> None:
    plan = ServingPlan(engine_version="0.19.0", pp=4, n_gpus=4, max_model_len=8192)
    assert billed(plan).rank == "3"
    first = billed(plan.model_copy(update={"pp_rank": 0}))
    assert first.rank == "0"
    # Printed for the stage with the embedding: 1.05 GiB (https://github.com/llm-d-incubation/llm-d-planner).
    assert figures(first).activation_bytes / GIB == pytest.approx(1.05, rel=0.05)
    with pytest.raises(PlanError):
        billed(plan.model_copy(update={"pp_rank": 4}))


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt_llm", "tgi", "lmdeploy"])
def test_cache_formats_that_an_engine_lacks_are_refused(engine: Engine) -> None:
    with pytest.raises(PlanError) as caught:
        billed(ServingPlan(engine=engine, kv_cache_dtype="q8_0"))
    assert caught.value.field == "kv_cache_dtype"


def test_an_engine_without_a_model_is_refused() -> None:
    with pytest.raises(PlanError) as caught:
        billed(ServingPlan(engine="other"))
    assert caught.value.field == "engine"


def test_a_model_whose_cache_no_formula_covers_is_refused() -> None:
    with pytest.raises(UnknownFamilyError):
        bill(read(configs()["community/blt-1b-hf"]), ServingPlan(), H100)


def test_compressed_rows_are_refused_where_an_engine_lays_them_out_in_its_own_way() -> None:
    model = shape_of("deepseek-ai/DeepSeek-V4-Flash-0731")
    with pytest.raises(PlanError) as caught:
        bill(model, ServingPlan(engine="sglang"), H100)
    assert caught.value.field == "engine"
    found = figures(bill(model, ServingPlan(engine="transformers", n_gpus=8, max_model_len=4096), H100))
    assert found.bytes_per_token > 0


def test_an_encoder_holds_as_many_requests_as_it_has_slots() -> None:
    encoder = read(
        {
            "model_type": "bert", "architectures": ["BertModel"], "hidden_size": 768, "num_hidden_layers": 12,
            "num_attention_heads": 12, "intermediate_size": 3072, "vocab_size": 30522, "max_position_embeddings": 512,
            "type_vocab_size": 2, "hidden_act": "gelu",
        }
    )  # fmt: skip
    serving = figures(bill(encoder, ServingPlan(engine_version="0.19.0", max_num_seqs=64), H100))
    assert serving.max_concurrency == 64
    assert serving.bytes_per_token == 0


def test_shared_layers_are_loaded_once() -> None:
    shape = llama(num_hidden_layers=12)
    shared = shape.model_copy(update={"shared_layers": True})
    outside = 2 * 2 * 128_256 * 4096 + 2 * 4096
    whole, once = (figures(bill(s, ServingPlan(max_model_len=2048), H100)).weights_bytes for s in (shape, shared))
    rotary = 131_072 * 128 * 2
    assert (whole - outside - rotary) == 12 * (once - outside - rotary)


def test_a_deep_model_costs_no_more_than_a_shallow_one() -> None:
    """Counted in function calls, which a busy machine does not change."""
    plan = ServingPlan(max_model_len=8192)
    calls = []
    for layers in (2, 126):
        shape = llama(num_hidden_layers=layers)
        bill(shape, plan, H100)
        profile = cProfile.Profile()
        profile.runcall(bill, shape, plan, H100)
        calls.append(sum(entry.callcount for entry in profile.getstats()))
    assert calls[1] < 1.5 * calls[0]


def test_a_fraction_of_more_than_is_free_is_refused_at_once() -> None:
    plan = ServingPlan(engine_version="0.19.0", memory_fraction=0.9999, max_model_len=4096)
    refusal = figures(billed(plan)).refusal
    assert refusal is not None
    assert refusal.id == "serving.refused.free_at_start"
    older = figures(billed(plan.model_copy(update={"engine_version": "0.8.5"}))).refusal
    assert older is not None
    assert older.id == "serving.refused.over_card", "it found out only when the graphs were captured"
    assert figures(billed(plan.model_copy(update={"memory_fraction": 0.95}))).refusal is None


def test_ranks_that_cut_quantisation_blocks_are_refused() -> None:
    # Expert width 1,536: eight ranks hold 192 columns, not a multiple of the 128 x 128 blocks.
    shape = shape_of("Qwen/Qwen3-235B-A22B-FP8")
    plan = ServingPlan(engine_version="0.9.2", tp=8, n_gpus=8, max_model_len=8192)
    with pytest.raises(PlanError) as caught:
        bill(shape, plan, H100)
    assert caught.value.key == "serving.tp_block"
    assert bill(shape, plan.model_copy(update={"ep": 8}), H100).verdict == "fits"
    assert bill(shape, plan.model_copy(update={"tp": 4, "n_gpus": 4}), H100).serving is not None


def test_drafting_layers_weigh_and_cache() -> None:
    shape = shape_of("deepseek-ai/DeepSeek-V3")
    plan = ServingPlan(engine_version="0.19.0", tp=8, n_gpus=8, max_model_len=8192)
    h200 = find("h200-141gb-sxm")
    alone, drafting = (figures(bill(shape, p, h200)) for p in (plan, plan.model_copy(update={"speculative": "mtp"})))
    assert shape.mtp_layers == 1
    assert drafting.bytes_per_token - alone.bytes_per_token == 576 * 2
    assert drafting.weights_bytes > alone.weights_bytes


def test_drafts_take_state_pages() -> None:
    shape = shape_of("Qwen/Qwen3-Next-80B-A3B-Instruct")
    plan = ServingPlan(engine_version="0.21.0", tp=2, n_gpus=2, max_model_len=8192)
    found = [
        geometry(shape, plan.model_copy(update=changes), find("h200-141gb-sxm"), 40 * GIB)[1]
        for changes in ({}, {"speculative": "ngram", "draft_tokens": 1}, {"speculative": "ngram", "draft_tokens": 4})
    ]
    assert found[0] > found[1] > found[2]


def test_an_open_video_limit_doubles_the_peak_of_the_old_runner() -> None:
    shape = shape_of("Qwen/Qwen2.5-VL-7B-Instruct")
    plan = ServingPlan(engine_version="0.8.0", runner="v0", max_model_len=4096, memory_fraction=0.55)
    card = resolve("custom", 32 * GIB)
    both, images = (
        figures(bill(shape, plan.model_copy(update={"limit_mm_per_prompt": limits}), card)).activation_bytes
        for limits in (None, {"image": 1, "video": 0})
    )
    assert both == pytest.approx(2 * images, rel=0.01)
    # Printed on a 32 GB Orin: 2.47 and 4.93 GiB.
    assert images / GIB == pytest.approx(2.47, rel=0.25)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt_llm", "tgi", "lmdeploy"])
def test_a_fixed_pool_must_fit_on_the_card(engine: Engine) -> None:
    plan = ServingPlan(engine=engine, max_model_len=8192, kv_cache_memory_bytes=80 * GIB)
    result = billed(plan)
    assert result.verdict == "does_not_fit"
    refusal = figures(result).refusal
    assert refusal is not None
    assert refusal.id in ("serving.refused.over_card", "serving.refused.pool_over_free")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("fraction", [0.5, 0.9, 0.97, 0.99, 1.0])
def test_no_engine_that_starts_holds_more_than_the_card(engine: Engine, fraction: float) -> None:
    result = billed(ServingPlan(engine=engine, max_model_len=8192, memory_fraction=fraction))
    assert result.verdict == "does_not_fit" or result.process.value <= result.capacity_bytes


@pytest.mark.parametrize("engine", ["llama_cpp", "ollama"])
def test_a_model_on_the_host_needs_no_pool_on_the_card(engine: Engine) -> None:
    result = billed(ServingPlan(engine=engine, weights="q4_k_m", max_model_len=8192, n_gpu_layers=0, concurrency=1))
    assert figures(result).refusal is None
    assert result.verdict == "fits"


def test_requests_beyond_the_limit_and_idle_cards_are_said() -> None:
    plan = ServingPlan(max_model_len=8192, context_tokens=16_000, tp=2, n_gpus=8)
    said = {text.id: text.values for text in billed(plan).assumptions}
    assert said["serving.assume.context_cut"] == {"context_tokens": 16_000, "limit_tokens": 8192}
    assert said["serving.assume.idle_gpus"] == {"ranks_count": 2, "gpus_count": 8}
    plain = billed(ServingPlan(max_model_len=8192, context_tokens=8192, tp=2, dp=4, n_gpus=8))
    assert not {"serving.assume.context_cut", "serving.assume.idle_gpus"} & {text.id for text in plain.assumptions}


WORKINGS: dict[str, Callable[..., float]] = {
    "serving.item.pool.total": lambda fraction, total_bytes, charged_bytes: fraction * total_bytes - charged_bytes,
    "serving.item.pool.static": lambda fraction, free_bytes, weights_bytes: fraction * free_bytes - weights_bytes,
    "serving.item.pool.free": lambda fraction, free_bytes: fraction * free_bytes,
    "serving.item.pool.less": lambda free_bytes, kept_bytes: free_bytes - kept_bytes,
    "serving.item.pool.fixed": lambda pool_bytes: pool_bytes,
    "serving.item.pool.wished": lambda needed_bytes, **_: needed_bytes,
    "serving.item.pool.cells": lambda full_bytes, window_bytes, **_: full_bytes + window_bytes,
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", ["meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-Next-80B-A3B-Instruct"])
@pytest.mark.parametrize("changes", [{}, {"memory_fraction": 0.3}, {"kv_cache_memory_bytes": GIB}, {"tp": 4}])
@pytest.mark.parametrize("version", [None, "0.0"])
def test_the_working_of_the_cache_gives_its_amount(
    engine: Engine, model: str, changes: dict[str, Any], version: str | None
) -> None:
    gpus = 4 if "tp" in changes else 1
    version = {"vllm": "0.9.2", "sglang": "0.4.6", "lmdeploy": "0.2.1", "tgi": "2.4.0"}.get(engine) if version else None
    plan = ServingPlan(engine=engine, max_model_len=8192, n_gpus=gpus, engine_version=version, **changes)
    try:
        result = bill(shape_of(model), plan, H100)
    except PlanError:
        return
    item = next(i for i in result.items if i.key == "kv_cache")
    working = WORKINGS.get(item.formula.id)
    if working is None:
        assert item.formula.id == "serving.item.pool.grows"
        return
    assert item.bytes == pytest.approx(working(**item.formula.values), abs=2)
