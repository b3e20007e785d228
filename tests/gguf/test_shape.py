"""Shapes from GGUF metadata: the same as from the config, or refused."""

from typing import Any

import pytest

from calculator.errors import HubAnswerError, MissingKeyError, ShapeError, UnknownFamilyError
from calculator.gguf.components import components_of
from calculator.gguf.header import GgufHeader, GgufTensor
from calculator.gguf.shape import config_of, shape_of
from calculator.model import read
from calculator.model.shape import ModelShape
from calculator.model.weights import every_tensor

SIZES = {
    "hidden_size": 256, "num_hidden_layers": 4, "intermediate_size": 512, "num_attention_heads": 8,
    "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 4096, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}  # fmt: skip
PLAIN = {
    "embedding_length": 256, "block_count": 4, "feed_forward_length": 512, "attention.head_count": 8,
    "attention.head_count_kv": 2, "context_length": 4096,
}  # fmt: skip
EXPERTS = {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 128}
DELTA = {
    "ssm.conv_kernel": 4, "ssm.state_size": 32, "ssm.group_count": 2, "ssm.time_step_rank": 4, "ssm.inner_size": 256,
    "full_attention_interval": 2, "attention.key_length": 64,
}  # fmt: skip
LINEAR = {
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_value_head_dim": 64, "full_attention_interval": 2, "head_dim": 64, "mamba_ssm_dtype": "float32",
    "layer_types": ["linear_attention", "full_attention"] * 2,
}  # fmt: skip
SPARSE = {
    "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "decoder_sparse_step": 1,
    "mlp_only_layers": [], "shared_expert_intermediate_size": 192,
}  # fmt: skip
ROUTED = {
    "n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 128,
    "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
}  # fmt: skip
LEADING = {"expert_shared_count": 2, "leading_dense_block_count": 1, **EXPERTS}
WINDOWS = {"layer_types": ["sliding_attention"] * 3 + ["full_attention"], "sliding_window": 512}

# architecture, what its metadata say beyond the plain sizes, the config that means the same
FAMILIES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("llama", {}, {"model_type": "llama"}),
    (
        "llama",
        {"expert_count": 8, "expert_used_count": 2},
        {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None},
    ),
    ("qwen2", {}, {"model_type": "qwen2", "use_sliding_window": False}),
    ("qwen3", {"attention.key_length": 64}, {"model_type": "qwen3", "head_dim": 64, "use_sliding_window": False}),
    (
        "qwen3moe",
        {"attention.key_length": 64, **EXPERTS},
        {"model_type": "qwen3_moe", "head_dim": 64, "num_experts": 8, "num_experts_per_tok": 2,
         "moe_intermediate_size": 128, "decoder_sparse_step": 1, "mlp_only_layers": [], "use_sliding_window": False},
    ),
    (
        "gemma2",
        {"attention.key_length": 64, "attention.sliding_window": 512, "attn_logit_softcapping": 50.0},
        {"model_type": "gemma2", "head_dim": 64, "sliding_window": 512, "attn_logit_softcapping": 50.0,
         "tie_word_embeddings": True, "hidden_activation": "gelu_pytorch_tanh"},
    ),
    ("phi3", {}, {"model_type": "phi3"}),
    (
        "deepseek2",
        {"attention.kv_lora_rank": 64, "attention.key_length": 48, "attention.value_length": 32,
         "rope.dimension_count": 16, "expert_shared_count": 2, "leading_dense_block_count": 1, **EXPERTS},
        {"model_type": "deepseek_v2", "kv_lora_rank": 64, "q_lora_rank": None, "qk_nope_head_dim": 32,
         "qk_rope_head_dim": 16, "v_head_dim": 32, "n_routed_experts": 8, "n_shared_experts": 2,
         "num_experts_per_tok": 2, "moe_intermediate_size": 128, "first_k_dense_replace": 1, "moe_layer_freq": 1,
         "num_key_value_heads": 8},
    ),
    (
        "gpt-oss",
        {"attention.key_length": 32, "attention.sliding_window": 128, **EXPERTS},
        {"model_type": "gpt_oss", "head_dim": 32, "sliding_window": 128, "num_local_experts": 8,
         "num_experts_per_tok": 2, "intermediate_size": 128, "attention_bias": True},
    ),
    ("mistral3", {}, {"model_type": "mistral", "sliding_window": None}),
    (
        "glm4moe",
        {"nextn_predict_layers": 1, "block_count": 5, **LEADING},
        {"model_type": "glm4_moe", "num_nextn_predict_layers": 1, "attention_bias": True, "use_qk_norm": True,
         "partial_rotary_factor": 0.5, **ROUTED},
    ),
    ("dots1", LEADING, {"model_type": "dots1", "moe_layer_freq": 1, **ROUTED}),
    (
        "qwen3next",
        {"expert_shared_feed_forward_length": 192, **DELTA, **EXPERTS},
        {"model_type": "qwen3_next", **LINEAR, **SPARSE},
    ),
    (
        "qwen35",
        {"nextn_predict_layers": 1, "block_count": 5, **DELTA},
        {"model_type": "qwen3_5_text", "mtp_num_hidden_layers": 1, **LINEAR},
    ),
    (
        "qwen35moe",
        {"expert_shared_feed_forward_length": 192, **DELTA, **EXPERTS},
        {"model_type": "qwen3_5_moe_text", **LINEAR, **SPARSE},
    ),
    (
        "lfm2",
        {"attention.head_count_kv": [0, 2, 0, 2], "shortconv.l_cache": 3},
        {"model_type": "lfm2", "layer_types": ["conv", "full_attention"] * 2, "conv_L_cache": 3, "conv_bias": False,
         "block_auto_adjust_ff_dim": False},
    ),
    (
        "lfm2moe",
        {"attention.head_count_kv": [0, 2, 0, 2], "shortconv.l_cache": 3, "leading_dense_block_count": 1, **EXPERTS},
        {"model_type": "lfm2_moe", "layer_types": ["conv", "full_attention"] * 2, "conv_L_cache": 3,
         "conv_bias": False, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128,
         "num_dense_layers": 1, "use_expert_bias": True},
    ),
    (
        "llama4",
        {"interleave_moe_layer_step": 2, **EXPERTS},
        {"model_type": "llama4_text", "intermediate_size": 128, "intermediate_size_mlp": 512, "num_local_experts": 8,
         "num_experts_per_tok": 2, "interleave_moe_layer_step": 2, "attention_chunk_size": 8192},
    ),
    (
        "exaone4",
        {"attention.sliding_window": 512, "attention.sliding_window_pattern": [1, 1, 1, 0]},
        {"model_type": "exaone4", **WINDOWS},
    ),
    (
        "gemma4",
        {"attention.key_length": 64, "attention.key_length_swa": 32, "attention.sliding_window": 512,
         "attention.sliding_window_pattern": [1, 1, 1, 0], "attention.shared_kv_layers": 2,
         "embedding_length_per_layer_input": 32, "feed_forward_length": [512, 512, 1024, 1024]},
        {"model_type": "gemma4_text", "head_dim": 32, "global_head_dim": 64, "num_kv_shared_layers": 2,
         "hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": 1000, "use_double_wide_mlp": True,
         "attention_k_eq_v": False, "enable_moe_block": False, "tie_word_embeddings": True, **WINDOWS},
    ),
    (
        "gemma4",
        {"attention.key_length": 64, "attention.key_length_swa": 32, "attention.sliding_window": 512,
         "attention.sliding_window_pattern": [1, 1, 1, 0], "attention.head_count_kv": [4, 4, 4, 1], **EXPERTS},
        {"model_type": "gemma4_text", "head_dim": 32, "global_head_dim": 64, "num_kv_shared_layers": 0,
         "hidden_size_per_layer_input": 0, "num_key_value_heads": 4, "num_global_key_value_heads": 1,
         "attention_k_eq_v": True, "enable_moe_block": True, "num_experts": 8, "top_k_experts": 2,
         "moe_intermediate_size": 128, "tie_word_embeddings": True, **WINDOWS},
    ),
    (
        "olmoe",
        {"expert_count": 8, "expert_used_count": 2},
        {"model_type": "olmoe", "num_experts": 8, "num_experts_per_tok": 2},
    ),
    ("internlm2", {}, {"model_type": "internlm2", "bias": False}),
    ("hunyuan-dense", {"attention.key_length": 32}, {"model_type": "hunyuan_v1_dense", "use_qk_norm": True}),
    (
        "minimax-m2",
        {"attention.key_length": 32, **EXPERTS},
        {"model_type": "minimax_m2", "head_dim": 32, "intermediate_size": 128, "num_local_experts": 8,
         "num_experts_per_tok": 2, "use_qk_norm": True},
    ),
]  # fmt: skip
RENAMED = {
    "q_proj.bias": "attn_q.bias", "q_norm.weight": "attn_q_norm.weight", "v_proj.weight": "attn_v.weight",
    "expert_bias": "exp_probs_b.bias",
}  # fmt: skip


