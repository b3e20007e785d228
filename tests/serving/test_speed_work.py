"""What a step of the roofline is made of, against arithmetic by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calculator.hardware import find
from calculator.serving import acceptance
from calculator.serving.bill import bill, start
from calculator.serving.counts import touched
from calculator.serving.network import Layout, adapter_rate, layout_of, node_size, ring
from calculator.serving.plan import ServingPlan
from calculator.serving.speed import FAST, SLOW, USUAL, Speed, speed
from calculator.serving.split import WITHOUT_STAGES
from calculator.units import GIB
from tests.serving.shapes import llama
from validation.models import shape_of

SHAPE = llama()
H100, H200 = find("h100-80gb-sxm"), find("h200-141gb-sxm")
LLAMA_70B = shape_of("meta-llama/Llama-3.1-70B-Instruct")
R1 = shape_of("deepseek-ai/DeepSeek-V3")


def found(shape: Any = SHAPE, gpu: Any = H100, *, prompt: int = 1, output: int = 2000, batch: int = 1,
          **plan: Any) -> Speed:  # fmt: skip
    made = ServingPlan(**{"max_model_len": 8192, **plan})
    return speed(shape, made, gpu, prompt_tokens=prompt, output_tokens=output, batch=batch)


# ------------------------------------------------------------------------------------------------ weights on the host


def test_weights_on_the_host_cross_pcie_every_token() -> None:
    """15 GiB over PCIe 5.0 x16 (63 GB/s) at the usual share of a peak take a third of a second."""
    plain, offloaded = found(), found(cpu_offload_bytes=15 * GIB // 2)
    crossing = 15 * GIB / 2 / (63.0e9 * USUAL.bandwidth)
    less = 15 * GIB / 2 / (3.35e12 * USUAL.bandwidth)
    assert offloaded.tpot_s.value - plain.tpot_s.value == pytest.approx(crossing - less, rel=0.01)
    assert offloaded.bound == "host"
    whole = found(cpu_offload_bytes=400 * GIB)
    assert whole.tpot_s.value == pytest.approx(2 * 8_030_261_248 / (63.0e9 * USUAL.bandwidth), rel=0.02)


@given(st.integers(0, 16), st.integers(0, 16), st.integers(1, 64), st.sampled_from([1, 2]))
@settings(max_examples=20)
def test_offloading_never_makes_anything_faster(one: int, other: int, batch: int, tp: int) -> None:
    little, much = sorted((one, other))
    slow, slower = (
        found(prompt=700, output=100, batch=batch, tp=tp, n_gpus=tp, cpu_offload_bytes=size * GIB)
        for size in (little, much)
    )
    assert slow.ttft_s.value <= slower.ttft_s.value
    assert slow.tpot_s.value <= slower.tpot_s.value
    assert slow.tokens_per_s.value >= slower.tokens_per_s.value


def test_a_long_prompt_reads_the_host_once_for_every_chunk() -> None:
    plan = {"cpu_offload_bytes": 10 * GIB, "max_num_batched_tokens": 512}
    gained = [found(prompt=n * 512, output=1, **plan).ttft_s.value for n in (1, 4)]
    assert gained[1] - gained[0] > 3 * 10 * GIB / (63.1e9 * USUAL.bandwidth)


# ------------------------------------------------------------------------------------- rate = running requests / TPOT

ENGINES = ("vllm", "sglang", "tensorrt_llm", "tgi", "lmdeploy", "llama_cpp", "ollama", "transformers")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("pp", [1, 2, 8])
@pytest.mark.parametrize("batch", [1, 3, 8, 64])
def test_running_requests_over_time_between_tokens_is_the_rate(engine: str, pp: int, batch: int) -> None:
    """With prompts of one token nothing but decoding takes time."""
    if pp > 1 and engine in WITHOUT_STAGES:
        pp = 1
    made = found(engine=engine, pp=pp, n_gpus=pp, batch=batch, output=8000, concurrency=batch,
                 max_model_len=8192 * batch if engine in ("llama_cpp", "ollama") else 8192, fit=False)  # fmt: skip
    assert made.tokens_per_s.value == pytest.approx(batch / made.tpot_s.value, rel=0.01)
    assert made.tokens_per_s.value <= batch / made.tpot_s.value


def test_one_request_in_a_pipeline_keeps_one_stage_busy() -> None:
    """Eight stages read the model once a token as one card would, and hand over eight times. All count as the fullest,
    the last with its head: 19 GB instead of 17.6 on average."""
    alone = found(LLAMA_70B, H200, tp=1).tpot_s.value
    staged = found(LLAMA_70B, H200, pp=8, n_gpus=8).tpot_s.value
    assert alone + 7 * USUAL.step_s < staged < 1.1 * (alone + 7 * USUAL.step_s)
    full = found(LLAMA_70B, H200, pp=8, n_gpus=8, batch=64)
    assert full.tpot_s.value < 1.2 * staged
    assert full.tokens_per_s.value > 50 / staged


@pytest.mark.parametrize("engine", ["llama_cpp", "ollama", "transformers"])
def test_cards_that_work_in_turn_are_no_faster_than_one(engine: str) -> None:
    made = {"engine": engine, "batch": 4, "output": 500, "prompt": 500, "concurrency": 4, "fit": False}
    one, four = found(**made), found(n_gpus=4, **made)
    assert four.tpot_s.value >= one.tpot_s.value
    assert four.tokens_per_s.value <= one.tokens_per_s.value
    assert four.ttft_s.value >= one.ttft_s.value


def test_plain_generate_waits_for_python() -> None:
    """32 layers of 1 ms, where the weights take 6 ms; a full batch of a large model is bound by the card again."""
    eager, captured = found(engine="transformers", concurrency=1), found()
    assert eager.tpot_s.value == pytest.approx(32 * 1.0e-3 + USUAL.step_s, rel=0.01)
    assert eager.bound == "launches"
    assert captured.tpot_s.value < 0.01
    assert 1 / eager.tpot_s.high < 25.5 < 1 / eager.tpot_s.low
    heavy = found(LLAMA_70B, find("h200-141gb-sxm"), engine="transformers", weights="fp8", concurrency=1)
    assert heavy.tpot_s.value > 80 * 1.0e-3 * 0.9


# ------------------------------------------------------------------------------------------------- experts in common


def test_replicas_of_expert_parallelism_touch_the_experts_together() -> None:
    """DeepSeek-V3 over 16 replicas with 16 requests each: 256 tokens with 8 of 256 experts reach all but e^-8 of them,
    so a card reads nearly all that it holds."""
    made = {"dp": 16, "ep": 16, "n_gpus": 16, "kv_cache_dtype": "fp8", "max_model_len": 4096}
    begun = start(R1, ServingPlan(**made), H200)
    assert touched(R1, 256) == pytest.approx(1 - (1 - 8 / 256) ** 256)
    assert touched(R1, 256) > 0.999
    step = found(R1, H200, batch=16, **made).tpot_s
    assert step.value > 0.99 * begun.weights.span.value / (4.8e12 * USUAL.bandwidth)


@given(st.sampled_from([2, 4, 8, 16]), st.integers(1, 64))
@settings(max_examples=20)
def test_more_replicas_of_one_mixture_touch_more_experts(dp: int, batch: int) -> None:
    layouts = [layout_of(R1, ServingPlan(dp=n, ep=n, n_gpus=n)) for n in (dp, 2 * dp)]
    assert [layout.together for layout in layouts] == [dp, 2 * dp]
    few, many = (touched(R1, batch * layout.together) for layout in layouts)
    assert few < many


def test_attention_inside_a_tensor_parallel_group_works_for_its_own_requests() -> None:
    plan = ServingPlan(engine="sglang", tp=8, dp=8, n_gpus=8, dp_attention=True)
    assert layout_of(R1, plan) == Layout(ranks=1, group=8, together=8, expert_ranks=8)
    # A replica's prompt is computed by one card of attention and an eighth of each of eight cards of experts.
    wide = found(R1, H200, engine="sglang", tp=8, n_gpus=8, prompt=4000, output=1, max_model_len=4096)
    own = found(R1, H200, engine="sglang", tp=8, dp=8, n_gpus=8, dp_attention=True, prompt=4000, output=1,
                max_model_len=4096)  # fmt: skip
    assert own.ttft_s.value > 4 * wide.ttft_s.value


def test_whole_replicas_share_nothing() -> None:
    one, two = found(batch=8), found(batch=8, dp=2, n_gpus=2)
    assert two.tpot_s == one.tpot_s
    assert two.tokens_per_s.value == pytest.approx(2 * one.tokens_per_s.value)


# ------------------------------------------------------------------------------------------------------------- nodes


def test_a_ring_across_nodes_crosses_their_adapters() -> None:
    """Eight members a node have eight adapters of 50 GB/s, less than NVLink's 450; one member has one."""
    share = USUAL.bandwidth
    assert ring(H100, 8, 8, 1, USUAL.links) == (450e9 * share, USUAL.linked_latency_s)
    assert ring(H100, 8, 16, 1, USUAL.links) == (400e9 * share, USUAL.network_latency_s)
    assert ring(H100, 8, 2, 8, USUAL.links) == (50e9 * share, USUAL.network_latency_s)
    assert ring(H100, 1, 2, 1, USUAL.links) == (50e9 * share, USUAL.network_latency_s)
    assert adapter_rate(find("rtx-4090-24gb"), 4) == 12.5e9 / 4


