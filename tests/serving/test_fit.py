"""llama.cpp's automatic fit: printed ones, laws, and what a bill makes of it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from calculator.bill import Bill, ServingFigures
from calculator.errors import PlanError
from calculator.hardware import Gpu, find, resolve
from calculator.model.shape import ModelShape
from calculator.serving import bill
from calculator.serving.engines import fit
from calculator.serving.engines.cells import Setup
from calculator.serving.overheads import context_term
from calculator.serving.plan import ServingPlan
from calculator.serving.speed import speed
from calculator.serving.wish import options
from tests.serving.shapes import llama
from validation.models import shape_of

GIB, MIB = 2**30, 2**20
SHAPE = llama()
RTX_4090 = find("rtx-4090-24gb")


def card(free_mib: int) -> Gpu:
    """A card of which so much is free once the driver's context is there."""
    return resolve("custom", free_mib * MIB + context_term(RTX_4090).span.value)


def setup(shape: ModelShape, plan: ServingPlan, context: int, **changes: object) -> Setup:
    made = Setup(shape, plan, None, build=9000, slots=1, context=context, ubatch=512, open_context=True)
    return replace(made, **changes)


def figures(result: Bill) -> ServingFigures:
    assert result.serving is not None
    return result.serving


def test_a_mixture_on_a_small_card_as_printed() -> None:
    # llama.cpp, tools/fit-params/README.md (2025): Qwen3-30B-A3B in F16 on 24,077 MiB: projected 61,807 MiB, the
    # context from 40,960 to 4,096 tokens saves 3,456 MiB, a surplus of 16,164 MiB with dense weights alone, and 34 of
    # 48 layers without their experts (the release of that day filled a card a little less).
    shape, gpu = shape_of("Qwen/Qwen3-30B-A3B"), card(24_077)
    whole = setup(shape, ServingPlan(engine="llama_cpp", concurrency=1, weights="F16"), 40_960)
    (used,) = (c.used for c in whole.cards())
    assert used / MIB == pytest.approx(61_807, rel=0.002)
    short = replace(whole, context=4096)
    assert (used - short.cards()[0].used) / MIB == pytest.approx(3456, abs=40)
    dense = replace(short, kept=frozenset(range(48)))
    (bare,) = dense.cards()
    low, high = (bare.used + end - bare.scratch.value for end in (bare.scratch.low, bare.scratch.high))
    assert low < (24_077 - 1024 - 16_164) * MIB < high
    found = fit.fitted(whole, gpu)
    assert found.setup.context == 4096
    assert found.setup.kept is not None
    assert 32 <= len(found.setup.kept) <= 34
    assert sorted(found.setup.kept) == list(range(48 - len(found.setup.kept), 48))
    assert found.moved is not None
    assert found.moved.id == "serving.moved.experts"


