"""Every field of a plan, for every engine: in the command and back, or named as left out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculator.serving.command import emit_command, parse_command
from calculator.serving.left_out import ALREADY, NO_SETTINGS, left_out
from calculator.serving.plan import ServingPlan
from calculator.serving.split import BY_CARD

MODEL = "org/model"
VALUES: dict[str, dict[str, Any]] = {
    "engine_version": {"engine_version": "9.9.9"}, "weights": {"weights": "fp8"},
    "kv_cache_dtype": {"kv_cache_dtype": "fp8"}, "v_cache_dtype": {"v_cache_dtype": "q4_0"},
    "memory_fraction": {"memory_fraction": 0.8125}, "kv_cache_memory_bytes": {"kv_cache_memory_bytes": 123_456_789},
    "max_model_len": {"max_model_len": 8192}, "max_num_seqs": {"max_num_seqs": 8},
    "max_num_batched_tokens": {"max_num_batched_tokens": 4096}, "block_size": {"block_size": 32},
    "cuda_graphs": {"cuda_graphs": False}, "prefix_caching": {"prefix_caching": False}, "usage": {"usage": "offline"},
    "sampler": {"sampler": "flashinfer"}, "runner": {"runner": "v1"}, "n_gpus": {"n_gpus": 2},
    "tp": {"tp": 2, "n_gpus": 2}, "pp": {"pp": 2, "n_gpus": 2}, "dp": {"dp": 2, "n_gpus": 2},
    "ep": {"ep": 2, "tp": 2, "n_gpus": 2}, "dcp": {"dcp": 2}, "n_gpu_layers": {"n_gpu_layers": 20},
    "hybrid_kv_cache_manager": {"hybrid_kv_cache_manager": False}, "mla": {"mla": False},
    "kernel": {"kernel": "marlin"},
    "pp_layer_partition": {"pp_layer_partition": (3, 5)}, "limit_mm_per_prompt": {"limit_mm_per_prompt": {"image": 2}},
    "speculative": {"speculative": "eagle3"}, "draft_model": {"speculative": "eagle3", "draft_model": "org/draft"},
    "draft_tokens": {"speculative": "eagle3", "draft_tokens": 3}, "max_loras": {"max_loras": 3},
    "max_lora_rank": {"max_loras": 3, "max_lora_rank": 64}, "cpu_offload_bytes": {"cpu_offload_bytes": 5 << 30},
    "kv_offload_bytes": {"kv_offload_bytes": 10**10}, "dp_attention": {"dp_attention": True},
    "chunked_prefill": {"chunked_prefill": False}, "chunked_prefill_size": {"chunked_prefill_size": 2048},
    "n_ubatch": {"n_ubatch": 256}, "kv_unified": {"kv_unified": True}, "flash_attn": {"flash_attn": True},
    "swa_full": {"swa_full": True}, "experts_on_cpu": {"experts_on_cpu": True}, "n_cpu_moe": {"n_cpu_moe": 3},
    "fit": {"fit": False}, "fit_target_bytes": {"fit_target_bytes": 3 << 30}, "fit_min_context": {"fit_min_context": 9},
    "longer_context": {"longer_context": True},
    "mmproj": {"mmproj": "host"}, "tensor_split": {"tensor_split": (3.0, 0.1)},
}  # fmt: skip
OWN: dict[str, dict[str, dict[str, Any]]] = {
    "llama_cpp": {"kv_cache_dtype": {"kv_cache_dtype": "q4_1"}, "weights": {"weights": "Q4_K_M"}},
    "ollama": {"kv_cache_dtype": {"kv_cache_dtype": "q8_0"}, "weights": {"weights": "Q4_K_M"}},
}
_COMMON = ("n_gpus", "tp", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "memory_fraction",
           "kv_cache_dtype", "cuda_graphs", "prefix_caching")  # fmt: skip
_LORA, _DRAFT = ("max_loras", "max_lora_rank"), ("speculative", "draft_model", "draft_tokens")
SAID: dict[str, tuple[str, ...]] = {
    "vllm": (*_COMMON, "pp", "dp", "ep", "dcp", "weights", "kv_cache_memory_bytes", "block_size", "sampler", "runner",
             "hybrid_kv_cache_manager", "mla", "pp_layer_partition", "limit_mm_per_prompt", *_DRAFT, *_LORA,
             "cpu_offload_bytes", "kv_offload_bytes", "chunked_prefill"),
    "sglang": (*_COMMON, "pp", "dp", "ep", "weights", "block_size", "pp_layer_partition", *_DRAFT, *_LORA,
               "cpu_offload_bytes", "dp_attention", "chunked_prefill_size"),
    "tensorrt_llm": (*(name for name in _COMMON if name not in ("cuda_graphs", "prefix_caching")), "pp", "ep"),
    "llama_cpp": ("n_gpus", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "kv_cache_dtype",
                  "v_cache_dtype", "n_gpu_layers", "n_ubatch", "kv_unified", "flash_attn", "swa_full",
                  "experts_on_cpu", "n_cpu_moe", "fit", "fit_target_bytes", "fit_min_context", "mmproj",
                  "tensor_split"),
    "ollama": ("n_gpus", "max_model_len", "max_num_seqs", "kv_cache_dtype", "flash_attn", "fit_target_bytes"),
    "lmdeploy": (*(name for name in _COMMON if name != "prefix_caching"), "dp", "ep", "block_size"),
    "tgi": (*_COMMON, "weights"),
}  # fmt: skip
"""What each engine's command says. Everything else is named."""


