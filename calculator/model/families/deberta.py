"""DeBERTa: attention that weighs content and relative position apart.

Facts are those of the modelling code in the public transformers repository, release 5.24
(src/transformers/models/{deberta,deberta_v2}).
"""

from __future__ import annotations

from calculator.model.build import (
    AttentionNames,
    Tensors,
    attention,
    block,
    dense_mlp,
    linear,
    norm,
    table,
    vector,
)
from calculator.model.config import Config
from calculator.model.decoder import activation, assemble, sizes, tied
from calculator.model.families.encoders import (
    BERT_MLP,
    BERT_NORMS,
    architecture,
    bidirectional,
    dropouts,
    finish,
    labels,
)
from calculator.model.shape import DenseMlp, ModelShape


def deberta(cfg: Config) -> ModelShape:
    """Disentangled attention: a fused matrix without key bias, and projections of relative positions."""
    size = sizes(cfg, kv=(), head_dim=())
    hidden = size.hidden
    attn_drop, drop = dropouts(cfg)
    mixer = bidirectional(cfg, size, bias=False, fused=True, dropout=attn_drop)
    mlp = DenseMlp(
        width=cfg.integer("intermediate_size"), gated=False, bias=True, activation=activation(cfg, default="gelu")
    )
    kinds = cfg.get("pos_att_type")
    if isinstance(kinds, str):
        kinds = kinds.split("|")
    if kinds is None:
        cfg.assume_default("pos_att_type", "")
        kinds = []
    if not isinstance(kinds, list) or set(map(str, kinds)) - {"c2p", "p2c"}:
        raise cfg.bad("pos_att_type", "choice")
    relative = cfg.flag("relative_attention")
    at = "attention.self."
    tensors: Tensors = attention(
        mixer, hidden, AttentionNames(qkv=f"{at}in_proj", o="attention.output.dense"), out_bias=True
    )
    tensors += tuple(vector(f"{at}{n}_bias", hidden, "attention", kind="bias", split="column") for n in ("q", "v"))
    if relative and "c2p" in kinds:
        tensors += linear(f"{at}pos_proj", hidden, hidden, "attention", split="column")
    if relative and "p2c" in kinds:
        tensors += linear(f"{at}pos_q_proj", hidden, hidden, "attention", bias=True, split="column")
    one = block(mixer, mlp, (*tensors, *dense_mlp(mlp, hidden, BERT_MLP)), BERT_NORMS, hidden, "layer", dropout=drop)
    positions = cfg.integer("max_position_embeddings")
    stated = cfg.integer("max_relative_positions", default=-1, low=-1, silent=True)
    extra: Tensors = ()
    if cfg.flag("position_biased_input", default=True):
        extra += (table("deberta.embeddings.position_embeddings.weight", positions, hidden, split="none"),)
    types = cfg.integer("type_vocab_size", default=0, low=0)
    if types:
        extra += (table("deberta.embeddings.token_type_embeddings.weight", types, hidden, split="none"),)
    extra += norm("deberta.embeddings.LayerNorm", hidden, "layer")
    if relative:
        rows = 2 * (stated if stated > 0 else positions)
        extra += (table("deberta.encoder.rel_embeddings.weight", rows, hidden, split="none"),)
    bare = architecture(cfg).endswith("Model")
    lead = "cls.predictions."
    final = (
        ()
        if bare
        else (
            *linear(f"{lead}transform.dense", hidden, hidden, "head", bias=True),
            *norm(f"{lead}transform.LayerNorm", hidden, "layer"),
        )
    )
    head = () if bare else linear(f"{lead}decoder", size.vocab, hidden, "head", bias=True, split="vocab")
    tie = tied(cfg, True) and not bare
    shape = assemble(
        cfg,
        size,
        (one,),
        (0,) * size.layers,
        tie=tie,
        norm_kind="layer",
        final_norm="",
        prefix="deberta.",
        embed="deberta.embeddings.word_embeddings",
        extra_embedding=extra,
        extra_final=final,
        layer_prefix="deberta.encoder.layer.{i}.",
        embedding_dropout=drop,
    )
    return finish(shape, head, tie=tie)


def deberta_v2(cfg: Config) -> ModelShape:
    """DeBERTa 2 and 3: q, k and v apart with biases, which also project the shared table of relative positions."""
    size = sizes(cfg, kv=(), head_dim=())
    hidden = size.hidden
    attn_drop, drop = dropouts(cfg)
    if cfg.integer("conv_kernel_size", default=0, low=0, silent=True):
        raise cfg.bad("conv_kernel_size", "choice")
    if cfg.integer("embedding_size", default=hidden, silent=True) != hidden:
        raise cfg.bad("embedding_size", "choice")
    relative = cfg.flag("relative_attention")
    if relative and not cfg.flag("share_att_key"):
        raise cfg.bad("share_att_key", "choice")
    cfg.ignore("pos_att_type")
    mixer = bidirectional(cfg, size, dropout=attn_drop)
    mlp = DenseMlp(
        width=cfg.integer("intermediate_size"), gated=False, bias=True, activation=activation(cfg, default="gelu")
    )
    at = "attention.self."
    names = AttentionNames(f"{at}query_proj", f"{at}key_proj", f"{at}value_proj", "attention.output.dense")
    tensors = (*attention(mixer, hidden, names, out_bias=True), *dense_mlp(mlp, hidden, BERT_MLP))
    one = block(mixer, mlp, tensors, BERT_NORMS, hidden, "layer", dropout=drop)
    positions = cfg.integer("max_position_embeddings")
    extra: Tensors = ()
    if cfg.flag("position_biased_input", default=True):
        extra += (table("deberta.embeddings.position_embeddings.weight", positions, hidden, split="none"),)
    types = cfg.integer("type_vocab_size", default=0, low=0)
    if types:
        extra += (table("deberta.embeddings.token_type_embeddings.weight", types, hidden, split="none"),)
    extra += norm("deberta.embeddings.LayerNorm", hidden, "layer")
    if relative:
        stated = cfg.integer("max_relative_positions", default=-1, low=-1, silent=True)
        buckets = cfg.integer("position_buckets", default=-1, low=-1, silent=True)
        rows = 2 * (buckets if buckets > 0 else stated if stated > 0 else positions)
        extra += (table("deberta.encoder.rel_embeddings.weight", rows, hidden, split="none"),)
        if "layer_norm" in cfg.string("norm_rel_ebd", default="none").split("|"):
            extra += norm("deberta.encoder.LayerNorm", hidden, "layer")
    name = architecture(cfg)
    head: Tensors = ()
    final: Tensors = ()
    tie = False
    if "ForSequenceClassification" in name:
        final = linear("pooler.dense", hidden, hidden, "head", bias=True)
        head = linear("classifier", labels(cfg), hidden, "head", bias=True)
    elif not name.endswith("Model"):
        lead = "cls.predictions."
        final = (
            *linear(f"{lead}transform.dense", hidden, hidden, "head", bias=True),
            *norm(f"{lead}transform.LayerNorm", hidden, "layer"),
        )
        head = linear(f"{lead}decoder", size.vocab, hidden, "head", bias=True, split="vocab")
        tie = tied(cfg, True)
    shape = assemble(
        cfg,
        size,
        (one,),
        (0,) * size.layers,
        tie=tie,
        norm_kind="layer",
        final_norm="",
        prefix="deberta.",
        embed="deberta.embeddings.word_embeddings",
        extra_embedding=extra,
        extra_final=final,
        layer_prefix="deberta.encoder.layer.{i}.",
        embedding_dropout=drop,
    )
    return finish(shape, head, tie=tie)
