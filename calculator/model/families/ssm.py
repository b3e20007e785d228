"""State-space models and their hybrids with attention: Mamba, Falcon-Mamba, Jamba, Bamba, Granite 4, Nemotron-H.

Facts are those of the modelling code in the public transformers repository, release 5.24, and of the mamba_ssm package
for files without a model_type.
"""

from __future__ import annotations

from calculator.model.build import (
    AttentionNames,
    MlpNames,
    MoeNames,
    Tensors,
    attention,
    block,
    dense_mlp,
    linear,
    moe_mlp,
    norm,
    stack,
)
from calculator.model.config import MAX_LAYERS, Config
from calculator.model.decoder import LAYER_WORDS, Sizes, activation, assemble, context, sizes, tied
from calculator.model.mtp import as_mtp, mtp_layers
from calculator.model.shape import (
    Attention,
    Block,
    DenseMlp,
    Mixer,
    Mlp,
    ModelShape,
    MoeMlp,
    NoMixer,
    NoMlp,
    StateMixer,
)
from calculator.model.sparse import experts
from calculator.model.state import mamba1, mamba2, mamba2_mixer, read_mamba1


def _state_sizes(cfg: Config, hidden: tuple[str, ...], layers: tuple[str, ...], vocab: int) -> Sizes:
    """Sizes of a model without attention."""
    return Sizes(cfg.integer(*hidden, high=2**20), cfg.integer(*layers, high=MAX_LAYERS), 1, 1, 1, vocab, context(cfg))


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
    one = block(mixer, NoMlp(), tensors, ("norm",), size.hidden)
    return assemble(
        cfg,
        size,
        (one,),
        (0,) * size.layers,
        tie=tied(cfg, True),
        final_norm="backbone.norm_f",
        embed="backbone.embeddings",
        prefix="backbone.",
        layer_prefix="backbone.layers.{i}.",
    )


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
    one = block(mixer, NoMlp(), tensors, ("norm",), size.hidden)
    return assemble(
        cfg,
        size,
        (one,),
        (0,) * size.layers,
        tie=tied(cfg, False),
        final_norm="backbone.norm_f",
        embed="backbone.embeddings",
        prefix="backbone.",
        layer_prefix="backbone.layers.{i}.",
    )


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
    one = block(mixer, NoMlp(), tensors, ("norm",), size.hidden)
    return assemble(
        cfg,
        size,
        (one,),
        (0,) * size.layers,
        tie=tied(cfg, True, "tie_embeddings"),
        final_norm="backbone.norm_f",
        embed="backbone.embedding",
        prefix="backbone.",
        layer_prefix="backbone.layers.{i}.",
    )


def _attention(size: Sizes, cfg: Config, *, bias: bool = False, rotary: str = "full") -> Attention:
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
        kind: Mixer = _attention(size, cfg, rotary="none") if is_attention else mixer
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
        kind: Mixer = _attention(size, cfg, bias=bias, rotary="partial") if is_attention else mixer
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
        kind: Mixer = _attention(size, cfg, bias=bias, rotary=rotary) if word == "full" or mixer is None else mixer
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


WORDS = {
    **{word: word for word in ("mamba", "attention", "mlp", "moe")},
    "linear_attention": "mamba",
    "full_attention": "attention",
}
"""Words of Nemotron-H's lists, in the older and the newer spelling."""

PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def _nemotron_kinds(cfg: Config, pattern_key: str, list_key: str, layers: int | None) -> tuple[str, ...] | None:
    """One word per layer from a string of letters or a list of words."""
    if cfg.has(pattern_key):
        letters = cfg.string(pattern_key, default="")
        if not 0 < len(letters) <= MAX_LAYERS or set(letters) - set(PATTERN):
            raise cfg.bad(pattern_key, "choice")
        words = tuple(PATTERN[letter] for letter in letters)
        key = pattern_key
    elif cfg.has(list_key):
        words = cfg.layer_kinds(list_key, WORDS, len(cfg.strings(list_key) or ()))
        key = list_key
    else:
        return None
    if not words or (layers is not None and len(words) != layers):
        raise cfg.bad(key, "length")
    return words


