"""The roofline against published throughput, and the wish for the fewest cards."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calculator.errors import PlanError
from calculator.hardware import find, resolve
from calculator.serving.bill import start
from calculator.serving.plan import ServingPlan
from calculator.serving.speed import USUAL, speed
from calculator.serving.wish import options
from tests.serving.shapes import llama
from validation.models import shape_of
from validation.rows import packaged
from validation.run import predict
from validation.throughput import plan_of

PUBLISHED = [value for row in packaged("throughput") for value in predict(row).scored]
SHAPE = llama()
H100 = find("h100-80gb-sxm")


def test_published_figures_lie_in_the_range() -> None:
    assert len({value.tags["group"] for value in PUBLISHED}) >= 15
    for sample in ("tuned", "held_out"):
        values = [value for value in PUBLISHED if value.tags["sample"] == sample]
        assert sum(value.in_range for value in values) >= 0.85 * len(values)
    assert max(value.high / value.low for value in PUBLISHED) <= 2.5


def test_an_engine_that_never_evicts_admits_whole_requests() -> None:
    """TensorRT-LLM reserves prompt and output, vLLM what is written so far: twice the requests of a long output."""
    plans = [ServingPlan(engine=name, max_model_len=4096, max_num_seqs=4096) for name in ("tensorrt_llm", "vllm")]
    never, later = (speed(SHAPE, plan, H100, prompt_tokens=1, output_tokens=4095) for plan in plans)
    begun = start(SHAPE, plans[0], H100)
    assert never.batch == int(begun.cache.concurrency(begun.pool.value, 4096))
    assert later.batch > 1.7 * never.batch


def test_llama_cpp_multiplies_at_the_rate_of_fp16_accumulation_on_geforce_cards() -> None:
    """An RTX 3090 does 142 TFLOPS with FP16 accumulation and 71 with FP32 (GA102 whitepaper); an A100 has one rate."""
    gained = []
    for card in ("rtx-3090-24gb", "a100-80gb-sxm4"):
        firsts = []
        for engine in ("vllm", "llama_cpp"):
            plan = ServingPlan(engine=engine, max_model_len=4608)
            found = speed(SHAPE, plan, find(card), prompt_tokens=4096, output_tokens=1, batch=1)
            firsts.append(found.ttft_s.value - USUAL.step_s)
        gained.append(firsts[0] / firsts[1])
    # Twice but for the rows between the products and attention, which have one rate.
    assert 1.6 < gained[0] / gained[1] < 2.0


def test_a_single_stream_is_bound_by_the_weights() -> None:
    plan = ServingPlan(max_model_len=4096)
    found = speed(SHAPE, plan, H100, prompt_tokens=128, output_tokens=128, batch=1)
    assert found.bound == "weights"
    weights = 2 * 8_030_261_248
    assert found.tpot_s.low > weights / 3.35e12
    assert found.tpot_s.high < 3 * weights / 3.35e12


@given(st.integers(1, 512), st.integers(1, 512))
@settings(max_examples=30)
def test_more_requests_are_slower_each_and_faster_together(one: int, other: int) -> None:
    few, many = sorted((one, other))
    plan = ServingPlan(max_model_len=4096)
    results = [speed(SHAPE, plan, H100, prompt_tokens=512, output_tokens=256, batch=b) for b in (few, many)]
    assert results[0].tpot_s.value <= results[1].tpot_s.value
    assert results[0].tokens_per_s.value <= results[1].tokens_per_s.value * (1 + 1e-9)
    assert results[0].tpot_s.low <= results[0].tpot_s.value <= results[0].tpot_s.high


@given(st.integers(1, 16_000), st.integers(1, 16_000))
@settings(max_examples=30)
def test_longer_prompts_take_longer(one: int, other: int) -> None:
    short, long = sorted((one, other))
    plan = ServingPlan(max_model_len=32_768)
    found = [speed(SHAPE, plan, H100, prompt_tokens=p, output_tokens=10, batch=1).ttft_s.value for p in (short, long)]
    assert found[0] <= found[1]


def test_a_mixture_reads_only_the_experts_that_the_batch_touches() -> None:
    shape = shape_of("Qwen/Qwen3-30B-A3B")
    plan = ServingPlan(max_model_len=4096)
    one = speed(shape, plan, H100, prompt_tokens=128, output_tokens=128, batch=1).tpot_s.value
    all_of_them = 2 * 30_532_122_624 / 3.35e12
    assert one < all_of_them / 3


def test_cards_without_rates_are_refused() -> None:
    with pytest.raises(PlanError) as caught:
        speed(SHAPE, ServingPlan(max_model_len=1024), resolve("custom", 80 * 2**30), prompt_tokens=10, output_tokens=10)
    assert caught.value.field == "gpu"


def test_nothing_fits() -> None:
    with pytest.raises(PlanError):
        speed(SHAPE, ServingPlan(max_model_len=1024), find("t4-16gb"), prompt_tokens=10, output_tokens=10)


# ---------------------------------------------------------------------------------------------------------- wish

CARDS = [find(key) for key in ("l4-24gb", "rtx-4090-24gb", "a100-80gb-sxm4", "h100-80gb-sxm", "h200-141gb-sxm")]


def test_the_fewest_cards_for_a_small_wish() -> None:
    plan = ServingPlan(concurrency=8, context_tokens=4096, max_model_len=8192)
    found = options(SHAPE, plan, CARDS)
    assert found[0].plan.n_gpus == 1
    assert all(option.requests >= 8 for option in found)
    assert [option.plan.n_gpus for option in found] == sorted(option.plan.n_gpus for option in found)


def test_a_large_model_needs_several_cards() -> None:
    plan = ServingPlan(concurrency=4, context_tokens=4096, max_model_len=8192)
    found = {o.plan.gpu: o.plan for o in options(shape_of("meta-llama/Llama-3.1-70B-Instruct"), plan, CARDS)}
    assert found["h100-80gb-sxm"].n_gpus == 2
    assert found["h200-141gb-sxm"].n_gpus in (1, 2)
    assert found["l4-24gb"].n_gpus == 8


def test_goals_ask_for_more_cards_or_rule_kinds_out() -> None:
    plan = ServingPlan(concurrency=64, context_tokens=4096, max_model_len=8192)
    slow = {o.plan.gpu: o.plan.n_gpus for o in options(SHAPE, plan, CARDS)}
    quick = {o.plan.gpu: o.plan.n_gpus for o in options(SHAPE, plan.model_copy(update={"tpot_goal_s": 0.012}), CARDS)}
    assert set(quick) <= set(slow)
    assert all(quick[key] >= slow[key] for key in quick)
    assert not options(SHAPE, plan.model_copy(update={"tpot_goal_s": 1e-6}), CARDS)


@given(st.integers(1, 300), st.sampled_from([1024, 8192, 32_768]))
@settings(max_examples=15)
def test_the_answer_holds_the_wish(concurrency: int, context: int) -> None:
    plan = ServingPlan(concurrency=concurrency, context_tokens=context, max_model_len=context)
    for option in options(SHAPE, plan, CARDS[:3]):
        assert option.requests >= concurrency
        assert option.plan.n_gpus == option.plan.tp * option.plan.dp


def test_prompts_that_share_a_step_read_the_experts_once() -> None:
    """Eight H200 hold 30 GB of weights each, which a short prompt alone reads in 8 ms and 64 of them together too."""
    case = next(
        row.data for row in packaged("throughput")
        if "Qwen3-235B-A22B fp8 8xh200" in row.id and row.data["prompt"] == row.data["output"] == 128
    )  # fmt: skip
    found = speed(
        shape_of(case["model"]), plan_of(case), find(case["gpu"]), prompt_tokens=128, output_tokens=128
    )  # fmt: skip
    assert found.tokens_per_s.low < case["value"] < found.tokens_per_s.high


@pytest.mark.parametrize("model", ["Qwen/Qwen3-30B-A3B", "meta-llama/Llama-3.1-70B-Instruct"])
def test_faster_products_help_less_than_their_rate(model: str) -> None:
    """A B200 multiplies four times as fast in FP4 as in 16 bit; rows, attention and cache stay as they are."""
    shape, card = shape_of(model), find("b200-180gb-sxm")
    plans = [ServingPlan(engine="tensorrt_llm", weights=name, max_model_len=4096) for name in ("bf16", "nvfp4")]
    slow, fast = (speed(shape, p, card, prompt_tokens=4000, output_tokens=1, batch=1).ttft_s.value for p in plans)
    assert 1.2 < slow / fast < 3.6