def test_the_node_is_the_plans_or_the_cards_usual_box() -> None:
    assert node_size(ServingPlan(), H100) == 8
    assert node_size(ServingPlan(), find("gb200-186gb")) == 72
    assert node_size(ServingPlan(gpus_per_node=4), H100) == 4


def test_two_nodes_cost_their_network() -> None:
    """A prompt of 8,000 tokens: 2 x 80 all-reduces of 131 MB among two cards, at 50 instead of 450 GB/s."""
    made = {"tp": 2, "n_gpus": 2, "prompt": 8000, "output": 1, "max_model_len": 8192, "weights": "fp8"}
    inside, across = found(LLAMA_70B, **made), found(LLAMA_70B, gpus_per_node=1, **made)
    size = 8000 * 8192 * 2
    by_hand = 160 * size * (1 / 50e9 - 1 / 450e9) / USUAL.bandwidth
    by_hand += 160 * (USUAL.network_latency_s - USUAL.linked_latency_s)
    assert across.ttft_s.value - inside.ttft_s.value == pytest.approx(by_hand, rel=0.01)
    assert across.tpot_s.value > inside.tpot_s.value
    assert (inside.nodes, across.nodes) == (1, 2)
    assert len(across.sources) == len(inside.sources) + 1


def test_replicas_count_as_nodes_where_they_share_experts() -> None:
    assert found(R1, H200, dp=16, ep=16, n_gpus=16, kv_cache_dtype="fp8", max_model_len=4096).nodes == 2
    assert found(dp=16, n_gpus=16).nodes == 1


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt_llm"])
def test_buffers_towards_other_nodes_are_the_same_for_any_number_of_them(engine: str) -> None:
    """Two tree connections of 12 MiB, and at most 16 channels with both at one card."""
    ends = {
        node: bill(LLAMA_70B, ServingPlan(engine=engine, tp=4, n_gpus=4, max_model_len=8192, gpus_per_node=node), H100)
        for node in (None, 2, 1)
    }
    rows = {node: next(i for i in made.items if i.key == "non_torch") for node, made in ends.items()}
    assert rows[2].bytes - rows[None].bytes == 24 * 2**20
    assert rows[2].high - rows[None].high == 2 * 16 * 12 * 2**20
    assert rows[2].low == rows[None].low
    assert rows[1].bytes == rows[2].bytes


