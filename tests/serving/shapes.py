"""Small and real shapes for the serving tests."""

from collections.abc import Mapping
from typing import Any

from calculator.model import read
from calculator.model.shape import ModelShape

LLAMA_8B: Mapping[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "hidden_act": "silu",
}  # fmt: skip


def llama(**changes: Any) -> ModelShape:
    """Llama-3.1-8B's sizes (public config.json of meta-llama/Llama-3.1-8B) with changes."""
    return read({**LLAMA_8B, **changes})
