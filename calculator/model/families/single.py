"""Decoders with one peculiarity each: DBRX, MiniCPM, MiMo, Nemotron-NAS, Step 3.5, Persimmon.

Facts are those of the modelling code in the public transformers repository, release 5.24, or of the modeling file in
the model's own hub repository where transformers has none.
"""

from __future__ import annotations

from collections.abc import Mapping

from calculator.model.build import (
    AttentionNames,
    MlpNames,
    MoeNames,
    Tensors,
    attention,
    block,
    dense_mlp,
    latent_attention,
    linear,
    moe_mlp,
    norm,
    stack,
)
from calculator.model.config import Config
from calculator.model.decoder import LAYER_WORDS, activation, assemble, sizes, tied
from calculator.model.families.llama import PRE
from calculator.model.mtp import as_mtp, deepseek_mtp, mtp_layers
from calculator.model.shape import (
    Attention,
    Block,
    DenseMlp,
    LatentAttention,
    Mixer,
    Mlp,
    ModelShape,
    MoeMlp,
    NoMixer,
    NoMlp,
)
from calculator.model.sparse import experts, sparse_layers


def dbrx(cfg: Config) -> ModelShape:
    """Sizes in two sub-objects; all experts of a layer in one matrix each."""
    inner, ffn = cfg.require_sub("attn_config"), cfg.require_sub("ffn_config")
    size = sizes(
        cfg,
        hidden=("d_model", "hidden_size"),
        layers=("n_layers", "num_hidden_layers"),
        heads=("n_heads", "num_attention_heads"),
        kv=(),
        head_dim=(),
    )
    size = size._replace(kv_heads=inner.integer("kv_n_heads", high=65_536))
    inner.divide("kv_n_heads", size.heads, size.kv_heads)
    cfg.ignore("num_key_value_heads")
    moe = experts(ffn, keys=("moe_num_experts",), top_k=("moe_top_k",), width=("ffn_hidden_size",))
    mixer = Attention(
        heads=size.heads,
        kv_heads=size.kv_heads,
        head_dim=size.head_dim,
        v_head_dim=size.head_dim,
        fused_qkv=True,
        dropout=inner.number("attn_pdrop", default=0.0, high=1.0),
    )
    at = "norm_attn_norm."
    names = MoeNames(
        router="ffn.router.layer", gate="ffn.experts.mlp.w1!", up="ffn.experts.mlp.v1!", down="ffn.experts.mlp.w2!"
    )
    tensors = (
        *attention(mixer, size.hidden, AttentionNames(qkv=f"{at}attn.Wqkv", o=f"{at}attn.out_proj")),
        *moe_mlp(moe, size.hidden, names),
    )
    one = block(
        mixer,
        moe,
        tensors,
        (f"{at}norm_1", f"{at}norm_2"),
        size.hidden,
        "layer",
        norm_bias=False,
        dropout=cfg.number("resid_pdrop", default=0.0, high=1.0),
    )
    return assemble(
        cfg,
        size,
        (one,),
        (0,) * size.layers,
        tie=tied(cfg, False),
        norm_kind="layer",
        norm_bias=False,
        final_norm="transformer.norm_f",
        embed="transformer.wte",
        prefix="transformer.",
        layer_prefix="transformer.blocks.{i}.",
        embedding_dropout=cfg.number("emb_pdrop", default=0.0, high=1.0),
    )


def minicpm(cfg: Config) -> ModelShape:
    """Llama's shapes, tied by default; with ``num_experts`` every MLP is one of that many experts."""
    size = sizes(cfg, kv_required=True)
    act = activation(cfg, default="silu")
    width = cfg.integer("intermediate_size")
    mixer = Attention(heads=size.heads, kv_heads=size.kv_heads, head_dim=size.head_dim, v_head_dim=size.head_dim)
    count = cfg.integer("num_experts", default=0, low=0, high=65_536, silent=True)
    mlp: Mlp = (
        experts(cfg, act=act, width=("intermediate_size",))
        if count
        else DenseMlp(width=width, gated=True, activation=act)
    )
    names = MoeNames(gate="mlp.experts.{e}.w1", up="mlp.experts.{e}.w3", down="mlp.experts.{e}.w2")
    tensors = attention(mixer, size.hidden)
    if isinstance(mlp, MoeMlp):
        tensors += moe_mlp(mlp, size.hidden, names)
    elif isinstance(mlp, DenseMlp):
        tensors += dense_mlp(mlp, size.hidden)
    one = block(mixer, mlp, tensors, PRE, size.hidden)
    tie = True if count else tied(cfg, True)
    if count:
        cfg.ignore("tie_word_embeddings")
    return assemble(cfg, size, (one,), (0,) * size.layers, tie=tie)


