"""Decoders with mixtures of experts: Mixtral, Qwen-MoE, DeepSeek and those that differ from them by switches.

A dialect is one table entry. Facts are those of the modelling code in the public transformers repository
(src/transformers/models/<model_type>/modeling_<model_type>.py, release 5.24); tensor names are those of the published
checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from calculator.model.build import (
    AttentionNames,
    MlpNames,
    MoeNames,
    Tensors,
    attention,
    block,
    dense_mlp,
    latent_attention,
    moe_mlp,
    stack,
    vector,
)
from calculator.model.config import Config
from calculator.model.decoder import activation, assemble, sizes, tied
from calculator.model.families.llama import PRE, Switch, switch
from calculator.model.mtp import deepseek_mtp, mtp_layers
from calculator.model.shape import Activation, Attention, Block, DenseMlp, LatentAttention, ModelShape, MoeMlp, NormKind
from calculator.model.sparse import EXPERT_KEYS, experts, sparse_layers
from calculator.model.windows import Windows, all_layers, no_window, pattern, qwen

MIXTRAL_NAMES = MoeNames(
    router="block_sparse_moe.gate",
    gate="block_sparse_moe.experts.{e}.w1",
    up="block_sparse_moe.experts.{e}.w3",
    down="block_sparse_moe.experts.{e}.w2",
)
GRANITE_NAMES = MoeNames(
    router="block_sparse_moe.router.layer",
    gate_up="block_sparse_moe.input_linear",
    down="block_sparse_moe.output_linear",
    shared="shared_mlp",
)
QWEN_NAMES = MoeNames(shared="mlp.shared_expert")
GPT_OSS_NAMES = MoeNames(router="mlp.router", gate_up="mlp.experts.gate_up_proj!", down="mlp.experts.down_proj!")


@dataclass(frozen=True)
class Mixture:
    """How a family reads and names its experts and attention."""

    tie: bool = False
    norm: NormKind = "rms"
    norms: tuple[str, ...] = PRE
    mla: bool = False
    indexer: bool = False
    qkv_bias: Switch = False
    out_bias: Switch = False
    qk_norm: Literal["none", "head", "full"] = "none"
    qk_norm_key: str = ""
    attention_names: AttentionNames = field(default_factory=AttentionNames)
    sinks: bool = False
    gate_key: str = ""
    gate_always: bool = False
    gate_per_head: bool = False
    partial_rotary: bool = False
    kv_required: bool = True
    head_dim: int | None = None
    windows: Windows = no_window
    act: Activation = "silu"
    experts: tuple[str, ...] = EXPERT_KEYS
    top_k: tuple[str, ...] = ("num_experts_per_tok",)
    width: tuple[str, ...] = ("moe_intermediate_size",)
    shared_count: tuple[str, ...] = ()
    shared_width: tuple[str, ...] = ()
    default_shared: int | None = None
    prefix_key: str = ""
    shared_gate: bool = False
    shared_names: MlpNames | None = None
    shared_fused: bool = False
    names: MoeNames = field(default_factory=MoeNames)
    expert_bias: bool = False
    router_bias: bool = False
    router_extra: Callable[[MoeMlp], Tensors] | None = None
    dense: tuple[str, ...] = ("intermediate_size",)
    head_bias_key: str = ""
    mtp_copies: bool | None = None
    ignored: tuple[str, ...] = ()
    must_be_false: tuple[str, ...] = ()
    heads_per_layer: str = ""


def read_latent(cfg: Config, heads: int, *, indexer: bool = False) -> LatentAttention:
    """Multi-head latent attention by DeepSeek's keys. ``q_lora_rank`` null: one plain q projection."""
    if "q_lora_rank" not in cfg.raw and "q_lora_rank" not in cfg.fallback:
        raise cfg.missing("q_lora_rank")
    cfg.ignore("num_key_value_heads", "head_dim", "qk_head_dim")
    return LatentAttention(
        heads=heads,
        q_lora_rank=cfg.optional_int("q_lora_rank"),
        kv_lora_rank=cfg.integer("kv_lora_rank"),
        qk_nope_head_dim=cfg.integer("qk_nope_head_dim"),
        qk_rope_head_dim=cfg.integer("qk_rope_head_dim", low=0),
        v_head_dim=cfg.integer("v_head_dim"),
        indexer_heads=cfg.integer("index_n_heads") if indexer else 0,
        indexer_head_dim=cfg.integer("index_head_dim") if indexer else 0,
        indexer_topk=cfg.integer("index_topk") if indexer else 0,
    )


