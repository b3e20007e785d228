"""Llama and the many decoders that differ from it by switches: names, biases, norms, windows, fused matrices.

A dialect is one table entry. Facts are those of the modelling code in the public transformers repository
(src/transformers/models/<model_type>/modeling_<model_type>.py, release 5.24).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from calculator.model.build import AttentionNames, MlpNames, attention, block, dense_mlp, stack, vector
from calculator.model.config import Config
from calculator.model.decoder import Sizes, activation, assemble, sizes, tied
from calculator.model.mtp import joined_mtp, mtp_layers
from calculator.model.shape import Activation, Attention, Block, DenseMlp, ModelShape, NormKind, Tensor
from calculator.model.windows import Windows, all_layers, no_window, pattern, qwen

PRE = ("input_layernorm", "post_attention_layernorm")
SANDWICH = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")

Switch = bool | str
"""A fixed choice, or the key that decides (absent: False; with a "+" behind it: True)."""


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
    kv_required: bool = True
    head_dim: int | None = None
    head_dim_keys: tuple[str, ...] = ("head_dim",)
    layers: tuple[str, ...] = ("num_hidden_layers",)
    qk_norm_key: str = ""
    parallel_key: str = ""
    post_norm_key: str = ""
    windows: Windows = no_window
    head_bias: bool = False
    must_be_false: tuple[str, ...] = ()
    mtp: bool = False
    extras: Callable[[Config, Sizes, int], tuple[Tensor, ...]] | None = None
    embed: str = "model.embed_tokens"
    final_norm: str = "model.norm"
    head: str = "lm_head"
    prefix: str = "model."
    layer_prefix: str = "model.layers.{i}."
    embedding_scaled: bool = False
    attention_softcap: tuple[str, ...] = ()
    final_softcap: tuple[str, ...] = ()


def switch(cfg: Config, value: Switch) -> bool:
    return cfg.flag(value.removesuffix("+"), default=value.endswith("+")) if isinstance(value, str) else value


_PARTIAL = {"phi": 0.5, "stablelm": 0.25, "nemotron": 0.5, "glm": 0.5, "glm4": 0.5}
"""Share of a head that rotary embedding turns where the config does not say (defaults of the configuration classes)."""


def rotary_dim(cfg: Config, kind: str, head_dim: int) -> int | None:
    """How much of a head partial rotary embedding turns."""
    if kind != "partial":
        return None
    default = _PARTIAL.get(cfg.string("model_type", default=""), 1.0)
    return int(head_dim * cfg.number("partial_rotary_factor", "rope_pct", "rotary_percent", default=default))


def read_dialect(cfg: Config, d: Dialect) -> ModelShape:
    """A decoder of one attention kind and one dense MLP in every layer."""
    size = sizes(cfg, layers=d.layers, head_dim=d.head_dim_keys, kv_required=d.kv_required, head_dim_default=d.head_dim)
    width = cfg.integer("intermediate_size")
    qkv_bias, out_bias = switch(cfg, d.qkv_bias), switch(cfg, d.out_bias)
    parallel = switch(cfg, d.parallel_key or d.parallel)
    layer_norms = d.norms[:1] if parallel else d.norms
    for key in d.must_be_false:
        if cfg.flag(key):
            raise cfg.bad(key, "choice")
    cfg.ignore("no_rope_layers", "no_rope_layer_interval")
    if cfg.flag("use_cla", silent=True):
        raise cfg.bad("use_cla", "choice")
    cfg.ignore("cla_share_factor")
    if d.post_norm_key and cfg.flag(d.post_norm_key):
        layer_norms = (*layer_norms, "post_norm1", "post_norm2")
    qk_norm = d.qk_norm if not d.qk_norm_key or cfg.flag(d.qk_norm_key, default=True) else "none"
    mlp = DenseMlp(
        width=width,
        gated=d.gated,
        activation=activation(cfg, *d.act_keys, default=d.act),
        fused_gate_up=d.fused_gate_up,
        bias=switch(cfg, d.mlp_bias),
    )
    dropout = cfg.number("attention_dropout", default=0.0, high=1.0)
    residual = cfg.number("resid_pdrop", "residual_dropout", "hidden_dropout", default=0.0, high=1.0)
    capped = any(cfg.has(key) for key in d.attention_softcap)

    def make(window: int | None) -> Block:
        mixer = Attention(
            heads=size.heads,
            kv_heads=size.kv_heads,
            head_dim=size.head_dim,
            v_head_dim=size.head_dim,
            window=window,
            qk_norm=qk_norm,
            bias=qkv_bias,
            fused_qkv=d.fused_qkv,
            rotary=d.rotary,
            rotary_dim=rotary_dim(cfg, d.rotary, size.head_dim),
            softcap=capped,
            dropout=dropout,
        )
        tensors = (
            *attention(mixer, size.hidden, d.names, out_bias=out_bias, norm_kind=d.norm, norm_bias=d.norm_bias),
            *dense_mlp(mlp, size.hidden, d.mlp_names),
            *(d.extras(cfg, size, width) if d.extras else ()),
        )
        return block(
            mixer,
            mlp,
            tensors,
            layer_norms,
            size.hidden,
            d.norm,
            norm_bias=d.norm_bias,
            parallel=parallel,
            dropout=residual,
        )

    blocks, order = stack([(w,) for w in d.windows(cfg, size.layers)], make)
    count = mtp_layers(cfg) if d.mtp else 0
    return assemble(
        cfg,
        size,
        blocks,
        order,
        tie=tied(cfg, d.tie),
        norm_kind=d.norm,
        norm_bias=d.norm_bias,
        final_norm=d.final_norm,
        embed=d.embed,
        head=d.head,
        head_bias=d.head_bias,
        prefix=d.prefix,
        layer_prefix=d.layer_prefix,
        final_softcap=any(cfg.has(key) for key in d.final_softcap),
        embedding_scaled=d.embedding_scaled,
        embedding_dropout=cfg.number("embd_pdrop", "embedding_dropout", default=0.0, high=1.0),
        mtp=joined_mtp(size, make(None), count) if count else (),
        mtp_layers=count,
    )


def heads_wide_norms(cfg: Config, size: Sizes, width: int) -> tuple[Tensor, ...]:
    """Query and key norms with one weight per head and element (Command R+)."""
    if not cfg.flag("use_qk_norm", silent=True):
        return ()
    return (
        Tensor(name="self_attn.q_norm.weight", shape=(size.heads, size.head_dim), component="norm", kind="norm"),
        Tensor(name="self_attn.k_norm.weight", shape=(size.kv_heads, size.head_dim), component="norm", kind="norm"),
    )


def stablelm_norms(cfg: Config, size: Sizes, width: int) -> tuple[Tensor, ...]:
    """Query and key norms without bias, one module per head, where ``qk_layernorm`` is on."""
    if not cfg.flag("qk_layernorm"):
        return ()
    return (
        vector("self_attn.q_layernorm.norms.{e}.weight", size.head_dim, copies=size.heads),
        vector("self_attn.k_layernorm.norms.{e}.weight", size.head_dim, copies=size.kv_heads),
    )


def xielu_scalars(cfg: Config, size: Sizes, width: int) -> tuple[Tensor, ...]:
    return tuple(vector(f"mlp.act_fn.alpha_{sign}", 1, "mlp", kind="other") for sign in ("p", "n"))


def differential_scalars(cfg: Config, size: Sizes, width: int) -> tuple[Tensor, ...]:
    return tuple(
        vector(f"self_attn.lambda_{part}", size.head_dim, "attention", kind="other")
        for part in ("q1", "k1", "q2", "k2")
    )


def bitnet_norms(cfg: Config, size: Sizes, width: int) -> tuple[Tensor, ...]:
    return vector("self_attn.attn_sub_norm.weight", size.hidden), vector("mlp.ffn_sub_norm.weight", width)


LLAMA = Dialect(qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias", kv_required=False)
GEMMA = Dialect(
    tie=True,
    norm="rms_unit_offset",
    qkv_bias="attention_bias",
    out_bias="attention_bias",
    act="gelu_tanh",
    act_keys=("hidden_activation", "hidden_act"),
    head_dim=256,
    embedding_scaled=True,
)
POST = ("post_attention_layernorm", "post_feedforward_layernorm")
COHERE = Dialect(
    tie=True,
    norm="layer",
    norm_bias=False,
    norms=("input_layernorm",),
    parallel=True,
    qkv_bias="attention_bias",
    out_bias="attention_bias",
    extras=heads_wide_norms,
)
OLMO = Dialect(qkv_bias="attention_bias", out_bias="attention_bias", kv_required=False)

DIALECTS: dict[str, Dialect] = {
    "llama": LLAMA,
    "mistral": Dialect(windows=all_layers(4096)),
    "ministral": Dialect(windows=all_layers(4096)),
    "ministral3": Dialect(windows=all_layers(None)),
    "qwen2": Dialect(qkv_bias=True, windows=qwen),
    "qwen3": Dialect(qkv_bias="attention_bias", out_bias="attention_bias", qk_norm="head", head_dim=128, windows=qwen),
    "granite": LLAMA,
    "hyperclovax": replace(LLAMA, post_norm_key="use_post_norm"),
    "smollm3": replace(LLAMA, tie=True, kv_required=True, windows=qwen),
    "seed_oss": Dialect(qkv_bias="attention_bias+", out_bias="attention_out_bias", mlp_bias="mlp_bias", head_dim=128),
    "gemma": GEMMA,
    "gemma2": replace(
        GEMMA,
        norms=SANDWICH,
        windows=pattern(2),
        attention_softcap=("attn_logit_softcapping",),
        final_softcap=("final_logit_softcapping",),
    ),
    "gemma3_text": replace(
        GEMMA,
        norms=SANDWICH,
        qk_norm="head",
        windows=pattern(6, "sliding_window_pattern", "_sliding_window_pattern"),
        attention_softcap=("attn_logit_softcapping",),
        final_softcap=("final_logit_softcapping",),
    ),
    "cohere": replace(COHERE, kv_required=False),
    "cohere2": replace(COHERE, extras=None, windows=pattern(4, "sliding_window_pattern", "_sliding_window_pattern")),
    "olmo": replace(OLMO, norm="layer_no_affine"),
    "olmo2": replace(OLMO, norms=POST, qk_norm="full"),
    "olmo3": replace(OLMO, norms=POST, qk_norm="full", windows=pattern(4)),
    "phi3": Dialect(
        fused_qkv=True,
        fused_gate_up=True,
        names=AttentionNames(qkv="self_attn.qkv_proj"),
        rotary="partial",
        windows=all_layers(None),
        kv_required=False,
    ),
    "phi": Dialect(
        norm="layer",
        norms=("input_layernorm",),
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        gated=False,
        act="gelu_new",
        rotary="partial",
        parallel=True,
        kv_required=False,
        head_bias=True,
        names=AttentionNames(o="self_attn.dense"),
        mlp_names=MlpNames(up="mlp.fc1", down="mlp.fc2"),
        final_norm="model.final_layernorm",
    ),
    "stablelm": Dialect(
        norm="layer",
        qkv_bias="use_qkv_bias",
        rotary="partial",
        kv_required=False,
        parallel_key="use_parallel_residual",
        extras=stablelm_norms,
    ),
    "starcoder2": Dialect(
        tie=True,
        norm="layer",
        qkv_bias="use_bias+",
        out_bias="use_bias+",
        mlp_bias="use_bias+",
        gated=False,
        act="gelu_tanh",
        mlp_names=MlpNames(up="mlp.c_fc", down="mlp.c_proj"),
        windows=all_layers(None),
    ),
    "nemotron": Dialect(
        norm="layer",
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        mlp_bias="mlp_bias",
        gated=False,
        act="relu2",
        rotary="partial",
        kv_required=False,
        head_dim_keys=("head_dim", "kv_channels"),
    ),
    "arcee": replace(LLAMA, gated=False, act="relu2", kv_required=True),
    "glm": Dialect(qkv_bias="attention_bias+", fused_gate_up=True, rotary="partial", head_dim=128),
    "glm4": Dialect(
        qkv_bias="attention_bias+",
        fused_gate_up=True,
        rotary="partial",
        head_dim=128,
        norms=("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"),
    ),
    "hunyuan_v1_dense": replace(
        LLAMA,
        qk_norm="head",
        qk_norm_key="use_qk_norm",
        kv_required=True,
        names=AttentionNames(q_norm="self_attn.query_layernorm", k_norm="self_attn.key_layernorm"),
        head_dim_keys=("head_dim", "attention_head_dim"),
    ),
    "apertus": Dialect(
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        mlp_bias="mlp_bias",
        qk_norm="head",
        gated=False,
        act="xielu",
        norms=("attention_layernorm", "feedforward_layernorm"),
        extras=xielu_scalars,
    ),
    "diffllama": replace(LLAMA, extras=differential_scalars, mlp_bias=False),
    "bitnet": replace(LLAMA, act="relu2", extras=bitnet_norms, mlp_bias=False, kv_required=True),
    "exaone4": Dialect(norms=POST, qk_norm="head", windows=pattern(4, "sliding_window_pattern"), mtp=True),
    "exaone": Dialect(
        names=AttentionNames(*(f"attn.attention.{p}" for p in ("q_proj", "k_proj", "v_proj", "out_proj"))),
        mlp_names=MlpNames(gate="mlp.c_fc_0", up="mlp.c_fc_1", down="mlp.c_proj"),
        norms=("ln_1", "ln_2"),
        layers=("num_hidden_layers", "num_layers"),
        act_keys=("activation_function", "hidden_act"),
        embed="transformer.wte",
        final_norm="transformer.ln_f",
        prefix="transformer.",
        layer_prefix="transformer.h.{i}.",
    ),
    "ernie4_5": Dialect(tie=True, must_be_false=("use_bias",)),
    "helium": replace(LLAMA, out_bias=False, head_dim=128, kv_required=True),
    "vaultgemma": replace(
        GEMMA,
        norms=("input_layernorm", "pre_feedforward_layernorm"),
        windows=pattern(2),
        attention_softcap=("attn_logit_softcapping",),
        final_softcap=("final_logit_softcapping",),
    ),
    "internlm2": Dialect(
        fused_qkv=True,
        qkv_bias="bias",
        out_bias="bias",
        names=AttentionNames(qkv="attention.wqkv", o="attention.wo"),
        mlp_names=MlpNames(gate="feed_forward.w1", up="feed_forward.w3", down="feed_forward.w2"),
        norms=("attention_norm", "ffn_norm"),
        embed="model.tok_embeddings",
        head="output",
    ),
    "internlm": Dialect(qkv_bias="bias+", out_bias="bias+", kv_required=False),
    "baichuan": Dialect(fused_qkv=True, names=AttentionNames(qkv="self_attn.W_pack"), kv_required=False),
    "xverse": LLAMA,
    "orion": Dialect(norm="layer", qkv_bias="attention_bias", out_bias="attention_bias", kv_required=False),
}