def minicpm3(cfg: Config) -> ModelShape:
    """Latent attention whose value heads are hidden / heads wide where the file does not say."""
    heads, hidden = cfg.integer("num_attention_heads", high=65_536), cfg.integer("hidden_size", high=2**20)
    value = cfg.optional_int("v_head_dim") or cfg.divide("num_attention_heads", hidden, heads, of="hidden_size")
    return _dense_latent(cfg, value)


def youtu(cfg: Config) -> ModelShape:
    return _dense_latent(cfg, cfg.integer("v_head_dim"))


def _dense_latent(cfg: Config, value: int) -> ModelShape:
    """Latent attention and a dense MLP in every layer, tied by default."""
    cfg.ignore("num_key_value_heads", "head_dim", "qk_head_dim")
    size = sizes(cfg, kv=(), head_dim=("qk_rope_head_dim",))
    mixer = LatentAttention(
        heads=size.heads,
        q_lora_rank=cfg.integer("q_lora_rank"),
        kv_lora_rank=cfg.integer("kv_lora_rank"),
        qk_nope_head_dim=cfg.integer("qk_nope_head_dim"),
        qk_rope_head_dim=cfg.integer("qk_rope_head_dim"),
        v_head_dim=value,
    )
    bias = cfg.flag("attention_bias", silent=True)
    mlp = DenseMlp(width=cfg.integer("intermediate_size"), gated=True, activation=activation(cfg, default="silu"))
    tensors = (*latent_attention(mixer, size.hidden, bias=bias), *dense_mlp(mlp, size.hidden))
    one = block(mixer, mlp, tensors, PRE, size.hidden)
    return assemble(cfg, size, (one,), (0,) * size.layers, tie=tied(cfg, True))


def mimo_v2(cfg: Config) -> ModelShape:
    """Windowed layers have KV heads, sizes and sinks of their own; K and V differ in width."""
    size = sizes(cfg, kv_required=True)
    value = cfg.integer("v_head_dim")
    window = cfg.integer("sliding_window", "sliding_window_size")
    pattern = cfg.ints("hybrid_layer_pattern", length=size.layers, high=1)
    if pattern is None:
        raise cfg.missing("hybrid_layer_pattern")
    near_heads = cfg.integer("swa_num_attention_heads", default=size.heads, high=65_536)
    near_kv = cfg.integer("swa_num_key_value_heads", high=65_536)
    cfg.divide("swa_num_key_value_heads", near_heads, near_kv)
    near_dim = cfg.integer("swa_head_dim", default=size.head_dim)
    near_value = cfg.integer("swa_v_head_dim", default=value)
    bias = cfg.flag("attention_bias")
    cfg.ignore("attention_chunk_size", "sliding_window_size", "layer_types")
    act = activation(cfg, default="silu")
    sparse = sparse_layers(cfg, size.layers)
    moe = experts(cfg, act=act, shared_count=("n_shared_experts",))
    dense = DenseMlp(width=cfg.integer("intermediate_size"), gated=True, activation=act)
    near_sinks = cfg.flag("add_swa_attention_sink_bias")
    far_sinks = cfg.flag("add_full_attention_sink_bias")

    def make(near: int, is_sparse: bool) -> Block:
        mixer = Attention(
            heads=near_heads if near else size.heads,
            kv_heads=near_kv if near else size.kv_heads,
            head_dim=near_dim if near else size.head_dim,
            v_head_dim=near_value if near else value,
            window=window if near else None,
            bias=bias,
            sinks=near_sinks if near else far_sinks,
            rotary="partial",
        )
        tensors = attention(mixer, size.hidden, AttentionNames(sinks="self_attn.attention_sink_bias"))
        tensors += moe_mlp(moe, size.hidden) if is_sparse else dense_mlp(dense, size.hidden)
        return block(mixer, moe if is_sparse else dense, tensors, PRE, size.hidden)

    blocks, order = stack(list(zip(pattern, sparse, strict=True)), make)
    return assemble(cfg, size, blocks, order, tie=tied(cfg, False))


