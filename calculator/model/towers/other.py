"""Vision towers of one family each: MoonViT, Gemma 4, MiniMax-M3, Step 3.7, the first Qwen-VL, GLM-4V, InternViT.

Facts are those of the modelling code in the public transformers repository, release 5.24, or of the modeling file in
the model's own hub repository where transformers has none.
"""

from __future__ import annotations

from calculator.model.build import Tensors
from calculator.model.config import Config
from calculator.model.shape import Tower
from calculator.model.towers.layers import Layer, Parts, add_layers, tower
from calculator.model.towers.vit import MAX_TOWER_LAYERS, base, norm_type, size_of


def moonvit(cfg: Config, prefix: str) -> Tower:
    """Kimi's: a square table of positions (the keys of K2.5 start with "vt_"), one fused or three matrices alike."""
    hidden = cfg.integer("vt_hidden_size", "hidden_size", high=2**20)
    layers = cfg.integer("vt_num_hidden_layers", "num_hidden_layers", high=MAX_TOWER_LAYERS)
    heads = cfg.integer("vt_num_attention_heads", "num_attention_heads", high=65_536)
    width = cfg.integer("vt_intermediate_size", "intermediate_size")
    rows = cfg.integer("init_pos_emb_height", "pos_emb_height", high=65_536)
    columns = cfg.integer("init_pos_emb_width", "pos_emb_width", high=65_536)
    patch = cfg.integer("patch_size")
    merge = cfg.ints("merge_kernel_size", length=2, low=1, high=64) or (2, 2)
    parts = Parts("vision")
    parts.conv("patch_embed.proj", hidden, 3, patch, patch)
    parts.add("patch_embed.pos_emb.weight", rows, columns, hidden, kind="embedding")
    layer = Layer(at="encoder.blocks.{i}.", qkv="wqkv", o="wo", up="mlp.fc0", down="mlp.fc1", norms=("norm0", "norm1"))
    add_layers(parts, layer, layers, hidden, width)
    parts.norm("encoder.final_layernorm", hidden)
    return tower(parts, "vision", prefix, hidden, layers, heads, patch=patch, merge=merge[0])


def gemma4(cfg: Config, prefix: str) -> Tower:
    """Two tables of positions, four norms a layer, query and key norms, no biases."""
    hidden, layers = cfg.integer("hidden_size", high=2**20), cfg.integer("num_hidden_layers", high=MAX_TOWER_LAYERS)
    heads, head = cfg.integer("num_attention_heads", high=65_536), cfg.integer("head_dim")
    kv = cfg.integer("num_key_value_heads", high=65_536)
    patch, width = cfg.integer("patch_size"), cfg.integer("intermediate_size")
    cfg.ignore("global_head_dim", "pooling_kernel_size")
    parts = Parts("vision")
    parts.add(
        "patch_embedder.position_embedding_table", 2, cfg.integer("position_embedding_size"), hidden, kind="embedding"
    )
    parts.linear("patch_embedder.input_proj", hidden, 3 * patch * patch, bias=False)
    layer = Layer(
        at="encoder.layers.{i}.",
        q="self_attn.q_proj.linear",
        k="self_attn.k_proj.linear",
        v="self_attn.v_proj.linear",
        o="self_attn.o_proj.linear",
        qkv_bias=False,
        out_bias=False,
        gated=True,
        gate="mlp.gate_proj.linear",
        up="mlp.up_proj.linear",
        down="mlp.down_proj.linear",
        mlp_bias=False,
        norms=(
            "input_layernorm",
            "post_attention_layernorm",
            "pre_feedforward_layernorm",
            "post_feedforward_layernorm",
        ),
        norm_bias=False,
    )
    add_layers(parts, layer, layers, hidden, width, kv_width=kv * head, inner=heads * head)
    for name in ("q_norm", "k_norm"):
        parts.norm(f"encoder.layers.{{i}}.self_attn.{name}", head, bias=False, copies=layers)
    return tower(
        parts,
        "vision",
        prefix,
        hidden,
        layers,
        heads,
        patch=patch,
        merge=cfg.integer("pooling_kernel_size", default=3, high=64, silent=True),
    )


