"""Layers with two mixers: attention and Mamba-2 side by side (Falcon-H1), or a shared layer of attention before a Mamba
layer (Zamba, Zamba 2).

Facts are those of the modelling code in the public transformers repository, release 5.24
(src/transformers/models/{falcon_h1,zamba,zamba2}); names are those of the published checkpoints.
"""

from __future__ import annotations

from calculator.model.build import (
    AttentionNames,
    MlpNames,
    Tensors,
    attention,
    block,
    dense_mlp,
    linear,
    norm,
    stack,
)
from calculator.model.config import MAX_LAYERS, Config
from calculator.model.decoder import Sizes, activation, assemble, context, sizes, tied
from calculator.model.shape import Attention, Block, DenseMlp, ModelShape, NoMlp, StateMixer, Sublayer, Tensor
from calculator.model.state import conv, mamba2, mamba2_mixer, read_mamba1

FEED_FORWARD = MlpNames(*(f"feed_forward.{part}_proj" for part in ("gate", "up", "down", "gate_up")))


def falcon_h1(cfg: Config) -> ModelShape:
    """Every layer has attention and Mamba-2 over the same normed input, and a gated MLP. ``mamba_d_ssm`` is the inner
    width of the state-space part, which need not be a multiple of the hidden size."""
    size = sizes(cfg, kv_required=True)
    expanded = cfg.integer("mamba_expand", default=2, high=64, silent=True) * size.hidden
    inner = cfg.optional_int("mamba_d_ssm") or expanded
    heads = cfg.integer("mamba_n_heads", high=65_536)
    head = cfg.divide("mamba_n_heads", inner, heads, of="mamba_d_ssm")
    if cfg.get("mamba_d_head") != "auto" and cfg.integer("mamba_d_head", default=head, silent=True) != head:
        raise cfg.bad("mamba_d_head", "range")
    state = mamba2_mixer(
        heads,
        head,
        cfg.integer("mamba_d_state", high=65_536),
        cfg.integer("mamba_n_groups", high=65_536),
        cfg.integer("mamba_d_conv", high=1024),
    )
    cfg.ignore("mlp_expansion_factor", "mamba_use_mlp", "attn_layer_indices", "layer_types", "layers_block_type")
    bias = cfg.flag("attention_bias")
    softmax = Attention(
        heads=size.heads,
        kv_heads=size.kv_heads,
        head_dim=size.head_dim,
        v_head_dim=size.head_dim,
        bias=bias,
        dropout=cfg.number("attention_dropout", default=0.0, high=1.0),
    )
    mlp = DenseMlp(
        width=cfg.integer("intermediate_size"),
        gated=True,
        activation=activation(cfg, default="silu"),
        bias=cfg.flag("mlp_bias"),
    )
    tensors = (
        *attention(softmax, size.hidden, out_bias=bias),
        *mamba2(
            state,
            size.hidden,
            prefix="mamba.",
            bias=cfg.flag("mamba_proj_bias"),
            out_bias=cfg.flag("projectors_bias"),
            conv_bias=cfg.flag("mamba_conv_bias", default=True),
            gated_norm=cfg.flag("mamba_rms_norm"),
        ),
        *dense_mlp(mlp, size.hidden, FEED_FORWARD),
    )
    one = block(softmax, mlp, tensors, ("input_layernorm", "pre_ff_layernorm"), size.hidden, beside=state)
    return assemble(
        cfg, size, (one,), (0,) * size.layers, tie=tied(cfg, False), final_norm="model.final_layernorm",
    )  # fmt: skip


def _joined_attention(cfg: Config, hidden: int, heads: int) -> Attention:
    """Attention over the stream beside the embedding's output; its heads divide twice the hidden size."""
    kv_heads = cfg.optional_int("num_key_value_heads", high=65_536) or heads
    cfg.divide("num_key_value_heads", heads, kv_heads, of="num_attention_heads")
    head = cfg.optional_int("attention_head_dim", high=65_536)
    if head is None:
        head = cfg.divide("num_attention_heads", 2 * hidden, heads)
    cfg.ignore("kv_channels", "num_query_groups", "head_dim")
    if cfg.integer("attention_hidden_size", default=2 * hidden, silent=True) != 2 * hidden:
        raise cfg.bad("attention_hidden_size", "range")
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head,
        v_head_dim=head,
        rotary="full" if cfg.flag("use_mem_rope", silent=True) else "none",
        dropout=cfg.number("attention_dropout", default=0.0, high=1.0),
    )


