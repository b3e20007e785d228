"""vLLM's layer groups against printed logs and a block allocator written out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculator.errors import PlanError
from calculator.hardware import find
from calculator.model.shape import Attention
from calculator.serving import geometry
from calculator.serving.cache import Spec
from calculator.serving.engines.vllm_cache import VllmCache, cache_rules, group_size, lay_out
from calculator.serving.engines.vllm_compressed import lay_out_compressed
from calculator.serving.plan import ServingPlan
from validation.models import shape_of

GIB = 2**30
H100 = find("h100-80gb-sxm")


def _laid_out(specs: dict[Spec, int], version: tuple[int, int, int], **fields: int | None) -> VllmCache:
    values = {"block": 16, "in_flight": 8192, "state_pages": 1, "state_alignment": 16, **fields}
    return lay_out(specs, cache_rules(version, "v1"), **values)  # type: ignore[arg-type]


def test_hybrid_of_2025_to_the_printed_digit() -> None:
    # Qwen3-Next-80B on two H200, vLLM 0.11.0: 44.59 GiB, 973,760 tokens, 14.77 requests of 262,144.
    state = Spec("state", state_bytes=548_864)
    cache = _laid_out({Spec("full", 1024): 12, state: 36}, (0, 11, 0))
    pool = int(44.59 * GIB)
    assert cache.block_size == 544
    assert cache.tokens(pool, 262_144) == 973_760
    assert round(cache.concurrency(pool, 262_144), 2) == 14.77


def test_the_same_start_from_the_model_itself() -> None:
    plan = ServingPlan(engine_version="0.11.0", tp=2, n_gpus=2, max_model_len=262_144)
    tokens, most = geometry(
        shape_of("Qwen/Qwen3-Next-80B-A3B-Instruct"), plan, find("h200-141gb-sxm"), int(44.59 * GIB)
    )
    assert (tokens, round(most, 2)) == (973_760, 14.77)


def test_hybrid_with_two_state_pages_a_request() -> None:
    # Qwen3.6-27B, tp 2, fp8 cache, vLLM 0.21: 9.84 GiB, 2.36 requests of 262,144, 619,202 tokens.
    cache = _laid_out({Spec("full", 1024): 16, Spec("state", state_bytes=1_603_584): 48}, (0, 21, 0), state_pages=2)
    pool = int(9.84 * GIB)
    assert cache.block_size == 1568
    assert cache.blocks(pool) == 411
    assert round(cache.concurrency(pool, 262_144), 2) == 2.36
    assert cache.tokens(pool, 262_144) == 619_202


def test_windows_of_unequal_pages_get_larger_blocks() -> None:
    # Gemma 4 31B: 50 window layers of 16 heads x 256, 10 full layers of 4 heads x 512. Up to 0.20 the token line has no
    # window credit: 26,800 tokens in 24.54 GiB (https://github.com/alvarobartt/hf-mem/pull/61).
    specs = {Spec("window", 16_384, 1024): 50, Spec("full", 8192): 10}
    cache = _laid_out(specs, (0, 19, 0))
    assert {group.kind: (group.count, group.block) for group in cache.groups} == {"window": (5, 16), "full": (1, 32)}
    assert cache.tokens(26_349_624_361, 8192) == 26_800


def test_unequal_pages_are_refused_before_they_could_be_joined() -> None:
    with pytest.raises(PlanError) as caught:
        _laid_out({Spec("window", 16_384, 1024): 50, Spec("full", 8192): 10}, (0, 11, 0))
    assert caught.value.field == "engine_version"


def test_releases_without_groups_give_windows_no_credit() -> None:
    specs = {Spec("window", 2048, 1024): 52, Spec("full", 2048): 10}
    old, new = _laid_out(specs, (0, 8, 5)), _laid_out(specs, (0, 11, 0))
    assert old.request_blocks(131_072) * old.block_bytes == 131_072 * 2048 * 62
    assert new.needed(1, 131_072) < old.needed(1, 131_072) / 3


@pytest.mark.parametrize(
    ("counts", "version", "expected"),
    [
        ([10, 52], (0, 11, 0), 10), ([10, 12], (0, 11, 0), 10), ([10, 12], (0, 12, 0), 12), ([10, 14], (0, 17, 1), 10),
        ([10, 14], (0, 18, 0), 14), ([24, 24], (0, 33, 0), 24),
    ],
)  # fmt: skip
def test_group_size_by_release(counts: list[int], version: tuple[int, int, int], expected: int) -> None:
    assert group_size(counts, cache_rules(version, "v1").group_slack) == expected


LAYERS = st.dictionaries(
    st.one_of(
        st.builds(Spec, st.just("full"), st.just(2048)),
        st.builds(Spec, st.just("window"), st.just(2048), st.integers(1, 4096)),
        st.builds(Spec, st.just("state"), st.just(0), st.just(0), st.integers(1, 4_000_000)),
    ),
    st.integers(1, 40), min_size=1, max_size=3,
)  # fmt: skip


def _written_out(cache: VllmCache, context: int) -> int:
    """Blocks of one request, found by walking over its tokens: a block is held while a token in it can be seen by a
    token of the step that is at work."""
    total = 0
    for group in cache.groups:
        if group.kind == "state":
            total += group.count * (cache.state_pages or 0)
        elif group.kind == "full":
            total += group.count * len({token // group.block for token in range(context)})
        else:
            most = 0
            reach = min(group.window - 1 + cache.in_flight, context)
            for first in range(group.block):
                most = max(most, len({token // group.block for token in range(first, first + reach)}))
            total += group.count * most
    return total


@given(LAYERS, st.integers(1, 3000), st.sampled_from([16, 64]), st.integers(1, 500))
def test_a_request_needs_the_blocks_that_a_walk_over_it_finds(
    layers: dict[Spec, int], context: int, block: int, in_flight: int
) -> None:
    cache = _laid_out(layers, (0, 19, 0), block=block, in_flight=in_flight)
    walked = _written_out(cache, context)
    # The engine adds one block for a window that does not start on a block's edge, needed or not.
    windows = sum(g.count for g in cache.groups if g.kind == "window")
    assert walked <= cache.request_blocks(context) <= walked + windows


@given(LAYERS, st.integers(1, 100_000), st.integers(1, 64))
def test_round_trip_from_wish_to_bytes_and_back(layers: dict[Spec, int], context: int, requests: int) -> None:
    cache = _laid_out(layers, (0, 19, 0))
    needed = cache.needed(requests, context)
    assert cache.concurrency(needed, context) == pytest.approx(requests)
    assert cache.concurrency(needed - 1, context) < requests
    assert cache.longest(cache.needed(1, context)) >= context


@given(LAYERS, st.integers(1, 100_000), st.integers(1, 100_000))
def test_longer_requests_are_fewer(layers: dict[Spec, int], one: int, other: int) -> None:
    cache = _laid_out(layers, (0, 19, 0))
    short, long = sorted((one, other))
    assert cache.concurrency(100 * GIB, short) >= cache.concurrency(100 * GIB, long)


def test_decode_context_parallelism_divides_a_request() -> None:
    shape = shape_of("moonshotai/Kimi-K2-Thinking")
    plan = ServingPlan(engine_version="0.11.1", tp=8, n_gpus=8, max_model_len=262_144, block_size=64)
    pool = int(46.80 * GIB)
    alone, _ = geometry(shape, plan, find("h200-141gb-sxm"), pool)
    spread, _ = geometry(shape, plan.model_copy(update={"dcp": 8}), find("h200-141gb-sxm"), pool)
    assert spread == 8 * alone
    # https://github.com/vllm-project/recipes prints 715,072 and 5,721,088 for 46.8 GiB.
    assert spread == pytest.approx(5_721_088, rel=0.002)


def test_the_admission_check_of_a_later_release() -> None:
    # MiniMax-M2.7 on two cards, vLLM 0.29.1: 23.25 GiB for one request of 196,608 tokens; with 22.5 GiB the longest is
    # 190,272 (https://github.com/eugr/spark-vllm-docker/issues/396).
    from calculator.serving import bill

    plan = ServingPlan(
        engine_version="0.29.1", tp=2, n_gpus=2, max_model_len=196_608, kv_cache_memory_bytes=int(22.5 * GIB)
    )
    serving = bill(shape_of("MiniMaxAI/MiniMax-M2"), plan, find("gb10-128gb")).serving
    assert serving is not None
    assert serving.kv_needed_bytes / GIB == pytest.approx(23.25, abs=0.005)
    assert not serving.starts
    assert serving.longest_context_tokens == pytest.approx(190_272, rel=0.0005)


def test_deepseek_v4_packs_pages_of_three_sizes() -> None:
    # Groups as a probe of vLLM prints them for DeepSeek-V4-Flash: 62 full layers of 256 tokens, windows of 22 and 21
    # layers, open blocks of 4 and of 8 tokens; a block of 22 x 37,440 + 21 x 8,640 + 20 x 1,728 bytes.
    model = shape_of("deepseek-ai/DeepSeek-V4-Flash")
    mixers = [m for i in model.order for m in model.blocks[i].mixers if isinstance(m, Attention)]
    cache = lay_out_compressed(mixers, in_flight=8192, line="requests", dcp=1)
    assert cache.block_bytes == 1_039_680
    assert [(g.kind, g.count, g.block, g.window) for g in cache.groups] == [
        ("full", 1, 256, 0), ("window", 2, 64, 128), ("window", 1, 4, 8), ("window", 1, 8, 128)
    ]  # fmt: skip
    # 50.57 GiB held 9.65 requests of 600,000 tokens (0.26.1, four GPUs).
    assert cache.concurrency(int(50.57 * GIB), 600_000) == pytest.approx(9.65, rel=0.06)
