"""BLOOM, Falcon, MPT, OPT, XGLM and GPT-Neo: GPT-2's block with ALiBi, shared heads, or other positions.

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
from calculator.model.decoder import assemble, sizes, tied
from calculator.model.families.gpt import multi_head, plain, probability, uniform
from calculator.model.shape import Block, ModelShape, NormKind


def bloom(cfg: Config) -> ModelShape:
    size = sizes(
        cfg,
        hidden=("hidden_size", "n_embed"),
        layers=("n_layer", "num_hidden_layers"),
        heads=("num_attention_heads", "n_head"),
        kv=(),
        head_dim=(),
    )
    mixer = multi_head(cfg, size, fused=True, bias=True, dropout=probability(cfg, "attention_dropout"))
    mlp = plain(cfg, 4 * size.hidden, default="gelu_new")
    cfg.ignore("n_inner")
    blocks, order = uniform(
        cfg,
        size,
        mixer,
        mlp,
        AttentionNames(qkv="self_attention.query_key_value", o="self_attention.dense"),
        MlpNames(up="mlp.dense_h_to_4h", down="mlp.dense_4h_to_h"),
        ("input_layernorm", "post_attention_layernorm"),
        out_bias=True,
        dropout=probability(cfg, "hidden_dropout"),
    )
    embedding_norm = norm("transformer.word_embeddings_layernorm", size.hidden, "layer")
    return assemble(
        cfg,
        size,
        blocks,
        order,
        tie=tied(cfg, True),
        norm_kind="layer",
        final_norm="transformer.ln_f",
        embed="transformer.word_embeddings",
        prefix="transformer.",
        layer_prefix="transformer.h.{i}.",
        extra_embedding=embedding_norm,
    )


def falcon(cfg: Config) -> ModelShape:
    """``new_decoder_architecture``: ``num_kv_heads`` counts and there are two norms; else ``multi_query`` means one."""
    size = sizes(
        cfg, layers=("num_hidden_layers", "n_layer"), heads=("num_attention_heads", "n_head"), kv=(), head_dim=()
    )
    new = cfg.flag("new_decoder_architecture")
    if new:
        kv = cfg.integer("num_kv_heads", "n_head_kv", default=size.heads)
        cfg.divide("num_kv_heads", size.heads, kv)
        cfg.ignore("multi_query")
    else:
        kv = 1 if cfg.flag("multi_query", default=True) else size.heads
        cfg.ignore("num_kv_heads", "n_head_kv")
    size = size._replace(kv_heads=kv)
    bias = cfg.flag("bias")
    parallel = cfg.flag("parallel_attn", default=True)
    mixer = multi_head(
        cfg,
        size,
        fused=True,
        bias=bias,
        dropout=probability(cfg, "attention_dropout"),
        rotary="none" if cfg.flag("alibi") else "full",
    )
    mlp = plain(cfg, cfg.optional_int("ffn_hidden_size") or 4 * size.hidden, "activation", default="gelu", bias=bias)
    if new:
        two = cfg.integer("num_ln_in_parallel_attn", default=2, low=1, high=2, silent=True) == 2
        norm_names: tuple[str, ...] = ("ln_attn", "ln_mlp") if two and parallel else ("input_layernorm",)
    else:
        norm_names = ("input_layernorm",) if parallel else ("input_layernorm", "post_attention_layernorm")
    blocks, order = uniform(
        cfg,
        size,
        mixer,
        mlp,
        AttentionNames(qkv="self_attention.query_key_value", o="self_attention.dense"),
        MlpNames(up="mlp.dense_h_to_4h", down="mlp.dense_4h_to_h"),
        norm_names,
        out_bias=bias,
        parallel=parallel,
        dropout=probability(cfg, "hidden_dropout"),
    )
    return assemble(
        cfg,
        size,
        blocks,
        order,
        tie=tied(cfg, True),
        norm_kind="layer",
        final_norm="transformer.ln_f",
        embed="transformer.word_embeddings",
        prefix="transformer.",
        layer_prefix="transformer.h.{i}.",
    )


def mpt(cfg: Config) -> ModelShape:
    """ALiBi, no bias anywhere (``no_bias``), LayerNorms without bias."""
    size = sizes(
        cfg,
        hidden=("d_model", "hidden_size"),
        layers=("n_layers", "num_hidden_layers"),
        heads=("n_heads", "num_attention_heads"),
        kv=(),
        head_dim=(),
    )
    inner = cfg.sub("attn_config")
    if inner is not None:
        kv = inner.optional_int("kv_n_heads") or size.heads
        size = size._replace(kv_heads=kv)
        inner.divide("kv_n_heads", size.heads, kv)
    bias = not cfg.flag("no_bias", default=True)
    mixer = multi_head(
        cfg, size, fused=True, bias=bias, dropout=probability(inner, "attn_pdrop") if inner is not None else 0.0
    )
    width = cfg.integer("expansion_ratio", default=4, high=64) * size.hidden
    mlp = plain(cfg, width, "activation", default="gelu", bias=bias)
    blocks, order = uniform(
        cfg,
        size,
        mixer,
        mlp,
        AttentionNames(qkv="attn.Wqkv", o="attn.out_proj"),
        MlpNames(up="ffn.up_proj", down="ffn.down_proj"),
        ("norm_1", "norm_2"),
        out_bias=bias,
        norm_bias=bias,
        dropout=probability(cfg, "resid_pdrop"),
    )
    return assemble(
        cfg,
        size,
        blocks,
        order,
        tie=tied(cfg, True),
        norm_kind="layer",
        norm_bias=bias,
        final_norm="transformer.norm_f",
        embed="transformer.wte",
        prefix="transformer.",
        layer_prefix="transformer.blocks.{i}.",
        embedding_dropout=probability(cfg, "emb_pdrop"),
    )


def opt(cfg: Config) -> ModelShape:
    """Learned positions with two spare rows; a narrower embedding has projections in and out."""
    size = sizes(cfg, kv=(), head_dim=())
    width = cfg.optional_int("word_embed_proj_dim") or size.hidden
    positions = cfg.integer("max_position_embeddings") + 2
    bias = cfg.flag("enable_bias", default=True)
    before = cfg.flag("do_layer_norm_before", default=True)
    final = before and not cfg.flag("_remove_final_layer_norm")
    affine = cfg.flag("layer_norm_elementwise_affine", default=True)
    norm_kind: NormKind = "layer" if affine else "layer_no_affine"
    mixer = multi_head(cfg, size, fused=False, bias=bias, dropout=probability(cfg, "attention_dropout"))
    mlp = plain(cfg, cfg.integer("ffn_dim"), "activation_function", default="relu", bias=bias)
    blocks, order = uniform(
        cfg,
        size,
        mixer,
        mlp,
        AttentionNames(o="self_attn.out_proj"),
        MlpNames(up="fc1", down="fc2"),
        ("self_attn_layer_norm", "final_layer_norm"),
        out_bias=bias,
        norm_kind=norm_kind,
        dropout=probability(cfg, "dropout", default=0.1),
    )
    extra = [table("model.decoder.embed_positions.weight", positions, size.hidden, split="none")]
    ends: Tensors = ()
    if width != size.hidden:
        extra += linear("model.decoder.project_in", size.hidden, width, "embedding")
        ends = linear("model.decoder.project_out", width, size.hidden, "embedding")
    return assemble(
        cfg,
        size,
        blocks,
        order,
        tie=tied(cfg, True),
        norm_kind=norm_kind,
        final_norm="model.decoder.final_layer_norm" if final else "",
        embed="model.decoder.embed_tokens",
        prefix="model.decoder.",
        layer_prefix="model.decoder.layers.{i}.",
        extra_embedding=extra,
        extra_final=ends,
        embed_width=width,
    )


def xglm(cfg: Config) -> ModelShape:
    """Sinusoidal positions, which are computed and not stored."""
    size = sizes(
        cfg,
        hidden=("d_model", "hidden_size"),
        layers=("num_layers", "num_hidden_layers"),
        heads=("attention_heads", "num_attention_heads"),
        kv=(),
        head_dim=(),
    )
    mixer = multi_head(cfg, size, fused=False, bias=True, dropout=probability(cfg, "attention_dropout", default=0.1))
    mlp = plain(cfg, cfg.integer("ffn_dim"), "activation_function", default="gelu")
    blocks, order = uniform(
        cfg,
        size,
        mixer,
        mlp,
        AttentionNames(o="self_attn.out_proj"),
        MlpNames(up="fc1", down="fc2"),
        ("self_attn_layer_norm", "final_layer_norm"),
        out_bias=True,
        dropout=probability(cfg, "dropout", default=0.1),
    )
    return assemble(
        cfg,
        size,
        blocks,
        order,
        tie=tied(cfg, True),
        norm_kind="layer",
        final_norm="model.layer_norm",
        embedding_scaled=cfg.flag("scale_embedding", default=True, silent=True),
    )


def gpt_neo(cfg: Config) -> ModelShape:
    """GPT-2 with q, k and v apart and without bias, every second layer looking at a window.

    ``attention_types`` is a list of (words, times): the words repeated that many times name the layers.
    """
    size = sizes(
        cfg,
        layers=("num_layers", "num_hidden_layers"),
        heads=("num_heads", "num_attention_heads"),
        kv=(),
        head_dim=(),
    )
    window = cfg.integer("window_size")
    listed = cfg.get("attention_types")
    words: list[str] = []
    for group in listed if isinstance(listed, list) else [None]:
        pair = group if isinstance(group, list) and len(group) == 2 else [None, None]
        names, times = pair
        if not isinstance(names, list) or type(times) is not int or not 0 < times <= size.layers:
            raise cfg.missing("attention_types") if listed is None else cfg.bad("attention_types", "items")
        if len(words) + len(names) * times > size.layers or set(map(str, names)) - {"global", "local"}:
            raise cfg.bad("attention_types", "items")
        words += names * times
    if len(words) != size.layers:
        raise cfg.bad("attention_types", "length")
    cfg.ignore("attention_layers")
    mlp = plain(
        cfg, cfg.optional_int("intermediate_size") or 4 * size.hidden, "activation_function", default="gelu_new"
    )
    dropout = probability(cfg, "attention_dropout")
    at = "attn.attention."
    names_of = AttentionNames(f"{at}q_proj", f"{at}k_proj", f"{at}v_proj", f"{at}out_proj")

    def make(word: str) -> Block:
        mixer = multi_head(cfg, size, fused=False, bias=False, dropout=dropout)
        mixer = mixer.model_copy(update={"window": window if word == "local" else None})
        tensors = (
            *attention(mixer, size.hidden, names_of, out_bias=True),
            *dense_mlp(mlp, size.hidden, MlpNames(up="mlp.c_fc", down="mlp.c_proj")),
        )
        return block(
            mixer, mlp, tensors, ("ln_1", "ln_2"), size.hidden, "layer", dropout=probability(cfg, "resid_dropout")
        )

    blocks, order = stack([(word,) for word in words], make)
    positions = cfg.integer("max_position_embeddings")
    return assemble(
        cfg,
        size,
        blocks,
        order,
        tie=tied(cfg, True),
        norm_kind="layer",
        final_norm="transformer.ln_f",
        embed="transformer.wte",
        prefix="transformer.",
        layer_prefix="transformer.h.{i}.",
        extra_embedding=(table("transformer.wpe.weight", positions, size.hidden, split="none"),),
        embedding_dropout=probability(cfg, "embed_dropout"),
    )
