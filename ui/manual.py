"""A shape by hand: the few numbers that describe a usual decoder, to a configuration and back."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from calculator.base import Frozen
from calculator.model.shape import Attention, DenseMlp, LatentAttention, ModelShape, MoeMlp, StateMixer

AttentionKind = Literal["full", "window", "mla", "linear"]
_HUGE = 1_048_576


class ManualShape(Frozen):
    """A decoder of equal layers. ``experts`` 0 means a dense MLP of ``intermediate``; otherwise ``intermediate`` is the
    width of one expert. ``window`` counts for sliding-window attention, the ranks and the rotary part for MLA.
    "linear": all layers but each ``full_every``-th keep a state of ``linear_heads`` heads of ``linear_dim`` instead of
    a cache (gated delta rule)."""

    hidden: int = Field(4096, ge=8, le=_HUGE)
    layers: int = Field(32, ge=1, le=4096)
    heads: int = Field(32, ge=1, le=65_536)
    kv_heads: int = Field(8, ge=1, le=65_536)
    head_dim: int = Field(128, ge=2, le=65_536)
    intermediate: int = Field(14_336, ge=1, le=_HUGE)
    vocab: int = Field(128_256, ge=1, le=16_777_216)
    tied: bool = False
    attention: AttentionKind = "full"
    window: int = Field(4096, ge=1, le=16_777_216)
    kv_lora_rank: int = Field(512, ge=1, le=65_536)
    q_lora_rank: int = Field(1536, ge=0, le=65_536)
    rope_dim: int = Field(64, ge=2, le=4096)
    full_every: int = Field(4, ge=2, le=4096)
    linear_heads: int = Field(16, ge=1, le=65_536)
    linear_dim: int = Field(128, ge=2, le=65_536)
    experts: int = Field(0, ge=0, le=65_536)
    top_k: int = Field(8, ge=1, le=65_536)
    shared_experts: int = Field(0, ge=0, le=1024)

    def config(self) -> dict[str, Any]:
        """A configuration of a published family that has exactly these tensors."""
        common = {
            "hidden_size": self.hidden, "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
            "vocab_size": self.vocab, "tie_word_embeddings": self.tied, "intermediate_size": self.intermediate,
            "hidden_act": "silu", "torch_dtype": "bfloat16", "max_position_embeddings": 131_072,
        }  # fmt: skip
        if self.attention == "mla":
            return common | self._latent()
        grouped = common | {"num_key_value_heads": self.kv_heads, "head_dim": self.head_dim}
        if self.attention == "linear":
            return grouped | self._linear()
        if not self.experts:
            if self.attention == "window":
                return grouped | {"model_type": "mistral", "sliding_window": self.window}
            return grouped | {"model_type": "llama", "attention_bias": False, "mlp_bias": False}
        if self.shared_experts:
            return grouped | {
                "model_type": "glm4_moe", "n_routed_experts": self.experts, "n_shared_experts": self.shared_experts,
                "num_experts_per_tok": self.top_k, "moe_intermediate_size": self.intermediate,
                "first_k_dense_replace": 0, "attention_bias": False, "use_qk_norm": False,
            }  # fmt: skip
        return grouped | {
            "model_type": "mixtral", "num_local_experts": self.experts, "num_experts_per_tok": self.top_k,
            "sliding_window": self.window if self.attention == "window" else None,
        }  # fmt: skip

    def _linear(self) -> dict[str, Any]:
        state = {
            "full_attention_interval": self.full_every, "linear_num_value_heads": self.linear_heads,
            "linear_num_key_heads": self.linear_heads, "linear_key_head_dim": self.linear_dim,
            "linear_value_head_dim": self.linear_dim, "linear_conv_kernel_dim": 4, "attention_bias": False,
        }  # fmt: skip
        if not self.experts:
            return state | {"model_type": "qwen3_5_text"}
        return state | {
            "model_type": "qwen3_5_moe_text", "num_experts": self.experts, "num_experts_per_tok": self.top_k,
            "moe_intermediate_size": self.intermediate,
            "shared_expert_intermediate_size": self.intermediate * self.shared_experts,
        }  # fmt: skip

    def _latent(self) -> dict[str, Any]:
        latent: dict[str, Any] = {
            "model_type": "deepseek_v2", "kv_lora_rank": self.kv_lora_rank, "q_lora_rank": self.q_lora_rank or None,
            "qk_nope_head_dim": self.head_dim, "qk_rope_head_dim": self.rope_dim, "v_head_dim": self.head_dim,
            "num_key_value_heads": self.heads, "attention_bias": False, "n_routed_experts": self.experts or None,
            "first_k_dense_replace": 0 if self.experts else self.layers,
        }  # fmt: skip
        if not self.experts:
            return latent
        return latent | {
            "n_shared_experts": self.shared_experts or None, "num_experts_per_tok": self.top_k,
            "moe_intermediate_size": self.intermediate, "moe_layer_freq": 1,
        }  # fmt: skip


def like(shape: ModelShape) -> ManualShape:
    """The nearest shape by hand: the numbers of the layer kind that most layers are of."""
    blocks = [shape.blocks[index] for index in shape.order] or list(shape.blocks)
    block = max(blocks, key=blocks.count)
    found: dict[str, Any] = {
        "hidden": shape.hidden, "layers": shape.layers, "vocab": shape.vocab, "tied": shape.tied,
    }  # fmt: skip
    mixer = block.mixer
    if not isinstance(mixer, Attention | LatentAttention):
        softmax = [b.mixer for b in blocks if isinstance(b.mixer, Attention | LatentAttention)]
        if isinstance(mixer, StateMixer) and mixer.variant == "gated_delta" and softmax:
            found |= {
                "attention": "linear", "full_every": max(2, round(len(blocks) / len(softmax))),
                "linear_heads": mixer.value_heads, "linear_dim": mixer.value_dim,
            }  # fmt: skip
        mixer = softmax[0] if softmax else mixer
    if isinstance(mixer, Attention):
        found |= {"heads": mixer.heads, "kv_heads": mixer.kv_heads, "head_dim": mixer.head_dim}
        if mixer.window:
            found |= {"attention": "window", "window": mixer.window}
    elif isinstance(mixer, LatentAttention):
        found |= {
            "attention": "mla", "heads": mixer.heads, "kv_heads": mixer.heads, "head_dim": mixer.qk_nope_head_dim,
            "kv_lora_rank": mixer.kv_lora_rank, "q_lora_rank": mixer.q_lora_rank or 0,
            "rope_dim": mixer.qk_rope_head_dim,
        }  # fmt: skip
    if isinstance(block.mlp, MoeMlp):
        found |= {"experts": block.mlp.experts, "top_k": block.mlp.top_k, "intermediate": block.mlp.width}
        found["shared_experts"] = block.mlp.shared_experts
    elif isinstance(block.mlp, DenseMlp):
        found["intermediate"] = block.mlp.width
    return ManualShape.model_validate(found)
