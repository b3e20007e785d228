"""Hybrids of attention and linear mixers: Qwen3-Next, Qwen3.5, Kimi Linear, LFM2.

Facts are those of the modelling code in the public transformers repository, release 5.24; tensor names are those of the
published checkpoints.
"""

from __future__ import annotations

from calculator.model.build import (
    AttentionNames,
    MlpNames,
    MoeNames,
    attention,
    block,
    dense_mlp,
    latent_attention,
    moe_mlp,
    stack,
)
from calculator.model.config import MAX_LAYERS, Config
from calculator.model.decoder import LAYER_WORDS, activation, assemble, every, sizes, tied
from calculator.model.families.moe import QWEN_NAMES, read_latent
from calculator.model.mtp import joined_mtp, mtp_layers
from calculator.model.shape import (
    Attention,
    Block,
    DenseMlp,
    Mlp,
    ModelShape,
    MoeMlp,
)
from calculator.model.sparse import experts, sparse_layers
from calculator.model.state import (
    delta_attention,
    delta_attention_mixer,
    gated_delta,
    read_gated_delta,
    short_conv,
    split_gated_delta,
)

PRE = ("input_layernorm", "post_attention_layernorm")
LINEAR_WORDS = {k: v for k, v in LAYER_WORDS.items() if v in ("full", "linear")}


def qwen3_next(cfg: Config) -> ModelShape:
    return _qwen_hybrid(cfg, joined=True)


def qwen3_5(cfg: Config) -> ModelShape:
    return _qwen_hybrid(cfg, joined=False)


def _qwen_hybrid(cfg: Config, *, joined: bool) -> ModelShape:
    """Gated delta nets with a gated full-attention layer at every fourth place; dense or with experts."""
    size = sizes(cfg, kv_required=True, head_dim_default=256)
    interval = cfg.integer("full_attention_interval", default=4, high=MAX_LAYERS, silent=True)
    kinds = cfg.layer_kinds(
        "layer_types", LINEAR_WORDS, size.layers, default=every(interval, size.layers, "linear", "full")
    )
    mixer = read_gated_delta(cfg)
    bias = cfg.flag("attention_bias")
    act = activation(cfg, default="silu")
    cfg.ignore("use_sliding_window", "sliding_window", "max_window_layers")
    if cfg.has("moe_intermediate_size") and not cfg.has("num_experts"):
        raise cfg.missing("num_experts")
    has_experts = cfg.has("num_experts") and cfg.integer("num_experts", low=0, high=65_536) > 0
    sparse = sparse_layers(cfg, size.layers) if has_experts else (False,) * size.layers
    moe = (
        experts(cfg, act=act, shared_width=("shared_expert_intermediate_size",), shared_gate=True)
        if has_experts
        else None
    )
    if all(sparse):
        cfg.ignore("intermediate_size")
        dense = None
    else:
        dense = DenseMlp(width=cfg.integer("intermediate_size"), gated=True, activation=act)
    full = Attention(
        heads=size.heads,
        kv_heads=size.kv_heads,
        head_dim=size.head_dim,
        v_head_dim=size.head_dim,
        qk_norm="head",
        bias=bias,
        output_gate=True,
        rotary="partial",
        dropout=cfg.number("attention_dropout", default=0.0, high=1.0),
    )

    def make(word: str, is_sparse: bool) -> Block:
        tensors = (
            attention(full, size.hidden, out_bias=bias)
            if word == "full"
            else gated_delta(mixer, size.hidden, joined=joined)
        )
        mlp: Mlp | None = moe if is_sparse else dense
        assert mlp is not None
        tensors += (
            moe_mlp(mlp, size.hidden, QWEN_NAMES)
            if isinstance(mlp, MoeMlp)
            else dense_mlp(mlp, size.hidden)
            if isinstance(mlp, DenseMlp)
            else ()
        )
        return block(full if word == "full" else mixer, mlp, tensors, PRE, size.hidden, "rms_unit_offset")

    blocks, order = stack(list(zip(kinds, sparse, strict=True)), make)
    count = mtp_layers(cfg, "mtp_num_hidden_layers", "num_nextn_predict_layers")
    mtp = (
        joined_mtp(
            size, make("full", sparse[-1]), count, dedicated=cfg.flag("mtp_use_dedicated_embeddings", silent=True)
        )
        if count
        else ()
    )
    return assemble(
        cfg, size, blocks, order, tie=tied(cfg, False), norm_kind="rms_unit_offset", mtp=mtp, mtp_layers=count
    )


