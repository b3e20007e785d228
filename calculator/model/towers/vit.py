"""Plain vision transformers: SigLIP, SigLIP 2, CLIP, Pixtral, InternViT, and those of Llama 4 and Llama 3.2 Vision.

Facts are those of the modelling code in the public transformers repository, release 5.24
(src/transformers/models/{siglip,siglip2,clip,pixtral,internvl,llama4,mllama}).
"""

from __future__ import annotations

from calculator.model.config import Config
from calculator.model.shape import Tower
from calculator.model.towers.layers import Layer, Parts, add_layers, tower

MAX_TOWER_LAYERS = 512
CLIP_LAYER = Layer(at="encoder.layers.{i}.")


def size_of(cfg: Config, key: str, default: int | None = None) -> int:
    """A side length that some files give as a pair of equal numbers."""
    value = cfg.get(key)
    if isinstance(value, list):
        pair = cfg.ints(key, length=2, low=1) or (0, 0)
        if pair[0] != pair[1]:
            raise cfg.bad(key, "items")
        return pair[0]
    return cfg.integer(key) if default is None else cfg.integer(key, default=default)


def norm_type(cfg: Config, default: str) -> bool:
    """InternViT's norms: True for LayerNorm, False for RMS."""
    kind = cfg.string("norm_type", default=default)
    if not cfg.has("norm_type"):
        cfg.assume_default("norm_type", default)
    if kind not in ("layer_norm", "rms_norm"):
        raise cfg.bad("norm_type", "choice")
    return kind == "layer_norm"


def base(cfg: Config) -> tuple[int, int, int, int]:
    """Hidden size, layers, heads, MLP width."""
    hidden = cfg.integer("hidden_size", high=2**20)
    heads = cfg.integer("num_attention_heads", "attention_heads", high=65_536)
    cfg.divide("num_attention_heads", hidden, heads)
    return hidden, cfg.integer("num_hidden_layers", high=MAX_TOWER_LAYERS), heads, cfg.integer("intermediate_size")


