"""Qwen's and GLM's vision towers: three-dimensional patches, rotary positions, a merger into the language model.

Facts are those of the modelling code in the public transformers repository, release 5.24
(src/transformers/models/{qwen2_vl,qwen2_5_vl,qwen3_vl,glm4v,glm5_next,exaone4_5}).
"""

from __future__ import annotations

from calculator.model.config import Config
from calculator.model.shape import Tower
from calculator.model.towers.layers import Layer, Parts, add_layers, tower
from calculator.model.towers.vit import MAX_TOWER_LAYERS

NORMS = ("norm1", "norm2")


def _patch(cfg: Config, parts: Parts, hidden: int, *, bias: bool) -> int:
    cfg.ignore("spatial_patch_size")
    patch = cfg.integer("patch_size")
    channels = cfg.integer("in_channels", "in_chans", default=3)
    parts.conv(
        "patch_embed.proj",
        hidden,
        channels,
        cfg.integer("temporal_patch_size", default=2, high=64),
        patch,
        patch,
        bias=bias,
    )
    return patch


def qwen2_vl(cfg: Config, prefix: str) -> Tower:
    """``embed_dim`` is the tower's width, ``hidden_size`` what it hands on."""
    hidden, out = cfg.integer("embed_dim", high=2**20), cfg.integer("hidden_size", high=2**20)
    layers, heads = cfg.integer("depth", high=MAX_TOWER_LAYERS), cfg.integer("num_heads", high=65_536)
    ratio, merge = cfg.integer("mlp_ratio", high=64), cfg.integer("spatial_merge_size", high=64)
    parts = Parts("vision")
    patch = _patch(cfg, parts, hidden, bias=False)
    layer = Layer(at="blocks.{i}.", qkv="attn.qkv", o="attn.proj", norms=NORMS)
    add_layers(parts, layer, layers, hidden, ratio * hidden)
    joined = hidden * merge**2
    parts.norm("merger.ln_q", hidden).linear("merger.mlp.0", joined, joined).linear("merger.mlp.2", out, joined)
    return tower(parts, "vision", prefix, hidden, layers, heads, patch=patch, merge=merge)


def qwen2_5_vl(cfg: Config, prefix: str, *, split_qkv: bool = False, kv_heads: bool = False) -> Tower:
    """RMS norms and a gated MLP with biases; EXAONE 4.5 groups its KV heads."""
    hidden, out = cfg.integer("hidden_size", high=2**20), cfg.integer("out_hidden_size", high=2**20)
    layers, heads = cfg.integer("depth", high=MAX_TOWER_LAYERS), cfg.integer("num_heads", high=65_536)
    merge, width = cfg.integer("spatial_merge_size", high=64), cfg.integer("intermediate_size")
    grouped = cfg.integer("num_key_value_heads", default=8) if kv_heads else heads
    parts = Parts("vision")
    patch = _patch(cfg, parts, hidden, bias=False)
    layer = Layer(
        at="blocks.{i}.",
        q="attn.q",
        k="attn.k",
        v="attn.v",
        qkv="" if split_qkv else "attn.qkv",
        o="attn.proj",
        gated=True,
        up="mlp.up_proj",
        down="mlp.down_proj",
        norms=NORMS,
        norm_bias=False,
    )
    head = cfg.divide("num_heads", hidden, heads)
    add_layers(parts, layer, layers, hidden, width, kv_width=grouped * head)
    joined = hidden * merge**2
    parts.norm("merger.ln_q", hidden, bias=False)
    parts.linear("merger.mlp.0", joined, joined).linear("merger.mlp.2", out, joined)
    return tower(parts, "vision", prefix, hidden, layers, heads, patch=patch, merge=merge)