def mimo(cfg: Config) -> ModelShape:
    """Qwen2's shapes with MTP layers in the published files."""
    size = sizes(cfg, kv_required=True)
    cfg.ignore("sliding_window", "use_sliding_window", "max_window_layers")
    mixer = Attention(
        heads=size.heads,
        kv_heads=size.kv_heads,
        head_dim=size.head_dim,
        v_head_dim=size.head_dim,
        bias=cfg.flag("attention_bias", default=True),
    )
    mlp = DenseMlp(width=cfg.integer("intermediate_size"), gated=True, activation=activation(cfg, default="silu"))
    one = block(mixer, mlp, (*attention(mixer, size.hidden), *dense_mlp(mlp, size.hidden)), PRE, size.hidden)
    count = mtp_layers(cfg)
    mtp: Tensors = ()
    for index in range(count):
        parts = (
            *norm("token_layernorm", size.hidden),
            *norm("hidden_layernorm", size.hidden),
            *linear("input_proj", size.hidden, 2 * size.hidden, "mtp"),
            *norm("final_layernorm", size.hidden),
            *one.tensors,
        )
        mtp += as_mtp(parts, f"model.mtp_layers.{index}.")
    return assemble(cfg, size, (one,), (0,) * size.layers, tie=tied(cfg, False), mtp=mtp, mtp_layers=count)


def nemotron_nas(cfg: Config) -> ModelShape:
    """Pruned Llamas: each layer states its KV groups and MLP width, and may lack either part or have it as one matrix.

    The width is 2 x ffn_mult x hidden / 3, rounded up to a multiple of 256.
    """
    listed = cfg.get("block_configs")
    if not isinstance(listed, list):
        raise cfg.missing("block_configs") if listed is None else cfg.bad("block_configs", "list")
    cfg.ignore("num_key_value_heads", "intermediate_size")
    size = sizes(cfg, kv=())
    if len(listed) != size.layers:
        raise cfg.bad("block_configs", "length")
    bias, mlp_bias = cfg.flag("attention_bias"), cfg.flag("mlp_bias")
    act = activation(cfg, default="silu")
    kinds = []
    for index, raw in enumerate(listed):
        if not isinstance(raw, Mapping):
            raise cfg.bad("block_configs", "items")
        kinds.append(
            _pruned_layer(Config(raw, f"{cfg.path}block_configs[{index}].", cfg.notes), size.hidden, size.heads)
        )

    def make(kv: int, width: int) -> Block:
        mixer: Mixer = NoMixer()
        mlp: Mlp = NoMlp()
        tensors: Tensors = ()
        names: tuple[str, ...] = ()
        if kv > 0:
            mixer = Attention(
                heads=size.heads, kv_heads=kv, head_dim=size.head_dim, v_head_dim=size.head_dim, bias=bias
            )
            tensors += attention(mixer, size.hidden, out_bias=bias)
        elif kv < 0:
            tensors += linear("self_attn.linear_attn", size.hidden, size.hidden, "attention")
        names += ("input_layernorm",) if kv else ()
        if width > 0:
            mlp = DenseMlp(width=width, gated=True, activation=act, bias=mlp_bias)
            tensors += dense_mlp(mlp, size.hidden)
        elif width < 0:
            tensors += linear("mlp.linear_mlp", size.hidden, size.hidden, "mlp")
        names += ("post_attention_layernorm",) if width else ()
        return block(mixer, mlp, tensors, names, size.hidden)

    blocks, order = stack(kinds, make)
    return assemble(cfg, size, blocks, order, tie=tied(cfg, False))