def indexed_layers(cfg: Config, layers: int) -> tuple[bool, ...]:
    """Layers with an indexer of their own; the others take the choice of the one before (GLM-5.2)."""
    words = {"full": "full", "shared": "shared"}
    if not cfg.has("indexer_types"):
        if "indexer_types" in cfg.raw:
            cfg.assume_default("indexer_types", "full")
        return (True,) * layers
    spare = cfg.integer("num_nextn_predict_layers", default=0, low=0, high=64, silent=True)
    return tuple(kind == "full" for kind in cfg.layer_kinds("indexer_types", words, layers, spare=spare))


def read_mixture(cfg: Config, d: Mixture) -> ModelShape:
    """A decoder whose layers are dense or hold experts, with one kind of attention apart from windows."""
    cfg.ignore(*d.ignored)
    for key in d.must_be_false:
        if cfg.flag(key):
            raise cfg.bad(key, "choice")
    size = (
        sizes(cfg, kv=(), head_dim=("qk_rope_head_dim",))
        if d.mla
        else sizes(cfg, kv_required=d.kv_required, head_dim_default=d.head_dim)
    )
    act = activation(cfg, default=d.act)
    act = "swiglu_oai" if d.act == "swiglu_oai" else act
    sparse = sparse_layers(cfg, size.layers, required=d.prefix_key)
    moe = (
        experts(
            cfg,
            act=act,
            keys=d.experts,
            top_k=d.top_k,
            width=d.width,
            shared_count=d.shared_count,
            shared_width=d.shared_width,
            shared_gate=d.shared_gate,
            default_shared=d.default_shared,
        )
        if any(sparse)
        else None
    )
    dense = DenseMlp(width=cfg.integer(*d.dense), gated=True, activation=act) if not all(sparse) else None
    if dense is None:
        cfg.ignore(*d.dense)
    qkv_bias, out_bias = switch(cfg, d.qkv_bias), switch(cfg, d.out_bias)
    if d.qk_norm_key and d.qk_norm_key not in cfg.raw:
        raise cfg.missing(d.qk_norm_key)
    qk_norm = d.qk_norm if not d.qk_norm_key or cfg.flag(d.qk_norm_key) else "none"
    gated = d.gate_always or (bool(d.gate_key) and cfg.flag(d.gate_key, default=True))
    partial = d.partial_rotary or cfg.number("partial_rotary_factor", default=1.0) < 1
    if d.heads_per_layer and not cfg.has(d.heads_per_layer):
        cfg.assume_default(d.heads_per_layer, size.heads)
    heads = (cfg.ints(d.heads_per_layer, length=size.layers, low=1) if d.heads_per_layer else None) or (
        size.heads,
    ) * size.layers
    for count in set(heads):
        cfg.divide(d.heads_per_layer or "num_attention_heads", count, size.kv_heads)
    latent = read_latent(cfg, size.heads, indexer=d.indexer) if d.mla else None
    indexed = indexed_layers(cfg, size.layers) if d.indexer else (False,) * size.layers
    dropout = cfg.number("attention_dropout", default=0.0, high=1.0)

    def make(is_sparse: bool, window: int | None, query_heads: int, is_indexed: bool) -> Block:
        if latent is not None:
            own = latent if is_indexed else latent.model_copy(update={"indexer_heads": 0, "indexer_head_dim": 0})
            mixer: Attention | LatentAttention = own
            tensors = latent_attention(own, size.hidden, bias=qkv_bias)
        else:
            mixer = Attention(
                heads=query_heads,
                kv_heads=size.kv_heads,
                head_dim=size.head_dim,
                v_head_dim=size.head_dim,
                window=window,
                qk_norm=qk_norm,
                bias=qkv_bias,
                sinks=d.sinks,
                output_gate=gated,
                rotary="partial" if partial else "full",
                dropout=dropout,
            )
            tensors = attention(mixer, size.hidden, d.attention_names, out_bias=out_bias, gate_per_head=d.gate_per_head)
        if is_sparse and moe is not None:
            tensors += moe_mlp(
                moe,
                size.hidden,
                d.names,
                router_bias=d.router_bias,
                bias=d.expert_bias,
                shared_names=d.shared_names,
                shared_fused=d.shared_fused,
            )
            tensors += d.router_extra(moe) if d.router_extra else ()
            return block(mixer, moe, tensors, d.norms, size.hidden, d.norm)
        assert dense is not None
        return block(mixer, dense, (*tensors, *dense_mlp(dense, size.hidden)), d.norms, size.hidden, d.norm)

    kinds = list(zip(sparse, d.windows(cfg, size.layers), heads, indexed, strict=True))
    blocks, order = stack(kinds, make)
    extra = mtp_layers(cfg) if d.mtp_copies is not None else 0
    mtp = (
        deepseek_mtp(size, make(sparse[-1], None, heads[-1], d.indexer), extra, copies=bool(d.mtp_copies))
        if extra
        else ()
    )
    return assemble(
        cfg,
        size,
        blocks,
        order,
        tie=tied(cfg, d.tie),
        norm_kind=d.norm,
        mtp=mtp,
        mtp_layers=extra,
        head_bias=bool(d.head_bias_key) and cfg.flag(d.head_bias_key),
    )


