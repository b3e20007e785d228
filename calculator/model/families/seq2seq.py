"""Encoder-decoders: T5 and its kin, Switch Transformers, Whisper.

Facts are those of the modelling code in the public transformers repository, release 5.24
(src/transformers/models/{t5,mt5,longt5,switch_transformers,whisper}).
"""

from __future__ import annotations

from typing import Literal

from calculator.model.build import (
    AttentionNames,
    MlpNames,
    MoeNames,
    Tensors,
    attention,
    block,
    dense_mlp,
    moe_mlp,
    norm,
    stack,
    table,
)
from calculator.model.config import MAX_LAYERS, Config
from calculator.model.decoder import ACTIVATIONS, Sizes, activation, assemble, context, tied
from calculator.model.shape import Activation, Attention, Block, DenseMlp, Mlp, ModelShape, MoeMlp
from calculator.model.towers.layers import Parts


def _feed_forward(cfg: Config) -> tuple[Activation, bool]:
    """ "gated-gelu" -> a gated MLP with the tanh form of GELU; "relu" -> a plain one. mT5's class gates by default."""
    default = "gated-gelu" if cfg.string("model_type", default="") in ("mt5", "umt5") else "relu"
    if not cfg.has("feed_forward_proj"):
        cfg.assume_default("feed_forward_proj", default)
    words = cfg.string("feed_forward_proj", default=default).split("-")
    if words[-1] not in ACTIVATIONS or len(words) > 2 or (len(words) == 2 and words[0] != "gated"):
        raise cfg.bad("feed_forward_proj", "choice")
    name = "gelu_new" if words == ["gated", "gelu"] else words[-1]
    return ACTIVATIONS[name], len(words) == 2


