"""Request lengths and the simulator, against closed forms."""

import math
from statistics import mean, median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calculator.errors import PlanError, TooLargeError
from calculator.hardware import find
from calculator.serving import start
from calculator.serving.capacity import matrix, packed, separated
from calculator.serving.lengths import MAX_LINE, PRESETS, Lengths, Lognormal, preset, read_lengths
from calculator.serving.pages import PagedCache, Part
from calculator.serving.plan import ServingPlan
from calculator.serving.prefix import Beside
from calculator.serving.simulator import Traffic, percentile, simulate
from tests.serving.shapes import llama

CACHE = PagedCache((Part(1000),), 16)
ONE_LENGTH = Lengths(name="one", prompt=Lognormal(median=1000, spread=0), output=Lognormal(median=1, spread=0))


def test_one_length_packs_pool_over_request() -> None:
    # 1,001 tokens are 63 blocks of 16.
    pool = 100 * 63 * 16 * 1000
    found = packed(CACHE, pool, ONE_LENGTH)
    assert (found.p50, found.p90, found.p99) == (100, 100, 100)
    assert packed(CACHE, pool - 1, ONE_LENGTH).p50 == 99


def test_a_long_answer_is_met_half_grown() -> None:
    lengths = Lengths(name="long", prompt=Lognormal(median=1, spread=0), output=Lognormal(median=16_000, spread=0))
    found = packed(CACHE, 10**12, lengths, max_num_seqs=100)
    assert found.mean_bytes == pytest.approx(8000 * 1000, rel=0.02)


def test_one_very_long_request_takes_the_room_of_many() -> None:
    pool = 200 * 63 * 16 * 1000
    alone = packed(CACHE, pool, ONE_LENGTH, draws=20)
    beside = packed(CACHE, pool, ONE_LENGTH, draws=20, fixed_bytes=100_000 * 1000)
    assert alone.p50 - beside.p50 == math.ceil(100_000 / (63 * 16))


@given(st.floats(10, 20_000), st.floats(0, 1.5))
@settings(max_examples=20)
def test_drawn_lengths_have_the_stated_median_and_mean(middle: float, spread: float) -> None:
    lengths = Lengths(name="x", prompt=Lognormal(median=middle, spread=spread), output=Lognormal(median=50, spread=0))
    drawn = [prompt for prompt, _ in lengths.draw(4000, 3)]
    assert median(drawn) == pytest.approx(middle, rel=0.15, abs=1)
    assert mean(drawn) == pytest.approx(lengths.prompt.mean, rel=0.25, abs=1)


@given(st.floats(1, 10_000), st.floats(1.0, 12.0))
def test_mean_and_p99_give_back_the_distribution(average: float, ratio: float) -> None:
    found = Lognormal.from_mean(average, average * ratio)
    assert found.mean == pytest.approx(average)
    assert found.median * math.exp(2.3263478740408408 * found.spread) == pytest.approx(average * ratio)


@pytest.mark.parametrize(("average", "p99"), [(100, 50), (100, 2000), (0, 10), (-1, 3)])
def test_no_lognormal_has_such_a_mean_and_p99(average: float, p99: float) -> None:
    with pytest.raises(PlanError):
        Lognormal.from_mean(average, p99)


def test_requests_never_exceed_the_context_limit() -> None:
    for lengths in PRESETS.values():
        assert max(sum(pair) for pair in lengths.capped(2048).draw(500)) <= 2048
        assert min(min(pair) for pair in lengths.capped(2048).draw(500)) >= 1
    with pytest.raises(PlanError):
        preset("poetry")


def test_mean_occupancy_is_arrivals_times_stay() -> None:
    # M/G/infinity: rate x mean time in the system, whatever the distribution.
    lengths = Lengths(name="chat", prompt=Lognormal(median=500, spread=0.8), output=Lognormal(median=200, spread=0.7))
    traffic = Traffic(lengths=lengths, arrivals_per_s=5, tpot_s=0.02, prefill_tokens_per_s=10_000, requests=20_000)
    found = simulate(CACHE, 10**15, 10**6, traffic)
    stay = lengths.prompt.mean / 10_000 + lengths.output.mean * 0.02
    assert found.running_mean == pytest.approx(5 * stay, rel=0.02)
    assert found.waiting_p99_s == 0
    assert found.preempted_share == 0