def olmo_hybrid(cfg: Config) -> ModelShape:
    """OLMo 2's post-norm attention layers among pre-norm gated delta nets."""
    size = sizes(cfg, kv_required=True)
    kinds = cfg.layer_kinds("layer_types", LINEAR_WORDS, size.layers)
    state = read_gated_delta(cfg)
    bias = cfg.flag("attention_bias")
    mlp = DenseMlp(width=cfg.integer("intermediate_size"), gated=True, activation=activation(cfg, default="silu"))
    full = Attention(
        heads=size.heads,
        kv_heads=size.kv_heads,
        head_dim=size.head_dim,
        v_head_dim=size.head_dim,
        qk_norm="full",
        bias=bias,
    )

    def make(word: str) -> Block:
        if word == "full":
            tensors = (*attention(full, size.hidden, out_bias=bias), *dense_mlp(mlp, size.hidden))
            return block(full, mlp, tensors, ("post_attention_layernorm", "post_feedforward_layernorm"), size.hidden)
        tensors = (*split_gated_delta(state, size.hidden), *dense_mlp(mlp, size.hidden))
        return block(state, mlp, tensors, PRE, size.hidden)

    blocks, order = stack([(k,) for k in kinds], make)
    return assemble(cfg, size, blocks, order, tie=tied(cfg, False))


def kimi_linear(cfg: Config) -> ModelShape:
    """Kimi delta attention with MLA at the listed layers (numbered from one)."""
    cfg.ignore("num_key_value_heads", "head_dim", "mla_use_nope", "layer_types", "linear_head_dim", "linear_num_heads")
    size = sizes(cfg, kv=(), head_dim=("qk_rope_head_dim",))
    inner = cfg.require_sub("linear_attn_config")
    delta_layers = inner.ints("kda_layers", low=1, high=size.layers)
    full_layers = inner.ints("full_attn_layers", low=1, high=size.layers)
    if delta_layers is None:
        raise inner.missing("kda_layers")
    if full_layers is not None and sorted((*delta_layers, *full_layers)) != list(range(1, size.layers + 1)):
        raise inner.bad("kda_layers", "length")
    state = delta_attention_mixer(
        inner.integer("num_heads", high=65_536),
        inner.integer("head_dim", high=65_536),
        inner.integer("short_conv_kernel_size", default=4, high=1024),
    )
    latent = read_latent(cfg, size.heads)
    act = activation(cfg, default="silu")
    sparse = sparse_layers(cfg, size.layers)
    moe = experts(
        cfg, act=act, top_k=("num_experts_per_token", "num_experts_per_tok"), shared_count=("num_shared_experts",)
    )
    dense = DenseMlp(width=cfg.integer("intermediate_size"), gated=True, activation=act)
    names = MoeNames(
        router="block_sparse_moe.gate",
        gate="block_sparse_moe.experts.{e}.w1",
        up="block_sparse_moe.experts.{e}.w3",
        down="block_sparse_moe.experts.{e}.w2",
        shared="block_sparse_moe.shared_experts",
    )

    def make(is_delta: bool, is_sparse: bool) -> Block:
        tensors = delta_attention(state, size.hidden) if is_delta else latent_attention(latent, size.hidden)
        tensors += moe_mlp(moe, size.hidden, names) if is_sparse else dense_mlp(dense, size.hidden)
        return block(state if is_delta else latent, moe if is_sparse else dense, tensors, PRE, size.hidden)

    kinds = [(i + 1 in delta_layers, sparse[i]) for i in range(size.layers)]
    blocks, order = stack(kinds, make)
    return assemble(cfg, size, blocks, order, tie=tied(cfg, False))