def test_every_field_is_a_setting_with_a_value_here_or_none() -> None:
    assert set(VALUES) == set(ServingPlan.model_fields) - NO_SETTINGS


@pytest.mark.parametrize("engine", SAID)
@pytest.mark.parametrize("name", VALUES)
def test_a_setting_is_in_the_command_or_named(engine: str, name: str) -> None:
    plan = ServingPlan.model_validate({"engine": engine, **VALUES[name], **OWN.get(engine, {}).get(name, {})})
    left = left_out(MODEL, plan)
    value = getattr(plan, name)
    if name in SAID[engine]:
        assert name not in left
        back = parse_command(emit_command(MODEL, plan)).plan()
        if (engine, name) == ("sglang", "max_num_batched_tokens"):
            assert back.chunked_prefill_size == value  # the same thing under another name
        else:
            assert getattr(back, name) == value
    elif ((engine, name) in ALREADY and ALREADY[engine, name] == value) or (engine in BY_CARD and name in ("tp", "pp")):
        assert left == ()
    else:
        assert name in left
        # Nothing but the setting and what came with it.
        assert set(left) <= {*VALUES[name]}


@pytest.mark.parametrize("engine", SAID)
def test_a_plain_plan_leaves_nothing_out(engine: str) -> None:
    assert left_out(MODEL, ServingPlan.model_validate({"engine": engine})) == ()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"engine": "tgi", "dp": 2, "n_gpus": 2}, ("dp",)), ({"engine": "tgi", "weights": "bnb_int8"}, ()),
        ({"engine": "tgi", "weights": "bnb_nf4"}, ()), ({"engine": "vllm", "weights": "gptq"}, ("weights",)),
        ({"engine": "vllm", "weights": "fp32"}, ()), ({"engine": "vllm", "weights": "nvfp4"}, ("weights",)),
        ({"engine": "vllm", "tp": 4, "ep": 2, "n_gpus": 4}, ("ep",)),
        ({"engine": "sglang", "prefix_caching": True}, ()),
        ({"engine": "sglang", "cpu_offload_bytes": (5 << 30) + 1}, ("cpu_offload_bytes",)),
        ({"engine": "sglang", "kv_cache_dtype": "fp16"}, ("kv_cache_dtype",)),
        ({"engine": "sglang", "speculative": "medusa"}, ("speculative",)),
        ({"engine": "lmdeploy", "kv_cache_dtype": "bf16"}, ("kv_cache_dtype",)),
        ({"engine": "lmdeploy", "kv_cache_dtype": "int4"}, ()),
        ({"engine": "lmdeploy", "pp": 2, "n_gpus": 2}, ("pp",)),
        ({"engine": "tensorrt_llm", "kv_cache_dtype": "fp8", "engine_version": "1.0.0"},
         ("engine_version", "kv_cache_dtype")),
        ({"engine": "ollama", "kv_cache_dtype": "q8_0", "v_cache_dtype": "q4_0"}, ("v_cache_dtype",)),
        ({"engine": "llama_cpp", "kv_cache_dtype": "q8_0", "v_cache_dtype": "q8_0"}, ()),
        ({"engine": "llama_cpp", "v_cache_dtype": "fp16"}, ()), ({"engine": "vllm", "draft_tokens": 3}, ()),
        ({"engine": "vllm", "runner": "v0"}, ()), ({"engine": "vllm", "runner": "v2"}, ()),
    ],
)  # fmt: skip
def test_what_is_named(changes: dict[str, Any], named: tuple[str, ...]) -> None:
    assert left_out(MODEL, ServingPlan.model_validate(changes)) == named


def test_the_type_of_weights_is_in_the_name_of_the_file() -> None:
    plan = ServingPlan(engine="llama_cpp", weights="Q4_K_M")
    assert left_out("model-Q4_K_M.gguf", plan) == left_out("org/model:Q4_K_M", plan) == ()
    assert left_out("model.gguf", plan) == ("weights",)


@given(
    engine=st.sampled_from(sorted(SAID)), names=st.sets(st.sampled_from(sorted(set(VALUES) - {"dp_attention"}))),
    kept=st.sampled_from([(), ("HF_HOME=/a b", "--port", "80")]),
)  # fmt: skip
def test_settings_together_are_named_as_they_are_alone(engine: str, names: set[str], kept: tuple[str, ...]) -> None:
    """Nothing that its engine's command says is lost because of what else is set."""
    if engine == "ollama":
        kept = ()
    values: dict[str, Any] = {"engine": engine}
    for name in sorted(names):
        values |= {**VALUES[name], **OWN.get(engine, {}).get(name, {})}
    tp, pp, dp = (int(values.get(name, 1)) for name in ("tp", "pp", "dp"))
    values["n_gpus"] = max(tp * pp * dp, int(values.get("n_gpus", 1)))
    if engine == "vllm" and "ep" in values:
        values["ep"] = tp * dp
    if values.get("max_num_batched_tokens") and engine == "sglang":
        values.pop("chunked_prefill_size", None)
    plan = ServingPlan.model_validate(values)
    left = left_out(MODEL, plan, kept)
    assert not set(left) & set(SAID[engine]), emit_command(MODEL, plan, kept)
    lost = {name for name in values if name not in SAID[engine] and name not in NO_SETTINGS}
    cards = {"tp", "pp"} if engine in BY_CARD else set()
    assert lost - set(left) <= {"max_lora_rank", "draft_tokens", "draft_model"} | cards | {
        name for (other, name), value in ALREADY.items() if other == engine and value == values.get(name)
    }
