"""llama.cpp's architectures: their metadata under the keys that a config.json of the family has.

The metadata keys are facts of ``conversion/`` and ``gguf-py/gguf/constants.py`` (github.com/ggml-org/llama.cpp).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from calculator.errors import HubAnswerError
from calculator.gguf.header import GgufHeader

Config = dict[str, Any]


class Head:
    """The metadata of a model's architecture, and what its tensors tell."""

    def __init__(self, headers: Sequence[GgufHeader]) -> None:
        self.architecture = headers[0].architecture
        self._metadata = headers[0].metadata
        self._numbers = headers[0].numbers
        self.tensors = {t.name: t for header in headers for t in header.tensors}

    def number(self, key: str) -> int | float | None:
        value = self._metadata.get(f"{self.architecture}.{key}")
        return None if isinstance(value, bool | str) else value

    def get(self, key: str) -> int | None:
        """A whole number; of a list with one per layer, the largest."""
        value = self.number(key)
        if value is None:
            return max(self.per_layer(key), default=None)
        return value if isinstance(value, int) else None

    def per_layer(self, key: str) -> tuple[int, ...]:
        """One number or flag per layer, prediction layers left out; empty where the file has none or one for all."""
        values = self._numbers.get(f"{self.architecture}.{key}", ())[: self.layers]
        return tuple(int(n) for n in values if isinstance(n, int))

    def has(self, tail: str) -> bool:
        return any(name.endswith(tail) for name in self.tensors)

    @property
    def layers(self) -> int:
        """Without prediction layers, and no more than there are tensors, whatever the metadata say."""
        blocks, predicting = self.number("block_count"), self.number("nextn_predict_layers") or 0
        stated = blocks - predicting if isinstance(blocks, int) and isinstance(predicting, int) else 0
        return min(max(stated, 0), len(self.tensors))

    @property
    def vocabulary(self) -> int:
        table = self.tensors.get("token_embd.weight")
        if table is None:
            raise HubAnswerError("gguf.no_model", field="token_embd.weight")
        return table.shape[0]

    def kinds(self, key: str, kind: str, other: str) -> Config:
        """``layer_types`` by flags: ``kind`` where the flag is set."""
        flags = self.per_layer(key)
        return {"layer_types": [kind if flag else other for flag in flags]} if flags else {}


def _named(model_type: str, **fixed: Any) -> Callable[[Head], Config]:
    return lambda head: {"model_type": model_type, **fixed}


def _moe(head: Head) -> Config:
    return {
        "num_experts": head.get("expert_count"),
        "num_experts_per_tok": head.get("expert_used_count"),
        "moe_intermediate_size": head.get("expert_feed_forward_length"),
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "use_sliding_window": False,
    }


def _routed(head: Head) -> Config:
    """Experts under the keys that DeepSeek and its relatives use."""
    return {
        "moe_intermediate_size": head.get("expert_feed_forward_length"),
        "n_routed_experts": head.get("expert_count"),
        "n_shared_experts": head.get("expert_shared_count"),
        "num_experts_per_tok": head.get("expert_used_count"),
        "first_k_dense_replace": head.get("leading_dense_block_count") or 0,
        "moe_layer_freq": 1,
        "n_group": 1,
        "topk_group": 1,
    }


def _local(head: Head) -> Config:
    return {"num_local_experts": head.get("expert_count"), "num_experts_per_tok": head.get("expert_used_count")}


def _llama(head: Head) -> Config:
    if head.get("expert_count"):
        return {"model_type": "mixtral", "sliding_window": None, **_local(head)}
    biases = {"attention_bias": head.has("attn_q.bias"), "mlp_bias": head.has("ffn_down.bias")}
    return {"model_type": "llama", **biases}


def _llama4(head: Head) -> Config:
    return {
        "model_type": "llama4_text",
        "intermediate_size": head.get("expert_feed_forward_length"),
        "intermediate_size_mlp": head.get("feed_forward_length"),
        "interleave_moe_layer_step": head.get("interleave_moe_layer_step"),
        "attention_chunk_size": 8192,
        **_local(head),
    }


def _deepseek(head: Head) -> Config:
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
        **_routed(head),
    }


def _glm4_moe(head: Head) -> Config:
    return {
        "model_type": "glm4_moe",
        "attention_bias": head.has("attn_q.bias"),
        "use_qk_norm": head.has("attn_q_norm.weight"),
        "partial_rotary_factor": 0.5,
        **_routed(head),
    }


def _delta_net(model_type: str, *, experts: bool) -> Callable[[Head], Config]:
    """Qwen's hybrids: every ``full_attention_interval``-th layer attends, the others keep a state."""

    def config(head: Head) -> Config:
        value_heads = head.get("ssm.time_step_rank") or 1
        every = head.get("full_attention_interval") or 4
        attends = ["full_attention" if (i + 1) % every == 0 else "linear_attention" for i in range(head.layers)]
        shared = {"shared_expert_intermediate_size": head.get("expert_shared_feed_forward_length")}
        return {
            "model_type": model_type,
            "layer_types": attends,
            "mamba_ssm_dtype": "float32",
            "linear_conv_kernel_dim": head.get("ssm.conv_kernel"),
            "linear_key_head_dim": head.get("ssm.state_size"),
            "linear_num_key_heads": head.get("ssm.group_count"),
            "linear_num_value_heads": value_heads,
            "linear_value_head_dim": (head.get("ssm.inner_size") or 0) // value_heads,
            **({**_moe(head), **shared} if experts else {}),
        }

    return config