LFM2_ATTENTION = AttentionNames(o="self_attn.out_proj", q_norm="self_attn.q_layernorm", k_norm="self_attn.k_layernorm")
LFM2_MLP = MlpNames("feed_forward.w1", "feed_forward.w3", "feed_forward.w2")


def lfm2(cfg: Config) -> ModelShape:
    """Short convolutions with attention at the listed layers; the stated width is cut to two thirds and rounded."""
    width = cfg.integer("intermediate_size", "block_ff_dim")
    if cfg.has("intermediate_size") and cfg.has("block_ff_dim"):
        width = cfg.integer("block_ff_dim")
    if cfg.flag("block_auto_adjust_ff_dim", default=True):
        width = int(2 * width / 3)
        width = int(cfg.number("block_ffn_dim_multiplier", default=1.0, high=100) * width)
        multiple = cfg.integer("block_multiple_of", default=256, high=65_536)
        width = -(-width // multiple) * multiple
    dense = DenseMlp(width=width, gated=True, activation="silu")
    return _lfm2(cfg, dense, None)


def lfm2_moe(cfg: Config) -> ModelShape:
    dense = DenseMlp(width=cfg.integer("intermediate_size"), gated=True, activation="silu")
    cfg.ignore("use_expert_bias")
    return _lfm2(cfg, dense, experts(cfg))


def _lfm2(cfg: Config, dense: DenseMlp, moe: MoeMlp | None) -> ModelShape:
    size = sizes(cfg, kv_required=True, head_dim=())
    cfg.ignore("num_heads", "block_dim", "conv_dim", "conv_dim_out")
    listed = cfg.ints("full_attn_idxs", high=size.layers - 1)
    if listed is not None:
        kinds: tuple[str, ...] = tuple("full" if i in listed else "conv" for i in range(size.layers))
        cfg.ignore("layer_types")
    else:
        if not cfg.has("layer_types"):
            raise cfg.missing("layer_types", "full_attn_idxs")
        words = {k: v for k, v in LAYER_WORDS.items() if v in ("full", "conv")}
        kinds = cfg.layer_kinds("layer_types", words, size.layers)
    kernel = cfg.integer("conv_L_cache", high=1024)
    state, state_tensors = short_conv(size.hidden, kernel, bias=cfg.flag("conv_bias"))
    full = Attention(
        heads=size.heads, kv_heads=size.kv_heads, head_dim=size.head_dim, v_head_dim=size.head_dim, qk_norm="head"
    )
    sparse = sparse_layers(cfg, size.layers, required="num_dense_layers") if moe is not None else (False,) * size.layers
    names = MoeNames(
        router="feed_forward.gate",
        gate="feed_forward.experts.{e}.w1",
        up="feed_forward.experts.{e}.w3",
        down="feed_forward.experts.{e}.w2",
    )

    def make(word: str, is_sparse: bool) -> Block:
        tensors = attention(full, size.hidden, LFM2_ATTENTION) if word == "full" else state_tensors
        if is_sparse and moe is not None:
            tensors += moe_mlp(moe, size.hidden, names)
        else:
            tensors += dense_mlp(dense, size.hidden, LFM2_MLP)
        return block(
            full if word == "full" else state,
            moe if is_sparse and moe else dense,
            tensors,
            ("operator_norm", "ffn_norm"),
            size.hidden,
        )

    blocks, order = stack(list(zip(kinds, sparse, strict=True)), make)
    return assemble(
        cfg,
        size,
        blocks,
        order,
        tie=tied(cfg, True, "tie_word_embeddings", "tie_embedding"),
        final_norm="model.embedding_norm",
    )