def header(architecture: str, metadata: dict[str, Any], shape: ModelShape) -> GgufHeader:
    """A file with the tensors of a shape, under llama.cpp's names where names matter."""
    tensors = []
    for tensor, layer, _, mtp in every_tensor(shape):
        name = next((new for old, new in RENAMED.items() if tensor.name.endswith(old)), tensor.name)
        if mtp:
            name = f"blk.{shape.layers}.nextn.{name}"
        elif layer is not None:
            name = f"blk.{layer}.{name}"
        elif tensor.component in ("embedding", "head"):
            per_layer = "per_layer_" if "per_layer" in tensor.name else ""
            name = {"embedding": "token_embd.weight", "head": "output.weight"}[tensor.component]
            name = per_layer + name
        sides = (tensor.copies, *tensor.shape) if tensor.copies > 1 else tensor.shape
        tensors.append(GgufTensor(name=name, shape=sides, type="F16", bytes=2, offset=0))
    tensors.append(GgufTensor(name="rope_freqs.weight", shape=(64,), type="F32", bytes=256, offset=0))
    named = {f"{architecture}.{key}": value for key, value in {**PLAIN, **metadata}.items()}
    return GgufHeader(
        version=3,
        metadata={
            "general.architecture": architecture, **{k: v for k, v in named.items() if not isinstance(v, list)},
        },
        numbers={k: tuple(v) for k, v in named.items() if isinstance(v, list)},
        lengths={}, tensors=tuple(tensors), data_offset=0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("architecture", "metadata", "config"), FAMILIES, ids=[f"{f[0]}-{len(f[1])}" for f in FAMILIES]
)
def test_metadata_mean_what_the_config_means(
    architecture: str, metadata: dict[str, Any], config: dict[str, Any]
) -> None:
    expected = read({**SIZES, **config})
    found = shape_of([header(architecture, metadata, expected)])
    assert found.model_type == config["model_type"]
    assert found.blocks == expected.blocks
    assert found.order == expected.order
    assert found.parameters == expected.parameters.model_copy(update={"mtp": 0})
    assert found.cache == expected.cache
    assert found.max_context == 4096


