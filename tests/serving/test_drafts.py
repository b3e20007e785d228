"""What drafting loads and caches: heads of published sizes, the checkpoint's own layers, whole models, nothing."""

from typing import Any

import pytest

from calculator.bill import Bill, ServingFigures
from calculator.errors import PlanError
from calculator.hardware import find
from calculator.model import read
from calculator.model.shape import ModelShape
from calculator.serving import bill, start
from calculator.serving.drafts import ALL, METHODS, with_draft
from calculator.serving.engines.vllm_cache import VllmCache
from calculator.serving.plan import Engine, ServingPlan
from tests.serving.shapes import LLAMA_8B, llama
from validation.models import shape_of

GIB = 2**30
H100 = find("h100-80gb-sxm")
SHAPE = llama()
SMALL = read({**LLAMA_8B, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
              "head_dim": 64, "tie_word_embeddings": True})  # fmt: skip
"""Llama-3.2-1B's sizes (public config.json of meta-llama/Llama-3.2-1B)."""
EAGLE3_8B_BYTES = 2 * (
    6144 * 8192 + 4096 * 4096 + 3 * 4096 * 14336 + 3 * 4096 * 4096 + 32000 * 4096 + 4 * 4096
)  # fmt: skip
"""Matrices of yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, one by one; its file is 850 MB."""


def plan_for(method: str | None, engine: Engine = "vllm", **changes: Any) -> ServingPlan:
    return ServingPlan(engine=engine, speculative=method, draft_tokens=3, max_model_len=8192, **changes)


def figures(result: Bill) -> ServingFigures:
    assert result.serving is not None
    return result.serving


def line(result: Bill, key: str) -> int:
    return next((i.bytes for i in result.items if i.key == key), 0)


def test_an_eagle3_head_is_the_published_one() -> None:
    result = bill(SHAPE, plan_for("eagle3"), H100)
    assert line(result, "draft") == EAGLE3_8B_BYTES
    assert 0.84e9 < EAGLE3_8B_BYTES < 0.86e9
    alone = bill(SHAPE, plan_for(None), H100)
    # One more layer of 8 KV heads, and its pool is smaller by the head and more.
    assert figures(result).bytes_per_token - figures(alone).bytes_per_token == 2 * 8 * 128 * 2
    assert figures(alone).kv_pool_bytes - figures(result).kv_pool_bytes >= EAGLE3_8B_BYTES


