"""Gemma 3n's language model: several residual streams of which a layer computes one (AltUp), a low-rank path beside
attention (Laurel), embeddings for each layer, shared caches.

Facts are those of src/transformers/models/gemma3n/modeling_gemma3n.py in the public transformers repository, release
5.24.
"""

from __future__ import annotations

from calculator.model.build import Tensors, attention, block, dense_mlp, linear, norm, stack, vector
from calculator.model.config import Config
from calculator.model.decoder import activation, assemble, sizes, tied
from calculator.model.families.gemma4 import NORMS, per_layer_tables, per_layer_tensors
from calculator.model.shape import Attention, Block, DenseMlp, ModelShape
from calculator.model.windows import pattern


def _widths(cfg: Config, layers: int) -> tuple[int, ...]:
    """One MLP width for all layers, or one for each."""
    if isinstance(cfg.get("intermediate_size"), list):
        return cfg.ints("intermediate_size", length=layers, low=1) or ()
    return (cfg.integer("intermediate_size"),) * layers


def _sparsity(cfg: Config, layers: int) -> tuple[bool, ...]:
    """Layers whose MLP lets only the largest values of its gate pass: a share for each or for all, by default 0.95 in
    the first ten."""
    value = cfg.get("activation_sparsity_pattern")
    if value is None:
        return tuple(i < 10 for i in range(layers))
    shares = value if isinstance(value, list) else [value] * layers
    if len(shares) != layers or any(isinstance(s, bool) or not isinstance(s, int | float) for s in shares):
        raise cfg.bad("activation_sparsity_pattern", "length" if len(shares) != layers else "items")
    return tuple(share > 0 for share in shares)


def gemma3n_text(cfg: Config) -> ModelShape:
    size = sizes(cfg, kv_required=True, head_dim_default=256)
    streams = cfg.integer("altup_num_inputs", low=2, high=64)
    rank = cfg.integer("laurel_rank")
    per_layer = cfg.integer("hidden_size_per_layer_input")
    sharing = cfg.integer("num_kv_shared_layers", low=0, high=size.layers - 1)
    cfg.ignore("altup_active_idx", "altup_coef_clip", "altup_correct_scale")
    sparse = _sparsity(cfg, size.layers)
    act = activation(cfg, "hidden_activation", "hidden_act", default="gelu_tanh")
    bias = cfg.flag("attention_bias")
    dropout = cfg.number("attention_dropout", default=0.0, high=1.0)

    def make(window: int | None, shares: bool, width: int, sparse: bool) -> Block:
        mixer = Attention(
            heads=size.heads,
            kv_heads=size.kv_heads,
            head_dim=size.head_dim,
            v_head_dim=size.head_dim,
            window=window,
            shares_kv=shares,
            qk_norm="head",
            bias=bias,
            dropout=dropout,
        )
        mlp = DenseMlp(width=width, gated=True, activation=act, sparse=sparse)
        tensors = (
            *attention(mixer, size.hidden, out_bias=bias, no_kv=shares),
            *dense_mlp(mlp, size.hidden),
            *_altup(streams, size.hidden),
            *linear("laurel.linear_left", rank, size.hidden, "other"),
            *linear("laurel.linear_right", size.hidden, rank, "other"),
            *norm("laurel.post_laurel_norm", size.hidden),
            *per_layer_tensors(per_layer, size.hidden),
        )
        return block(mixer, mlp, tensors, NORMS, size.hidden, per_layer_width=per_layer, laurel_rank=rank)

    windows = pattern(5, default=512)(cfg, size.layers)
    widths, first = _widths(cfg, size.layers), size.layers - sharing
    blocks, order = stack([(windows[i], i >= first, widths[i], sparse[i]) for i in range(size.layers)], make)
    ends = tuple(
        t
        for i in range(streams - 1)
        for t in linear(f"model.altup_unembed_projections.{i}", size.hidden, size.hidden, "other")
    )
    starts = tuple(
        t for i in range(streams - 1) for t in linear(f"model.altup_projections.{i}", size.hidden, size.hidden, "other")
    )
    shape = assemble(
        cfg,
        size,
        blocks,
        order,
        tie=tied(cfg, True),
        final_softcap=cfg.has("final_logit_softcapping"),
        embedding_scaled=True,
        extra_embedding=(*per_layer_tables(cfg, size, per_layer), *starts),
        extra_final=ends,
    )
    return shape.model_copy(update={"streams": streams})


def _altup(streams: int, hidden: int) -> Tensors:
    """Alternating updates: what predicts the streams from one another, and corrects them by the one computed."""
    return (
        vector("altup.correct_output_scale", hidden, "other", kind="other"),
        *linear("altup.correction_coefs", streams, streams, "other"),
        *linear("altup.prediction_coefs", streams**2, streams, "other"),
        *linear("altup.modality_router", streams, hidden, "other"),
        *norm("altup.router_norm", hidden),
    )
