"""The plan's traffic on one replica."""

import pytest

from calculator.errors import PlanError
from calculator.hardware import find
from calculator.lookup import load_preset
from calculator.serving import releases
from calculator.serving.bill import bill, start
from calculator.serving.capacity import cell, matrix
from calculator.serving.lengths import Lengths, Lognormal
from calculator.serving.plan import ServingPlan
from calculator.serving.traffic import lengths_of, outlook
from calculator.serving.versions import parse

PLAN = ServingPlan(max_model_len=8192, concurrency=32, request_lengths="chat", gpu="l4-24gb")


def test_lengths_follow_the_plan() -> None:
    assert lengths_of(ServingPlan()) is None
    chosen = lengths_of(PLAN)
    assert chosen is not None
    assert chosen.name == "chat"
    own = lengths_of(ServingPlan(request_lengths="lognormal", prompt_median_tokens=700, prompt_spread=0.0))
    assert own is not None
    assert own.prompt == Lognormal(median=700, spread=0)


def test_an_outlook_on_one_length_is_the_pool_over_the_request() -> None:
    """Requests that neither differ nor grow: the pool's own count, and an even load of the wished number."""
    shape, gpu = load_preset("llama-3.1-8b").shape, find("l4-24gb")
    lengths = Lengths(name="one", prompt=Lognormal(median=2047, spread=0), output=Lognormal(median=1, spread=0))
    found = outlook(shape, PLAN, gpu, lengths)
    begun = start(shape, PLAN, gpu)
    assert found.full.p50 == found.full.p99 == int(begun.cache.concurrency(begun.pool.value, 2048))
    assert (found.prompt_tokens, found.output_tokens) == (2047, 1)


def test_traffic_keeps_the_wished_number_busy() -> None:
    shape, gpu = load_preset("llama-3.1-8b").shape, find("h100-80gb-sxm")
    found = outlook(shape, PLAN.model_copy(update={"gpu": gpu.key}), gpu, lengths_of(PLAN) or Lengths(name="none"))
    assert found.simulated is not None
    assert found.simulated.running_mean == pytest.approx(32, rel=0.1)
    assert found.simulated.running_p50 <= found.simulated.running_p90 <= found.simulated.running_p99
    assert found.full.p50 >= found.full.p90 >= found.full.p99
    assert found.beside_longest.p50 <= found.full.p50
    assert found.split.long_only < found.split.mixed <= found.split.short_only


def test_a_card_without_rates_still_has_a_pool() -> None:
    shape, gpu = load_preset("qwen2.5-0.5b").shape, find("l4-24gb").model_copy(update={"peak_dense_flops": {}})
    found = outlook(shape, PLAN, gpu, lengths_of(PLAN) or Lengths(name="none"))
    assert found.speed is None
    assert found.simulated is None
    assert found.full.p50 > 0


@pytest.mark.parametrize("requests", [2000, 4000, 8000])
def test_an_overload_is_said_however_many_requests_are_simulated(requests: int) -> None:
    """Three times what the pool holds: a third of the arrivals is served, and the waiting time is no figure."""
    shape, gpu = load_preset("llama-3.1-8b").shape, find("l4-24gb")
    lengths = Lengths(name="one", prompt=Lognormal(median=2000, spread=0), output=Lognormal(median=100, spread=0))
    held = outlook(shape, PLAN, gpu, lengths).full.p50
    busy = outlook(shape, PLAN.model_copy(update={"concurrency": 3 * held}), gpu, lengths, requests=requests)
    assert busy.overloaded
    assert busy.served_per_s == pytest.approx(busy.arrivals_per_s / 3, rel=0.05)
    assert busy.simulated is not None
    assert busy.simulated.overloaded
    # By Little's law: the requests that the pool holds over the time of one.
    assert busy.speed is not None
    stay = busy.speed.ttft_s.value + 100 * busy.speed.tpot_s.value
    assert busy.served_per_s == pytest.approx(held / stay, rel=0.05)
    calm = outlook(shape, PLAN.model_copy(update={"concurrency": held // 2}), gpu, lengths, requests=requests)
    assert not calm.overloaded
    assert calm.served_per_s == calm.arrivals_per_s > 0


def test_a_shared_prefix_takes_its_blocks_once() -> None:
    """1,600 of 2,000 tokens are the same: the pool less 1,600 tokens, over requests of 448 (whole blocks of 16)."""
    shape, gpu = load_preset("llama-3.1-8b").shape, find("l4-24gb")
    lengths = Lengths(name="one", prompt=Lognormal(median=2031, spread=0), output=Lognormal(median=1, spread=0))
    plan = PLAN.model_copy(update={"shared_prefix_tokens": 1600})
    begun = start(shape, plan, gpu)
    tokens = begun.cache.tokens(begun.pool.value, 8192)
    found, apart = outlook(shape, plan, gpu, lengths), outlook(shape, PLAN, gpu, lengths)
    assert found.full.p50 == (tokens - 1600) // 432
    assert apart.full.p50 == tokens // 2032
    assert found.simulated is not None
    assert apart.simulated is not None
    assert found.speed is not None
    assert apart.speed is not None
    assert found.speed.ttft_s.value < 0.3 * apart.speed.ttft_s.value
    off = outlook(shape, plan.model_copy(update={"prefix_caching": False}), gpu, lengths)
    assert off.full.p50 == apart.full.p50


def test_nothing_fits() -> None:
    with pytest.raises(PlanError, match="nothing_fits"):
        outlook(load_preset("llama-3.1-70b").shape, PLAN, find("l4-24gb"), lengths_of(PLAN) or Lengths(name="none"))


def test_a_cell_is_its_bill() -> None:
    shape, gpu = load_preset("llama-3.1-8b").shape, find("l4-24gb")
    found = matrix(shape, PLAN, gpu, (2048, 8192), (1, 64))
    assert found[1][1] == cell(8192, 64, bill(shape, PLAN.model_copy(update={"concurrency": 64}), gpu))
    assert found[1][1].verdict == "tight"
    assert found[1][1].pool_share > 1
    assert 0 < found[1][1].held < 64
    assert found[0][0].pool_share < found[1][0].pool_share < 1


def test_every_release_on_offer_is_read_and_they_go_back_in_time() -> None:
    for engine, offered in releases.RELEASES.items():
        shape, gpu = load_preset("qwen2.5-0.5b").shape, find("l4-24gb")
        for version in offered:
            assert bill(shape, ServingPlan(engine=engine, engine_version=version), gpu).serving is not None
        if engine != "llama_cpp":
            assert list(offered) == sorted(offered, key=parse, reverse=True)