def _short_convolutions(model_type: str) -> Callable[[Head], Config]:
    """LFM2: layers without KV heads are convolutions."""

    def config(head: Head) -> Config:
        types = head.kinds("attention.head_count_kv", "full_attention", "conv")
        sizes = {"conv_L_cache": head.get("shortconv.l_cache"), "conv_bias": False, "block_auto_adjust_ff_dim": False}
        if model_type == "lfm2":
            return {"model_type": model_type, **types, **sizes}
        return {
            "model_type": model_type,
            "num_experts": head.get("expert_count"),
            "num_experts_per_tok": head.get("expert_used_count"),
            "moe_intermediate_size": head.get("expert_feed_forward_length"),
            "num_dense_layers": head.get("leading_dense_block_count") or 0,
            "use_expert_bias": head.has("exp_probs_b.bias"),
            **types,
            **sizes,
        }

    return config


def _gemma4(head: Head) -> Config:
    windows = head.per_layer("attention.sliding_window_pattern")
    kv_heads = head.per_layer("attention.head_count_kv")
    full = [i for i, flag in enumerate(windows) if not flag]
    shared = head.get("attention.shared_kv_layers") or 0
    own = [i for i in full if i < head.layers - shared]
    widths = head.per_layer("feed_forward_length")
    config: Config = {
        "model_type": "gemma4_text",
        "head_dim": head.get("attention.key_length_swa"),
        "global_head_dim": head.get("attention.key_length"),
        "num_kv_shared_layers": shared,
        "hidden_size_per_layer_input": head.get("embedding_length_per_layer_input") or 0,
        "vocab_size_per_layer_input": head.vocabulary,
        "attention_k_eq_v": any(f"blk.{i}.attn_v.weight" not in head.tensors for i in own[:1]),
        "enable_moe_block": bool(head.get("expert_count")),
        "num_experts": head.get("expert_count"),
        "top_k_experts": head.get("expert_used_count"),
        "moe_intermediate_size": head.get("expert_feed_forward_length"),
        "use_double_wide_mlp": len(set(widths)) > 1,
        **head.kinds("attention.sliding_window_pattern", "sliding_attention", "full_attention"),
    }
    if widths:
        config["intermediate_size"] = min(widths)
    if kv_heads:
        windowed, whole = (
            [n for n, flag in zip(kv_heads, windows, strict=False) if bool(flag) is w] for w in (True, False)
        )
        config |= {"num_key_value_heads": max(windowed, default=0), "num_global_key_value_heads": max(whole, default=0)}
    return config


_QWEN3 = _named("qwen3", use_sliding_window=False, sliding_window=None, attention_bias=False)
_QWEN2 = _named("qwen2", use_sliding_window=False, sliding_window=None)


def _qwen3_moe(head: Head) -> Config:
    return {"model_type": "qwen3_moe", "attention_bias": False, **_moe(head)}


FAMILIES: Mapping[str, Callable[[Head], Config]] = {
    "llama": _llama,
    "llama4": _llama4,
    "mistral3": _named("mistral", sliding_window=None),
    "qwen2": _QWEN2,
    "qwen2vl": _QWEN2,
    "qwen3": _QWEN3,
    "qwen3vl": _QWEN3,
    "qwen2moe": lambda head: {
        "model_type": "qwen2_moe",
        "shared_expert_intermediate_size": head.get("expert_shared_feed_forward_length"),
        **_moe(head),
    },
    "qwen3moe": _qwen3_moe,
    "qwen3vlmoe": _qwen3_moe,
    "qwen3next": _delta_net("qwen3_next", experts=True),
    "qwen35": _delta_net("qwen3_5_text", experts=False),
    "qwen35moe": _delta_net("qwen3_5_moe_text", experts=True),
    "gemma": _named("gemma"),
    "gemma2": lambda head: {
        "model_type": "gemma2",
        "attn_logit_softcapping": head.number("attn_logit_softcapping"),
        "final_logit_softcapping": head.number("final_logit_softcapping"),
    },
    "gemma3": _named("gemma3_text", sliding_window_pattern=6),
    "gemma4": _gemma4,
    "phi3": _named("phi3"),
    "granite": _named("granite"),
    "glm4": _named("glm4", attention_bias=True),
    "glm4moe": _glm4_moe,
    "command-r": _named("cohere"),
    "cohere2": _named("cohere2", sliding_window_pattern=4),
    "starcoder2": lambda head: {"model_type": "starcoder2", "use_bias": head.has("attn_q.bias")},
    "olmo2": _named("olmo2"),
    "olmoe": lambda head: {
        "model_type": "olmoe",
        "num_experts": head.get("expert_count"),
        "num_experts_per_tok": head.get("expert_used_count"),
    },
    "smollm3": _named("smollm3"),
    "seed_oss": _named("seed_oss", attention_bias=True),
    "internlm2": _named("internlm2", bias=False),
    "hunyuan-dense": _named("hunyuan_v1_dense", use_qk_norm=True),
    "exaone4": lambda head: {
        "model_type": "exaone4",
        **head.kinds("attention.sliding_window_pattern", "sliding_attention", "full_attention"),
    },
    "lfm2": _short_convolutions("lfm2"),
    "lfm2moe": _short_convolutions("lfm2_moe"),
    "minimax-m2": lambda head: {
        "model_type": "minimax_m2",
        "intermediate_size": head.get("expert_feed_forward_length"),
        "use_qk_norm": True,
        **_local(head),
    },
    "gpt-oss": lambda head: {
        "model_type": "gpt_oss",
        "intermediate_size": head.get("expert_feed_forward_length"),
        "attention_bias": True,
        **_local(head),
    },
    "deepseek2": _deepseek,
    "dots1": lambda head: {"model_type": "dots1", **_routed(head)},
}
