"""State-space models and their hybrids with attention: Mamba, Falcon-Mamba, Jamba, Bamba, Granite 4.

Facts are those of the modelling code in the public transformers repository, release 5.24, and of the mamba_ssm package
for files without a model_type.
"""

from __future__ import annotations

from calculator.model.build import (
    MlpNames,
    MoeNames,
    Tensors,
    attention,
    block,
    dense_mlp,
    moe_mlp,
    stack,
)
from calculator.model.config import MAX_LAYERS, Config
from calculator.model.decoder import LAYER_WORDS, Sizes, activation, assemble, context, sizes, tied
from calculator.model.shape import (
    Attention,
    Block,
    DenseMlp,
    Mixer,
    Mlp,
    ModelShape,
    MoeMlp,
    NoMlp,
    StateMixer,
)
from calculator.model.sparse import experts
from calculator.model.state import mamba1, mamba2, mamba2_mixer, read_mamba1


def _state_sizes(cfg: Config, hidden: tuple[str, ...], layers: tuple[str, ...], vocab: int) -> Sizes:
    """Sizes of a model without attention."""
    return Sizes(cfg.integer(*hidden, high=2**20), cfg.integer(*layers, high=MAX_LAYERS), 1, 1, 1, vocab, context(cfg))


def _backbone(
    cfg: Config, size: Sizes, mixer: StateMixer, tensors: Tensors, *, tie: bool, embed: str = "backbone.embeddings"
) -> ModelShape:
    """Layers that are a norm and a mixer."""
    one = block(mixer, NoMlp(), tensors, ("norm",), size.hidden)
    return assemble(
        cfg,
        size,
        (one,),
        (0,) * size.layers,
        tie=tie,
        final_norm="backbone.norm_f",
        embed=embed,
        prefix="backbone.",
        layer_prefix="backbone.layers.{i}.",
    )


def mamba(cfg: Config) -> ModelShape:
    """Mamba-1 in the transformers layout: every layer is a norm and a mixer."""
    size = _state_sizes(cfg, ("hidden_size",), ("num_hidden_layers",), cfg.integer("vocab_size"))
    inner = cfg.integer("intermediate_size")
    cfg.ignore("expand", "ssm_cfg", "d_model", "n_layer", "d_inner", "pad_vocab_size_multiple")
    mixer, rank = read_mamba1(
        cfg, size.hidden, inner=inner, state=("state_size",), kernel=("conv_kernel",), rank=("time_step_rank",)
    )
    tensors = mamba1(
        mixer, size.hidden, rank, bias=cfg.flag("use_bias"), conv_bias=cfg.flag("use_conv_bias", default=True)
    )
    return _backbone(cfg, size, mixer, tensors, tie=tied(cfg, True))


def mamba_2(cfg: Config) -> ModelShape:
    """Mamba-2 in the transformers layout."""
    size = _state_sizes(cfg, ("hidden_size",), ("num_hidden_layers",), cfg.integer("vocab_size"))
    heads, head = cfg.integer("num_heads", high=65_536), cfg.integer("head_dim", high=65_536)
    if heads * head != cfg.integer("expand", high=64) * size.hidden:
        raise cfg.bad("num_heads", "range")
    mixer = mamba2_mixer(
        heads,
        head,
        cfg.integer("state_size", high=65_536),
        cfg.integer("n_groups", high=65_536),
        cfg.integer("conv_kernel", high=1024),
    )
    tensors = mamba2(mixer, size.hidden, bias=cfg.flag("use_bias"), conv_bias=cfg.flag("use_conv_bias", default=True))
    return _backbone(cfg, size, mixer, tensors, tie=tied(cfg, False))