def test_an_open_context_is_shortened_as_printed() -> None:
    # Build 8477, Qwen3.5-27B: 5,420 MiB too much at 262,144 tokens, and 177,152 were kept.
    shape = shape_of("Qwen/Qwen3.6-27B")
    plan = ServingPlan(engine="llama_cpp", concurrency=1, weights="Q5_K_M", mmproj="none")
    whole = setup(shape, plan, 262_144, target_bytes=400 * MIB)
    gpu = card(whole.cards()[0].used // MIB + 400 - 5420)
    found = fit.fitted(whole, gpu)
    assert found.moved is None
    assert found.setup.context == pytest.approx(177_152, rel=0.015)
    assert found.setup.context % 256 == 0
    assert found.setup.cards()[0].used <= gpu.total_bytes - context_term(gpu).span.value - 400 * MIB


@examples(max_examples=40)
@given(st.integers(2_000, 40_000), st.integers(1, 3), st.sampled_from(["Q4_K_M", "Q8_0"]), st.booleans())
def test_what_is_fitted_leaves_the_target_free(free_mib: int, cards: int, mix: str, moe: bool) -> None:
    shape = shape_of("Qwen/Qwen3-30B-A3B") if moe else SHAPE
    plan = ServingPlan(engine="llama_cpp", concurrency=1, weights=mix, n_gpus=cards)
    gpu = card(free_mib)
    whole = setup(shape, plan, 16_384, open_context=False)
    found = fit.fitted(whole, gpu)
    made = found.setup.cards()
    room = (free_mib - 1024) * MIB
    empty = replace(whole, plan=plan.model_copy(update={"n_gpu_layers": 0})).cards()
    assert all(c.used <= max(room, e.used) for c, e in zip(made, empty, strict=True))
    layers = [layer for c in made for layer in c.placement.layers]
    assert layers == list(range(shape.layers - len(layers), shape.layers))
    assert (found.moved is None) is (found.setup is whole)
    if found.moved is None:
        assert all(c.used <= room for c in whole.cards())


@pytest.mark.parametrize("free_mib", [3000, 5000, 7000, 9000])
def test_one_layer_more_would_be_too_many(free_mib: int) -> None:
    """The slow way: every number of layers tried."""
    plan = ServingPlan(engine="llama_cpp", concurrency=1, weights="Q8_0")
    whole = setup(SHAPE, plan, 8192, open_context=False)
    found = fit.fitted(whole, card(free_mib)).setup.plan.n_gpu_layers
    room = (free_mib - 1024) * MIB
    fits = [
        count
        for count in range(34)
        if replace(whole, plan=plan.model_copy(update={"n_gpu_layers": count})).cards()[0].used <= room
    ]
    assert found == max(fits)


@pytest.mark.parametrize(
    "named", [{"n_gpu_layers": 99}, {"tensor_split": (1.0,)}, {"experts_on_cpu": True}, {"fit": False}]
)
def test_what_was_set_is_not_changed(named: dict[str, object]) -> None:
    base = {"engine": "llama_cpp", "weights": "Q8_0", "max_model_len": 8192, "concurrency": 1}
    gpu = card(6000)
    assert bill(SHAPE, ServingPlan.model_validate(base), gpu).verdict == "tight"
    result = bill(SHAPE, ServingPlan.model_validate(base | named), gpu)
    assert result.verdict == "does_not_fit"
    assert figures(result).moved is None


def test_older_builds_do_not_fit_themselves() -> None:
    plan = ServingPlan(engine="llama_cpp", weights="Q8_0", max_model_len=8192, concurrency=1, engine_version="b7000")
    assert bill(SHAPE, plan, card(6000)).verdict == "does_not_fit"


def test_the_need_is_that_of_the_whole_model() -> None:
    plan = ServingPlan(engine="llama_cpp", weights="Q8_0", max_model_len=8192, concurrency=1)
    whole, small = bill(SHAPE, plan, RTX_4090), bill(SHAPE, plan, card(6000))
    assert (whole.verdict, small.verdict) == ("fits", "tight")
    assert small.need.value == pytest.approx(whole.need.value, abs=MIB)
    assert small.process.value < 6000 * MIB < small.need.value
    assert figures(small).moved is not None
    assert figures(small).host_bytes > figures(whole).host_bytes + 2 * GIB


def test_speed_is_not_estimated_for_the_host() -> None:
    plan = ServingPlan(engine="llama_cpp", weights="Q8_0", max_model_len=8192, concurrency=1)
    lengths = {"prompt_tokens": 512, "output_tokens": 128, "batch": 1}
    for gpu, changes in ((card(6000), {}), (RTX_4090, {"n_gpu_layers": 10})):
        with pytest.raises(PlanError) as caught:
            speed(SHAPE, plan.model_copy(update=changes), gpu, **lengths)
        assert caught.value.key == "speed.host"
    one, two = (speed(SHAPE, plan.model_copy(update={"n_gpus": n, "tp": n}), RTX_4090, **lengths) for n in (1, 2))
    # Cards that hold layers work in turn: a second one makes a single stream no faster.
    assert two.tpot_s.value >= one.tpot_s.value * 0.95


def test_the_fewest_cards_hold_the_whole_model() -> None:
    plan = ServingPlan(engine="llama_cpp", weights="Q8_0", max_model_len=8192, context_tokens=8192, concurrency=1)
    found = options(shape_of("meta-llama/Llama-3.1-70B-Instruct"), plan, [RTX_4090, find("h100-80gb-sxm")])
    assert {o.plan.gpu: o.plan.n_gpus for o in found} == {"rtx-4090-24gb": 4, "h100-80gb-sxm": 1}


def test_ollama_moved_whole_layers_before_it_started_llama_server() -> None:
    shape = shape_of("Qwen/Qwen3-30B-A3B")
    plan = ServingPlan(engine="ollama", weights="Q8_0", max_model_len=8192, concurrency=1)
    new, old = (
        figures(bill(shape, plan.model_copy(update={"engine_version": version}), RTX_4090)).moved
        for version in ("0.30.0", "0.12.0")
    )
    assert new is not None
    assert old is not None
    assert (new.id, old.id) == ("serving.moved.experts", "serving.moved.layers")


def test_ollama_keeps_its_overhead_free() -> None:
    plan = ServingPlan(engine="ollama", weights="Q8_0", max_model_len=8192, concurrency=1)
    usual, more = (
        bill(SHAPE, plan.model_copy(update={"fit_target_bytes": extra}), card(9_600)) for extra in (None, 2 * GIB)
    )
    assert usual.verdict == "tight"
    assert usual.process.value - more.process.value == pytest.approx(2 * GIB, rel=0.2)


@pytest.mark.parametrize("engine", ["llama_cpp", "ollama"])
@given(slots=st.integers(1, 64), context=st.integers(256, 65_536), concurrency=st.integers(1, 64))
def test_a_cache_that_is_allocated_whole_is_needed_whole(
    engine: str, slots: int, context: int, concurrency: int
) -> None:
    base = {"engine": engine, "weights": "Q4_K_M", "max_model_len": context, "concurrency": concurrency, "fit": False}
    plan = ServingPlan.model_validate({**base, "context_tokens": 2048, "kv_unified": True})
    few, many = (bill(SHAPE, plan.model_copy(update={"max_num_seqs": count}), RTX_4090) for count in (slots, slots + 1))
    assert few.need.value >= few.process.value
    assert few.need.value >= many.need.value - (many.need.value - many.need.low)
    assert few.need.value == many.need.value
