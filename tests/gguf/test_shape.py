"""Shapes from GGUF metadata: the same as from the config, or refused."""

from typing import Any

import pytest

from calculator.errors import HubAnswerError, MissingKeyError, UnknownFamilyError
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
]  # fmt: skip


def header(architecture: str, metadata: dict[str, Any], shape: ModelShape) -> GgufHeader:
    """A file with the tensors of a shape. Names matter for the token table and the head only."""
    tensors = []
    for tensor, layer, _, mtp in every_tensor(shape):
        if mtp:
            continue
        name = f"blk.{layer}.{tensor.name}"
        if layer is None:
            name = {"embedding": "token_embd.weight", "head": "output.weight"}.get(tensor.component, tensor.name)
        sides = (tensor.copies, *tensor.shape) if tensor.copies > 1 else tensor.shape
        tensors.append(GgufTensor(name=name, shape=sides, type="F16", bytes=2, offset=0))
    tensors.append(GgufTensor(name="rope_freqs.weight", shape=(64,), type="F32", bytes=256, offset=0))
    named = {f"{architecture}.{key}": value for key, value in {**PLAIN, **metadata}.items()}
    return GgufHeader(
        version=3, metadata={"general.architecture": architecture, **named}, numbers={}, lengths={},
        tensors=tuple(tensors), data_offset=0,
    )  # fmt: skip


@pytest.mark.parametrize(("architecture", "metadata", "config"), FAMILIES, ids=[f[2]["model_type"] for f in FAMILIES])
def test_metadata_mean_what_the_config_means(
    architecture: str, metadata: dict[str, Any], config: dict[str, Any]
) -> None:
    expected = read({**SIZES, **config})
    found = shape_of([header(architecture, metadata, expected)])
    assert found.model_type == config["model_type"]
    assert found.blocks == expected.blocks
    assert found.order == expected.order
    assert found.parameters == expected.parameters
    assert found.cache == expected.cache
    assert found.max_context == 4096


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