def siglip(cfg: Config, prefix: str, *, pooled: bool = False) -> Tower:
    """Patches with a bias, learned positions, a last norm. ``pooled``: the class builds an attention-pooling head
    unless ``vision_use_head`` is false, and checkpoints hold it, although language models do not use it."""
    hidden, layers, heads, width = base(cfg)
    channels, patch = cfg.integer("num_channels", default=3), cfg.integer("patch_size")
    image = size_of(cfg, "image_size")
    parts = Parts("vision")
    parts.conv("embeddings.patch_embedding", hidden, channels, patch, patch)
    parts.table("embeddings.position_embedding.weight", (image // patch) ** 2, hidden)
    add_layers(parts, CLIP_LAYER, layers, hidden, width)
    parts.norm("post_layernorm", hidden)
    if pooled and cfg.flag("vision_use_head", default=True):
        parts.add("head.probe", 1, 1, hidden).linear("head.attention.in_proj", 3 * hidden, hidden)
        parts.linear("head.attention.out_proj", hidden, hidden).norm("head.layernorm", hidden)
        parts.linear("head.mlp.fc1", width, hidden).linear("head.mlp.fc2", hidden, width)
    return tower(parts, "vision", prefix, hidden, layers, heads, patch=patch, image_size=image)


def pooled_siglip(cfg: Config, prefix: str) -> Tower:
    return siglip(cfg, prefix, pooled=True)


def siglip2(cfg: Config, prefix: str) -> Tower:
    """Flattened patches through a linear layer, a fixed number of positions."""
    hidden, layers, heads, width = base(cfg)
    channels, patch = cfg.integer("num_channels", default=3), cfg.integer("patch_size")
    parts = Parts("vision")
    parts.linear("embeddings.patch_embedding", hidden, channels * patch * patch)
    parts.table("embeddings.position_embedding.weight", cfg.integer("num_patches"), hidden)
    add_layers(parts, CLIP_LAYER, layers, hidden, width)
    parts.norm("post_layernorm", hidden)
    return tower(parts, "vision", prefix, hidden, layers, heads, patch=patch)


def clip(cfg: Config, prefix: str) -> Tower:
    """A class token, patches without bias, norms before and after."""
    hidden, layers, heads, width = base(cfg)
    channels, patch = cfg.integer("num_channels", default=3), cfg.integer("patch_size")
    image = size_of(cfg, "image_size")
    parts = Parts("vision")
    parts.add("embeddings.class_embedding", hidden)
    parts.conv("embeddings.patch_embedding", hidden, channels, patch, patch, bias=False)
    parts.table("embeddings.position_embedding.weight", (image // patch) ** 2 + 1, hidden)
    parts.norm("pre_layrnorm", hidden)
    add_layers(parts, CLIP_LAYER, layers, hidden, width)
    parts.norm("post_layernorm", hidden)
    return tower(parts, "vision", prefix, hidden, layers, heads, patch=patch, image_size=image)


def pixtral(cfg: Config, prefix: str) -> Tower:
    """Rotary positions, RMS norms, a gated MLP, no biases."""
    hidden, layers, heads, width = base(cfg)
    channels, patch = cfg.integer("num_channels", default=3), cfg.integer("patch_size")
    parts = Parts("vision")
    parts.conv("patch_conv", hidden, channels, patch, patch, bias=False)
    parts.norm("ln_pre", hidden, bias=False)
    layer = Layer(
        at="transformer.layers.{i}.",
        q="attention.q_proj",
        k="attention.k_proj",
        v="attention.v_proj",
        o="attention.o_proj",
        qkv_bias=False,
        out_bias=False,
        gated=True,
        gate="feed_forward.gate_proj",
        up="feed_forward.up_proj",
        down="feed_forward.down_proj",
        mlp_bias=False,
        norms=("attention_norm", "ffn_norm"),
        norm_bias=False,
    )
    add_layers(parts, layer, layers, hidden, width)
    return tower(
        parts, "vision", prefix, hidden, layers, heads, patch=patch, image_size=cfg.integer("image_size", default=1024)
    )


def internvl(cfg: Config, prefix: str) -> Tower:
    """InternViT in the transformers layout: a class token, learned positions, layer scales."""
    hidden, layers, heads, width = base(cfg)
    channels, patch = cfg.integer("num_channels", default=3), size_of(cfg, "patch_size")
    image = size_of(cfg, "image_size")
    bias = cfg.flag("attention_bias")
    plain = norm_type(cfg, "layer_norm")
    parts = Parts("vision")
    parts.add("embeddings.cls_token", 1, 1, hidden)
    parts.conv("embeddings.patch_embeddings.projection", hidden, channels, patch, patch)
    parts.add("embeddings.position_embeddings", 1, (image // patch) ** 2 + 1, hidden)
    layer = Layer(
        at="encoder.layer.{i}.",
        q="attention.q_proj",
        k="attention.k_proj",
        v="attention.v_proj",
        o="attention.projection_layer",
        qkv_bias=bias,
        norms=("layernorm_before", "layernorm_after"),
        norm_bias=plain,
        scales=("lambda_1", "lambda_2"),
    )
    add_layers(parts, layer, layers, hidden, width)
    if cfg.flag("use_qk_norm"):
        for name in ("q_norm", "k_norm"):
            parts.norm(f"encoder.layer.{{i}}.attention.{name}", hidden, bias=plain, copies=layers)
    return tower(parts, "vision", prefix, hidden, layers, heads, patch=patch, image_size=image)


def llama4(cfg: Config, prefix: str) -> Tower:
    """A class token, unfolded patches, and the pixel-shuffle adapter."""
    hidden, layers, heads, width = base(cfg)
    channels, patch = cfg.integer("num_channels", default=3), cfg.integer("patch_size")
    image = size_of(cfg, "image_size")
    shuffled, out = cfg.integer("projector_input_dim"), cfg.integer("projector_output_dim")
    shuffle = cfg.number("pixel_shuffle_ratio", default=0.5, low=0.01, high=1.0)
    parts = Parts("vision")
    parts.add("class_embedding", hidden)
    parts.table("positional_embedding_vlm", (image // patch) ** 2 + 1, hidden)
    parts.linear("patch_embedding.linear", hidden, channels * patch * patch, bias=False)
    layer = Layer(at="model.layers.{i}.", o="self_attn.o_proj", norms=("input_layernorm", "post_attention_layernorm"))
    add_layers(parts, layer, layers, hidden, width)
    parts.norm("layernorm_pre", hidden).norm("layernorm_post", hidden)
    parts.linear("vision_adapter.mlp.fc1", shuffled, int(hidden / shuffle**2), bias=False)
    parts.linear("vision_adapter.mlp.fc2", out, shuffled, bias=False)
    return tower(
        parts, "vision", prefix, hidden, layers, heads, patch=patch, image_size=image, merge=max(1, round(1 / shuffle))
    )


def mllama(cfg: Config, prefix: str) -> Tower:
    """Llama 3.2 Vision: tiles, gated positions, a second stack of gated layers."""
    hidden = cfg.integer("hidden_size", high=2**20)
    heads = cfg.integer("attention_heads", "num_attention_heads", high=65_536)
    layers = cfg.integer("num_hidden_layers", high=MAX_TOWER_LAYERS)
    outer = cfg.integer("num_global_layers", high=MAX_TOWER_LAYERS)
    width, channels = cfg.integer("intermediate_size"), cfg.integer("num_channels", default=3)
    patch, image, tiles = cfg.integer("patch_size"), size_of(cfg, "image_size"), cfg.integer("max_num_tiles", high=64)
    ratios = cfg.get("supported_aspect_ratios")
    if ratios is not None and not isinstance(ratios, list):
        raise cfg.bad("supported_aspect_ratios", "list")
    # transformers' class default lists the eight tilings of up to four tiles; one more row stands for padding
    rows = (len(ratios) if ratios is not None else 8) + 1
    positions = (image // patch) ** 2 + 1
    parts = Parts("vision")
    parts.add("class_embedding", hidden)
    parts.conv("patch_embedding", hidden, channels, patch, patch, bias=False)
    parts.add("gated_positional_embedding.gate", 1)
    parts.table("gated_positional_embedding.embedding", positions, hidden)
    parts.table("gated_positional_embedding.tile_embedding.weight", rows, tiles * positions * hidden)
    for place in ("pre_tile_positional_embedding", "post_tile_positional_embedding"):
        parts.add(f"{place}.gate", 1).table(f"{place}.embedding.weight", rows, tiles * hidden)
    parts.norm("layernorm_pre", hidden).norm("layernorm_post", hidden)
    for at, count in (("transformer.layers.{i}.", layers), ("global_transformer.layers.{i}.", outer)):
        layer = Layer(
            at=at,
            o="self_attn.o_proj",
            qkv_bias=False,
            out_bias=False,
            norms=("input_layernorm", "post_attention_layernorm"),
        )
        add_layers(parts, layer, count, hidden, width)
    for gate in ("gate_attn", "gate_ffn"):
        parts.add(f"global_transformer.layers.{{i}}.{gate}", 1, copies=outer)
    return tower(parts, "vision", prefix, hidden, layers + outer, heads, patch=patch, image_size=image)
