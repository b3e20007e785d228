"""The Conformers of Gemma 3n and Gemma 4: two half feed-forwards, attention with relative keys, a light convolution, no
biases.

Facts are those of src/transformers/models/{gemma3n,gemma4} in the public transformers repository, release 5.24.
"""

from __future__ import annotations

from typing import NamedTuple

from calculator.model.config import Config
from calculator.model.shape import Tower
from calculator.model.towers.layers import Parts, tower
from calculator.model.towers.vit import MAX_TOWER_LAYERS


class Names(NamedTuple):
    """How a checkpoint calls the parts of a layer; ``inner`` is what stands behind most matrices' names."""

    at: str
    halves: tuple[str, str]
    attention: str
    post: str
    relative: str
    norms: tuple[str, str, str]
    convolution: str
    inner: str = ""


GEMMA3N = Names(
    at="conformer.{i}.",
    halves=("ffw_layer_start", "ffw_layer_end"),
    attention="attention.attn.",
    post="attention.post",
    relative="relative_position_embedding.pos_proj",
    norms=("attention.pre_attn_norm", "attention.post_norm", "norm"),
    convolution="subsample_conv_projection.conv_{e}.",
)
GEMMA4 = Names(
    at="layers.{i}.",
    halves=("feed_forward1", "feed_forward2"),
    attention="self_attn.",
    post="self_attn.post.linear",
    relative="relative_k_proj",
    norms=("norm_pre_attn", "norm_post_attn", "norm_out"),
    convolution="subsample_conv_projection.layer{e}.",
    inner=".linear",
)


def gemma3n(cfg: Config, prefix: str) -> Tower:
    hidden, layers = cfg.integer("hidden_size", high=2**20), cfg.integer("conf_num_hidden_layers", high=512)
    heads, kernel = cfg.integer("conf_num_attention_heads", high=65_536), cfg.integer("conf_conv_kernel_size")
    first, second = cfg.ints("sscp_conv_channel_size", length=2, low=1) or (128, 32)
    bins = cfg.integer("input_feat_size", high=65_536)
    for key in ("sscp_conv_kernel_size", "sscp_conv_stride_size"):
        plain = [[3, 3], [3, 3]] if "kernel" in key else [[2, 2], [2, 2]]
        if cfg.get(key) not in (None, plain):
            raise cfg.bad(key, "choice")
    cfg.ignore("conf_attention_chunk_size", "conf_attention_context_left", "conf_attention_context_right")
    cfg.ignore("conf_reduction_factor", "vocab_size", "vocab_offset")
    parts = _conformer(GEMMA3N, hidden, layers, heads, kernel, (first, second), bins, cfg)
    return tower(parts, "audio", prefix, hidden, layers, heads)


def gemma4(cfg: Config, prefix: str) -> Tower:
    hidden, layers = cfg.integer("hidden_size", high=2**20), cfg.integer("num_hidden_layers", high=MAX_TOWER_LAYERS)
    heads, kernel = cfg.integer("num_attention_heads", high=65_536), cfg.integer("conv_kernel_size", high=1024)
    first, second = cfg.ints("subsampling_conv_channels", length=2, low=1) or (128, 32)
    out = cfg.integer("output_proj_dims", high=2**20)
    cfg.ignore("attention_chunk_size")
    parts = _conformer(GEMMA4, hidden, layers, heads, kernel, (first, second), first, cfg)
    parts.linear("output_proj", out, hidden)
    return tower(parts, "audio", prefix, hidden, layers, heads)


def _conformer(
    names: Names, hidden: int, layers: int, heads: int, kernel: int, channels: tuple[int, int], bins: int, cfg: Config
) -> Parts:
    """Two strided convolutions over ``bins`` mel channels, then the layers."""
    first, second = channels
    head = cfg.divide("num_attention_heads", hidden, heads)
    parts, at, n = Parts("audio"), names.at, layers
    for number, (source, into) in enumerate(((1, first), (first, second))):
        place = names.convolution.replace("{e}", str(number))
        parts.conv(f"{place}conv", into, source, 3, 3, bias=False).norm(f"{place}norm", into, bias=False)
    parts.linear("subsample_conv_projection.input_proj_linear", hidden, bins // 4 * second, bias=False)
    for half in names.halves:
        parts.linear(f"{at}{half}.ffw_layer_1{names.inner}", 4 * hidden, hidden, bias=False, copies=n)
        parts.linear(f"{at}{half}.ffw_layer_2{names.inner}", hidden, 4 * hidden, bias=False, copies=n)
        parts.norm(f"{at}{half}.pre_layer_norm", hidden, bias=False, copies=n)
        parts.norm(f"{at}{half}.post_layer_norm", hidden, bias=False, copies=n)
    parts.add(f"{at}{names.attention}per_dim_scale", head, copies=n)
    projections = [f"{names.attention}{part}_proj{names.inner}" for part in "qkv"]
    for name in (*projections, names.post, names.attention + names.relative):
        parts.linear(at + name, hidden, hidden, bias=False, copies=n)
    parts.linear(f"{at}lconv1d.linear_start{names.inner}", 2 * hidden, hidden, bias=False, copies=n)
    parts.linear(f"{at}lconv1d.linear_end{names.inner}", hidden, hidden, bias=False, copies=n)
    parts.conv(f"{at}lconv1d.depthwise_conv1d", hidden, 1, kernel, bias=False, copies=n)
    for name in ("lconv1d.pre_layer_norm", "lconv1d.conv_norm", *names.norms):
        parts.norm(at + name, hidden, bias=False, copies=n)
    return parts