def _afmoe_bias(moe: MoeMlp) -> Tensors:
    return (vector("mlp.expert_bias", moe.experts, "router", kind="bias"),)


def _ernie_bias(moe: MoeMlp) -> Tensors:
    return (vector("mlp.moe_statics.e_score_correction_bias", moe.experts, "router", kind="bias"),)


def _laguna_bias(moe: MoeMlp) -> Tensors:
    return (vector("mlp.gate.e_score_correction_bias", moe.experts, "router", kind="bias"),)


MIXTRAL = Mixture(
    names=MIXTRAL_NAMES,
    experts=("num_local_experts", "num_experts"),
    width=("intermediate_size",),
    windows=all_layers(None),
)
QWEN2_MOE = Mixture(
    qkv_bias=True, names=QWEN_NAMES, shared_width=("shared_expert_intermediate_size",), shared_gate=True, windows=qwen
)
QWEN3_MOE = Mixture(
    qkv_bias="attention_bias",
    out_bias="attention_bias",
    qk_norm="head",
    windows=qwen,
    ignored=("shared_expert_intermediate_size",),
)
GRANITE = Mixture(
    qkv_bias="attention_bias",
    out_bias="attention_bias",
    names=GRANITE_NAMES,
    width=("intermediate_size",),
    experts=("num_local_experts",),
    shared_fused=True,
    shared_names=MlpNames(gate_up="shared_mlp.input_linear", down="shared_mlp.output_linear"),
)
DENSE_FIRST = Mixture(
    prefix_key="first_k_dense_replace", experts=("n_routed_experts", "num_experts"), shared_count=("n_shared_experts",)
)
DEEPSEEK = replace(DENSE_FIRST, mla=True, qkv_bias="attention_bias")
DEEPSEEK_V3 = replace(DEEPSEEK, mtp_copies=True)

