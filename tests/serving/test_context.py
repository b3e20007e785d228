"""A context beyond the model's limit: refused, lowered or said, as each engine does; the usual length of a request."""

from __future__ import annotations

from typing import Any

import pytest

from calculator.errors import PlanError
from calculator.hardware import find
from calculator.lookup import load_preset
from calculator.model import read
from calculator.serving import bill
from calculator.serving.context import context_limit, with_usual_context
from calculator.serving.plan import ServingPlan
from tests.serving.shapes import llama

H100 = find("h100-80gb-sxm")
LLAMA, GPT2 = llama(), load_preset("gpt2").shape


def billed(shape: Any, **fields: Any) -> Any:
    return bill(shape, ServingPlan(**fields), H100)


# Limits as vLLM's _get_and_verify_max_len, SGLang's get_context_length and TensorRT-LLM's _init_max_seq_len find them.
SCALINGS = [
    (
        32_768,
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768},
        (131_072, 32_768, 32_768),
    ),
    (163_840, {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}, (163_840, 163_840, 163_840)),
    (16_384, {"type": "linear", "factor": 4.0}, (65_536, 65_536, 65_536)),
    (4096, {"type": "dynamic", "factor": 2.0}, (8192, 8192, 8192)),
    (131_072, {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}, (131_072,) * 3),
    (131_072, {"rope_type": "longrope", "factor": 32.0}, (131_072, 131_072 * 32, 131_072)),
    (32_768, None, (32_768,) * 3),
    (32_768, {"rope_type": "default"}, (32_768,) * 3),
    (32_768, {"rope_type": "yarn", "factor": "4"}, (32_768,) * 3),
]


@pytest.mark.parametrize(("stated", "scaling", "limits"), SCALINGS)
def test_each_engine_reads_scaled_positions_in_its_own_way(stated: int, scaling: Any, limits: tuple[int, ...]) -> None:
    shape = llama(max_position_embeddings=stated, rope_scaling=scaling)
    assert tuple(context_limit(shape, e) for e in ("vllm", "sglang", "tensorrt_llm")) == limits
    assert context_limit(shape, "llama_cpp") == stated
    assert billed(shape, max_model_len=limits[0], concurrency=1, memory_fraction=0.95).serving is not None
    with pytest.raises(PlanError) as caught:
        billed(shape, max_model_len=limits[0] + 1)
    assert (caught.value.key, caught.value.field) == ("serving.context_limit", "max_model_len")
    assert caught.value.message.values["limit_tokens"] == limits[0]


def test_gemma_3_counts_its_scaling_already() -> None:
    assert {context_limit(load_preset("gemma-3-4b").shape, engine) for engine in ("vllm", "sglang")} == {131_072}


def test_transformers_5_names_the_parameters_otherwise() -> None:
    shape = llama(rope_scaling=None, max_position_embeddings=32_768, rope_parameters={
        "full_attention": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32_768},
        "sliding_attention": {"rope_type": "default"},
    })  # fmt: skip
    assert context_limit(shape, "vllm") == 65_536


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_engines_that_check_refuse_unless_told_otherwise(engine: Any) -> None:
    with pytest.raises(PlanError) as caught:
        billed(LLAMA, engine=engine, max_model_len=131_073)
    assert caught.value.field == "max_model_len"
    forced = billed(LLAMA, engine=engine, max_model_len=131_073, longer_context=True)
    assert any(a.id == "serving.assume.beyond_limit" for a in forced.assumptions)


@pytest.mark.parametrize(("engine", "version", "length"), [
    ("tensorrt_llm", None, 131_072), ("tensorrt_llm", "0.18.0", 200_000), ("ollama", None, 131_072),
    ("tgi", None, 200_000), ("lmdeploy", None, 200_000), ("transformers", None, 200_000),
])  # fmt: skip
def test_engines_that_start_are_billed_as_they_start(engine: Any, version: Any, length: int) -> None:
    result = billed(LLAMA, engine=engine, engine_version=version, max_model_len=200_000, concurrency=1)
    assert result.serving.max_model_len == length
    said = "limit_cut" if length == 131_072 else "beyond_limit"
    assert any(a.id == f"serving.assume.{said}" for a in result.assumptions)


def test_slots_share_the_context_of_llama_cpp() -> None:
    assert not any("limit" in a.id for a in billed(LLAMA, engine="llama_cpp", max_model_len=200_000).assumptions)
    alone = billed(LLAMA, engine="llama_cpp", max_model_len=200_000, max_num_seqs=1)
    assert any(a.id == "serving.assume.beyond_limit" for a in alone.assumptions)


@pytest.mark.parametrize("engine", ["vllm", "tgi", "lmdeploy", "transformers", "llama_cpp"])
def test_a_table_of_positions_ends_for_every_engine(engine: Any) -> None:
    with pytest.raises(PlanError) as caught:
        billed(GPT2, engine=engine, max_model_len=100_000, longer_context=True, max_num_seqs=16)
    assert caught.value.message.values["limit_tokens"] == 1024


def test_a_model_without_a_stated_limit_is_not_checked() -> None:
    shape = LLAMA.model_copy(update={"max_context": None})
    assert billed(shape, max_model_len=300_000).serving is not None


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama_cpp", "ollama", "transformers"])
def test_a_request_is_usually_of_8192_tokens_on_every_engine(engine: Any) -> None:
    plan = with_usual_context(LLAMA, ServingPlan(engine=engine, concurrency=4))
    assert bill(LLAMA, plan, H100).serving.needed_pool_bytes >= 4 * 8192 * 131_072  # type: ignore[union-attr]
    short = with_usual_context(GPT2, ServingPlan(engine=engine))
    assert (short.max_model_len or short.context_tokens) == 1024


def test_junk_in_the_scaling_changes_nothing() -> None:
    for junk in (
        {"rope_type": 7, "factor": 4},
        {"rope_type": "yarn", "factor": 1e300},
        {"type": "linear"},
        {"factor": 8},
    ):
        shape = read({
            "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 128, "vocab_size": 100,
            "max_position_embeddings": 512, "rope_scaling": junk,
        })  # fmt: skip
        assert context_limit(shape, "vllm") == 512