def test_the_named_head_decides_its_sizes() -> None:
    # Published configuration for Qwen3-235B-A22B: MLP 24,576, vocabulary 32,000 of 151,936.
    head = read({
        "model_type": "llama", "architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 4096, "head_dim": 128,
        "intermediate_size": 24576, "num_attention_heads": 64, "num_key_value_heads": 4, "num_hidden_layers": 1,
        "vocab_size": 151936, "draft_vocab_size": 32000, "max_position_embeddings": 40960, "hidden_act": "silu",
        "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    })  # fmt: skip
    assert head.head[0].shape == (32000, 4096)
    target = shape_of("Qwen/Qwen3-235B-A22B")
    plan = plan_for("eagle3", tp=8, n_gpus=8, ep=8)
    named = bill(with_draft(target, head), plan, find("h200-141gb-sxm"))
    derived = bill(target, plan, find("h200-141gb-sxm"))
    assert line(named, "draft") == line(derived, "draft")
    item = next(i for i in derived.items if i.key == "draft")
    assert item.low < item.bytes == item.high
    assert "serving.assume.eagle_head" in [a.id for a in derived.assumptions]
    assert "serving.assume.eagle_head" not in [a.id for a in named.assumptions]


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt_llm"])
def test_a_separate_model_is_loaded_and_cached_whole(engine: Engine) -> None:
    both, alone = with_draft(SHAPE, SMALL), plan_for(None, engine)
    result = bill(both, plan_for("draft_model", engine, draft_model="meta-llama/Llama-3.2-1B"), H100)
    weights = line(result, "draft")
    assert weights == pytest.approx(2 * SMALL.parameters.total, rel=0.01)
    grown = figures(result).bytes_per_token - figures(bill(SHAPE, alone, H100)).bytes_per_token
    # SGLang counts each drafting layer like one of the target's (pool_configurator.py).
    assert grown == (16 * 2 * 8 * 128 * 2 if engine == "sglang" else 16 * 2 * 8 * 64 * 2)


def test_tensor_parallel_ranks_share_a_draft() -> None:
    one = bill(SHAPE, plan_for("eagle3"), H100)
    four = bill(SHAPE, plan_for("eagle3", tp=4, n_gpus=4), H100)
    whole = 2 * (3 * 4096 * 4096 + 4 * 4096)
    # fc and norms stand whole on every rank.
    assert line(four, "draft") == (line(one, "draft") - whole) // 4 + whole


def test_only_the_last_stage_drafts() -> None:
    plan = plan_for("eagle3", pp=2, n_gpus=2)
    first, last = (bill(SHAPE, plan.model_copy(update={"pp_rank": n}), H100) for n in (0, 1))
    assert line(first, "draft") == 0
    # The target's embedding stands on the other stage.
    assert line(last, "draft") == EAGLE3_8B_BYTES + 2 * 128256 * 4096


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt_llm"])
def test_a_look_up_in_the_prompt_costs_nothing(engine: Engine) -> None:
    drafting, alone = (bill(SHAPE, plan_for(method, engine), H100) for method in ("ngram", None))
    assert {i.key: i.bytes for i in drafting.items} == {i.key: i.bytes for i in alone.items}


def test_medusa_heads_are_a_block_and_an_output_matrix_each() -> None:
    assert line(bill(SHAPE, plan_for("medusa"), H100), "draft") == 3 * 2 * (4096 * 4097 + 128256 * 4096)


def test_own_layers_share_embedding_and_head_and_divide_kv_heads() -> None:
    shape = shape_of("deepseek-ai/DeepSeek-V3")
    plan = plan_for(None, tp=8, n_gpus=8, engine_version="0.19.0")
    h200 = find("h200-141gb-sxm")
    alone = figures(bill(shape, plan, h200)).weights_bytes
    drafting = figures(bill(shape, plan.model_copy(update={"speculative": "mtp"}), h200)).weights_bytes
    own = [t for t in shape.mtp if not t.name.endswith(("embed_tokens.weight", "shared_head.head.weight"))]
    # Stored in 8 bit but for norms and router; divided by eight but for the latent projections and eh_proj.
    assert drafting - alone < sum(t.elements for t in own) / 4
    assert drafting - alone > sum(t.elements for t in own) / 8
    assert {a.id for a in bill(SHAPE, plan_for("mtp"), H100).assumptions} >= {"serving.assume.no_mtp"}


def test_sglang_before_drafts_were_part_of_the_static_share() -> None:
    old, new = (bill(SHAPE, plan_for("eagle3", "sglang", engine_version=v), H100) for v in ("0.5.10", "0.5.23"))
    tokens, seqs = figures(old).kv_tokens, 48
    assert figures(old).max_num_seqs == figures(new).max_num_seqs == seqs
    # Outside the pool: the head and a cache of one layer for all tokens, drafts and verified tokens.
    assert line(old, "draft") == EAGLE3_8B_BYTES + (tokens + 2 * seqs * 3 + 100) * 4096
    assert line(new, "draft") == EAGLE3_8B_BYTES
    assert figures(old).bytes_per_token == 131_072
    assert figures(new).bytes_per_token == 131_072 * 33 // 32


def test_sglang_calls_own_layers_eagle() -> None:
    shape, h200 = shape_of("deepseek-ai/DeepSeek-V3"), find("h200-141gb-sxm")
    plan = plan_for("eagle", "sglang", tp=8, n_gpus=8)
    own = plan.model_copy(update={"speculative": "mtp"})
    assert bill(shape, plan, h200).items == bill(shape, own, h200).items


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt_llm", "tgi", "lmdeploy", "llama_cpp"])
def test_an_unknown_method_is_refused_with_those_there_are(engine: Engine) -> None:
    with pytest.raises(PlanError) as caught:
        bill(SHAPE, plan_for("zzz", engine), H100)
    assert caught.value.key == "serving.speculative_unknown"
    assert caught.value.field == "speculative"
    assert all(name in str(caught.value.remedy.values["candidates"]) for name in METHODS.get(engine, ALL))


def test_a_draft_model_must_be_named_or_weighed() -> None:
    with pytest.raises(PlanError) as caught:
        bill(SHAPE, plan_for("draft_model"), H100)
    assert caught.value.key == "serving.draft_missing"
    given = bill(SHAPE, plan_for("draft_model", draft_bytes=GIB), H100)
    assert line(given, "draft") == GIB
    assert "serving.assume.draft_cache" in [a.id for a in given.assumptions]


def test_given_weights_win_over_derived_ones() -> None:
    assert line(bill(SHAPE, plan_for("eagle3", draft_bytes=GIB), H100), "draft") == GIB


def test_a_draft_that_cannot_be_divided_is_refused() -> None:
    odd = read({**LLAMA_8B, "num_attention_heads": 6, "num_key_value_heads": 6, "head_dim": 64, "hidden_size": 384})
    plan = plan_for("draft_model", tp=4, n_gpus=4, draft_model="odd")
    with pytest.raises(PlanError) as caught:
        bill(with_draft(SHAPE, odd), plan, H100)
    assert caught.value.field == "tp"


def test_the_pair_of_models_is_one_object() -> None:
    assert with_draft(SHAPE, SMALL) is with_draft(SHAPE, SMALL)
    assert with_draft(SHAPE, SMALL).draft is SMALL


def test_drafting_layers_join_the_groups_of_a_window_model() -> None:
    # 10 full and 52 window layers of 16 KV heads x 128: the head's layer is one more full one of the same page, so the
    # group grows from 10 layers to 11 and the windows take 5 groups, not 6.
    shape: ModelShape = shape_of("google/gemma-3-27b-it")
    plan = plan_for("eagle3", engine_version="0.21.0")
    found = [start(shape, p, H100).cache for p in (plan.model_copy(update={"speculative": None}), plan)]
    found = [cache for cache in found if isinstance(cache, VllmCache)]
    page = 16 * 16 * 2 * 128 * 2
    assert [cache.block_bytes for cache in found] == [10 * page, 11 * page]
    assert [sum(g.count for g in cache.groups if g.kind == "window") for cache in found] == [6, 5]


def test_checking_drafts_of_a_full_batch_is_said_where_it_takes_more_than_was_measured() -> None:
    many = plan_for("ngram", engine_version="0.26.0", max_num_seqs=1024)
    said = {a.id: a.values for a in bill(SHAPE, many, H100).assumptions}["serving.assume.verify"]
    assert said["rows_count"] == 1024 * 4
    assert said["logits_bytes"] == 4096 * 128256 * 6
    few = many.model_copy(update={"max_num_seqs": 16})
    assert "serving.assume.verify" not in [a.id for a in bill(SHAPE, few, H100).assumptions]
