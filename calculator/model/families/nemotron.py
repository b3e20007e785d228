"""Nemotron-H: layers that are each one thing, Mamba-2, attention, an MLP or experts.

Facts are those of the modelling code in the public transformers repository, release 5.24.
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
from calculator.model.decoder import Sizes, activation, assemble, context, tied
from calculator.model.families.ssm import plain_attention
from calculator.model.mtp import as_mtp, mtp_layers
from calculator.model.shape import (
    Block,
    DenseMlp,
    ModelShape,
    MoeMlp,
    NoMixer,
    NoMlp,
)
from calculator.model.sparse import experts
from calculator.model.state import mamba2, mamba2_mixer

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
            att = plain_attention(size, cfg, bias=bias, rotary="none")
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
