"""Multi-head latent attention (DeepSeek), as trained: latents are expanded to full keys and values.

Source: transformers 5.24.0 ``modeling_deepseek_v2.py``.
"""

from __future__ import annotations

from calculator.model.shape import Attention, LatentAttention
from calculator.training import ops
from calculator.training.attention import attend
from calculator.training.layers import Layer, Shared
from calculator.training.tape import Tensor


def _turn(layer: Layer, q: Tensor, k: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """Rotary embedding as a complex product in fp32."""
    tape = layer.tape
    q_wide = ops.cast(tape, q, "fp32")
    k_wide = ops.cast(tape, k, "fp32")
    q_out = ops.cast(tape, ops.mul(tape, q_wide, table), q.dtype)
    k_out = ops.cast(tape, ops.mul(tape, k_wide, table), k.dtype)
    return q_out, k_out


def _expand(layer: Layer, latent: Tensor, rotated: Tensor, mixer: LatentAttention) -> tuple[Tensor, Tensor]:
    tape, heads = layer.tape, mixer.heads
    nope, value = heads * mixer.qk_nope_head_dim, heads * mixer.v_head_dim
    both = layer.linear(latent, "k", nope + value, name="kv_b")
    both = ops.transpose_heads(tape, ops.split_heads(tape, both))
    key, v = ops.split(tape, both, (nope, value))
    return ops.assemble(tape, [key, rotated], nope + heads * mixer.qk_rope_head_dim), v


def latent_attention(layer: Layer, hidden: Tensor, mixer: LatentAttention, shared: Shared) -> Tensor:
    tape, heads = layer.tape, mixer.heads
    nope, rope = mixer.qk_nope_head_dim, mixer.qk_rope_head_dim
    width = heads * (nope + rope)
    if mixer.q_lora_rank is None:
        q = layer.linear(hidden, "q", width)
    else:
        q = layer.linear(
            layer.norm(layer.linear(hidden, "q", mixer.q_lora_rank, name="q_a"), "rms", "q_a_norm"),
            "q",
            width,
            name="q_b",
        )
    q = ops.transpose_heads(tape, ops.split_heads(tape, q))
    q_nope, q_rope = ops.split(tape, q, (heads * nope, heads * rope))
    compressed = layer.linear(hidden, "k", mixer.kv_lora_rank + rope, name="kv_a")
    latent, k_rope = ops.split(tape, compressed, (mixer.kv_lora_rank, rope))
    latent = layer.norm(latent, "rms", "kv_a_norm")
    if rope and shared.rotary:
        q_rope, k_rope = _turn(layer, q_rope, k_rope, shared.rotary[0])
    query = ops.concat(tape, [q_nope, q_rope])
    key, value = _expand(layer, latent, k_rope, mixer)
    plain = Attention(heads=heads, kv_heads=heads, head_dim=nope + rope, v_head_dim=mixer.v_head_dim)
    out = ops.merge_heads(tape, attend(layer, query, key, value, plain, shared.mask))
    return layer.linear(out, "o", layer.hidden, bias=layer.output_bias)
