"""Decoders with one peculiarity each: DBRX, MiniCPM, MiMo-V2, Nemotron-NAS, DeepSeek-V4.

Facts are those of the modelling code in the public transformers repository, release 5.24, or of the modeling file in
the model's own hub repository where transformers has none.
"""

from __future__ import annotations

from collections.abc import Mapping

from calculator.model.build import (
    AttentionNames,
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
    vector,
)
from calculator.model.config import Config
from calculator.model.decoder import activation, assemble, sizes, tied
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
    Tensor,
)
from calculator.model.sparse import experts, sparse_layers
from calculator.text import text


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
    cfg.ignore("num_key_value_heads", "head_dim")
    size = sizes(cfg, kv=(), head_dim=("qk_rope_head_dim",))
    value = cfg.optional_int("v_head_dim") or cfg.divide("num_attention_heads", size.hidden, size.heads)
    mixer = LatentAttention(
        heads=size.heads,
        q_lora_rank=cfg.integer("q_lora_rank"),
        kv_lora_rank=cfg.integer("kv_lora_rank"),
        qk_nope_head_dim=cfg.integer("qk_nope_head_dim"),
        qk_rope_head_dim=cfg.integer("qk_rope_head_dim"),
        v_head_dim=value,
    )
    mlp = DenseMlp(width=cfg.integer("intermediate_size"), gated=True, activation=activation(cfg, default="silu"))
    one = block(mixer, mlp, (*latent_attention(mixer, size.hidden), *dense_mlp(mlp, size.hidden)), PRE, size.hidden)
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


def deepseek_v4(cfg: Config) -> ModelShape:
    """Shared-key attention over a window and compressed blocks, hyper-connections, grouped output projection.

    ``compress_ratios``: 0 a window only, 4 blocks of four with an indexer, 128 long blocks; one more entry for each MTP
    layer. How many bytes a token leaves behind depends on the block that it ends up in, so the cache is refused.
    """
    size = sizes(cfg, kv_required=True)
    window = cfg.integer("sliding_window")
    rank, out_rank = cfg.integer("q_lora_rank"), cfg.integer("o_lora_rank")
    groups = cfg.integer("o_groups", high=65_536)
    streams = cfg.integer("hc_mult", high=256)
    index_heads, index_dim = cfg.integer("index_n_heads", high=65_536), cfg.integer("index_head_dim", high=65_536)
    cfg.ignore("index_topk")
    count = mtp_layers(cfg)
    ratios = cfg.ints("compress_ratios", high=65_536)
    if ratios is None:
        raise cfg.missing("compress_ratios")
    if not size.layers <= len(ratios) <= size.layers + count:
        raise cfg.bad("compress_ratios", "length")
    cfg.ignore("qk_rope_head_dim", "num_hash_layers", "expert_dtype", "compress_rope_theta", "hc_sinkhorn_iters")
    moe = experts(cfg, act=activation(cfg, default="silu"), shared_count=("n_shared_experts",))
    inner = size.heads * size.head_dim
    inner_group = cfg.divide("o_groups", inner, groups)
    mixer = Attention(
        heads=size.heads,
        kv_heads=1,
        head_dim=size.head_dim,
        v_head_dim=size.head_dim,
        window=window,
        k_eq_v=True,
        sinks=True,
        rotary="partial",
    )
    cfg.divide("num_key_value_heads", 1, size.kv_heads)

    def compressor(prefix: str, ratio: int, width: int) -> Tensors:
        """Blocks of four overlap and keep two rows for each."""
        rows = 2 * width if ratio == 4 else width
        return (
            Tensor(name=f"{prefix}position_bias", shape=(ratio, rows), component="attention", kind="other"),
            *linear(f"{prefix}kv_proj", rows, size.hidden, "attention"),
            *linear(f"{prefix}gate_proj", rows, size.hidden, "attention"),
            *norm(f"{prefix}kv_norm", width),
        )

    def streams_of(prefix: str) -> Tensors:
        mixed = (2 + streams) * streams
        return (
            Tensor(name=f"{prefix}.fn", shape=(mixed, streams * size.hidden), component="other", kind="other"),
            vector(f"{prefix}.base", mixed, "other", kind="other"),
            vector(f"{prefix}.scale", 3, "other", kind="other"),
        )

    def make(ratio: int) -> Block:
        at = "self_attn."
        tensors: Tensors = (
            *linear(f"{at}q_a_proj", rank, size.hidden, "attention"),
            *norm(f"{at}q_a_norm", rank),
            *linear(f"{at}q_b_proj", inner, rank, "attention", split="column"),
            *linear(f"{at}kv_proj", size.head_dim, size.hidden, "attention"),
            *norm(f"{at}kv_norm", size.head_dim),
            *linear(f"{at}o_a_proj", groups * out_rank, inner_group, "attention", split="column"),
            *linear(f"{at}o_b_proj", size.hidden, groups * out_rank, "attention", split="row"),
            vector(f"{at}sinks", size.heads, "attention", kind="other", split="column"),
        )
        if ratio:
            tensors += compressor(f"{at}compressor.", ratio, size.head_dim)
        if ratio == 4:
            deep = f"{at}compressor.indexer."
            tensors += compressor(deep, ratio, index_dim)
            tensors += linear(f"{deep}q_b_proj", index_heads * index_dim, rank, "attention")
            tensors += linear(f"{deep}scorer.weights_proj", index_heads, size.hidden, "attention")
        tensors += moe_mlp(moe, size.hidden) + streams_of("attn_hc") + streams_of("ffn_hc")
        return block(mixer, moe, tensors, PRE, size.hidden)

    blocks, order = stack([(ratio,) for ratio in ratios[: size.layers]], make)
    ends = (
        Tensor(name="model.hc_head.hc_fn", shape=(streams, streams * size.hidden), component="other", kind="other"),
        vector("model.hc_head.hc_base", streams, "other", kind="other"),
        vector("model.hc_head.hc_scale", 1, "other", kind="other"),
    )
    mtp = deepseek_mtp(size, make(0), count, copies=False) if count else ()
    shape = assemble(cfg, size, blocks, order, tie=tied(cfg, False), extra_final=ends, mtp=mtp, mtp_layers=count)
    return shape.model_copy(update={"cache_refusal": text("shape.cache_refused", field="compress_ratios")})
