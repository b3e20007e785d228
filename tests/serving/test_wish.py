"""The fewest cards for a wish: what is answered has a bill of its own that fits, and no smaller number does."""

from __future__ import annotations

from functools import cache
from itertools import product
from math import ceil
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calculator.errors import CalculatorError
from calculator.hardware import find
from calculator.model.shape import ModelShape
from calculator.serving import bill
from calculator.serving.plan import ServingPlan
from calculator.serving.split import ranks_of, replicas_of
from calculator.serving.wish import options, wished_context
from tests.serving.shapes import llama
from validation.models import shape_of

CARDS = [find(key) for key in ("rtx-4090-24gb", "a100-80gb-sxm4", "h200-141gb-sxm")]
SERVERS = ("vllm", "sglang", "tensorrt_llm", "tgi", "lmdeploy")
ONE_PROCESS = ("transformers", "llama_cpp", "ollama")
MIXTRAL = "mistralai/Mixtral-8x7B-Instruct-v0.1"
MODELS = ("dense", MIXTRAL, "deepseek-ai/DeepSeek-V2-Lite")


@cache
def shape_named(name: str) -> ModelShape:
    return llama() if name == "dense" else shape_of(name)


def holds(model: str, plan: ServingPlan, requests: int, context: int) -> bool:
    """Whether the plan's own bill starts and every replica holds its share of the requests."""
    try:
        found = bill(shape_named(model), plan, find(plan.gpu)).serving
    except CalculatorError:
        return False
    assert found is not None
    each = ceil(requests / found.replicas)
    slot = found.max_model_len // (found.max_num_seqs if plan.engine in ("llama_cpp", "ollama") else 1)
    return (
        found.starts and found.moved is None and slot >= context and found.max_num_seqs >= each
        and found.requests_at_context / found.replicas >= each - 1e-6
    )  # fmt: skip


@pytest.mark.parametrize("engine", [*SERVERS, *ONE_PROCESS])
@pytest.mark.parametrize("model", MODELS)
@settings(max_examples=4, deadline=None)
@given(requests=st.integers(1, 600), context=st.sampled_from([1024, 8192, 20_000]), whole=st.booleans())
def test_the_plan_that_is_answered_holds_the_wish(
    engine: str, model: str, requests: int, context: int, whole: bool
) -> None:
    plan = ServingPlan.model_validate(
        {"engine": engine, "concurrency": requests, "context_tokens": context, "max_model_len": context,
         "ep": 2 if whole and model != "dense" else 1}
    )  # fmt: skip
    for option in options(shape_named(model), plan, CARDS):
        chosen = option.plan
        assert holds(model, chosen, requests, context)
        assert option.requests >= requests
        if engine in ONE_PROCESS:
            assert (chosen.tp, chosen.pp, chosen.dp, replicas_of(chosen)) == (1, 1, 1, 1)
        else:
            assert ranks_of(chosen) == chosen.n_gpus
        ServingPlan.model_validate(chosen.model_dump())


@pytest.mark.parametrize(
    ("engine", "model", "requests"),
    [("vllm", MIXTRAL, 200), ("sglang", MIXTRAL, 100), ("tgi", "dense", 150), ("lmdeploy", "dense", 90),
     ("tensorrt_llm", "dense", 120), ("vllm", "dense", 120), ("llama_cpp", "dense", 90), ("transformers", "dense", 12)],
)  # fmt: skip
def test_no_smaller_number_of_cards_does(engine: str, model: str, requests: int) -> None:
    """Every division of fewer cards, billed one by one."""
    wish: dict[str, Any] = {"engine": engine, "concurrency": requests, "context_tokens": 8192, "max_model_len": 8192}
    found = options(shape_named(model), ServingPlan.model_validate(wish), CARDS)
    assert len(found) == len(CARDS)
    for option in found:
        for count in range(1, option.plan.n_gpus):
            degrees = range(1, count + 1)
            for tp, dp in product(degrees, degrees) if engine in SERVERS else [(1, 1)]:
                if engine in SERVERS and (tp * dp != count or tp not in (1, 2, 4, 8, 16)):
                    continue
                for ep in {1, tp, tp * dp}:
                    changes = {"tp": tp, "dp": dp, "ep": ep, "n_gpus": count, "gpu": option.plan.gpu}
                    if engine == "llama_cpp":
                        changes |= {"max_model_len": 8192 * requests, "max_num_seqs": requests}
                    plan = ServingPlan.model_validate({**wish, **changes})
                    assert not holds(model, plan, requests, 8192), changes


def test_a_large_wish_of_llama_cpp_by_hand() -> None:
    """42.5 GB of weights and 64 x 8,192 tokens of 320 KiB, 171.8 GB, in cards of 80 GiB."""
    plan = ServingPlan(
        engine="llama_cpp", weights="Q4_K_M", concurrency=64, context_tokens=8192, max_model_len=8192, max_num_seqs=4
    )
    (found,) = options(shape_of("meta-llama/Llama-3.1-70B-Instruct"), plan, [find("h100-80gb-sxm")])
    assert found.plan.n_gpus == ceil((42.5e9 + 171.8e9) / (80 * 2**30)) == 3
    assert (found.plan.max_model_len, found.plan.max_num_seqs, found.plan.dp) == (64 * 8192, 64, 1)


def test_a_slot_has_its_part_of_the_context_of_all() -> None:
    plan = ServingPlan(engine="llama_cpp", max_model_len=65_536, max_num_seqs=8, concurrency=4)
    assert wished_context(plan) == 8192
    assert wished_context(plan.model_copy(update={"engine": "vllm"})) == 65_536
    assert wished_context(ServingPlan()) is None


def test_attention_replicas_are_kept_where_they_are_asked_for() -> None:
    shape, card = shape_of("deepseek-ai/DeepSeek-V2-Lite"), find("a100-40gb-sxm4")
    for engine in ("sglang", "tensorrt_llm"):
        plan = ServingPlan.model_validate(
            {"engine": engine, "dp_attention": True, "dp": 2, "tp": 2, "n_gpus": 2, "concurrency": 300,
             "context_tokens": 8192, "max_model_len": 8192}
        )  # fmt: skip
        (found,) = options(shape, plan, [card])
        assert found.plan.dp_attention
        assert found.plan.tp == found.plan.dp == found.plan.n_gpus > 1