def _shared_layer(at: str, softmax: Attention, mlp: DenseMlp, hidden: int) -> Tensors:
    """The weights of one shared layer. Its projections read twice the hidden size, and the last makes the hidden
    size."""
    names = AttentionNames(*(f"{at}self_attn.{part}_proj" for part in "qkvo"))
    projections = attention(softmax, 2 * hidden, names)[:-1]
    out = linear(names.o, hidden, softmax.heads * softmax.v_head_dim, "attention", split="row")
    return (
        *projections,
        *out,
        *dense_mlp(mlp, hidden, MlpNames(*(at + name for name in FEED_FORWARD))),
        *norm(f"{at}input_layernorm", 2 * hidden),
        *norm(f"{at}pre_ff_layernorm", hidden),
    )


def _kinds(cfg: Config, layers: int, default: tuple[str, ...]) -> tuple[str, ...]:
    words = {"hybrid": "hybrid", "linear_attention": "mamba", "mamba": "mamba"}
    key = "layers_block_type" if cfg.has("layers_block_type") else "layer_types"
    cfg.ignore("hybrid_layer_ids", "layers_block_type", "layer_types")
    kinds = cfg.layer_kinds(key, words, layers, default=default)
    if "hybrid" not in kinds:
        raise cfg.bad(key, "choice")
    return kinds


def zamba(cfg: Config) -> ModelShape:
    """Mamba-1 with several heads; one layer of attention, the same weights each time, before every sixth."""
    hidden = cfg.integer("hidden_size", high=2**20)
    layers = cfg.integer("num_hidden_layers", high=MAX_LAYERS)
    softmax = _joined_attention(cfg, hidden, cfg.integer("num_attention_heads", high=65_536))
    size = Sizes(hidden, layers, softmax.heads, softmax.kv_heads, softmax.head_dim, cfg.integer("vocab_size"),
                 context(cfg))  # fmt: skip
    mlp = DenseMlp(width=cfg.integer("intermediate_size"), gated=True, activation=activation(cfg, default="gelu"))
    period, offset = (
        cfg.integer("attn_layer_period", default=6, high=MAX_LAYERS),
        cfg.integer("attn_layer_offset", default=4, low=0),
    )
    usual = ["mamba", "mamba", "hybrid", *("hybrid" if i % period == offset else "mamba" for i in range(layers - 3))]
    kinds = _kinds(cfg, layers, tuple(usual[:layers]))
    state, rank = read_mamba1(
        cfg,
        hidden,
        inner=cfg.integer("mamba_expand", default=2, high=64) * hidden,
        state=("mamba_d_state",),
        kernel=("mamba_d_conv",),
        rank=("mamba_dt_rank",),
    )
    heads = cfg.integer("n_mamba_heads", high=65_536)
    cfg.divide("n_mamba_heads", state.inner, heads)
    bias, conv_bias = cfg.flag("mamba_proj_bias"), cfg.flag("mamba_conv_bias", default=True)

    def make(kind: str) -> Block:
        at = "mamba_decoder." if kind == "hybrid" else ""
        tensors = _headed_mamba1(state, hidden, rank, heads, f"{at}mamba.", bias=bias, conv_bias=conv_bias)
        before = None
        if kind == "hybrid":
            tensors += linear("linear", hidden, hidden, "attention")
            before = Sublayer(mixer=softmax, mlp=mlp, joined=True)
        return block(state, NoMlp(), tensors, (f"{at}input_layernorm",), hidden, before=before)

    blocks, order = stack([(kind,) for kind in kinds], make)
    shared = _shared_layer(f"model.layers.{kinds.index('hybrid')}.shared_transf.", softmax, mlp, hidden)
    return assemble(cfg, size, blocks, order, tie=tied(cfg, True), final_norm="model.final_layernorm", shared=shared)


def _headed_mamba1(
    m: StateMixer, hidden: int, rank: int, heads: int, prefix: str, *, bias: bool, conv_bias: bool
) -> Tensors:
    """Mamba-1 whose inner projections are one matrix for each of its heads."""
    head = m.inner // heads

    def plain(name: str, *shape: int) -> Tensor:
        return Tensor(name=prefix + name, shape=shape, component="ssm", kind="other", split="column")

    return (
        *linear(f"{prefix}in_proj", 2 * m.inner, hidden, "ssm", bias=bias, split="column"),
        *conv(f"{prefix}conv1d", m.inner, m.conv_kernel, bias=conv_bias),
        plain("x_proj_weight", heads, rank + 2 * m.state_size, head),
        plain("dt_proj_weight", heads, head, rank),
        plain("dt_proj_bias", heads, head),
        plain("A_log", heads, head, m.state_size),
        plain("D", heads, head),
        *linear(f"{prefix}out_proj", hidden, m.inner, "ssm", bias=bias, split="row"),
    )


