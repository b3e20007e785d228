"""LongCat-Flash: each layer is two halves of latent attention and a dense MLP, with one mixture of experts that reads
the first half's MLP input and is added after the second; some of its router's choices compute nothing.

Facts are those of src/transformers/models/longcat_flash/modeling_longcat_flash.py in the public transformers
repository, release 5.24, and of the technical report (arXiv 2509.01322); names are those of the published checkpoints.
"""

from __future__ import annotations

from calculator.model.build import (
    MlpNames,
    MoeNames,
    Tensors,
    block,
    dense_mlp,
    latent_attention,
    linear,
    moe_mlp,
    norms,
    table,
)
from calculator.model.config import Config
from calculator.model.decoder import Sizes, activation, assemble, sizes, tied
from calculator.model.families.moe import read_latent
from calculator.model.mtp import as_mtp, mtp_layers
from calculator.model.shape import DenseMlp, LatentAttention, ModelShape, Sublayer
from calculator.model.sparse import experts

NORMS = tuple(f"{name}.{half}" for half in (0, 1) for name in ("input_layernorm", "post_attention_layernorm"))


def longcat_flash(cfg: Config) -> ModelShape:
    """``num_layers`` counts layers; ``num_hidden_layers``, where a file has it, their halves."""
    if not cfg.has("num_layers") and cfg.has("num_hidden_layers"):
        halves = cfg.integer("num_hidden_layers", high=4096)
        cfg = Config({**cfg.raw, "num_layers": cfg.divide("num_hidden_layers", halves, 2)}, cfg.path, cfg.notes)
    size = sizes(cfg, layers=("num_layers",), kv=(), head_dim=("qk_rope_head_dim",))
    latent = read_latent(cfg, size.heads)
    act = activation(cfg, default="silu")
    idle = cfg.integer("zero_expert_num", default=0, low=0, high=65_536)
    cfg.ignore("num_hidden_layers", "zero_expert_type")
    moe = experts(
        cfg,
        act=act,
        keys=("n_routed_experts", "num_local_experts"),
        top_k=("moe_topk", "num_experts_per_tok"),
        width=("expert_ffn_hidden_size", "moe_intermediate_size"),
    ).model_copy(update={"zero_experts": idle})
    dense = DenseMlp(width=cfg.integer("ffn_hidden_size", "intermediate_size"), gated=True, activation=act)
    bias = cfg.flag("attention_bias")
    tensors = moe_mlp(
        moe, size.hidden, MoeNames(router="mlp.router.classifier"), router_bias=cfg.flag("router_bias", silent=True)
    )
    for half in (0, 1):
        tensors += latent_attention(latent, size.hidden, prefix=f"self_attn.{half}.", bias=bias)
        names = MlpNames(*(f"mlps.{half}.{part}_proj" for part in ("gate", "up", "down")))
        tensors += dense_mlp(dense, size.hidden, names)
    before = Sublayer(mixer=latent, mlp=dense, shortcut=moe)
    one = block(latent, dense, tensors, NORMS, size.hidden, before=before)
    count = mtp_layers(cfg)
    return assemble(
        cfg,
        size,
        (one,),
        (0,) * size.layers,
        tie=tied(cfg, False),
        mtp=_mtp(size, latent, dense, count) if count else (),
        mtp_layers=count,
    )


def _mtp(size: Sizes, latent: LatentAttention, dense: DenseMlp, count: int) -> Tensors:
    """One embedding of their own, and for each a joining projection, latent attention and a dense MLP, five norms."""
    layer = (
        *linear("eh_proj", size.hidden, 2 * size.hidden, "mtp"),
        *latent_attention(latent, size.hidden),
        *dense_mlp(dense, size.hidden, MlpNames(*(f"transformer_layer.mlp.{p}_proj" for p in ("gate", "up", "down")))),
        *norms(("enorm", "hnorm", "input_layernorm", "post_attention_layernorm", "norm"), size.hidden, "rms"),
    )
    found = as_mtp((table("embed_tokens.weight", size.vocab, size.hidden),), "model.mtp.")
    for index in range(count):
        found += as_mtp(layer, f"model.mtp.layers.{index}.")
    return found