def test_seeds_agree() -> None:
    traffic = Traffic(lengths=PRESETS["chat"], arrivals_per_s=4, tpot_s=0.03, prefill_tokens_per_s=8000, requests=3000)
    found = [
        simulate(CACHE, 30 * 10**6, 256, traffic.model_copy(update={"seed": seed})).running_mean for seed in (1, 2, 3)
    ]
    assert max(found) / min(found) < 1.15


def test_a_full_server_runs_at_what_the_pool_packs() -> None:
    lengths = Lengths(name="x", prompt=Lognormal(median=2000, spread=0.3), output=Lognormal(median=1600, spread=0.3))
    pool = 100 * 2800 * 1000
    busy = Traffic(lengths=lengths, arrivals_per_s=100, tpot_s=0.02, prefill_tokens_per_s=1e9, requests=3000)
    found, expected = simulate(CACHE, pool, 10**6, busy), packed(CACHE, pool, lengths)
    assert found.waiting_p90_s > 1
    assert found.running_p50 == pytest.approx(expected.p50, rel=0.15)
    assert found.used_mean_bytes <= pool


@pytest.mark.parametrize("requests", [2000, 8000])
def test_a_queue_that_grows_is_told_from_one_that_does_not(requests: int) -> None:
    """100 slots of 2 seconds serve 50 requests a second: 40 are calm, 60 leave a sixth of all waiting."""
    lengths = Lengths(name="even", prompt=Lognormal(median=16, spread=0), output=Lognormal(median=200, spread=0))
    for arrivals, left in ((40, 0.0), (60, 1 / 6)):
        traffic = Traffic(
            lengths=lengths, arrivals_per_s=arrivals, tpot_s=0.01, prefill_tokens_per_s=1e9, requests=requests
        )
        found = simulate(CACHE, 10**12, 100, traffic)
        assert found.overloaded == (left > 0)
        assert found.backlog / requests == pytest.approx(left, abs=0.06)


def test_a_cached_prefix_shortens_the_stay_and_takes_no_room_of_its_own() -> None:
    # 8,000 of 10,000 tokens cached: a fifth of the prefill, a fifth of the bytes.
    lengths = Lengths(name="one", prompt=Lognormal(median=10_000, spread=0), output=Lognormal(median=1, spread=0))
    traffic = Traffic(lengths=lengths, arrivals_per_s=1, tpot_s=0.001, prefill_tokens_per_s=1000, requests=4000)
    cold = simulate(CACHE, 10**12, 10**6, traffic)
    warm = simulate(Beside(CACHE, 8000), 10**12, 10**6, traffic.model_copy(update={"cached_tokens": 8000}))
    assert cold.running_mean == pytest.approx(10, rel=0.05)
    assert warm.running_mean == pytest.approx(2, rel=0.05)
    assert warm.used_mean_bytes == pytest.approx(cold.used_mean_bytes / 25, rel=0.05)


def test_every_request_ends_and_memory_is_given_back() -> None:
    traffic = Traffic(lengths=PRESETS["code"], arrivals_per_s=20, tpot_s=0.02, prefill_tokens_per_s=5000, requests=3000)
    found = simulate(CACHE, 20 * 10**6, 64, traffic)
    assert found.finished + found.refused == 3000
    assert found.refused > 0
    assert 0 < found.preempted_share < 1


def test_a_request_costs_a_bounded_number_of_events() -> None:
    # Ten thousand requests take half a second on one idle core of 2024; what keeps it there is that a request, however
    # long its answer, makes an arrival, an end and at most sixteen growth steps.
    for name in ("chat", "code"):
        traffic = Traffic(
            lengths=PRESETS[name], arrivals_per_s=5, tpot_s=0.02, prefill_tokens_per_s=8000, requests=2000
        )
        found = simulate(CACHE, 10**12, 10**6, traffic)
        assert found.finished == 2000
        assert found.events <= 18 * 2000