def mamba_ssm(cfg: Config) -> ModelShape:
    """Files of the mamba_ssm package: no model_type, ``d_model``, ``n_layer``, ``ssm_cfg``, a vocabulary to be padded.

    The package's defaults: state 128 (Mamba-2) or 16 (Mamba-1), head 64, expansion 2, kernel 4, one group.
    """
    multiple = cfg.integer("pad_vocab_size_multiple", default=8, high=65_536)
    raw_vocab = cfg.integer("vocab_size")
    size = _state_sizes(cfg, ("d_model",), ("n_layer",), -(-raw_vocab // multiple) * multiple)
    inner_cfg = cfg.require_sub("ssm_cfg")
    if cfg.ints("attn_layer_idx") or cfg.integer("d_intermediate", default=0, low=0, silent=True):
        raise cfg.bad("attn_layer_idx" if cfg.ints("attn_layer_idx") else "d_intermediate", "choice")
    version = inner_cfg.string("layer", default="Mamba1")
    if not inner_cfg.has("layer"):
        inner_cfg.assume_default("layer", version)
    if version not in ("Mamba1", "Mamba2"):
        raise inner_cfg.bad("layer", "choice")
    inner = inner_cfg.integer("expand", default=2, high=64, silent=True) * size.hidden
    kernel = inner_cfg.integer("d_conv", default=4, high=1024, silent=True)
    state = inner_cfg.integer("d_state", default=128 if version == "Mamba2" else 16, high=65_536)
    if version == "Mamba2":
        head = inner_cfg.integer("headdim", default=64, high=65_536)
        mixer = mamba2_mixer(
            inner_cfg.divide("headdim", inner, head),
            head,
            state,
            inner_cfg.integer("ngroups", default=1, high=65_536, silent=True),
            kernel,
        )
        tensors = mamba2(mixer, size.hidden)
    else:
        mixer = StateMixer(
            variant="mamba1",
            conv_channels=inner,
            conv_kernel=kernel,
            state_elements=inner * state,
            inner=inner,
            state_size=state,
        )
        tensors = mamba1(mixer, size.hidden, -(-size.hidden // 16))
    return _backbone(cfg, size, mixer, tensors, tie=tied(cfg, True, "tie_embeddings"), embed="backbone.embedding")


def plain_attention(size: Sizes, cfg: Config, *, bias: bool = False, rotary: str = "full") -> Attention:
    """Softmax attention of a hybrid, by the usual sizes."""
    return Attention.model_validate(
        {
            "heads": size.heads,
            "kv_heads": size.kv_heads,
            "head_dim": size.head_dim,
            "v_head_dim": size.head_dim,
            "bias": bias,
            "rotary": rotary,
            "dropout": cfg.number("attention_dropout", default=0.0, high=1.0),
        }
    )


def jamba(cfg: Config) -> ModelShape:
    """Mamba-1 with an attention layer per period, and experts in every second MLP."""
    size = sizes(cfg, kv_required=True)
    period, offset = cfg.integer("attn_layer_period", high=MAX_LAYERS), cfg.integer("attn_layer_offset", low=0)
    e_period, e_offset = cfg.integer("expert_layer_period", high=MAX_LAYERS), cfg.integer("expert_layer_offset", low=0)
    act = activation(cfg, default="silu")
    moe = experts(cfg, act=act, width=("intermediate_size",))
    dense = DenseMlp(width=moe.width, gated=True, activation=act)
    cfg.ignore("sliding_window")
    mixer, rank = read_mamba1(
        cfg,
        size.hidden,
        inner=cfg.integer("mamba_expand", high=64) * size.hidden,
        state=("mamba_d_state",),
        kernel=("mamba_d_conv",),
        rank=("mamba_dt_rank",),
    )
    names = MoeNames(
        router="feed_forward.router",
        gate="feed_forward.experts.{e}.gate_proj",
        up="feed_forward.experts.{e}.up_proj",
        down="feed_forward.experts.{e}.down_proj",
    )
    mlp_names = MlpNames("feed_forward.gate_proj", "feed_forward.up_proj", "feed_forward.down_proj")
    conv_bias, bias = cfg.flag("mamba_conv_bias", default=True), cfg.flag("mamba_proj_bias")

    def make(is_attention: bool, is_sparse: bool) -> Block:
        kind: Mixer = plain_attention(size, cfg, rotary="none") if is_attention else mixer
        tensors: Tensors = (
            attention(kind, size.hidden)
            if isinstance(kind, Attention)
            else mamba1(mixer, size.hidden, rank, prefix="mamba.", bias=bias, conv_bias=conv_bias, inner_norms=True)
        )
        mlp: Mlp = moe if is_sparse and moe.experts > 1 else dense
        tensors += (
            moe_mlp(moe, size.hidden, names) if isinstance(mlp, MoeMlp) else dense_mlp(dense, size.hidden, mlp_names)
        )
        return block(kind, mlp, tensors, ("input_layernorm", "pre_ff_layernorm"), size.hidden)

    kinds = [(i % period == offset, i % e_period == e_offset) for i in range(size.layers)]
    blocks, order = stack(kinds, make)
    return assemble(cfg, size, blocks, order, tie=tied(cfg, False), final_norm="model.final_layernorm")


def _mamba2_by_keys(cfg: Config, hidden: int) -> StateMixer:
    """Bamba's and Granite's ``mamba_*`` keys; a head size of "auto" is expansion x hidden / heads."""
    heads = cfg.integer("mamba_n_heads", high=65_536)
    expand = cfg.integer("mamba_expand", default=2, high=64, silent=True)
    if cfg.get("mamba_d_head") == "auto":
        head = cfg.divide("mamba_n_heads", expand * hidden, heads)
    else:
        head = cfg.integer("mamba_d_head", high=65_536)
    if heads * head != expand * hidden:
        raise cfg.bad("mamba_n_heads", "divisible")
    cfg.ignore("mamba_dt_rank")
    return mamba2_mixer(
        heads,
        head,
        cfg.integer("mamba_d_state", high=65_536),
        cfg.integer("mamba_n_groups", high=65_536),
        cfg.integer("mamba_d_conv", high=1024),
    )


def bamba(cfg: Config) -> ModelShape:
    """Mamba-2 with attention at the listed layers, a gated MLP in all."""
    size = sizes(cfg, kv_required=True)
    mixer = _mamba2_by_keys(cfg, size.hidden)
    dense = DenseMlp(
        width=cfg.integer("intermediate_size"),
        gated=True,
        activation=activation(cfg, default="silu"),
        bias=cfg.flag("mlp_bias"),
    )
    bias = cfg.flag("attention_bias")
    listed = cfg.ints("attn_layer_indices", high=size.layers - 1)
    if listed is None:
        raise cfg.missing("attn_layer_indices")
    mlp_names = MlpNames("feed_forward.gate_proj", "feed_forward.up_proj", "feed_forward.down_proj")
    conv_bias, proj_bias = cfg.flag("mamba_conv_bias", default=True), cfg.flag("mamba_proj_bias")

    def make(is_attention: bool) -> Block:
        kind: Mixer = plain_attention(size, cfg, bias=bias, rotary="partial") if is_attention else mixer
        tensors = (
            attention(kind, size.hidden, out_bias=bias)
            if isinstance(kind, Attention)
            else mamba2(mixer, size.hidden, prefix="mamba.", bias=proj_bias, conv_bias=conv_bias)
        )
        return block(
            kind,
            dense,
            (*tensors, *dense_mlp(dense, size.hidden, mlp_names)),
            ("input_layernorm", "pre_ff_layernorm"),
            size.hidden,
        )

    blocks, order = stack([(i in listed,) for i in range(size.layers)], make)
    return assemble(cfg, size, blocks, order, tie=tied(cfg, False), final_norm="model.final_layernorm")


def granite_hybrid(cfg: Config) -> ModelShape:
    """Granite 4: Mamba-2 or attention by ``layer_types``; a shared MLP always, experts beside it if there are any."""
    size = sizes(cfg, kv_required=True)
    act = activation(cfg, default="silu")
    words = {k: v for k, v in LAYER_WORDS.items() if v in ("full", "mamba")}
    kinds = cfg.layer_kinds("layer_types", {**words, "linear_attention": "mamba"}, size.layers)
    mixer = _mamba2_by_keys(cfg, size.hidden) if "mamba" in kinds else None
    shared = cfg.integer("shared_intermediate_size")
    bias = cfg.flag("attention_bias")
    count = cfg.integer("num_local_experts", low=0, high=65_536)
    shared_names = MlpNames(gate_up="shared_mlp.input_linear", down="shared_mlp.output_linear")
    names = MoeNames(
        router="block_sparse_moe.router.layer",
        gate_up="block_sparse_moe.input_linear",
        down="block_sparse_moe.output_linear",
    )
    if count:
        mlp: Mlp = experts(cfg, act=act, width=("intermediate_size",), shared_width=("shared_intermediate_size",))
    else:
        mlp = DenseMlp(width=shared, gated=True, activation=act, fused_gate_up=True)
        cfg.ignore("num_experts_per_tok", "intermediate_size")
    rotary = "none" if cfg.string("position_embedding_type", default="rope") == "nope" else "full"

    def make(word: str) -> Block:
        kind: Mixer = plain_attention(size, cfg, bias=bias, rotary=rotary) if word == "full" or mixer is None else mixer
        tensors = (
            attention(kind, size.hidden, out_bias=bias)
            if isinstance(kind, Attention)
            else mamba2(
                kind,
                size.hidden,
                prefix="mamba.",
                bias=cfg.flag("mamba_proj_bias"),
                conv_bias=cfg.flag("mamba_conv_bias", default=True),
            )
            if isinstance(kind, StateMixer)
            else ()
        )
        tensors += (
            moe_mlp(mlp, size.hidden, names, shared_names=shared_names, shared_fused=True)
            if isinstance(mlp, MoeMlp)
            else dense_mlp(mlp, size.hidden, shared_names)
            if isinstance(mlp, DenseMlp)
            else ()
        )
        return block(kind, mlp, tensors, ("input_layernorm", "post_attention_layernorm"), size.hidden)

    blocks, order = stack([(k,) for k in kinds], make)
    return assemble(cfg, size, blocks, order, tie=tied(cfg, False))