def _pruned_layer(layer: Config, hidden: int, heads: int) -> tuple[int, int]:
    """KV heads and MLP width of one layer: 0 for none, -1 for one plain matrix instead."""
    att, ffn = layer.require_sub("attention"), layer.require_sub("ffn")
    if att.flag("no_op"):
        kv = 0
    elif att.flag("replace_with_linear"):
        kv = -1
    else:
        kv = att.divide("n_heads_in_group", heads, att.integer("n_heads_in_group", high=65_536))
    if ffn.flag("no_op"):
        return kv, 0
    if ffn.flag("replace_with_linear"):
        return kv, -1
    if not ffn.has("ffn_mult"):
        raise ffn.missing("ffn_mult")
    width = int(2 * ffn.number("ffn_mult", default=0.0, low=1e-6, high=1e3) * hidden / 3)
    return kv, -(-width // 256) * 256


def step3p5(cfg: Config) -> ModelShape:
    """Step 3.5 and 3.7: windows by ``layer_types``, a gate per head, experts after the first layers."""
    size = sizes(cfg, kv_required=True)
    words = {k: v for k, v in LAYER_WORDS.items() if v in ("full", "window")}
    kinds = cfg.layer_kinds(
        "layer_types",
        words,
        size.layers,
        spare=cfg.integer("num_nextn_predict_layers", default=0, low=0, high=64, silent=True),
    )
    window = cfg.integer("sliding_window")
    moe = experts(cfg, keys=("num_experts", "n_routed_experts"), shared_width=("share_expert_dim",))
    cfg.ignore("n_shared_experts")
    dense = DenseMlp(width=cfg.integer("intermediate_size"), gated=True, activation="silu")
    sparse = sparse_layers(cfg, size.layers, required="first_k_dense_replace")

    def make(kind: str, is_sparse: bool) -> Block:
        mixer = Attention(
            heads=size.heads,
            kv_heads=size.kv_heads,
            head_dim=size.head_dim,
            v_head_dim=size.head_dim,
            window=window if kind == "window" else None,
            qk_norm="head",
            output_gate=True,
        )
        tensors = attention(mixer, size.hidden, AttentionNames(gate="self_attn.g_proj"), gate_per_head=True)
        tensors += moe_mlp(moe, size.hidden) if is_sparse else dense_mlp(dense, size.hidden)
        return block(mixer, moe if is_sparse else dense, tensors, PRE, size.hidden)

    blocks, order = stack(list(zip(kinds, sparse, strict=True)), make)
    count = mtp_layers(cfg)
    mtp = deepseek_mtp(size, make("window", False), count) if count else ()
    return assemble(cfg, size, blocks, order, tie=tied(cfg, False), mtp=mtp, mtp_layers=count)


def persimmon(cfg: Config) -> ModelShape:
    size = sizes(cfg, kv=(), head_dim=())
    normed = cfg.flag("qk_layernorm", default=True)
    mixer = Attention(
        heads=size.heads,
        kv_heads=size.heads,
        head_dim=size.head_dim,
        v_head_dim=size.head_dim,
        bias=True,
        fused_qkv=True,
        rotary="partial",
        qk_norm="head" if normed else "none",
        dropout=cfg.number("attention_dropout", default=0.0, high=1.0),
    )
    mlp = DenseMlp(
        width=cfg.integer("intermediate_size"), gated=False, bias=True, activation=activation(cfg, default="relu2")
    )
    names = AttentionNames(
        qkv="self_attn.query_key_value",
        o="self_attn.dense",
        q_norm="self_attn.q_layernorm",
        k_norm="self_attn.k_layernorm",
    )
    tensors = (
        *attention(mixer, size.hidden, names, out_bias=True, norm_kind="layer"),
        *dense_mlp(mlp, size.hidden, MlpNames(up="mlp.dense_h_to_4h", down="mlp.dense_4h_to_h")),
    )
    one = block(
        mixer, mlp, tensors, PRE, size.hidden, "layer", dropout=cfg.number("hidden_dropout", default=0.0, high=1.0)
    )
    return assemble(
        cfg,
        size,
        (one,),
        (0,) * size.layers,
        tie=tied(cfg, False),
        norm_kind="layer",
        final_norm="model.final_layernorm",
    )