def test_splitting_traffic_helps_the_short_requests() -> None:
    lengths = Lengths(name="mix", pairs=((500, 200),) * 9 + ((50_000, 500),))
    found = separated(CACHE, 500 * 10**6, lengths, 4096, max_num_seqs=10_000)
    assert found.short_only > found.mixed > found.long_only
    assert found.short_share == pytest.approx(0.9, abs=0.03)


@given(st.lists(st.floats(0, 100), min_size=1), st.floats(0.01, 1))
def test_percentiles_are_members_that_enough_do_not_exceed(values: list[float], share: float) -> None:
    values.sort()
    found = percentile(values, share)
    assert found in values
    assert sum(v <= found for v in values) >= share * len(values) - 1e-9


def test_the_matrix_worsens_to_the_right_and_downwards() -> None:
    rank = {"fits": 0, "tight": 1, "does_not_fit": 2}
    contexts, requests = (1024, 8192, 32_768, 131_072), (1, 4, 16, 64, 256)
    rows = matrix(llama(), ServingPlan(gpu="l4-24gb"), find("l4-24gb"), contexts, requests)
    grades = [[rank[cell.verdict] for cell in row] for row in rows]
    assert all(row == sorted(row) for row in grades)
    assert all(list(column) == sorted(column) for column in zip(*grades, strict=True))
    assert {grade for row in grades for grade in row} == {0, 1, 2}


UPLOADS = [
    ("prompt_tokens,output_tokens\n100,20\n200,30\n", ((100, 20), (200, 30))),
    ("100,20\n\n200,30\n", ((100, 20), (200, 30))),
    ("id,output,prompt\na,20,100\n", ((100, 20),)),
    ('{"prompt_tokens": 100, "completion_tokens": 20}\n{"input_len": 5, "output_len": 6}', ((100, 20), (5, 6))),
    ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n", ((374, 44),)),
    ("arrived_at,num_prefill_tokens,num_decode_tokens\n0.1,1024,128\n", ((1024, 128),)),
    ("\ufeffTimestamp,Model,Request tokens,Response tokens,Total tokens\n5,ChatGPT,472,18,490\n", ((472, 18),)),
    ('{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [1]}', ((6758, 500),)),
    ('{"ContextTokens": 7, "GeneratedTokens": 8}', ((7, 8),)),
]


@pytest.mark.parametrize(("written", "pairs"), UPLOADS)
def test_uploaded_lengths(written: str, pairs: tuple[tuple[int, int], ...]) -> None:
    assert read_lengths(written.splitlines()).pairs == pairs


@pytest.mark.parametrize(
    "written",
    ["", "a,b\n", "1\n", "1,-2", "1,nan", "1,inf", "1,1e300", '{"prompt": 1}', "{broken", '{"prompt":{},"output":1}'],
)  # fmt: skip
def test_unreadable_uploads_name_the_line(written: str) -> None:
    with pytest.raises(PlanError) as caught:
        read_lengths(written.splitlines())
    assert caught.value.field == "request_lengths"


def test_uploads_are_capped() -> None:
    with pytest.raises(TooLargeError):
        read_lengths(["1,1"] * 200_001)
    with pytest.raises(TooLargeError):
        read_lengths(["1," + "1" * MAX_LINE])


def test_a_real_start_packs_its_own_pool() -> None:
    plan = ServingPlan(engine_version="0.19.0", max_model_len=8192)
    begun = start(llama(), plan, find("h100-80gb-sxm"))
    found = packed(begun.cache, begun.pool.value, PRESETS["chat"].capped(8192), max_num_seqs=begun.max_num_seqs)
    assert begun.cache.concurrency(begun.pool.value, 8192) < found.p99 <= found.p90 <= found.p50 <= begun.max_num_seqs
