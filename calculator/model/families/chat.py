"""Families whose modelling code travels with the checkpoint: Qwen (first), ChatGLM, Phi-3-small.

Facts are those of the modeling_*.py files in the families' own hub repositories.
"""

from __future__ import annotations

from calculator.model.build import AttentionNames, MlpNames, attention, block, dense_mlp
from calculator.model.config import Config
from calculator.model.decoder import assemble, sizes, tied
from calculator.model.shape import Attention, Block, DenseMlp, ModelShape, NormKind
from calculator.model.towers import other


def qwen(cfg: Config) -> ModelShape:
    """The first Qwen: ``intermediate_size`` (``ffn_hidden_size``) is twice the MLP's width; qkv has a bias."""
    size = sizes(
        cfg,
        hidden=("hidden_size", "n_embd"),
        layers=("num_hidden_layers", "n_layer"),
        heads=("num_attention_heads", "n_head"),
        kv=(),
        head_dim=("kv_channels",),
        vocab=("padded_vocab_size", "vocab_size"),
    )
    doubled = cfg.integer("intermediate_size", "ffn_hidden_size")
    bias = not cfg.flag("no_bias", default=True)
    mixer = Attention(
        heads=size.heads,
        kv_heads=size.heads,
        head_dim=size.head_dim,
        v_head_dim=size.head_dim,
        bias=True,
        fused_qkv=True,
        dropout=cfg.number("attn_dropout_prob", "attn_pdrop", default=0.0, high=1.0),
    )
    mlp = DenseMlp(width=cfg.divide("intermediate_size", doubled, 2), gated=True, activation="silu", bias=bias)
    tensors = (
        *attention(mixer, size.hidden, AttentionNames(qkv="attn.c_attn", o="attn.c_proj"), out_bias=bias),
        *dense_mlp(mlp, size.hidden, MlpNames(gate="mlp.w2", up="mlp.w1", down="mlp.c_proj")),
    )
    one = block(mixer, mlp, tensors, ("ln_1", "ln_2"), size.hidden)
    shape = assemble(
        cfg,
        size,
        (one,),
        (0,) * size.layers,
        tie=tied(cfg, False),
        final_norm="transformer.ln_f",
        embed="transformer.wte",
        prefix="transformer.",
        layer_prefix="transformer.h.{i}.",
        embedding_dropout=cfg.number("emb_dropout_prob", "embd_pdrop", default=0.0, high=1.0),
        loss_upcast=False,
    )
    visual = cfg.sub("visual")
    if visual is None:
        return shape
    return shape.model_copy(update={"towers": (other.qwen_vl(visual, "transformer.visual."),)})


def chatglm(cfg: Config) -> ModelShape:
    """ChatGLM2, ChatGLM3, GLM-4-9B: the padded vocabulary sizes the tables, ``multi_query_group_num`` the cache."""
    size = sizes(
        cfg,
        layers=("num_layers", "num_hidden_layers"),
        kv=(),
        head_dim=("kv_channels",),
        vocab=("padded_vocab_size", "vocab_size"),
    )
    if "multi_query_attention" not in cfg.raw and "multi_query_group_num" in cfg.raw:
        raise cfg.missing("multi_query_attention")
    if cfg.flag("multi_query_attention"):
        size = size._replace(kv_heads=cfg.integer("multi_query_group_num"))
        cfg.divide("multi_query_group_num", size.heads, size.kv_heads)
    else:
        cfg.ignore("multi_query_group_num")
    bias = cfg.flag("add_bias_linear")
    mixer = Attention(
        heads=size.heads,
        kv_heads=size.kv_heads,
        head_dim=size.head_dim,
        v_head_dim=size.head_dim,
        fused_qkv=True,
        bias=bias or cfg.flag("add_qkv_bias"),
        rotary="partial",
        dropout=cfg.number("attention_dropout", default=0.0, high=1.0),
    )
    mlp = DenseMlp(width=cfg.integer("ffn_hidden_size"), gated=True, activation="silu", fused_gate_up=True, bias=bias)
    kind: NormKind = "rms" if cfg.flag("rmsnorm", default=True) else "layer"
    names = AttentionNames(qkv="self_attention.query_key_value", o="self_attention.dense")
    tensors = (
        *attention(mixer, size.hidden, names, out_bias=bias),
        *dense_mlp(mlp, size.hidden, MlpNames(gate_up="mlp.dense_h_to_4h", down="mlp.dense_4h_to_h")),
    )
    one = block(
        mixer,
        mlp,
        tensors,
        ("input_layernorm", "post_attention_layernorm"),
        size.hidden,
        kind,
        dropout=cfg.number("hidden_dropout", default=0.0, high=1.0),
    )
    shape = assemble(
        cfg,
        size,
        (one,),
        (0,) * size.layers,
        tie=tied(cfg, False),
        norm_kind=kind,
        final_norm="transformer.encoder.final_layernorm" if cfg.flag("post_layer_norm", default=True) else "",
        embed="transformer.embedding.word_embeddings",
        head="transformer.output_layer",
        prefix="transformer.",
        layer_prefix="transformer.encoder.layers.{i}.",
    )
    vision = cfg.sub("vision_config")
    if vision is None:
        return shape
    tower = other.glm_4v(vision, "transformer.vision.", size.hidden, mlp.width)
    return shape.model_copy(update={"towers": (tower,)})


def phi3small(cfg: Config) -> ModelShape:
    """Block-sparse attention in all layers but every n-th. The sparse layers skip blocks but cache every token."""
    size = sizes(cfg)
    step = cfg.integer("dense_attention_every_n_layers", high=4096)
    cfg.ignore("blocksparse_block_size", "blocksparse_num_local_blocks")
    width = cfg.integer("ff_intermediate_size", "intermediate_size")
    mlp = DenseMlp(width=width, gated=True, activation="gelu", fused_gate_up=True, bias=True)
    names = AttentionNames(qkv="self_attn.query_key_value", o="self_attn.dense")

    def layer(sparse: bool) -> Block:
        mixer = Attention(
            heads=size.heads,
            kv_heads=size.kv_heads,
            head_dim=size.head_dim,
            v_head_dim=size.head_dim,
            bias=True,
            fused_qkv=True,
            block_sparse=sparse,
            dropout=cfg.number("attention_dropout_prob", default=0.0, high=1.0),
        )
        tensors = (
            *attention(mixer, size.hidden, names, out_bias=True),
            *dense_mlp(mlp, size.hidden, MlpNames(gate_up="mlp.up_proj", down="mlp.down_proj")),
        )
        return block(
            mixer,
            mlp,
            tensors,
            ("input_layernorm", "post_attention_layernorm"),
            size.hidden,
            "layer",
            dropout=cfg.number("ffn_dropout_prob", default=0.1, high=1.0),
        )

    order = tuple(0 if (i + 1) % step == 0 else 1 for i in range(size.layers))
    return assemble(
        cfg,
        size,
        (layer(False), layer(True)),
        order,
        tie=tied(cfg, True),
        norm_kind="layer",
        final_norm="model.final_layernorm",
        embedding_dropout=cfg.number("embedding_dropout_prob", default=0.1, high=1.0),
    )