# ------------------------------------------------------------------------------------------------------------- drafts


def test_expected_tokens_of_a_step() -> None:
    assert acceptance.tokens_of_step(0.5, 3) == 1 + 0.5 + 0.25 + 0.125
    assert acceptance.tokens_of_step(1, 3) == 4
    assert acceptance.tokens_of_step(0, 3) == 1
    assert acceptance.tokens_of_step(0.9, 0) == 1


def test_drafts_that_are_never_right_only_cost() -> None:
    plain = found()
    for method, tokens in (("ngram", 4), ("eagle3", 3)):
        never = found(speculative=method, draft_tokens=tokens, draft_acceptance=0.01)
        assert never.tpot_s.value > plain.tpot_s.value
        assert never.step_tokens is not None
        assert never.step_tokens.value == pytest.approx(1.01, rel=1e-3)


def test_drafts_help_one_request_and_cost_a_full_server() -> None:
    """Alone, three drafts of acceptance 0.65 yield 2.33 tokens a step; a full batch is bound by operations, which
    checking four tokens instead of one takes four times."""
    made = {"speculative": "eagle3", "draft_tokens": 3}
    alone = found(**made)
    assert alone.step_tokens is not None
    assert alone.step_tokens.value == pytest.approx(1 + 0.65 + 0.65**2 + 0.65**3)
    assert alone.step_tokens.low < alone.step_tokens.value < alone.step_tokens.high
    assert 1.3 < found().tpot_s.value / alone.tpot_s.value < 2.33
    small = {"batch": 1000, "output": 20, "max_model_len": 64, "max_num_seqs": 1024}
    assert found(**made, **small).tpot_s.value > found(**small).tpot_s.value


