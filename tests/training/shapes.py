"""Small models and plans that the training tests share."""

from typing import Any

from calculator.hardware import find
from calculator.model import read
from calculator.model.shape import ModelShape
from calculator.training.plan import TrainingPlan

A100 = find("a100-80gb-sxm4")

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {
        "model_type": "llama", "vocab_size": 32000, "hidden_size": 512, "intermediate_size": 1408,
        "num_hidden_layers": 4,
        "num_attention_heads": 8, "num_key_value_heads": 4, "hidden_act": "silu", "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
    },
    "tied": {
        "model_type": "qwen3", "vocab_size": 16000, "hidden_size": 512, "intermediate_size": 1536,
        "num_hidden_layers": 3,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
    },
    "gpt2": {
        "model_type": "gpt2", "vocab_size": 8192, "n_embd": 256, "n_layer": 3, "n_head": 4, "n_positions": 1024,
        "tie_word_embeddings": True,
    },
    "neox": {
        "model_type": "gpt_neox", "vocab_size": 8192, "hidden_size": 256, "intermediate_size": 1024,
        "num_hidden_layers": 3,
        "num_attention_heads": 4, "rotary_pct": 0.25, "max_position_embeddings": 2048, "use_parallel_residual": True,
        "tie_word_embeddings": False,
    },
    "mixtral": {
        "model_type": "mixtral", "vocab_size": 8192, "hidden_size": 256, "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 8, "num_key_value_heads": 4, "num_local_experts": 8, "num_experts_per_tok": 2,
        "max_position_embeddings": 4096, "sliding_window": None, "tie_word_embeddings": False,
    },
    "gemma2": {
        "model_type": "gemma2", "vocab_size": 16000, "hidden_size": 256, "intermediate_size": 1024,
        "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 8192,
        "sliding_window": 4096, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
        "query_pre_attn_scalar": 64, "tie_word_embeddings": True,
    },
}  # fmt: skip

_shapes: dict[str, ModelShape] = {}


def shape(name: str, **changes: Any) -> ModelShape:
    key = f"{name} {sorted(changes.items())}"
    if key not in _shapes:
        _shapes[key] = read(CONFIGS[name] | changes)
    return _shapes[key]


def plan(**changes: Any) -> TrainingPlan:
    base: dict[str, Any] = {
        "method": "full", "precision": "bf16", "optimizer": "adamw_foreach", "micro_batch": 2, "seq_len": 256,
        "checkpointing": "none", "framework": "plain_torch", "outputs_held": False,
    }  # fmt: skip
    return TrainingPlan.model_validate(base | changes)
