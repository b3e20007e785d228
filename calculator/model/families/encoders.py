"""Encoders: BERT, RoBERTa, DistilBERT, ALBERT, ModernBERT, with the head that their architecture names.

Facts are those of the modelling code in the public transformers repository, release 5.24
(src/transformers/models/<model_type>/modeling_<model_type>.py).
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
    table,
)
from calculator.model.config import Config
from calculator.model.decoder import Sizes, activation, assemble, sizes, tied
from calculator.model.shape import Attention, Block, DenseMlp, ModelShape, NormKind

BERT_ATTENTION = AttentionNames(
    "attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"
)
BERT_MLP = MlpNames(up="intermediate.dense", down="output.dense")
BERT_NORMS = ("attention.output.LayerNorm", "output.LayerNorm")


def architecture(cfg: Config) -> str:
    """The class that the file names; absent, the masked language model, which is noted."""
    names = cfg.strings("architectures")
    if not names:
        cfg.notes.assume("assumption.masked_head", key=f"{cfg.path}architectures")
    return names[0] if names else ""


def labels(cfg: Config) -> int:
    """Classes of a sequence classifier: ``num_labels``, else the size of ``id2label``, else two."""
    stated = cfg.optional_int("num_labels", high=10_000_000)
    named = cfg.get("id2label")
    if stated is not None:
        return stated
    return len(named) if isinstance(named, dict) and named else 2


def bidirectional(
    cfg: Config,
    size: Sizes,
    *,
    bias: bool = True,
    rotary: str = "none",
    window: int | None = None,
    fused: bool = False,
    dropout: float = 0.0,
) -> Attention:
    return Attention.model_validate(
        {
            "heads": size.heads,
            "kv_heads": size.heads,
            "head_dim": size.head_dim,
            "v_head_dim": size.head_dim,
            "causal": False,
            "bias": bias,
            "rotary": rotary,
            "window": window,
            "fused_qkv": fused,
            "dropout": dropout,
        }
    )


def finish(shape: ModelShape, head: Tensors, *, tie: bool) -> ModelShape:
    return shape.model_copy(update={"kind": "encoder", "head": head, "tied": tie, "loss_upcast": False})


def dropouts(cfg: Config) -> tuple[float, float]:
    return (
        cfg.number("attention_probs_dropout_prob", default=0.1, high=1.0),
        cfg.number("hidden_dropout_prob", default=0.1, high=1.0),
    )


def bert(cfg: Config) -> ModelShape:
    return _bert(cfg, "bert.", roberta=False)


def roberta(cfg: Config) -> ModelShape:
    return _bert(cfg, "roberta.", roberta=True)


def _bert(cfg: Config, prefix: str, *, roberta: bool) -> ModelShape:
    """Post-norm layers with biases, tables of tokens, positions and token types.

    The bare model has a pooler; a masked-language head is dense, norm and the tied table with a bias; a classifier is
    one matrix behind the pooler (BERT) or two without it (RoBERTa).
    """
    size = sizes(cfg, kv=(), head_dim=())
    hidden = size.hidden
    name = architecture(cfg)
    attn_drop, drop = dropouts(cfg)
    mixer = bidirectional(cfg, size, dropout=attn_drop)
    mlp = DenseMlp(
        width=cfg.integer("intermediate_size"), gated=False, bias=True, activation=activation(cfg, default="gelu")
    )
    one = block(
        mixer,
        mlp,
        (*attention(mixer, hidden, BERT_ATTENTION, out_bias=True), *dense_mlp(mlp, hidden, BERT_MLP)),
        BERT_NORMS,
        hidden,
        "layer",
        dropout=drop,
    )
    at = f"{prefix}embeddings."
    extra = (
        table(f"{at}position_embeddings.weight", cfg.integer("max_position_embeddings"), hidden, split="none"),
        table(f"{at}token_type_embeddings.weight", cfg.integer("type_vocab_size", default=2), hidden, split="none"),
        *norm(f"{at}LayerNorm", hidden, "layer"),
    )
    tie = tied(cfg, True)
    pooler = linear(f"{prefix}pooler.dense", hidden, hidden, "head", bias=True)
    head: Tensors = ()
    final: Tensors = ()
    tie_here = False
    if "ForMaskedLM" in name or "LMHead" in name or "ForPreTraining" in name or not name:
        at_head = "lm_head." if roberta else "cls.predictions."
        dense = f"{at_head}dense" if roberta else f"{at_head}transform.dense"
        layer_norm = f"{at_head}layer_norm" if roberta else f"{at_head}transform.LayerNorm"
        final = (*linear(dense, hidden, hidden, "head", bias=True), *norm(layer_norm, hidden, "layer"))
        head = linear(f"{at_head}decoder", size.vocab, hidden, "head", bias=True, split="vocab")
        tie_here = tie
    elif "ForSequenceClassification" in name:
        count = labels(cfg)
        if roberta:
            final = linear("classifier.dense", hidden, hidden, "head", bias=True)
            head = linear("classifier.out_proj", count, hidden, "head", bias=True)
        else:
            final = pooler
            head = linear("classifier", count, hidden, "head", bias=True)
    elif name.endswith("Model"):
        final = pooler
    elif "ForTokenClassification" in name:
        head = linear("classifier", labels(cfg), hidden, "head", bias=True)
    elif "ForQuestionAnswering" in name:
        head = linear("qa_outputs", 2, hidden, "head", bias=True)
    else:
        raise cfg.bad("architectures", "choice")
    shape = assemble(
        cfg,
        size,
        (one,),
        (0,) * size.layers,
        tie=tie_here,
        norm_kind="layer",
        final_norm="",
        prefix=prefix,
        embed=f"{at}word_embeddings",
        layer_prefix=f"{prefix}encoder.layer.{{i}}.",
        extra_embedding=extra,
        extra_final=final,
        embedding_dropout=drop,
    )
    return finish(shape, head, tie=tie_here)


def distilbert(cfg: Config) -> ModelShape:
    size = sizes(
        cfg,
        hidden=("dim", "hidden_size"),
        layers=("n_layers", "num_hidden_layers"),
        heads=("n_heads", "num_attention_heads"),
        kv=(),
        head_dim=(),
    )
    hidden = size.hidden
    drop = cfg.number("dropout", default=0.1, high=1.0)
    mixer = bidirectional(cfg, size, dropout=cfg.number("attention_dropout", default=0.1, high=1.0))
    mlp = DenseMlp(
        width=cfg.integer("hidden_dim"),
        gated=False,
        bias=True,
        activation=activation(cfg, "activation", default="gelu"),
    )
    names = AttentionNames("attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin")
    one = block(
        mixer,
        mlp,
        (
            *attention(mixer, hidden, names, out_bias=True),
            *dense_mlp(mlp, hidden, MlpNames(up="ffn.lin1", down="ffn.lin2")),
        ),
        ("sa_layer_norm", "output_layer_norm"),
        hidden,
        "layer",
        dropout=drop,
    )
    at = "distilbert.embeddings."
    extra = (
        table(f"{at}position_embeddings.weight", cfg.integer("max_position_embeddings"), hidden, split="none"),
        *norm(f"{at}LayerNorm", hidden, "layer"),
    )
    bare = architecture(cfg).endswith("Model")
    final = (
        ()
        if bare
        else (*linear("vocab_transform", hidden, hidden, "head", bias=True), *norm("vocab_layer_norm", hidden, "layer"))
    )
    head = () if bare else linear("vocab_projector", size.vocab, hidden, "head", bias=True, split="vocab")
    tie = tied(cfg, True, "tie_word_embeddings", "tie_weights_") and not bare
    shape = assemble(
        cfg,
        size,
        (one,),
        (0,) * size.layers,
        tie=tie,
        norm_kind="layer",
        final_norm="",
        prefix="distilbert.",
        embed=f"{at}word_embeddings",
        extra_embedding=extra,
        extra_final=final,
        layer_prefix="distilbert.transformer.layer.{i}.",
        embedding_dropout=drop,
    )
    return finish(shape, head, tie=tie)


def albert(cfg: Config) -> ModelShape:
    """One set of weights for all layers, and a narrow embedding that a matrix widens."""
    size = sizes(cfg, kv=(), head_dim=())
    hidden, narrow = size.hidden, cfg.integer("embedding_size", high=2**20)
    for key in ("num_hidden_groups", "inner_group_num"):
        if cfg.integer(key, default=1, silent=True) != 1:
            raise cfg.bad(key, "choice")
    attn_drop, drop = dropouts(cfg)
    mixer = bidirectional(cfg, size, dropout=attn_drop)
    mlp = DenseMlp(
        width=cfg.integer("intermediate_size"), gated=False, bias=True, activation=activation(cfg, default="gelu_new")
    )
    names = AttentionNames("attention.query", "attention.key", "attention.value", "attention.dense")
    one = block(
        mixer,
        mlp,
        (
            *attention(mixer, hidden, names, out_bias=True),
            *dense_mlp(mlp, hidden, MlpNames(up="ffn", down="ffn_output")),
        ),
        ("attention.LayerNorm", "full_layer_layer_norm"),
        hidden,
        "layer",
        dropout=drop,
    )
    at = "albert.embeddings."
    extra = (
        table(f"{at}position_embeddings.weight", cfg.integer("max_position_embeddings"), narrow, split="none"),
        table(f"{at}token_type_embeddings.weight", cfg.integer("type_vocab_size", default=2), narrow, split="none"),
        *norm(f"{at}LayerNorm", narrow, "layer"),
        *linear("albert.encoder.embedding_hidden_mapping_in", hidden, narrow, "embedding", bias=True),
    )
    bare = architecture(cfg).endswith("Model")
    final = (
        linear("albert.pooler", hidden, hidden, "head", bias=True)
        if bare
        else (
            *linear("predictions.dense", narrow, hidden, "head", bias=True),
            *norm("predictions.LayerNorm", narrow, "layer"),
        )
    )
    head = () if bare else linear("predictions.decoder", size.vocab, narrow, "head", bias=True, split="vocab")
    tie = tied(cfg, True) and not bare
    shape = assemble(
        cfg,
        size,
        (one,),
        (0,) * size.layers,
        tie=tie,
        norm_kind="layer",
        final_norm="",
        prefix="albert.",
        embed=f"{at}word_embeddings",
        embed_width=narrow,
        extra_embedding=extra,
        extra_final=final,
        layer_prefix="albert.encoder.albert_layer_groups.0.albert_layers.0.",
        embedding_dropout=drop,
    )
    return finish(shape, head, tie=tie).model_copy(update={"shared_layers": True})


def modernbert(cfg: Config) -> ModelShape:
    """Pre-norm, rotary, gated; every n-th layer sees everything, the others a window; the first has no norm."""
    size = sizes(cfg, kv=(), head_dim=())
    hidden = size.hidden
    local = cfg.integer("local_attention")
    if cfg.has("layer_types"):
        words = {"full_attention": "full", "sliding_attention": "window"}
        kinds = cfg.layer_kinds("layer_types", words, size.layers)
        cfg.ignore("global_attn_every_n_layers")
    else:
        step = cfg.integer("global_attn_every_n_layers", high=4096)
        kinds = tuple("window" if i % step else "full" for i in range(size.layers))
    bias, mlp_bias, norm_bias = cfg.flag("attention_bias"), cfg.flag("mlp_bias"), cfg.flag("norm_bias")
    kind: NormKind = "layer"
    mlp = DenseMlp(
        width=cfg.integer("intermediate_size"),
        gated=True,
        fused_gate_up=True,
        bias=mlp_bias,
        activation=activation(cfg, "hidden_activation", default="gelu"),
    )

    def make(first: bool, near: bool) -> Block:
        mixer = bidirectional(
            cfg,
            size,
            bias=bias,
            rotary="full",
            window=local if near else None,
            fused=True,
            dropout=cfg.number("attention_dropout", default=0.0, high=1.0),
        )
        tensors = (
            *attention(mixer, hidden, AttentionNames(qkv="attn.Wqkv", o="attn.Wo"), out_bias=bias),
            *dense_mlp(mlp, hidden, MlpNames(gate_up="mlp.Wi", down="mlp.Wo")),
        )
        names = ("mlp_norm",) if first else ("attn_norm", "mlp_norm")
        return block(mixer, mlp, tensors, names, hidden, kind, norm_bias=norm_bias)

    blocks, order = stack([(i == 0, kind == "window") for i, kind in enumerate(kinds)], make)
    bare = architecture(cfg).endswith("Model")
    final: Tensors = norm("model.final_norm", hidden, kind, bias=norm_bias)
    if not bare:
        final += linear("head.dense", hidden, hidden, "head", bias=cfg.flag("classifier_bias"))
        final += norm("head.norm", hidden, kind, bias=norm_bias)
    head = (
        ()
        if bare
        else linear("decoder", size.vocab, hidden, "head", bias=cfg.flag("decoder_bias", default=True), split="vocab")
    )
    tie = tied(cfg, True) and not bare
    shape = assemble(
        cfg,
        size,
        blocks,
        order,
        tie=tie,
        norm_kind=kind,
        final_norm="",
        embed="model.embeddings.tok_embeddings",
        extra_embedding=norm("model.embeddings.norm", hidden, kind, bias=norm_bias),
        extra_final=final,
        embedding_dropout=cfg.number("embedding_dropout", default=0.0, high=1.0),
    )
    return finish(shape, head, tie=tie).model_copy(update={"final_norm": kind})