MIXTURES: dict[str, Mixture] = {
    "mixtral": MIXTRAL,
    "qwen2_moe": QWEN2_MOE,
    "qwen3_moe": QWEN3_MOE,
    "qwen3_omni_talker": replace(
        QWEN3_MOE, shared_width=("shared_expert_intermediate_size",), shared_gate=True, names=QWEN_NAMES, ignored=()
    ),
    "olmoe": Mixture(
        qkv_bias="attention_bias", out_bias="attention_bias", qk_norm="full", width=("intermediate_size",)
    ),
    "phimoe": replace(
        MIXTRAL, norm="layer", qkv_bias="attention_bias", out_bias="attention_bias", head_bias_key="lm_head_bias"
    ),
    "granitemoe": replace(GRANITE, tie=True),
    "granitemoeshared": replace(GRANITE, tie=True, shared_width=("shared_intermediate_size",)),
    "deepseek": replace(DENSE_FIRST, qkv_bias="attention_bias", out_bias="attention_bias"),
    "deepseek_v2": DEEPSEEK,
    "deepseek_v3": DEEPSEEK_V3,
    "kimi_k2": DEEPSEEK_V3,
    "deepseek_v32": replace(DEEPSEEK_V3, indexer=True),
    "glm_moe_dsa": replace(DEEPSEEK_V3, indexer=True, mtp_copies=False),
    "glm4_moe_lite": DEEPSEEK_V3,
    "mistral4": DEEPSEEK,
    "glm4_moe": replace(
        DENSE_FIRST, qkv_bias="attention_bias", qk_norm="head", qk_norm_key="use_qk_norm", mtp_copies=True
    ),
    "dots1": replace(DENSE_FIRST, qkv_bias="attention_bias", out_bias="attention_bias", qk_norm="head", windows=qwen),
    "gpt_oss": Mixture(
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        sinks=True,
        act="swiglu_oai",
        head_dim=64,
        experts=("num_local_experts", "num_experts"),
        width=("intermediate_size",),
        names=GPT_OSS_NAMES,
        expert_bias=True,
        router_bias=True,
        windows=pattern(2, default=128),
        top_k=("num_experts_per_tok", "experts_per_token"),
    ),
    "hy_v3": replace(
        DENSE_FIRST,
        experts=("num_experts",),
        head_dim=128,
        qk_norm="head",
        qk_norm_key="qk_norm",
        shared_count=("num_shared_experts",),
        mtp_copies=False,
    ),
    "flex_olmo": Mixture(
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        qk_norm="full",
        norms=("post_attention_layernorm", "post_feedforward_layernorm"),
        width=("intermediate_size",),
    ),
    "ernie4_5_moe": Mixture(
        tie=True,
        must_be_false=("use_bias",),
        experts=("moe_num_experts",),
        top_k=("moe_k",),
        shared_count=("moe_num_shared_experts",),
        prefix_key="moe_layer_start_index",
        router_extra=_ernie_bias,
    ),
    "exaone_moe": replace(
        DENSE_FIRST,
        experts=("num_experts",),
        shared_count=("num_shared_experts",),
        qk_norm="head",
        windows=pattern(4, "sliding_window_pattern"),
    ),
    "aria_text": Mixture(
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        experts=("moe_num_experts",),
        top_k=("moe_topk",),
        width=("intermediate_size",),
        shared_count=("moe_num_shared_experts",),
        default_shared=2,
        ignored=("num_experts_per_tok",),
        names=MoeNames(
            router="mlp.router", gate_up="mlp.experts.fc1", down="mlp.experts.fc2", shared="mlp.shared_experts"
        ),
    ),
    "solar_open": replace(DENSE_FIRST, head_dim=128),
    "afmoe": Mixture(
        prefix_key="num_dense_layers",
        head_dim=128,
        norms=("input_layernorm", "post_attention_layernorm", "pre_mlp_layernorm", "post_mlp_layernorm"),
        qk_norm="head",
        attention_names=AttentionNames(gate="self_attn.gate_proj"),
        gate_always=True,
        names=MoeNames(router="mlp.router.gate"),
        shared_count=("num_shared_experts",),
        windows=pattern(4, "global_attn_every_n_layers", default=1024),
        router_extra=_afmoe_bias,
    ),
    "laguna": Mixture(
        prefix_key="mlp_layer_types",
        head_dim=128,
        qk_norm="head",
        attention_names=AttentionNames(gate="self_attn.g_proj"),
        gate_key="gating",
        gate_per_head=True,
        shared_width=("shared_expert_intermediate_size",),
        windows=pattern(4, default=512),
        router_extra=_laguna_bias,
        heads_per_layer="num_attention_heads_per_layer",
    ),
}

HUNYUAN = Mixture(
    qkv_bias="attention_bias",
    out_bias="attention_bias",
    qk_norm="head",
    qk_norm_key="use_qk_norm",
    attention_names=AttentionNames(q_norm="self_attn.query_layernorm", k_norm="self_attn.key_layernorm"),
    names=MoeNames(router="mlp.gate.wg", shared="mlp.shared_mlp"),
    experts=("num_experts",),
    top_k=("moe_topk",),
    width=("intermediate_size",),
    shared_width=("intermediate_size",),
)


def hunyuan_moe(cfg: Config) -> ModelShape:
    """Hunyuan-A13B: experts and one shared MLP of one width; numbers may be lists that say the same for each layer."""
    layers = cfg.integer("num_hidden_layers", high=4096)
    values = dict(cfg.raw)
    for key in ("num_experts", "moe_topk", "num_shared_expert", "moe_intermediate_size"):
        if isinstance(values.get(key), list):
            listed = cfg.ints(key, length=layers, low=1) or ()
            if len(set(listed)) != 1:
                raise cfg.bad(key, "items")
            values[key] = listed[0]
    flat = Config(values, cfg.path, cfg.notes, cfg.fallback)
    width = flat.integer("intermediate_size")
    if flat.integer("num_shared_expert", default=1, low=0) != 1:
        raise cfg.bad("num_shared_expert", "choice")
    if flat.integer("moe_intermediate_size", default=width) != width:
        raise cfg.bad("moe_intermediate_size", "choice")
    if flat.flag("use_cla", silent=True):
        raise cfg.bad("use_cla", "choice")
    flat.ignore("cla_share_factor", "attention_head_dim", "use_mixed_mlp_moe", "moe_layer_num_skipped")
    return read_mixture(flat, HUNYUAN)
