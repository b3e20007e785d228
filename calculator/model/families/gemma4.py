"""Gemma 4's language model: windowed and full layers of different heads, shared caches, embeddings for each layer.

Facts are those of src/transformers/models/gemma4/modeling_gemma4.py in the public transformers repository, release
5.24.
"""

from __future__ import annotations

from calculator.model.build import (
    MoeNames,
    Tensors,
    attention,
    block,
    dense_mlp,
    linear,
    moe_mlp,
    norm,
    stack,
    table,
    vector,
)
from calculator.model.config import Config
from calculator.model.decoder import LAYER_WORDS, Sizes, activation, assemble, sizes, tied
from calculator.model.shape import Attention, Block, DenseMlp, ModelShape, MoeMlp
from calculator.model.sparse import experts

NORMS = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
WORDS = {k: v for k, v in LAYER_WORDS.items() if v in ("full", "window")}
MOE_NAMES = MoeNames(router="router.proj", gate_up="experts.gate_up_proj!", down="experts.down_proj!")


def gemma4_text(cfg: Config) -> ModelShape:
    size = sizes(cfg, kv_required=True, head_dim_default=256)
    kinds = cfg.layer_kinds("layer_types", WORDS, size.layers)
    window = cfg.integer("sliding_window")
    stated = bool(cfg.get("per_layer_config"))
    wide_head = cfg.integer("global_head_dim", default=size.head_dim, silent=stated)
    wide_kv = cfg.optional_int("num_global_key_value_heads", high=65_536) or size.kv_heads
    if "num_global_key_value_heads" not in cfg.raw and not stated:
        cfg.assume_default("num_global_key_value_heads", size.kv_heads)
    cfg.divide("num_global_key_value_heads", size.heads, wide_kv)
    k_eq_v = cfg.flag("attention_k_eq_v")
    sharing = cfg.integer("num_kv_shared_layers", default=0, low=0, high=size.layers - 1, silent=True)
    doubled = cfg.flag("use_double_wide_mlp")
    act = activation(cfg, "hidden_activation", "hidden_act", default="gelu_tanh")
    width = cfg.integer("intermediate_size")
    per_layer = cfg.integer("hidden_size_per_layer_input", low=0)
    bias = cfg.flag("attention_bias")
    moe = _experts(cfg, width)
    dropout = cfg.number("attention_dropout", default=0.0, high=1.0)

    def make(kind: str, shares: bool, head: int, kv: int) -> Block:
        far = kind == "full"
        mixer = Attention(
            heads=size.heads,
            kv_heads=kv,
            head_dim=head,
            v_head_dim=head,
            window=None if far else window,
            shares_kv=shares,
            k_eq_v=k_eq_v and far,
            qk_norm="head",
            bias=bias,
            rotary="partial" if far else "full",
            dropout=dropout,
        )
        mlp = DenseMlp(width=width * 2 if doubled and shares else width, gated=True, activation=act)
        tensors: Tensors = (
            *attention(mixer, size.hidden, out_bias=bias, no_kv=shares),
            *dense_mlp(mlp, size.hidden),
            *per_layer_tensors(per_layer, size.hidden),
        )
        names: tuple[str, ...] = NORMS
        if moe is not None:
            tensors += moe_mlp(moe, size.hidden, MOE_NAMES)
            tensors += (
                vector("router.scale", size.hidden, "router", kind="other"),
                vector("router.per_expert_scale", moe.experts, "router", kind="other"),
            )
            names += ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2")
        return block(mixer, moe or mlp, tensors, names, size.hidden, "rms", per_layer_width=per_layer)

    shared_from = size.layers - sharing
    # the wide layers' own KV heads count only where K and V are one projection
    wide = wide_head, wide_kv if k_eq_v else size.kv_heads
    heads = _per_layer_heads(cfg, [wide if kind == "full" else (size.head_dim, size.kv_heads) for kind in kinds])
    blocks, order = stack([(kind, i >= shared_from, *heads[i]) for i, kind in enumerate(kinds)], make)
    return assemble(
        cfg,
        size,
        blocks,
        order,
        tie=tied(cfg, True),
        final_softcap=cfg.has("final_logit_softcapping"),
        embedding_scaled=True,
        extra_embedding=per_layer_tables(cfg, size, per_layer),
    )


def _per_layer_heads(cfg: Config, usual: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Head size and KV heads of each layer; newer files state the exceptions in ``per_layer_config``, by layer."""
    overrides = cfg.sub("per_layer_config")
    if overrides is None:
        return usual
    found = list(usual)
    for key in overrides.raw:
        if not key.isdecimal() or int(key) >= len(usual):
            raise overrides.bad(key, "choice")
        layer = overrides.require_sub(key)
        head, kv = usual[int(key)]
        found[int(key)] = (
            layer.integer("head_dim", default=head, high=65_536, silent=True),
            layer.integer("num_key_value_heads", default=kv, high=65_536, silent=True),
        )
    return found


def _experts(cfg: Config, width: int) -> MoeMlp | None:
    """Experts beside the dense MLP, where ``enable_moe_block`` says so."""
    if not cfg.flag("enable_moe_block"):
        cfg.ignore("num_experts", "top_k_experts", "moe_intermediate_size", "expert_intermediate_size")
        return None
    moe = experts(
        cfg,
        act="gelu_tanh",
        keys=("num_experts",),
        top_k=("top_k_experts",),
        width=("moe_intermediate_size", "expert_intermediate_size"),
    )
    return moe.model_copy(update={"dense_width": width})


def per_layer_tensors(width: int, hidden: int) -> Tensors:
    if not width:
        return ()
    return (
        *linear("per_layer_input_gate", width, hidden, "mlp"),
        *linear("per_layer_projection", hidden, width, "mlp"),
        *norm("post_per_layer_input_norm", hidden),
    )


def per_layer_tables(cfg: Config, size: Sizes, width: int) -> Tensors:
    """One more table whose rows hold a vector for every layer."""
    if not width:
        cfg.ignore("vocab_size_per_layer_input")
        return ()
    rows = cfg.integer("vocab_size_per_layer_input", default=size.vocab)
    total = size.layers * width
    return (
        table("model.embed_tokens_per_layer.weight", rows, total),
        *linear("model.per_layer_model_projection", total, size.hidden, "embedding"),
        *norm("model.per_layer_projection_norm", width),
    )