@given(st.floats(0.01, 1), st.floats(0.01, 1))
@settings(max_examples=15)
def test_better_drafts_are_faster(one: float, other: float) -> None:
    worse, better = sorted((one, other))
    steps = [found(speculative="ngram", draft_tokens=4, draft_acceptance=rate) for rate in (worse, better)]
    assert steps[0].tpot_s.value >= steps[1].tpot_s.value
    assert steps[0].tokens_per_s.value <= steps[1].tokens_per_s.value


def test_a_pass_of_multi_token_prediction_reads_one_layer() -> None:
    plan = ServingPlan(speculative="mtp", draft_tokens=2)
    assert acceptance.drafting_bytes(R1, plan, 5e9) == 10e9
    assert acceptance.drafting_bytes(SHAPE, ServingPlan(speculative="ngram", draft_tokens=4), 1e9) == 0


# ------------------------------------------------------------------------------------------------------------- prefix


def test_a_cached_prefix_is_not_computed_again() -> None:
    """7,000 of 8,000 tokens cached: the products of 1,000, and attention of them over everything."""
    made = {"prompt": 8000, "output": 1}
    whole, warm = found(**made), found(shared_prefix_tokens=7008, **made)
    short = found(prompt=992, output=1)
    assert short.ttft_s.value < warm.ttft_s.value < 0.2 * whole.ttft_s.value
    off = found(shared_prefix_tokens=7008, prefix_caching=False, **made)
    assert off.ttft_s == whole.ttft_s
    assert warm.tpot_s == whole.tpot_s


def test_more_requests_run_where_a_prefix_is_held_once() -> None:
    plans = [ServingPlan(max_model_len=8192, max_num_seqs=4096, shared_prefix_tokens=n) for n in (0, 4096)]
    alone, shared = (speed(SHAPE, plan, H100, prompt_tokens=5000, output_tokens=1).batch for plan in plans)
    assert shared == pytest.approx(alone * 5000 / 904, rel=0.06)


def test_ranges_keep_their_order() -> None:
    for shares, other in ((SLOW, USUAL), (USUAL, FAST)):
        assert shares.bandwidth < other.bandwidth
        assert shares.eager_layer_s > other.eager_layer_s
        assert shares.network_latency_s > other.network_latency_s
