"""Multi-token-prediction layers: weights that checkpoints hold beside the model, for training and drafting.

DeepSeek's form (DeepSeek-V3 technical report, arXiv 2412.19437, section 2.2; the layout is that of the published
files): two norms, a projection of the joined states, one layer of the model, and copies of embedding and head.
"""

from __future__ import annotations

from calculator.model.build import Tensors, linear, norm, table
from calculator.model.config import Config
from calculator.model.decoder import Sizes
from calculator.model.shape import Block, NormKind, Tensor

KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")


def mtp_layers(cfg: Config, *keys: str) -> int:
    """How many MTP layers the file names."""
    return cfg.integer(*(keys or KEYS), default=0, low=0, high=64)


def as_mtp(tensors: Tensors, prefix: str) -> Tensors:
    """The same tensors as part of an MTP layer."""
    return tuple(t.model_copy(update={"name": prefix + t.name, "component": "mtp"}) for t in tensors)


def deepseek_mtp(
    size: Sizes,
    layer: Block,
    count: int,
    *,
    prefix: str = "model.layers.",
    copies: bool = True,
    kind: NormKind = "rms",
) -> Tensors:
    """``count`` layers after the last: enorm, hnorm, eh_proj, the layer, the final norm, and the copies."""
    found: list[Tensor] = []
    for index in range(count):
        at = f"{prefix}{size.layers + index}."
        parts: Tensors = (
            *norm("enorm", size.hidden, kind),
            *norm("hnorm", size.hidden, kind),
            *linear("eh_proj", size.hidden, 2 * size.hidden, "mtp"),
            *layer.tensors,
            *norm("shared_head.norm", size.hidden, kind),
        )
        if copies:
            parts += (
                table("embed_tokens.weight", size.vocab, size.hidden),
                table("shared_head.head.weight", size.vocab, size.hidden),
            )
        found.extend(as_mtp(parts, at))
    return tuple(found)


def joined_mtp(size: Sizes, layer: Block, count: int, *, dedicated: bool = False) -> Tensors:
    """Qwen's and EXAONE's form: one joining projection and three norms, then ``count`` layers; embedding and head are
    the model's own unless ``dedicated``."""
    parts: Tensors = (
        *linear("fc", size.hidden, 2 * size.hidden, "mtp"),
        *norm("pre_fc_norm_embedding", size.hidden),
        *norm("pre_fc_norm_hidden", size.hidden),
        *norm("norm", size.hidden),
    )
    if dedicated:
        parts += (table("embed_tokens.weight", size.vocab, size.hidden),)
    found = as_mtp(parts, "mtp.")
    for index in range(count):
        found += as_mtp(layer.tensors, f"mtp.layers.{index}.")
    return found