def test_prediction_layers_stand_apart() -> None:
    """They are whole layers of which only a few tensors have names of their own."""
    names = ["blk.45.attn_q.weight", "blk.46.attn_q.weight", "blk.46.nextn.eh_proj.weight", "blk.4.ffn_up.weight"]
    assert list(components_of(names).values()) == ["attention", "mtp", "mtp", "mlp"]


def test_metadata_that_claim_too_much_are_refused_quickly() -> None:
    shape = read({**SIZES, "model_type": "llama"})
    for claim in ({"block_count": 1 << 40}, {"block_count": -1}, {"nextn_predict_layers": 1 << 40}):
        for architecture in ("llama", "qwen35moe", "gemma4", "lfm2"):
            with pytest.raises(ShapeError):
                shape_of([header(architecture, claim, shape)])


def test_parts_are_put_together() -> None:
    shape = read({**SIZES, "model_type": "llama"})
    whole = header("llama", {}, shape)
    last = tuple(reversed(whole.tensors))  # the token table into the first part
    half = len(last) // 2
    parts = [
        whole.model_copy(update={"tensors": last[:half]}),
        whole.model_copy(update={"tensors": last[half:], "metadata": {}}),
    ]
    assert shape_of(parts).parameters == shape.parameters
    one = parts[0].model_copy(update={"metadata": {**parts[0].metadata, "split.count": 2}})
    with pytest.raises(HubAnswerError) as alone:
        shape_of([one])
    assert alone.value.key == "gguf.missing_part"
    with pytest.raises(UnknownFamilyError) as caught:
        shape_of(parts[:1])
    assert caught.value.key == "gguf.shape_differs"


def test_a_shape_that_is_not_the_files_is_refused() -> None:
    shape = read({**SIZES, "model_type": "llama"})
    with pytest.raises(UnknownFamilyError) as caught:
        shape_of([header("llama", {"feed_forward_length": 640}, shape)])
    assert caught.value.key == "gguf.shape_differs"
    assert caught.value.message.values["file_params"] == shape.parameters.total


def test_what_cannot_be_read_is_refused_by_name() -> None:
    shape = read({**SIZES, "model_type": "llama"})
    with pytest.raises(UnknownFamilyError) as unknown:
        config_of([header("clip", {}, shape)])
    assert unknown.value.key == "gguf.unknown_architecture"
    with pytest.raises(HubAnswerError):
        config_of([])
    empty = header("llama", {}, shape).model_copy(update={"tensors": ()})
    with pytest.raises(HubAnswerError) as headless:
        config_of([empty])
    assert headless.value.key == "gguf.no_model"
    bare = header("llama", {}, shape)
    with pytest.raises(MissingKeyError):
        shape_of([bare.model_copy(update={"metadata": {"general.architecture": "llama"}})])
