"""Llama 4's language model, and Llama 3.2 Vision's, whose extra layers attend to the picture.

Facts are those of the modelling code in the public transformers repository, release 5.24
(src/transformers/models/<model_type>/modeling_<model_type>.py).
"""

from __future__ import annotations

from calculator.model.build import (
    AttentionNames,
    MlpNames,
    MoeNames,
    attention,
    block,
    dense_mlp,
    moe_mlp,
    stack,
    table,
    vector,
)
from calculator.model.config import MAX_LAYERS, Config
from calculator.model.decoder import activation, assemble, every, sizes, tied
from calculator.model.families.llama import PRE
from calculator.model.shape import Attention, Block, DenseMlp, Mlp, ModelShape, NoMixer
from calculator.model.sparse import experts


def llama4(cfg: Config) -> ModelShape:
    """Chunked attention but for every fourth layer; experts in every n-th, one shared expert of the same width."""
    size = sizes(cfg, kv_required=True, head_dim_default=128)
    chunk = cfg.optional_int("attention_chunk_size")
    flags = cfg.ints("no_rope_layers", high=1)
    interval = cfg.integer("no_rope_layer_interval", "nope_layer_interval", default=4, high=MAX_LAYERS, silent=True)
    cfg.ignore("layer_types")
    if flags:
        if len(flags) != size.layers:
            raise cfg.bad("no_rope_layers", "length")
        kinds = tuple("full" if flag == 0 else "chunk" for flag in flags)
    else:
        kinds = every(interval, size.layers, "chunk", "full")
    listed = cfg.ints("moe_layers", high=size.layers - 1)
    step = cfg.integer("interleave_moe_layer_step", default=1, high=size.layers, silent=True)
    if listed is None:
        listed = tuple(range(step - 1, size.layers, step))
    bias = cfg.flag("attention_bias")
    act = activation(cfg, default="silu")
    moe = experts(cfg, act=act, keys=("num_local_experts",), width=("intermediate_size",))
    moe = moe.model_copy(update={"shared_experts": 1, "shared_width": moe.width})
    dense = DenseMlp(width=cfg.integer("intermediate_size_mlp"), gated=True, activation=act)
    names = MoeNames(
        router="feed_forward.router",
        gate_up="feed_forward.experts.gate_up_proj!",
        down="feed_forward.experts.down_proj!",
        shared="feed_forward.shared_expert",
    )
    mlp_names = MlpNames("feed_forward.gate_proj", "feed_forward.up_proj", "feed_forward.down_proj")

    def make(kind: str, is_sparse: bool) -> Block:
        mixer = Attention(
            heads=size.heads,
            kv_heads=size.kv_heads,
            head_dim=size.head_dim,
            v_head_dim=size.head_dim,
            bias=bias,
            chunk=chunk if kind == "chunk" else None,
            rotary="full" if kind == "chunk" else "none",
            dropout=cfg.number("attention_dropout", default=0.0, high=1.0),
        )
        mlp: Mlp = moe if is_sparse else dense
        tensors = attention(mixer, size.hidden, out_bias=bias)
        tensors += moe_mlp(moe, size.hidden, names) if is_sparse else dense_mlp(dense, size.hidden, mlp_names)
        return block(mixer, mlp, tensors, PRE, size.hidden)

    blocks, order = stack([(kind, i in listed) for i, kind in enumerate(kinds)], make)
    return assemble(cfg, size, blocks, order, tie=tied(cfg, False))


def mllama(cfg: Config) -> ModelShape:
    """Llama 3.1 with layers between that attend to the picture only: gated, and without a text cache."""
    size = sizes(cfg, kv_required=True)
    crossed = cfg.ints("cross_attention_layers", high=size.layers - 1)
    if crossed is None:
        raise cfg.missing("cross_attention_layers")
    mlp = DenseMlp(width=cfg.integer("intermediate_size"), gated=True, activation=activation(cfg, default="silu"))
    heads = {"heads": size.heads, "kv_heads": size.kv_heads, "head_dim": size.head_dim, "v_head_dim": size.head_dim}
    cross_names = AttentionNames(
        "cross_attn.q_proj",
        "cross_attn.k_proj",
        "cross_attn.v_proj",
        "cross_attn.o_proj",
        q_norm="cross_attn.q_norm",
        k_norm="cross_attn.k_norm",
    )

    def make(is_cross: bool) -> Block:
        if not is_cross:
            mixer = Attention.model_validate(heads)
            return block(mixer, mlp, (*attention(mixer, size.hidden), *dense_mlp(mlp, size.hidden)), PRE, size.hidden)
        cross = Attention.model_validate({**heads, "cross": True, "rotary": "none", "qk_norm": "head"})
        gates = tuple(vector(f"cross_attn_{part}_gate", 1, "attention", kind="other") for part in ("attn", "mlp"))
        tensors = (*attention(cross, size.hidden, cross_names), *dense_mlp(mlp, size.hidden), *gates)
        return block(NoMixer(), mlp, tensors, PRE, size.hidden, cross_attention=cross)

    blocks, order = stack([(i in crossed,) for i in range(size.layers)], make)
    shape = assemble(cfg, size, blocks, order, tie=tied(cfg, False))
    # eight more rows than the head: the tokens that stand for pictures
    wide = table(shape.embedding[0].name, size.vocab + 8, size.hidden)
    return shape.model_copy(update={"embedding": (wide,)})
