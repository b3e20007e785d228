"""A model's shape from a GGUF file alone, for repositories that hold nothing else.

The file's metadata name the sizes (github.com/ggml-org/ggml, docs/gguf.md); put under the keys of a config.json they
go through the same reader as any model. The file's own tensor table is the check: a shape whose parameters are not
those of the file is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from calculator.errors import HubAnswerError, UnknownFamilyError
from calculator.gguf.components import component_of
from calculator.gguf.header import GgufHeader
from calculator.model.read import read
from calculator.model.shape import ModelShape

Config = dict[str, Any]

TOLERANCE = 1e-4
"""Share of the parameters by which shape and file may differ: routing biases and the like."""


class _Head:
    """The metadata of one architecture, and what its tensors tell."""

    def __init__(self, headers: Sequence[GgufHeader]) -> None:
        self.architecture = headers[0].architecture
        self._metadata = headers[0].metadata
        self.tensors = {t.name: t for header in headers for t in header.tensors}

    def number(self, key: str) -> int | float | None:
        value = self._metadata.get(f"{self.architecture}.{key}")
        return None if isinstance(value, bool | str) else value

    def get(self, key: str) -> int | None:
        value = self.number(key)
        return value if isinstance(value, int) else None

    def has(self, tail: str) -> bool:
        return any(name.endswith(tail) for name in self.tensors)

    @property
    def vocabulary(self) -> int:
        table = self.tensors.get("token_embd.weight")
        if table is None:
            raise HubAnswerError("gguf.no_model", field="token_embd.weight")
        return table.shape[0]


def _moe(head: _Head) -> Config:
    return {
        "num_experts": head.get("expert_count"),
        "num_experts_per_tok": head.get("expert_used_count"),
        "moe_intermediate_size": head.get("expert_feed_forward_length"),
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "use_sliding_window": False,
    }


def _llama(head: _Head) -> Config:
    biases = {"attention_bias": head.has("attn_q.bias"), "mlp_bias": head.has("ffn_down.bias")}
    if not head.get("expert_count"):
        return {"model_type": "llama", **biases}
    return {
        "model_type": "mixtral",
        "num_local_experts": head.get("expert_count"),
        "num_experts_per_tok": head.get("expert_used_count"),
        "sliding_window": None,
    }


def _deepseek(head: _Head) -> Config:
    rope = head.get("rope.dimension_count") or 0
    key = head.get("attention.key_length_mla") or head.get("attention.key_length") or 0
    return {
        "model_type": "deepseek_v3" if head.has("exp_probs_b.bias") else "deepseek_v2",
        "q_lora_rank": head.get("attention.q_lora_rank"),
        "kv_lora_rank": head.get("attention.kv_lora_rank"),
        "qk_rope_head_dim": rope,
        "qk_nope_head_dim": key - rope,
        "v_head_dim": head.get("attention.value_length_mla") or head.get("attention.value_length"),
        "num_key_value_heads": head.get("attention.head_count"),
        "moe_intermediate_size": head.get("expert_feed_forward_length"),
        "n_routed_experts": head.get("expert_count"),
        "n_shared_experts": head.get("expert_shared_count"),
        "num_experts_per_tok": head.get("expert_used_count"),
        "first_k_dense_replace": head.get("leading_dense_block_count") or 0,
        "moe_layer_freq": 1,
        "n_group": 1,
        "topk_group": 1,
    }


def _named(model_type: str, **fixed: Any) -> Callable[[_Head], Config]:
    return lambda head: {"model_type": model_type, **fixed}


_FAMILIES: Mapping[str, Callable[[_Head], Config]] = {
    "llama": _llama,
    "qwen2": _named("qwen2", use_sliding_window=False, sliding_window=None),
    "qwen3": _named("qwen3", use_sliding_window=False, sliding_window=None, attention_bias=False),
    "qwen2moe": lambda head: {
        "model_type": "qwen2_moe",
        "shared_expert_intermediate_size": head.get("expert_shared_feed_forward_length"),
        **_moe(head),
    },
    "qwen3moe": lambda head: {"model_type": "qwen3_moe", "attention_bias": False, **_moe(head)},
    "gemma": _named("gemma"),
    "gemma2": lambda head: {
        "model_type": "gemma2",
        "attn_logit_softcapping": head.number("attn_logit_softcapping"),
        "final_logit_softcapping": head.number("final_logit_softcapping"),
    },
    "gemma3": _named("gemma3_text", sliding_window_pattern=6),
    "phi3": _named("phi3"),
    "granite": _named("granite"),
    "glm4": _named("glm4", attention_bias=True),
    "command-r": _named("cohere"),
    "cohere2": _named("cohere2", sliding_window_pattern=4),
    "starcoder2": lambda head: {"model_type": "starcoder2", "use_bias": head.has("attn_q.bias")},
    "olmo2": _named("olmo2"),
    "gpt-oss": lambda head: {
        "model_type": "gpt_oss",
        "num_local_experts": head.get("expert_count"),
        "num_experts_per_tok": head.get("expert_used_count"),
        "intermediate_size": head.get("expert_feed_forward_length"),
        "attention_bias": True,
    },
    "deepseek2": _deepseek,
}


def config_of(headers: Sequence[GgufHeader]) -> Config:
    """The metadata of a model's files under the keys of a config.json.

    Raises ``UnknownFamilyError`` ("gguf.unknown_architecture") and ``HubAnswerError`` ("gguf.no_model").
    """
    if not headers:
        raise HubAnswerError("gguf.no_files")
    head = _Head(headers)
    family = _FAMILIES.get(head.architecture)
    if family is None:
        raise UnknownFamilyError(
            "gguf.unknown_architecture", field="general.architecture", value=head.architecture[:40]
        )
    config: Config = {
        "hidden_size": head.get("embedding_length"),
        "num_hidden_layers": (head.get("block_count") or 0) - (head.get("nextn_predict_layers") or 0),
        "intermediate_size": head.get("feed_forward_length"),
        "num_attention_heads": head.get("attention.head_count"),
        "num_key_value_heads": head.get("attention.head_count_kv") or head.get("attention.head_count"),
        "head_dim": head.get("attention.key_length"),
        "vocab_size": head.vocabulary,
        "max_position_embeddings": head.get("context_length"),
        "sliding_window": head.get("attention.sliding_window"),
        "tie_word_embeddings": "output.weight" not in head.tensors,
        "torch_dtype": "bfloat16",
    }
    return {key: value for key, value in config.items() if value is not None} | family(head)


def shape_of(headers: Sequence[GgufHeader]) -> ModelShape:
    """The shape of the model in a file or in all its parts.

    Raises what ``config_of`` and the config reader raise, and ``UnknownFamilyError`` ("gguf.shape_differs") where the
    shape does not have the parameters of the file.
    """
    shape = read(config_of(headers))
    stored = sum(
        t.elements
        for header in headers
        for t in header.tensors
        if not t.name.startswith("rope_") and component_of(t.name) not in ("mtp", "vision", "audio", "projector")
    )
    if abs(stored - shape.parameters.total) > TOLERANCE * stored:
        raise UnknownFamilyError(
            "gguf.shape_differs",
            field="general.architecture",
            value=headers[0].architecture[:40],
            file_params=stored,
            shape_params=shape.parameters.total,
        )
    return shape
