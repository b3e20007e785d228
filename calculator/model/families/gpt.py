"""GPT-2 and its generation: LayerNorms, plain MLPs, learned or rotary positions, fused qkv, dropout.

Facts are those of the modelling code in the public transformers repository, release 5.24
(src/transformers/models/<model_type>/modeling_<model_type>.py).
"""

from __future__ import annotations

from calculator.model.build import AttentionNames, MlpNames, attention, block, dense_mlp, table
from calculator.model.config import Config
from calculator.model.decoder import Sizes, activation, assemble, sizes, tied
from calculator.model.shape import Activation, Attention, Block, DenseMlp, ModelShape, NormKind


def n_embd_sizes(cfg: Config) -> Sizes:
    """GPT-2's key names; no grouped heads, no head size of its own."""
    return sizes(
        cfg,
        hidden=("n_embd", "hidden_size"),
        layers=("n_layer", "num_hidden_layers"),
        heads=("n_head", "num_attention_heads"),
        kv=(),
        head_dim=(),
    )


def multi_head(
    cfg: Config,
    size: Sizes,
    *,
    fused: bool,
    bias: bool,
    dropout: float,
    rotary: str = "none",
    rotary_dim: int | None = None,
    qk_norm: str = "none",
) -> Attention:
    return Attention.model_validate(
        {
            "heads": size.heads,
            "kv_heads": size.kv_heads,
            "head_dim": size.head_dim,
            "v_head_dim": size.head_dim,
            "bias": bias,
            "fused_qkv": fused,
            "rotary": rotary,
            "rotary_dim": rotary_dim,
            "dropout": dropout,
            "qk_norm": qk_norm,
        }
    )


def probability(cfg: Config, *keys: str, default: float = 0.0) -> float:
    return cfg.number(*keys, default=default, high=1.0)


def n_inner(cfg: Config, size: Sizes, *keys: str) -> int:
    """The MLP's width: four times the hidden size unless stated."""
    return cfg.optional_int(*(keys or ("n_inner",))) or 4 * size.hidden


def uniform(
    cfg: Config,
    size: Sizes,
    mixer: Attention,
    mlp: DenseMlp,
    names: AttentionNames,
    mlp_names: MlpNames,
    norm_names: tuple[str, ...],
    *,
    out_bias: bool,
    norm_kind: NormKind = "layer",
    norm_bias: bool | None = None,
    parallel: bool = False,
    dropout: float = 0.0,
) -> tuple[tuple[Block, ...], tuple[int, ...]]:
    """Every layer the same."""
    tensors = (
        *attention(mixer, size.hidden, names, out_bias=out_bias, norm_kind=norm_kind),
        *dense_mlp(mlp, size.hidden, mlp_names),
    )
    one = block(
        mixer, mlp, tensors, norm_names, size.hidden, norm_kind, parallel=parallel, dropout=dropout, norm_bias=norm_bias
    )
    return (one,), (0,) * size.layers


def plain(cfg: Config, width: int, *keys: str, default: Activation, bias: bool = True) -> DenseMlp:
    return DenseMlp(width=width, gated=False, activation=activation(cfg, *keys, default=default), bias=bias)


GPT2_NAMES = AttentionNames(qkv="attn.c_attn", o="attn.c_proj")


GPT2_MLP = MlpNames(up="mlp.c_fc", down="mlp.c_proj")


def _learned_positions(
    cfg: Config,
    size: Sizes,
    positions: int,
    mlp: DenseMlp,
    *,
    embed: str = "transformer.wte",
    table_name: str = "transformer.wpe",
    final_norm: str = "transformer.ln_f",
) -> ModelShape:
    """GPT-2's block over token and position tables."""
    mixer = multi_head(cfg, size, fused=True, bias=True, dropout=probability(cfg, "attn_pdrop", default=0.1))
    blocks, order = uniform(
        cfg,
        size,
        mixer,
        mlp,
        GPT2_NAMES,
        GPT2_MLP,
        ("ln_1", "ln_2"),
        out_bias=True,
        dropout=probability(cfg, "resid_pdrop", default=0.1),
    )
    return assemble(
        cfg,
        size,
        blocks,
        order,
        tie=tied(cfg, True),
        norm_kind="layer",
        final_norm=final_norm,
        embed=embed,
        prefix="transformer.",
        layer_prefix="transformer.h.{i}.",
        extra_embedding=(table(f"{table_name}.weight", positions, size.hidden, split="none"),),
        embedding_dropout=probability(cfg, "embd_pdrop", default=0.1),
    )