def qwen3_vl(cfg: Config, prefix: str, *, deep: bool = True, omni: bool = False) -> Tower:
    """Learned positions beside rotary ones; ``deep``: a merger for each tapped layer too."""
    hidden, out = cfg.integer("hidden_size", high=2**20), cfg.integer("out_hidden_size", high=2**20)
    layers, heads = cfg.integer("depth", high=MAX_TOWER_LAYERS), cfg.integer("num_heads", high=65_536)
    merge, width = cfg.integer("spatial_merge_size", high=64), cfg.integer("intermediate_size")
    taps = cfg.ints("deepstack_visual_indexes", high=MAX_TOWER_LAYERS)
    if taps is None:
        taps = (8, 16, 24) if deep else ()
        if deep:
            cfg.notes.assume("assumption.default", key=f"{cfg.path}deepstack_visual_indexes", value=str(taps))
    parts = Parts("vision")
    patch = _patch(cfg, parts, hidden, bias=True)
    parts.table("pos_embed.weight", cfg.integer("num_position_embeddings"), hidden)
    layer = Layer(
        at="blocks.{i}.", qkv="attn.qkv", o="attn.proj", up="mlp.linear_fc1", down="mlp.linear_fc2", norms=NORMS
    )
    add_layers(parts, layer, layers, hidden, width)
    joined = hidden * merge**2
    first, second, name = ("mlp.0", "mlp.2", "ln_q") if omni else ("linear_fc1", "linear_fc2", "norm")
    deep_at = "merger_list" if omni else "deepstack_merger_list"
    parts.norm(f"merger.{name}", hidden)
    parts.linear(f"merger.{first}", joined, joined).linear(f"merger.{second}", out, joined)
    if taps and deep:
        at, count = f"{deep_at}.{{i}}", len(taps)
        parts.norm(f"{at}.{name}", joined, copies=count)
        parts.linear(f"{at}.{first}", joined, joined, copies=count).linear(f"{at}.{second}", out, joined, copies=count)
    return tower(parts, "vision", prefix, hidden, layers, heads, patch=patch, merge=merge)


def glm4v(cfg: Config, prefix: str, *, next_version: bool = False) -> Tower:
    """RMS norms, a gated MLP, a downsampling convolution, a gated merger.

    Two different widths share one key: GLM-4.1V's layers are ``out_hidden_size`` wide inside and its merger
    ``intermediate_size``.
    """
    hidden, out = cfg.integer("hidden_size", high=2**20), cfg.integer("out_hidden_size", high=2**20)
    layers, heads = cfg.integer("depth", high=MAX_TOWER_LAYERS), cfg.integer("num_heads", high=65_536)
    merge = cfg.integer("spatial_merge_size", high=64)
    stated = cfg.integer("intermediate_size")
    width, merged = (stated, cfg.integer("projection_intermediate_size")) if next_version else (out, stated)
    bias = cfg.flag("attention_bias", default=next_version)
    head = cfg.divide("num_heads", hidden, heads)
    parts = Parts("vision")
    patch = _patch(cfg, parts, hidden, bias=True)
    image = cfg.integer("image_size")
    if not next_version:
        parts.table("embeddings.position_embedding.weight", (image // patch) ** 2, hidden)
        parts.norm("post_conv_layernorm", hidden, bias=False)
    layer = Layer(
        at="blocks.{i}.",
        qkv="attn.qkv",
        o="attn.proj",
        qkv_bias=bias,
        out_bias=next_version,
        gated=True,
        up="mlp.up_proj",
        down="mlp.down_proj",
        mlp_bias=next_version,
        norms=NORMS,
        norm_bias=False,
        qk_norm="head" if next_version else "none",
    )
    add_layers(parts, layer, layers, hidden, width, head_dim=head)
    parts.conv("downsample", out, hidden, merge, merge).norm("post_layernorm", hidden, bias=False)
    parts.linear("merger.proj", out, out, bias=False).norm("merger.post_projection_norm", out)
    parts.linear("merger.gate_proj", merged, out, bias=False).linear("merger.up_proj", merged, out, bias=False)
    parts.linear("merger.down_proj", out, merged, bias=False)
    return tower(parts, "vision", prefix, hidden, layers, heads, patch=patch, image_size=image, merge=merge)
