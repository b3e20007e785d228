"""Janus: one language model that reads pictures through SigLIP and draws them token by token through a VQ-GAN.

Facts are those of src/transformers/models/janus in the public transformers repository, release 5.24, and for the
original files ("multi_modality") of https://github.com/deepseek-ai/Janus, whose configuration names towers by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from calculator.model.build import Tensors
from calculator.model.class_defaults import TOWERS, Defaults
from calculator.model.compose import Readers, compose, read_text, text_config
from calculator.model.config import Config
from calculator.model.shape import ModelShape, Tower
from calculator.model.towers import vit
from calculator.model.towers.layers import Parts, add_layers, tower
from calculator.model.towers.vit import CLIP_LAYER, MAX_TOWER_LAYERS, size_of
from calculator.model.towers.vq import VqSizes, add_vq

SIGLIP: dict[str, Defaults] = {
    "siglip_large_patch16_384": {
        "hidden_size": 1_024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4_096,
        "patch_size": 16,
        "image_size": 384,
    },
    "siglip_so400m_patch14_384": TOWERS["siglip_so400m"],
}
"""Encoders by the names that the original files use (SigLIP's models of Zhai et al. 2023, arXiv 2303.15343)."""


def _drawing(text: int, sizes: VqSizes, embedded: int) -> Tower:
    """The VQ-GAN as a tower, with the table of picture tokens, their projection, and the head that chooses them."""
    parts = Parts("vision")
    add_vq(parts, "gen_vision_model.", sizes)
    parts.table("gen_embed.weight", sizes.codes, sizes.code_width)
    parts.linear("gen_aligner.layers.0", text, sizes.code_width).linear("gen_aligner.layers.2", text, text)
    parts.linear("gen_head.output_mlp_projector", embedded, text).linear("gen_head.vision_head", sizes.codes, embedded)
    return tower(parts, "vision", "", sizes.latent, 0, 0)


def _aligner(text: int, source: int, depth: int, prefix: str) -> Tensors:
    parts = Parts("projector", prefix).linear("0", text, source)
    for number in range(1, depth):
        parts.linear(str(2 * number), text, text)
    return parts.done()


def multi_modality(cfg: Config, readers: Readers) -> ModelShape:
    """The original files: sizes in ``params``, the encoder by its name."""
    text = read_text(text_config(cfg, "language_config"), readers)
    vision = cfg.require_sub("vision_config").require_sub("params")
    name = vision.string("model_name", default="")
    if name not in SIGLIP:
        raise vision.bad("model_name", "choice")
    built = vit.pooled_siglip(Config(SIGLIP[name], vision.path, cfg.notes), "vision_model.vision_tower.")
    vision.ignore("image_size")
    sizes = {}
    for key in ("aligner_config", "gen_aligner_config", "gen_head_config", "gen_vision_config"):
        sizes[key] = cfg.require_sub(key).require_sub("params")
    aligner, head, drawn = sizes["aligner_config"], sizes["gen_head_config"], sizes["gen_vision_config"]
    for part, width in ((aligner, text.hidden), (sizes["gen_aligner_config"], text.hidden), (head, text.hidden)):
        if part.integer("n_embed") != width:
            raise part.bad("n_embed", "range")
    sizes["gen_aligner_config"].ignore("input_dim", "depth")
    aligner.ignore("input_dim")
    vq = VqSizes(codes=drawn.integer("image_token_size"), code_width=drawn.integer("n_embed"))
    projector = _aligner(text.hidden, built.hidden, aligner.integer("depth", high=64), "aligner.layers.")
    towers = (built, _drawing(text.hidden, vq, head.integer("image_token_embed")))
    return compose(text, towers, projector, prefix="language_model.model.", head="language_model.lm_head.")


def janus(cfg: Config, readers: Readers) -> ModelShape:
    """The transformers layout."""
    text = read_text(text_config(cfg), readers)
    vision, vq = cfg.require_sub("vision_config"), cfg.require_sub("vq_config")
    hidden, layers = (
        vision.integer("hidden_size", high=2**20),
        vision.integer("num_hidden_layers", high=MAX_TOWER_LAYERS),
    )
    heads, patch, side = (
        vision.integer("num_attention_heads"),
        vision.integer("patch_size"),
        size_of(vision, "image_size"),
    )
    width = int(hidden * vision.number("mlp_ratio", default=None, low=0.1, high=64))
    if vision.flag("use_qk_norm", silent=True):
        raise vision.bad("use_qk_norm", "choice")
    parts = Parts("vision")
    parts.conv("embeddings.patch_embedding", hidden, vision.integer("num_channels", default=3), patch, patch)
    parts.table("embeddings.position_embedding.weight", (side // patch) ** 2, hidden)
    bias = vision.flag("attention_bias", default=True)
    layer = replace(CLIP_LAYER, o="self_attn.projection_layer", qkv_bias=bias)
    add_layers(parts, layer, layers, hidden, width)
    parts.norm("post_layernorm", hidden)
    built = tower(parts, "vision", "model.vision_model.", hidden, layers, heads, patch=patch, image_size=side)
    depth = vision.integer("depth", high=64)
    sizes = VqSizes(
        codes=vq.integer("num_embeddings"),
        code_width=vq.integer("embed_dim"),
        latent=vq.integer("latent_channels"),
        channels=vq.integer("base_channels"),
        steps=vq.ints("channel_multiplier", low=1, high=1024, at_most=16) or VqSizes().steps,
        blocks=vq.integer("num_res_blocks", high=64),
        double=vq.flag("double_latent", silent=True),
    )
    embedded = vq.integer("image_token_embed_dim")
    vq.ignore("num_hidden_layers", "hidden_size")
    # the towers' own projections have a width of their own, which published files set to the text's
    project, drawn = vision.integer("projection_dim"), vq.integer("projection_dim")
    aligner = _aligner(project, hidden, depth, "model.aligner.")
    towers = (built, _drawing(drawn, sizes, embedded))
    return compose(text, towers, aligner, prefix="model.language_model.", head="lm_head.")


JANUS: dict[str, Callable[[Config, Readers], ModelShape]] = {"janus": janus, "multi_modality": multi_modality}