def gemma4_unified(cfg: Config, prefix: str) -> Tower:
    """No layers: patches go through one dense layer between norms, with a table of positions."""
    hidden = cfg.integer("mm_embed_dim", high=2**20)
    patch = cfg.optional_int("model_patch_size") or cfg.integer("patch_size") * cfg.integer("pooling_kernel_size")
    flat = 3 * patch * patch
    parts = Parts("vision")
    parts.add("pos_embedding", cfg.integer("mm_posemb_size"), 2, hidden, kind="embedding")
    parts.norm("patch_ln1", flat).linear("patch_dense", hidden, flat)
    parts.norm("patch_ln2", hidden).norm("pos_norm", hidden)
    cfg.ignore("patch_size", "pooling_kernel_size", "output_proj_dims")
    return tower(parts, "vision", prefix, hidden, 0, 0, patch=patch)


def minimax_m3(cfg: Config, prefix: str) -> Tower:
    """CLIP's layer over three-dimensional patches with rotary positions; no last norm."""
    hidden, layers, heads, width = base(cfg)
    patch = cfg.integer("patch_size")
    inner = cfg.sub("img_token_compression_config")
    frames = inner.integer("temporal_patch_size", default=2, high=64) if inner else 2
    merge = inner.integer("spatial_merge_size", default=2, high=64) if inner else 2
    parts = Parts("vision")
    parts.conv("embeddings.patch_embedding", hidden, 3, frames, patch, patch, bias=False)
    parts.norm("pre_layrnorm", hidden)
    add_layers(parts, Layer(at="layers.{i}."), layers, hidden, width)
    return tower(
        parts,
        "vision",
        prefix,
        hidden,
        layers,
        heads,
        patch=patch,
        merge=merge,
        image_size=cfg.integer("image_size", default=2016),
    )