def nemotron_h(cfg: Config) -> ModelShape:
    """Each layer is one thing: Mamba-2, attention, an MLP or experts, after one norm. No gate: squared ReLU."""
    layers = cfg.optional_int("num_hidden_layers", high=MAX_LAYERS)
    words = _nemotron_kinds(cfg, "hybrid_override_pattern", "layers_block_type", layers)
    if words is None:
        raise cfg.missing("hybrid_override_pattern", "layers_block_type")
    hidden = cfg.integer("hidden_size", high=2**20)
    heads = cfg.integer("num_attention_heads", high=65_536)
    kv = cfg.integer("num_key_value_heads", high=65_536)
    cfg.divide("num_key_value_heads", heads, kv)
    size = Sizes(
        hidden,
        len(words),
        heads,
        kv,
        cfg.integer("head_dim", "attention_head_dim"),
        cfg.integer("vocab_size"),
        context(cfg),
    )
    act = activation(cfg, "mlp_hidden_act", default="relu2")
    mixer = mamba2_mixer(
        cfg.integer("mamba_num_heads", high=65_536),
        cfg.integer("mamba_head_dim", high=65_536),
        cfg.integer("ssm_state_size", "mamba_d_state", high=65_536),
        cfg.integer("n_groups", high=65_536),
        cfg.integer("conv_kernel", high=1024),
    )
    mixer = mixer.model_copy(update={"state_dtype": cfg.string("mamba_ssm_cache_dtype", default="") or None})
    cfg.ignore("mamba_hidden_act", "expand", "time_step_rank", "mamba_d_state", "sliding_window", "attention_head_dim")
    bias, mlp_bias = cfg.flag("attention_bias"), cfg.flag("mlp_bias")
    dense = DenseMlp(width=cfg.integer("intermediate_size"), gated=False, activation=act, bias=mlp_bias)
    moe = _nemotron_experts(cfg, act) if "moe" in words else None
    if moe is None:
        cfg.ignore("n_routed_experts", "n_shared_experts", "moe_intermediate_size", "num_experts_per_tok")
        cfg.ignore("moe_shared_expert_intermediate_size", "moe_latent_size")

    def make(word: str) -> Block:
        if word == "mamba":
            return block(
                mixer,
                NoMlp(),
                mamba2(
                    mixer,
                    hidden,
                    bias=cfg.flag("mamba_proj_bias") or cfg.flag("use_bias"),
                    conv_bias=cfg.flag("use_conv_bias", default=True),
                ),
                ("norm",),
                hidden,
            )
        if word == "attention":
            att = _attention(size, cfg, bias=bias, rotary="none")
            names = AttentionNames("mixer.q_proj", "mixer.k_proj", "mixer.v_proj", "mixer.o_proj")
            return block(att, NoMlp(), attention(att, hidden, names, out_bias=bias), ("norm",), hidden)
        if word == "moe" and moe is not None:
            return block(NoMixer(), moe, _nemotron_moe_tensors(moe, hidden), ("norm",), hidden)
        mlp_names = MlpNames(up="mixer.up_proj", down="mixer.down_proj")
        return block(NoMixer(), dense, dense_mlp(dense, hidden, mlp_names), ("norm",), hidden)

    blocks, order = stack([(w,) for w in words], make)
    count = mtp_layers(cfg)
    mtp: Tensors = ()
    if count:
        mtp_words = _nemotron_kinds(cfg, "mtp_hybrid_override_pattern", "mtp_layers_block_type", None)
        if mtp_words is None:
            raise cfg.missing("mtp_hybrid_override_pattern")
        mtp = _nemotron_mtp(hidden, [make(word) for word in mtp_words], count)
    return assemble(
        cfg,
        size,
        blocks,
        order,
        tie=tied(cfg, False),
        final_norm="backbone.norm_f",
        embed="backbone.embeddings",
        prefix="backbone.",
        layer_prefix="backbone.layers.{i}.",
        mtp=mtp,
        mtp_layers=count,
    )


def _nemotron_experts(cfg: Config, act: str) -> MoeMlp:
    moe = experts(cfg, gated=False, shared_count=("n_shared_experts",), top_k=("num_experts_per_tok",))
    shared = cfg.integer("moe_shared_expert_intermediate_size", default=moe.shared_width, low=0)
    latent = cfg.optional_int("moe_latent_size") or 0
    if "moe_latent_size" not in cfg.raw:
        cfg.assume_default("moe_latent_size", "null")
    return moe.model_copy(update={"activation": act, "shared_width": shared, "latent": latent})


def _nemotron_moe_tensors(moe: MoeMlp, hidden: int) -> Tensors:
    names = MoeNames(
        router="mixer.gate",
        up="mixer.experts.{e}.up_proj",
        down="mixer.experts.{e}.down_proj",
        shared="mixer.shared_experts",
    )
    tensors = moe_mlp(moe, hidden, names)
    if moe.latent:
        tensors += linear("mixer.fc1_latent_proj", moe.latent, hidden, "mlp")
        tensors += linear("mixer.fc2_latent_proj", hidden, moe.latent, "mlp")
    return tensors


def _nemotron_mtp(hidden: int, layers: list[Block], count: int) -> Tensors:
    """Two norms and a joining projection before the first layer, a final norm after the last."""
    found: list[Tensors] = []
    for step in range(count):
        for number, layer in enumerate(layers):
            found.append(as_mtp(layer.tensors, f"mtp.layers.{step * len(layers) + number}."))
        found.append(
            as_mtp(
                (
                    *norm("enorm", hidden),
                    *norm("hnorm", hidden),
                    *linear("eh_proj", hidden, 2 * hidden, "mtp"),
                    *norm("final_layernorm", hidden),
                ),
                f"mtp.layers.{step * len(layers)}.",
            )
        )
    return tuple(t for group in found for t in group)