USUAL_ZAMBA2 = (
    *("mamba",), *(*("mamba",) * 5, "hybrid") * 7, *("mamba",) * 4, "hybrid", *("mamba",) * 3, "hybrid",
    *("mamba",) * 2,
)  # fmt: skip
"""The class's own pattern, of 54 layers."""


def zamba2(cfg: Config) -> ModelShape:
    """Mamba-2; ``num_mem_blocks`` shared layers in turn, each use with adapters of its own on the MLP, and on q, k and
    v where ``use_shared_attention_adapter`` says so."""
    hidden = cfg.integer("hidden_size", high=2**20)
    layers = cfg.integer("num_hidden_layers", high=MAX_LAYERS)
    softmax = _joined_attention(cfg, hidden, cfg.integer("num_attention_heads", high=65_536))
    limit = 16_384 if cfg.flag("use_long_context", silent=True) else context(cfg)
    size = Sizes(hidden, layers, softmax.heads, softmax.kv_heads, softmax.head_dim, cfg.integer("vocab_size"), limit)
    width = cfg.optional_int("intermediate_size", "ffn_hidden_size") or 4 * hidden
    mlp = DenseMlp(
        width=width,
        gated=True,
        activation=activation(cfg, default="gelu"),
        fused_gate_up=True,
        bias=cfg.flag("add_bias_linear"),
    )
    kinds = _kinds(cfg, layers, USUAL_ZAMBA2 if layers == len(USUAL_ZAMBA2) else ())
    inner = cfg.integer("mamba_expand", default=2, high=64) * hidden
    heads = cfg.integer("n_mamba_heads", high=65_536)
    head = cfg.divide("n_mamba_heads", inner, heads)
    if cfg.integer("mamba_headdim", default=head, silent=True) != head:
        raise cfg.bad("mamba_headdim", "range")
    state = mamba2_mixer(
        heads,
        head,
        cfg.integer("mamba_d_state", high=65_536),
        cfg.integer("mamba_ngroups", high=65_536),
        cfg.integer("mamba_d_conv", high=1024),
    )
    adapted = cfg.flag("use_shared_attention_adapter", silent=True)
    cfg.ignore("use_shared_mlp_adapter")
    rank = cfg.integer("adapter_rank", "lora_rank", default=128)
    conv_bias, bias = cfg.flag("use_conv_bias", default=True), mlp.bias

    def adapter(name: str, source: int, out: int, component: str) -> Tensors:
        at = f"shared_transformer.{name}_adapter_list.{{i}}."
        kind = "attention" if component == "attention" else "mlp"
        return (*linear(f"{at}0", rank, source, kind), *linear(f"{at}1", out, rank, kind, split="column"))  # type: ignore[arg-type]

    def make(kind: str) -> Block:
        at = "mamba_decoder." if kind == "hybrid" else ""
        tensors = mamba2(state, hidden, prefix=f"{at}mamba.", bias=bias, conv_bias=conv_bias)
        before = None
        if kind == "hybrid":
            tensors += linear("linear", hidden, hidden, "attention")
            tensors += adapter("feed_forward.gate_up_proj", hidden, 2 * width, "mlp")
            for part in "qkv" if adapted else "":
                tensors += adapter(f"self_attn.linear_{part}", 2 * hidden, 2 * hidden, "attention")
            before = Sublayer(mixer=softmax, mlp=mlp, joined=True)
        return block(state, NoMlp(), tensors, (f"{at}input_layernorm",), hidden, before=before)

    blocks, order = stack([(kind,) for kind in kinds], make)
    count = cfg.integer("num_mem_blocks", default=1, high=64)
    places = [i for i, kind in enumerate(kinds) if kind == "hybrid"][:count]
    shared = tuple(
        t for i in places for t in _shared_layer(f"model.layers.{i}.shared_transformer.", softmax, mlp, hidden)
    )
    return assemble(cfg, size, blocks, order, tie=tied(cfg, True), final_norm="model.final_layernorm", shared=shared)