def step3p7(cfg: Config, prefix: str) -> Tower:
    """Layer scales, learned positions, and two strided convolutions that double the width each."""
    hidden, layers, heads, width = base(cfg)
    channels, patch, image = cfg.integer("num_channels"), cfg.integer("patch_size"), size_of(cfg, "image_size")
    parts = Parts("vision")
    parts.conv("embeddings.patch_embedding", hidden, channels, patch, patch, bias=False)
    parts.table("embeddings.position_embedding.weight", (image // patch) ** 2, hidden)
    parts.norm("pre_layernorm", hidden)
    layer = Layer(at="layers.{i}.", norms=("layernorm_before", "layernorm_after"), scales=("lambda_1", "lambda_2"))
    add_layers(parts, layer, layers, hidden, width)
    parts.conv("downsampler1", 2 * hidden, hidden, 3, 3).conv("downsampler2", 4 * hidden, 2 * hidden, 3, 3)
    return tower(parts, "vision", prefix, hidden, layers, heads, patch=patch, image_size=image, merge=4)


def qwen_vl(cfg: Config, prefix: str) -> Tower:
    """The first Qwen-VL: OpenCLIP's ViT-bigG and a resampler to 256 queries."""
    hidden, layers = cfg.integer("width", high=2**20), cfg.integer("layers", high=MAX_TOWER_LAYERS)
    heads, patch, image = cfg.integer("heads"), cfg.integer("patch_size"), cfg.integer("image_size")
    out = cfg.integer("output_dim", high=2**20)
    width = int(hidden * cfg.number("mlp_ratio", default=None, low=0.1, high=64))
    queries = cfg.integer("n_queries", default=256, silent=True)
    parts = Parts("vision")
    parts.conv("conv1", hidden, 3, patch, patch, bias=False)
    parts.table("positional_embedding", queries, hidden).norm("ln_pre", hidden)
    layer = Layer(
        at="transformer.resblocks.{i}.",
        qkv="attn.in_proj",
        o="attn.out_proj",
        up="mlp.c_fc",
        down="mlp.c_proj",
        norms=("ln_1", "ln_2"),
    )
    add_layers(parts, layer, layers, hidden, width)
    parts.table("attn_pool.pos_embed", queries, out).table("attn_pool.query", queries, out)
    parts.linear("attn_pool.kv_proj", out, hidden, bias=False)
    parts.linear("attn_pool.attn.in_proj", 3 * out, out).linear("attn_pool.attn.out_proj", out, out)
    parts.norm("attn_pool.ln_q", out).norm("attn_pool.ln_kv", out).norm("ln_post", out).table("proj", out, out)
    return tower(parts, "vision", prefix, hidden, layers, heads, patch=patch, image_size=image)


def glm_4v(cfg: Config, prefix: str, text: int, ffn: int) -> Tower:
    """GLM-4V-9B: an EVA-like encoder, a strided convolution and a gated projection to the text's width."""
    hidden, layers = cfg.integer("hidden_size", high=2**20), cfg.integer("num_hidden_layers", high=MAX_TOWER_LAYERS)
    heads, patch = cfg.integer("num_heads"), cfg.integer("patch_size")
    parts = Parts("vision")
    parts.conv("patch_embedding.proj", hidden, cfg.integer("in_channels", default=3), patch, patch)
    parts.add("patch_embedding.cls_embedding", 1, hidden)
    parts.table("patch_embedding.position_embedding.weight", cfg.integer("num_positions"), hidden)
    layer = Layer(
        at="transformer.layers.{i}.",
        qkv="attention.query_key_value",
        o="attention.dense",
        norms=("input_layernorm", "post_attention_layernorm"),
    )
    add_layers(parts, layer, layers, hidden, cfg.integer("intermediate_size"))
    parts.conv("conv", text, hidden, 2, 2).linear("linear_proj.linear_proj", text, text, bias=False)
    parts.norm("linear_proj.norm1", text)
    for name, out, inn in (("gate_proj", ffn, text), ("dense_h_to_4h", ffn, text), ("dense_4h_to_h", text, ffn)):
        parts.linear(f"linear_proj.{name}", out, inn, bias=False)
    parts.add("boi", 1, 1, text).add("eoi", 1, 1, text)
    return tower(
        parts,
        "vision",
        prefix,
        hidden,
        layers,
        heads,
        patch=patch,
        merge=2,
        image_size=cfg.integer("image_size", default=1120),
    )


def intern_vit(cfg: Config, prefix: str) -> Tower:
    """InternViT as InternVL's own code lays it out: fused qkv, layer scales, norms by ``norm_type``."""
    hidden, layers, heads, width = base(cfg)
    channels, patch = cfg.integer("num_channels", default=3), cfg.integer("patch_size")
    image = size_of(cfg, "image_size")
    plain = norm_type(cfg, "rms_norm")
    parts = Parts("vision")
    parts.add("embeddings.class_embedding", 1, 1, hidden)
    parts.conv("embeddings.patch_embedding", hidden, channels, patch, patch)
    parts.add("embeddings.position_embedding", 1, (image // patch) ** 2 + 1, hidden)
    layer = Layer(
        at="encoder.layers.{i}.",
        qkv="attn.qkv",
        o="attn.proj",
        qkv_bias=cfg.flag("qkv_bias", default=False),
        norms=("norm1", "norm2"),
        norm_bias=plain,
        scales=("ls1", "ls2"),
    )
    add_layers(parts, layer, layers, hidden, width)
    if cfg.flag("qk_normalization", default=True):
        for name in ("q_norm", "k_norm"):
            parts.norm(f"encoder.layers.{{i}}.attn.{name}", hidden, bias=False, copies=layers)
    return tower(parts, "vision", prefix, hidden, layers, heads, patch=patch, image_size=image, merge=2)


def resampler(text: int, vision: int, queries: int, prefix: str) -> Tensors:
    """MiniCPM-V's: learned queries attend to the patches, all in the text's width."""
    parts = Parts("projector", prefix)
    parts.table("query", queries, text).table("proj", text, text).linear("kv_proj", text, vision, bias=False)
    parts.linear("attn.in_proj", 3 * text, text).linear("attn.out_proj", text, text)
    return parts.norm("ln_q", text).norm("ln_kv", text).norm("ln_post", text).done()