def gpt2(cfg: Config) -> ModelShape:
    size = n_embd_sizes(cfg)
    positions = cfg.integer("n_positions", "n_ctx", default=1024)
    mlp = plain(cfg, n_inner(cfg, size), "activation_function", default="gelu_new")
    return _learned_positions(cfg, size, positions, mlp)


def gpt_bigcode(cfg: Config) -> ModelShape:
    """StarCoder 1: GPT-2 with one shared key-value head unless ``multi_query`` is false."""
    size = n_embd_sizes(cfg)
    size = size._replace(kv_heads=1 if cfg.flag("multi_query", default=True) else size.heads)
    cfg.ignore("num_key_value_heads")
    positions = cfg.integer("n_positions", default=1024)
    mlp = plain(cfg, n_inner(cfg, size), "activation_function", default="gelu_tanh")
    return _learned_positions(cfg, size, positions, mlp)


def openai_gpt(cfg: Config) -> ModelShape:
    """The first GPT: norms after the sublayers, no final norm."""
    size = n_embd_sizes(cfg)
    positions = cfg.integer("n_positions", "n_ctx", default=512)
    mlp = plain(cfg, 4 * size.hidden, "afn", default="gelu_new")
    names = {"embed": "transformer.tokens_embed", "table_name": "transformer.positions_embed", "final_norm": ""}
    return _learned_positions(cfg, size, positions, mlp, **names)


def gptj(cfg: Config) -> ModelShape:
    return _gptj(cfg, fused=False)


def codegen(cfg: Config) -> ModelShape:
    return _gptj(cfg, fused=True)


def _gptj(cfg: Config, fused: bool) -> ModelShape:
    """One norm, attention and MLP in parallel, no bias in attention, a bias in the head."""
    size = n_embd_sizes(cfg)
    turned = cfg.optional_int("rotary_dim")
    mixer = multi_head(
        cfg,
        size,
        fused=fused,
        bias=False,
        dropout=probability(cfg, "attn_pdrop"),
        rotary="partial" if turned else "full",
        rotary_dim=turned,
    )
    mlp = plain(cfg, n_inner(cfg, size), "activation_function", default="gelu_new")
    names = AttentionNames("attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.out_proj", "attn.qkv_proj")
    blocks, order = uniform(
        cfg,
        size,
        mixer,
        mlp,
        names,
        MlpNames(up="mlp.fc_in", down="mlp.fc_out"),
        ("ln_1",),
        out_bias=False,
        parallel=True,
        dropout=probability(cfg, "resid_pdrop"),
    )
    return assemble(
        cfg,
        size,
        blocks,
        order,
        tie=tied(cfg, False),
        norm_kind="layer",
        final_norm="transformer.ln_f",
        embed="transformer.wte",
        prefix="transformer.",
        layer_prefix="transformer.h.{i}.",
        head_bias=True,
        embedding_dropout=probability(cfg, "embd_pdrop"),
    )


def gpt_neox(cfg: Config) -> ModelShape:
    size = sizes(cfg, kv=(), head_dim=())
    bias = cfg.flag("attention_bias", default=True)
    share = cfg.number("rotary_pct", "partial_rotary_factor", default=0.25)
    mixer = multi_head(
        cfg,
        size,
        fused=True,
        bias=bias,
        dropout=probability(cfg, "attention_dropout", "attention_probs_dropout_prob"),
        rotary="full" if share >= 1 else "partial",
        rotary_dim=int(size.head_dim * share),
    )
    mlp = plain(cfg, cfg.integer("intermediate_size"), default="gelu")
    blocks, order = uniform(
        cfg,
        size,
        mixer,
        mlp,
        AttentionNames(qkv="attention.query_key_value", o="attention.dense"),
        MlpNames(up="mlp.dense_h_to_4h", down="mlp.dense_4h_to_h"),
        ("input_layernorm", "post_attention_layernorm"),
        out_bias=bias,
        parallel=cfg.flag("use_parallel_residual", default=True),
        dropout=probability(cfg, "hidden_dropout", "hidden_dropout_prob"),
    )
    return assemble(
        cfg,
        size,
        blocks,
        order,
        tie=tied(cfg, False),
        norm_kind="layer",
        final_norm="gpt_neox.final_layer_norm",
        embed="gpt_neox.embed_in",
        head="embed_out",
        prefix="gpt_neox.",
        layer_prefix="gpt_neox.layers.{i}.",
    )
