"""What each engine makes of the same degrees: replicas, experts, attention replicas and shared caches."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calculator.errors import PlanError
from calculator.hardware import find
from calculator.model.shape import ModelShape
from calculator.serving import bill
from calculator.serving.loaded import load
from calculator.serving.plan import ServingPlan
from calculator.serving.split import Split, ranks_of, replicas_of, split_of
from tests.serving.shapes import llama
from validation.models import shape_of

H200 = find("h200-141gb-sxm")
MOE, MLA = "Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V3"
SERVERS = ("vllm", "sglang", "tensorrt_llm", "tgi", "lmdeploy")


@cache
def shape_named(name: str) -> ModelShape:
    return llama() if name == "dense" else shape_of(name)


def items(model: str, **fields: Any) -> dict[str, int]:
    found = bill(shape_named(model), ServingPlan.model_validate({"max_model_len": 8192, **fields}), H200)
    return {item.key: item.bytes for item in found.items}


def spread(experts: int, width: int, ep: int, ranks: int) -> list[int]:
    """Columns of experts on each rank, dealt one by one: whole experts to groups, each cut among its group's ranks."""
    groups = [0] * ep
    for expert in range(experts):
        groups[expert % ep] += width
    return [columns // (ranks // ep) for columns in groups for _ in range(ranks // ep)]


@given(st.sampled_from([1, 2, 4, 8, 16]), st.sampled_from([1, 2, 4, 8, 16]), st.integers(16, 200))
def test_experts_on_all_ranks_are_the_whole(tp: int, ep: int, experts: int) -> None:
    split = Split(tp=max(tp, ep), ep=ep)
    held = spread(experts, 256, ep, split.tp)
    assert sum(held) == experts * 256
    assert split.expert_share(experts) * experts * 256 == pytest.approx(max(held))


REPLICAS = [
    (engine, model) for engine in SERVERS for model in ("dense", MOE, MLA) if engine != "vllm" or model == "dense"
]


@pytest.mark.parametrize(("engine", "model"), REPLICAS)
@settings(max_examples=6, deadline=None)
@given(dp=st.integers(2, 5), concurrency=st.integers(1, 40))
def test_a_replica_is_billed_like_a_single_start(engine: str, model: str, dp: int, concurrency: int) -> None:
    one = items(model, engine=engine, tp=8, n_gpus=8, concurrency=concurrency)
    assert items(model, engine=engine, tp=8, dp=dp, n_gpus=8 * dp, concurrency=dp * concurrency) == one


@pytest.mark.parametrize("model", [MOE, MLA])
def test_vllm_spreads_experts_over_replicas(model: str) -> None:
    one, two = (items(model, tp=8, dp=dp, n_gpus=16)["weights"] for dp in (1, 2))
    assert items(model, tp=8, dp=2, ep=16, n_gpus=16)["weights"] == two
    shape = shape_named(model)
    experts = sum(
        t.elements for index in shape.order for t in shape.blocks[index].tensors if t.component == "experts"
    )  # fmt: skip
    # 16 bit, or FP8 with one scale of 4 bytes for each block of 128 x 128; a sixteenth less of them.
    assert one - two == pytest.approx(experts / 16 * (2 if model == MOE else 1 + 4 / 128**2), rel=1e-4)
    with pytest.raises(PlanError) as caught:
        items(model, tp=8, dp=5, n_gpus=40)
    assert caught.value.key == "serving.tp_width"
    assert items(model, tp=8, dp=5, ep=40, n_gpus=40)["weights"] < two


def test_servers_side_by_side_are_said() -> None:
    for engine in SERVERS:
        found = bill(llama(), ServingPlan.model_validate({"engine": engine, "dp": 2, "n_gpus": 2}), H200)
        said = {a.id: a.values for a in found.assumptions}
        assert ("serving.assume.servers" in said) == (engine in ("tensorrt_llm", "tgi"))


@pytest.mark.parametrize("engine", [*SERVERS, "transformers", "llama_cpp", "ollama"])
@pytest.mark.parametrize("model", ["dense", MOE, MLA])
def test_degrees_of_one_change_nothing(engine: str, model: str) -> None:
    plain = items(model, engine=engine, tp=8, n_gpus=8)
    ones = {"pp": 1, "dp": 1, "ep": 1, "dcp": 1}
    apart = {} if engine == "tensorrt_llm" else {"dp_attention": True}
    assert items(model, engine=engine, tp=8, n_gpus=8, **ones, **apart) == plain
    single = items(model, engine=engine)
    assert items(model, engine=engine, dp_attention=True, **ones) == single


@pytest.mark.parametrize("engine", ["sglang", "tensorrt_llm"])
@pytest.mark.parametrize("model", [MOE, MLA])
def test_fewer_groups_of_experts_than_ranks_are_legal_and_weigh_the_same(engine: str, model: str) -> None:
    weights = {ep: items(model, engine=engine, tp=8, ep=ep, n_gpus=8)["weights"] for ep in (1, 2, 4, 8)}
    assert len(set(weights.values())) == 1
    for ep in (3, 16):
        with pytest.raises(PlanError) as caught:
            items(model, engine=engine, tp=8, ep=ep, n_gpus=8)
        assert caught.value.key == "serving.ep_tp"


@pytest.mark.parametrize("engine", ["vllm", "lmdeploy"])
def test_experts_take_all_ranks_or_none(engine: str) -> None:
    assert items(MOE, engine=engine, tp=8, ep=8, n_gpus=8)
    with pytest.raises(PlanError) as caught:
        items(MOE, engine=engine, tp=8, ep=4, n_gpus=8)
    assert caught.value.key == "serving.ep_ranks"


@pytest.mark.parametrize(("engine", "legal"), [("sglang", False), ("tensorrt_llm", False), ("vllm", True)])
def test_only_vllm_spreads_experts_that_do_not_divide(engine: str, legal: bool) -> None:
    shape = shape_of("deepseek-ai/DeepSeek-V2-Lite")  # 64 experts, 16 heads
    plan = ServingPlan.model_validate({"engine": engine, "tp": 1, "ep": 3, "n_gpus": 3, "dp": 3} if legal else
                                      {"engine": engine, "tp": 12, "ep": 12, "n_gpus": 12})  # fmt: skip
    if legal:
        assert split_of(plan, shape).expert_share(64) == 22 / 64
        return
    with pytest.raises(PlanError) as caught:
        split_of(plan, shape)
    assert caught.value.key == "serving.ep_experts"


def test_attention_replicas_of_tensorrt_llm_hold_all_but_the_experts_whole() -> None:
    shape = shape_named(MLA)
    plan = ServingPlan(engine="tensorrt_llm", tp=8, n_gpus=8, max_model_len=8192, dp_attention=True)
    apart = load(shape, plan, split_of(plan, shape))
    alone = load(shape, plan, Split())
    experts = sum(
        t.elements for index in shape.order for t in shape.blocks[index].tensors if t.component == "experts"
    )  # fmt: skip
    # FP8, and one scale of 4 bytes for each block of 128 x 128.
    assert alone.largest - apart.largest == pytest.approx(experts * (1 + 4 / 128**2) * 7 / 8, rel=1e-4)
    assert replicas_of(plan) == 8
    assert ranks_of(plan) == 8
    assert split_of(plan.model_copy(update={"dp": 8}), shape) == split_of(plan, shape)


@pytest.mark.parametrize("engine", ["sglang", "tensorrt_llm"])
def test_attention_replicas_have_caches_of_their_own(engine: str) -> None:
    """A GQA rank then caches all KV heads, so a request costs it eight times as much, and there are eight ranks."""
    together, apart = (
        bill(
            shape_named(MOE),
            ServingPlan.model_validate(
                {"engine": engine, "tp": 4, "n_gpus": 4, "max_model_len": 8192, "concurrency": 64, **fields}
            ),
            H200,
        ).serving
        for fields in ({}, {"dp_attention": True, "dp": 4})
    )  # fmt: skip
    assert together is not None
    assert apart is not None
    assert apart.bytes_per_token == 4 * together.bytes_per_token
    assert (together.replicas, apart.replicas) == (1, 4)


# tp, dcp, heads, KV heads, legal: by the conditions of verify_with_parallel_config (vllm/config/model.py).
SHARED = [
    (8, 2, 32, 4, True), (8, 4, 32, 4, False), (8, 2, 32, 8, False), (16, 2, 32, 8, True), (16, 4, 32, 8, False),
    (16, 8, 32, 2, True), (8, 8, 32, 1, True), (16, 4, 48, 4, True), (4, 2, 32, 32, False), (4, 2, 32, 8, False),
]  # fmt: skip


@pytest.mark.parametrize(("tp", "dcp", "heads", "kv_heads", "legal"), SHARED)
def test_only_copies_of_kv_heads_can_be_shared(tp: int, dcp: int, heads: int, kv_heads: int, legal: bool) -> None:
    shape = llama(num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=128)
    plan = ServingPlan(tp=tp, dcp=dcp, n_gpus=tp, max_model_len=8192)
    if not legal:
        with pytest.raises(PlanError) as caught:
            split_of(plan, shape)
        assert caught.value.key == "serving.dcp_kv_heads"
        return
    plain, shared = (bill(shape, plan.model_copy(update={"dcp": degree}), H200).serving for degree in (1, dcp))
    assert plain is not None
    assert shared is not None
    # However it is shared, the ranks together hold every KV head at least once.
    assert plain.bytes_per_token == dcp * shared.bytes_per_token
    assert tp * shared.bytes_per_token >= 2 * kv_heads * 128 * 2 * shape.layers


def test_latent_caches_are_shared_among_all_ranks_unless_heads_are_stored() -> None:
    plan = ServingPlan(tp=8, dcp=8, n_gpus=8, max_model_len=8192)
    assert split_of(plan, shape_named(MLA)).dcp == 8
    with pytest.raises(PlanError) as caught:
        split_of(plan.model_copy(update={"mla": False}), shape_named(MLA))
    assert caught.value.key == "serving.dcp_kv_heads"


def test_a_shared_cache_has_no_windows() -> None:
    shape = shape_of("google/gemma-3-27b-it")
    plan = ServingPlan(tp=32, dcp=2, n_gpus=32)
    with pytest.raises(PlanError) as caught:
        split_of(plan, shape)
    assert caught.value.key == "serving.dcp_window"
    assert split_of(plan.model_copy(update={"hybrid_kv_cache_manager": False}), shape).dcp == 2


# Plan, and the ranks that share attention and embedding, and MLPs and head, of one copy.
LAYOUTS: list[tuple[dict[str, Any], int, int]] = [
    ({"tp": 4, "dp": 2}, 4, 4), ({"tp": 4, "dp": 2, "ep": 8}, 4, 4), ({"tp": 8}, 8, 8), ({"tp": 1, "dp": 8}, 1, 1),
    ({"engine": "sglang", "tp": 8, "ep": 2}, 8, 8),
    ({"engine": "sglang", "tp": 8, "dp": 2, "dp_attention": True}, 4, 8),
    ({"engine": "sglang", "tp": 8, "dp": 8, "ep": 8, "dp_attention": True}, 1, 8),
    ({"engine": "tensorrt_llm", "tp": 8, "ep": 4}, 8, 8),
    ({"engine": "tensorrt_llm", "tp": 8, "dp_attention": True}, 1, 1),
    ({"engine": "lmdeploy", "tp": 8, "ep": 8}, 8, 8), ({"engine": "tgi", "tp": 8}, 8, 8),
]  # fmt: skip


@pytest.mark.parametrize("model", [MOE, "deepseek-ai/DeepSeek-V2-Lite"])
@pytest.mark.parametrize(("fields", "attention", "dense"), LAYOUTS)
def test_what_eight_ranks_hold_is_the_whole_and_its_copies(
    model: str, fields: dict[str, Any], attention: int, dense: int
) -> None:
    """Experts once, whichever way they are cut; the rest as often as its ranks fit into eight."""
    shape, plan = shape_named(model), ServingPlan.model_validate({"n_gpus": 8, **fields})
    total = 0
    inside = [(t, shape.blocks[index]) for index in shape.order for t in shape.blocks[index].tensors]
    outside = [(t, None) for t in (*shape.embedding, *shape.final, *shape.head)]
    for tensor, block in [*inside, *outside]:
        shared = attention if tensor.component in ("attention", "embedding") else dense
        if tensor.component == "experts":
            shared = 8
        elif tensor.split == "none":
            shared = 1
        elif tensor.split == "kv" and block is not None:
            shared = min(shared, block.kv_heads)
        total += 2 * tensor.elements * 8 // shared
    assert 8 * load(shape, plan, split_of(plan, shape)).largest == pytest.approx(total, abs=8)
