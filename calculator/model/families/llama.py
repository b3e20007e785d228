"""Llama and the many decoders that differ from it by switches: names, biases, norms, windows, fused matrices.

A dialect is one table entry. Facts are those of the modelling code in the public transformers repository
(src/transformers/models/<model_type>/modeling_<model_type>.py, release 5.24).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from calculator.model.build import AttentionNames, MlpNames, attention, block, dense_mlp, stack
from calculator.model.config import Config
from calculator.model.decoder import Sizes, activation, assemble, sizes, tied
from calculator.model.shape import Activation, Attention, Block, DenseMlp, ModelShape, NormKind, Tensor
from calculator.model.windows import Windows, all_layers, no_window, qwen

PRE = ("input_layernorm", "post_attention_layernorm")
SANDWICH = (
    "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")

Switch = bool | str
"""A fixed choice, or the key that decides (absent: False)."""


@dataclass(frozen=True)
class Dialect:
    """How a family differs from Llama."""

    tie: bool = False
    norm: NormKind = "rms"
    norm_bias: bool | None = None
    norms: tuple[str, ...] = PRE
    qkv_bias: Switch = False
    out_bias: Switch = False
    mlp_bias: Switch = False
    qk_norm: Literal["none", "head", "full"] = "none"
    names: AttentionNames = field(default_factory=AttentionNames)
    mlp_names: MlpNames = field(default_factory=MlpNames)
    fused_qkv: bool = False
    fused_gate_up: bool = False
    gated: bool = True
    act: Activation = "silu"
    act_keys: tuple[str, ...] = ("hidden_act",)
    rotary: Literal["none", "full", "partial"] = "full"
    parallel: bool = False
    kv_required: bool = False
    head_dim: int | None = None
    windows: Windows = no_window
    head_bias: bool = False
    extras: Callable[[Config, Sizes, int], tuple[Tensor, ...]] | None = None
    sizes: Callable[[Config], Sizes] | None = None
    width: Callable[[Config, Sizes], int] | None = None
    embed: str = "model.embed_tokens"
    final_norm: str = "model.norm"
    head: str = "lm_head"
    prefix: str = "model."
    layer_prefix: str = "model.layers.{i}."
    attention_softcap: tuple[str, ...] = ()
    final_softcap: tuple[str, ...] = ()


def switch(cfg: Config, value: Switch) -> bool:
    return cfg.flag(value) if isinstance(value, str) else value


def read_dialect(cfg: Config, d: Dialect) -> ModelShape:
    """A decoder of one attention kind and one dense MLP in every layer."""
    size = d.sizes(cfg) if d.sizes else sizes(cfg, kv_required=d.kv_required, head_dim_default=d.head_dim)
    width = d.width(cfg, size) if d.width else cfg.int("intermediate_size")
    qkv_bias, out_bias = switch(cfg, d.qkv_bias), switch(cfg, d.out_bias)
    mlp = DenseMlp(
        width=width, gated=d.gated, activation=activation(cfg, *d.act_keys, default=d.act),
        fused_gate_up=d.fused_gate_up, bias=switch(cfg, d.mlp_bias))
    dropout = cfg.number("attention_dropout", default=0.0, high=1.0)
    residual = cfg.number("resid_pdrop", "residual_dropout", "hidden_dropout", default=0.0, high=1.0)
    capped = any(cfg.has(key) for key in d.attention_softcap)

    def make(window: int | None) -> Block:
        mixer = Attention(
            heads=size.heads, kv_heads=size.kv_heads, head_dim=size.head_dim, v_head_dim=size.head_dim,
            window=window, qk_norm=d.qk_norm, bias=qkv_bias, fused_qkv=d.fused_qkv, rotary=d.rotary, softcap=capped,
            dropout=dropout)
        tensors = (
            *attention(mixer, size.hidden, d.names, out_bias=out_bias, norm_kind="rms" if d.norm == "rms_unit_offset"
                       else d.norm, norm_bias=d.norm_bias),
            *dense_mlp(mlp, size.hidden, d.mlp_names),
            *(d.extras(cfg, size, width) if d.extras else ()))
        return block(mixer, mlp, tensors, d.norms, size.hidden, d.norm, norm_bias=d.norm_bias, parallel=d.parallel,
                     dropout=residual)

    blocks, order = stack([(w,) for w in d.windows(cfg, size.layers)], make)
    return assemble(
        cfg, size, blocks, order, tie=tied(cfg, d.tie), norm_kind=d.norm, norm_bias=d.norm_bias,
        final_norm=d.final_norm, embed=d.embed, head=d.head, head_bias=d.head_bias, prefix=d.prefix,
        layer_prefix=d.layer_prefix, final_softcap=any(cfg.has(key) for key in d.final_softcap),
        embedding_dropout=cfg.number("embd_pdrop", "embedding_dropout", default=0.0, high=1.0))


LLAMA = Dialect(qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias")

DIALECTS: dict[str, Dialect] = {
    "llama": LLAMA,
    "mistral": Dialect(windows=all_layers),
    "ministral3": Dialect(windows=all_layers),
    "qwen2": Dialect(qkv_bias=True, windows=qwen),
    "qwen3": Dialect(qkv_bias="attention_bias", out_bias="attention_bias", qk_norm="head", head_dim=128,
                     windows=qwen),
    "granite": LLAMA,
    "hyperclovax": LLAMA,
    "helium": Dialect(qkv_bias="attention_bias", mlp_bias="mlp_bias"),
    "smollm3": Dialect(tie=True, qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias"),
}