def _sparse_layers(cfg: Config, part: str, layers: int) -> tuple[bool, ...]:
    """Switch Transformers: every ``<part>_sparse_step``-th layer from the second on (1: all, 0: none). Without the
    step, it is the layers divided by ``num_sparse_<part>_layers``."""
    step = cfg.optional_int(f"{part}_sparse_step", low=0, high=MAX_LAYERS)
    count = cfg.integer(f"num_sparse_{part}_layers", default=3, low=0, high=MAX_LAYERS, silent=step is not None)
    if step is None:
        cfg.assume_default(f"{part}_sparse_step", layers // count if count else layers)
        step = layers // count if count else layers
    return tuple(step > 0 and (i % step == 1 or step == 1) for i in range(layers))


def t5(cfg: Config) -> ModelShape:
    return _t5(cfg)


def umt5(cfg: Config) -> ModelShape:
    """T5 with relative positions in every layer."""
    return _t5(cfg, positions_everywhere=True)


def long_t5(cfg: Config) -> ModelShape:
    kind = cfg.string("encoder_attention_type", default="local")
    if kind not in ("local", "transient-global"):
        raise cfg.bad("encoder_attention_type", "choice")
    return _t5(cfg, encoder_attention="LocalSelfAttention" if kind == "local" else "TransientGlobalSelfAttention")


def switch(cfg: Config) -> ModelShape:
    return _t5(cfg, sparse=True)


def _t5(
    cfg: Config, *, encoder_attention: str = "SelfAttention", sparse: bool = False, positions_everywhere: bool = False
) -> ModelShape:
    """RMS norms, no biases, a table of relative positions in each stack's first layer, one shared token table."""
    hidden = cfg.integer("d_model", high=2**20)
    layers = cfg.integer("num_layers", high=MAX_LAYERS)
    decoder_layers = cfg.integer("num_decoder_layers", default=layers, high=MAX_LAYERS)
    heads, head_dim = cfg.integer("num_heads", high=65_536), cfg.integer("d_kv", high=65_536)
    buckets = cfg.integer("relative_attention_num_buckets", default=32, silent=True)
    size = Sizes(hidden, decoder_layers, heads, heads, head_dim, cfg.integer("vocab_size"), context(cfg, "n_positions"))
    cfg.ignore("relative_attention_max_distance")
    act, gated = _feed_forward(cfg)
    drop = cfg.number("dropout_rate", default=0.1, high=1.0)
    dense = DenseMlp(width=cfg.integer("d_ff"), gated=gated, activation=act)
    moe = _switch_experts(cfg, dense, act) if sparse else None

    def attend(cross: bool, causal: bool) -> Attention:
        return Attention(
            heads=heads,
            kv_heads=heads,
            head_dim=head_dim,
            v_head_dim=head_dim,
            causal=causal,
            cross=cross,
            rotary="none",
            dropout=drop,
        )

    def tensors_of(mixer: Attention, at: str, first: bool) -> Tensors:
        found = attention(mixer, hidden, AttentionNames(*(f"{at}.{part}" for part in ("q", "k", "v", "o"))))
        if first:
            found += (
                table(f"{at}.relative_attention_bias.weight", buckets, heads, split="none", component="attention"),
            )
        return found

    def make(is_decoder: bool, first: bool, is_sparse: bool) -> Block:
        mixer = attend(False, is_decoder)
        name = "SelfAttention" if is_decoder else encoder_attention
        tensors = tensors_of(mixer, f"layer.0.{name}", first)
        cross = attend(True, True) if is_decoder else None
        if cross is not None:
            tensors += tensors_of(cross, "layer.1.EncDecAttention", False)
        if name == "TransientGlobalSelfAttention":
            tensors += norm(f"layer.0.{name}.global_input_layer_norm", hidden)
            if first:
                tensors += (
                    table(
                        f"layer.0.{name}.global_relative_attention_bias.weight",
                        buckets,
                        heads,
                        split="none",
                        component="attention",
                    ),
                )
        last = 2 if is_decoder else 1
        mlp: Mlp = moe if is_sparse and moe is not None else dense
        tensors += _t5_mlp(mlp, hidden, f"layer.{last}.")
        return block(
            mixer,
            mlp,
            tensors,
            tuple(f"layer.{i}.layer_norm" for i in range(last + 1)),
            hidden,
            dropout=drop,
            cross_attention=cross,
        )

    encoder_sparse = _sparse_layers(cfg, "encoder", layers) if sparse else (False,) * layers
    decoder_sparse = _sparse_layers(cfg, "decoder", decoder_layers) if sparse else (False,) * decoder_layers
    kinds = [(False, i == 0 or positions_everywhere, encoder_sparse[i]) for i in range(layers)]
    kinds += [(True, i == 0 or positions_everywhere, decoder_sparse[i]) for i in range(decoder_layers)]
    blocks, order = stack(kinds, make)
    shape = assemble(
        cfg,
        size,
        blocks,
        order[layers:],
        tie=tied(cfg, True),
        embed="shared",
        final_norm="decoder.final_layer_norm",
        prefix="decoder.",
        layer_prefix="decoder.block.{i}.",
        extra_final=norm("encoder.final_layer_norm", hidden),
        embedding_dropout=drop,
        loss_upcast=False,
    )
    return shape.model_copy(
        update={
            "kind": "encoder_decoder",
            "encoder_order": order[:layers],
            "encoder_layer_prefix": "encoder.block.{i}.",
        }
    )


def _t5_mlp(mlp: Mlp, hidden: int, at: str) -> Tensors:
    if isinstance(mlp, MoeMlp):
        lead = f"{at}mlp.experts.expert_{{e}}."
        return moe_mlp(
            mlp,
            hidden,
            MoeNames(
                router=f"{at}mlp.router.classifier",
                gate=f"{lead}wi_0",
                up=f"{lead}wi" if not mlp.gated else f"{lead}wi_1",
                down=f"{lead}wo",
            ),
            fused=False,
        )
    assert isinstance(mlp, DenseMlp)
    lead = f"{at}DenseReluDense."
    up = f"{lead}wi_1" if mlp.gated else f"{lead}wi"
    return dense_mlp(mlp, hidden, MlpNames(gate=f"{lead}wi_0", up=up, down=f"{lead}wo"))


def _switch_experts(cfg: Config, dense: DenseMlp, act: Activation) -> MoeMlp:
    if cfg.flag("router_bias", silent=True):
        raise cfg.bad("router_bias", "choice")
    return MoeMlp(
        experts=cfg.integer("num_experts", high=65_536),
        top_k=cfg.integer("num_selected_experts", default=1, high=65_536, silent=True),
        width=dense.width,
        gated=dense.gated,
        activation=act,
    )


def whisper(cfg: Config) -> ModelShape:
    """Two convolutions and a table of positions before the encoder; keys have no bias."""
    hidden = cfg.integer("d_model", "hidden_size", high=2**20)
    layers = cfg.integer("decoder_layers", high=MAX_LAYERS)
    encoder_layers = cfg.integer("encoder_layers", high=MAX_LAYERS)
    vocab = cfg.integer("vocab_size")
    cfg.ignore("num_hidden_layers", "classifier_proj_size")
    drop = cfg.number("dropout", default=0.0, high=1.0)
    act = activation(cfg, "activation_function", default="gelu")
    attn_drop = cfg.number("attention_dropout", default=0.0, high=1.0)

    def attend(side: Literal["encoder", "decoder"], cross: bool) -> Attention:
        heads = cfg.integer(f"{side}_attention_heads", high=65_536)
        head = cfg.divide(f"{side}_attention_heads", hidden, heads)
        return Attention(
            heads=heads,
            kv_heads=heads,
            head_dim=head,
            v_head_dim=head,
            causal=side == "decoder",
            cross=cross,
            bias=True,
            rotary="none",
            dropout=attn_drop,
        )

    def projections(mixer: Attention, at: str) -> Tensors:
        names = AttentionNames(*(f"{at}.{part}" for part in ("q_proj", "k_proj", "v_proj", "out_proj")))
        found = attention(mixer, hidden, names, out_bias=True)
        return tuple(t for t in found if t.name != f"{at}.k_proj.bias")

    def make(is_decoder: bool) -> Block:
        side: Literal["encoder", "decoder"] = "decoder" if is_decoder else "encoder"
        mixer = attend(side, False)
        mlp = DenseMlp(width=cfg.integer(f"{side}_ffn_dim"), gated=False, activation=act, bias=True)
        cross = attend("decoder", True) if is_decoder else None
        tensors = (
            *projections(mixer, "self_attn"),
            *(projections(cross, "encoder_attn") if cross else ()),
            *dense_mlp(mlp, hidden, MlpNames(up="fc1", down="fc2")),
        )
        names = ("self_attn_layer_norm", *(("encoder_attn_layer_norm",) if cross else ()), "final_layer_norm")
        return block(mixer, mlp, tensors, names, hidden, "layer", dropout=drop, cross_attention=cross)

    blocks, order = stack([(False,)] * encoder_layers + [(True,)] * layers, make)
    front = Parts("embedding", "model.encoder.").conv("conv1", hidden, cfg.integer("num_mel_bins"), 3)
    front.conv("conv2", hidden, hidden, 3)
    front.table("embed_positions.weight", cfg.integer("max_source_positions"), hidden)
    positions = cfg.integer("max_target_positions")
    heads = cfg.integer("decoder_attention_heads", high=65_536)
    size = Sizes(hidden, layers, heads, heads, hidden // heads, vocab, positions)
    shape = assemble(
        cfg,
        size,
        blocks,
        order[encoder_layers:],
        tie=tied(cfg, True),
        norm_kind="layer",
        final_norm="model.decoder.layer_norm",
        embed="model.decoder.embed_tokens",
        head="proj_out",
        prefix="model.decoder.",
        layer_prefix="model.decoder.layers.{i}.",
        extra_embedding=(table("model.decoder.embed_positions.weight", positions, hidden, split="none"), *front.done()),
        extra_final=norm("model.encoder.layer_norm", hidden, "layer"),
        loss_upcast=False,
    )
    return shape.model_copy(
        update={
            "kind": "encoder_decoder",
            "encoder_order": order[:encoder_layers],
            "encoder_layer_prefix": "model.encoder.layers.{i}.",
        }
    )
