"""ERNIE-4.5-VL: text tokens and picture tokens go to experts of their own, beside shared ones for both.

Facts are those of src/transformers/models/ernie4_5_vl_moe in the public transformers repository, release 5.24; names
are those of the published checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable

from calculator.model.build import MoeNames, Tensors, attention, block, dense_mlp, moe_mlp, stack
from calculator.model.compose import Readers, compose, read_text, text_config
from calculator.model.config import Config
from calculator.model.decoder import activation, assemble, sizes, tied
from calculator.model.families.llama import PRE
from calculator.model.shape import Attention, Block, DenseMlp, ModelShape, MoeMlp, Tensor, Tower
from calculator.model.sparse import MAX_EXPERTS
from calculator.model.towers.layers import Layer, Parts, add_layers, tower
from calculator.model.towers.vit import MAX_TOWER_LAYERS

Pair = tuple[int, int]
"""What holds for text and for pictures."""


def _pair(cfg: Config, key: str, *, default: int | None = None, low: int = 1) -> Pair:
    """Two numbers, or one for both."""
    if isinstance(cfg.get(key), list):
        found = cfg.ints(key, length=2, low=low) or (0, 0)
        return found[0], found[1]
    one = cfg.integer(key, low=low) if default is None else cfg.integer(key, default=default, low=low, silent=True)
    return one, one


def _sparse(cfg: Config, layers: int) -> tuple[bool, ...]:
    """Layers with experts: a list of words, or a first and a last layer, which may lie beyond the end."""
    if cfg.has("mlp_layer_types"):
        kinds = cfg.layer_kinds("mlp_layer_types", {"dense": "dense", "sparse": "sparse"}, layers)
        return tuple(kind == "sparse" for kind in kinds)
    starts, ends = _pair(cfg, "moe_layer_start_index", low=0), _pair(cfg, "moe_layer_end_index", default=layers, low=-1)
    if starts[0] != starts[1]:
        raise cfg.bad("moe_layer_start_index", "items")
    if min(ends) >= 0 and min(ends) < layers - 1:
        raise cfg.bad("moe_layer_end_index", "range")
    interval = cfg.integer("moe_layer_interval", default=1, high=layers, silent=True)
    return tuple(i >= starts[0] and (i + 1) % interval == 0 for i in range(layers))


def ernie4_5_vl_text(cfg: Config) -> ModelShape:
    size = sizes(cfg, kv_required=True, head_dim=())
    if cfg.flag("use_bias"):
        raise cfg.bad("use_bias", "choice")
    act = activation(cfg, default="silu")
    counts = _pair(cfg, "moe_num_experts")
    if counts[0] != counts[1] or counts[0] > MAX_EXPERTS:
        raise cfg.bad("moe_num_experts", "items")
    width, pictures = _pair(cfg, "moe_intermediate_size")
    used = cfg.integer("moe_k", high=counts[0])
    shared = cfg.integer("moe_num_shared_experts", default=0, low=0, high=64)
    moe = MoeMlp(
        experts=counts[0],
        top_k=used,
        width=width,
        gated=True,
        activation=act,
        shared_experts=shared,
        shared_width=shared * width,
        picture_width=pictures,
    )
    dense = DenseMlp(width=cfg.integer("intermediate_size"), gated=True, activation=act)
    mixer = Attention(
        heads=size.heads, kv_heads=size.kv_heads, head_dim=size.head_dim, v_head_dim=size.head_dim
    )  # fmt: skip

    def make(is_sparse: bool) -> Block:
        tensors = attention(mixer, size.hidden)
        tensors += _experts(moe, size.hidden) if is_sparse else dense_mlp(dense, size.hidden)
        return block(mixer, moe if is_sparse else dense, tensors, PRE, size.hidden)

    blocks, order = stack([(sparse,) for sparse in _sparse(cfg, size.layers)], make)
    return assemble(cfg, size, blocks, order, tie=tied(cfg, True))


def _experts(moe: MoeMlp, hidden: int) -> Tensors:
    """The experts of text with the shared ones, then those of pictures with a router of their own."""
    pictures = moe.model_copy(update={"width": moe.picture_width, "shared_experts": 0, "shared_width": 0})
    names = MoeNames(
        router="mlp.gate.weight_1!",
        **{part: f"mlp.picture_experts.{{e}}.{part}_proj" for part in ("gate", "up", "down")},
    )
    biases = Tensor(
        name="mlp.moe_statics.e_score_correction_bias", shape=(2, moe.experts), component="router", kind="bias"
    )
    return (*moe_mlp(moe, hidden), *moe_mlp(pictures, hidden, names), biases)


def _tower(cfg: Config, prefix: str) -> Tower:
    """Flattened patches, layers with biases, a last norm."""
    hidden, layers = cfg.integer("hidden_size", high=2**20), cfg.integer("depth", high=MAX_TOWER_LAYERS)
    heads, patch = cfg.integer("num_heads", high=65_536), cfg.integer("patch_size")
    width = cfg.optional_int("intermediate_size") or int(hidden * cfg.number("mlp_ratio", default=4.0, high=64))
    cfg.divide("num_heads", hidden, heads)
    cfg.ignore("embed_dim", "spatial_patch_size", "in_chans")
    parts = Parts("vision").linear("patch_embed.proj", hidden, cfg.integer("in_channels") * patch**2, bias=False)
    layer = Layer(at="blocks.{i}.", qkv="attn.qkv", o="attn.proj", norms=("norm1", "norm2"))
    add_layers(parts, layer, layers, hidden, width)
    parts.norm("ln", hidden)
    merge = cfg.integer("spatial_merge_size", high=64)
    return tower(parts, "vision", prefix, hidden, layers, heads, patch=patch, merge=merge)


def _resampler(prefix: str, hidden: int, text: int, frames: int) -> Tensors:
    """Merged patches, then merged frames, each through two linear layers and a norm, and one matrix to the text."""
    parts = Parts("projector", prefix)
    for name, source in (("spatial_linear", hidden), ("temporal_linear", hidden * frames)):
        parts.linear(f"{name}.0", hidden, source).linear(f"{name}.2", hidden, hidden).norm(f"{name}.3", hidden)
    return parts.linear("mlp", text, hidden).norm("after_norm", text, bias=False).done()


def ernie4_5_vl(cfg: Config, readers: Readers) -> ModelShape:
    """The text at the top of the file, or in newer files in an object of its own."""
    nested = cfg.has("text_config")
    text = read_text(text_config(cfg), readers) if nested else ernie4_5_vl_text(cfg)
    vision = cfg.require_sub("vision_config")
    built = _tower(vision, "vision_model.")
    frames = vision.integer("temporal_merge_size", default=2, high=64, silent=True)
    if not nested:
        frames = cfg.integer("temporal_conv_size", default=2, high=64, silent=True)
        cfg.ignore("spatial_conv_size", "pixel_hidden_size")
    joined = built.hidden * built.merge**2
    projector = _resampler("model.resampler_model.", joined, text.hidden, frames)
    return compose(text, (built,), projector, prefix="model.", head="lm_head.")


ERNIE: dict[str, Callable[[Config, Readers], ModelShape]] = {
    "ernie4_5_moe_vl": ernie4_5_vl,
    "ernie4_5_vl_moe": ernie4_5_vl,
}
