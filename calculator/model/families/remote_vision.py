"""Vision composites whose modelling code travels with the checkpoint: Phi-3-Vision, DeepSeek-VL2, MiniCPM-V, VILA.

Facts are those of modeling_phi3_v.py and image_embedding_phi3_v.py in microsoft/Phi-3-vision-128k-instruct, of
modeling_deepseek_vl_v2.py and siglip_vit.py in https://github.com/deepseek-ai/DeepSeek-VL2, of modeling_minicpmv.py and
resampler.py in openbmb/MiniCPM-V and its successors, and of llava/model/multimodal_projector/base_projector.py in
https://github.com/NVlabs/VILA.
"""

from __future__ import annotations

from collections.abc import Callable

from calculator.model.class_defaults import TOWERS
from calculator.model.compose import Readers, compose, read_text, text_config
from calculator.model.config import Config
from calculator.model.shape import ModelShape
from calculator.model.towers import other, vit
from calculator.model.towers.layers import Parts

NAMED_CLIP = {"openai/clip-vit-large-patch14-336": "clip_large"}
"""Towers that a file names instead of describing."""

SIGLIP_SIDE = 384
"""The side of the pictures that DeepSeek-VL2's encoder takes (the default of its configuration class)."""


def phi3_v(cfg: Config, readers: Readers) -> ModelShape:
    """Phi-3 with CLIP's large tower, two learned separators, and a projector over four merged patches."""
    tower_cfg, layer = cfg.require_sub("img_processor"), cfg.require_sub("embd_layer")
    name = tower_cfg.string("model_name", default="openai/clip-vit-large-patch14-336")
    if name not in NAMED_CLIP:
        raise tower_cfg.bad("model_name", "choice")
    window, limit = cfg.optional_int("sliding_window"), cfg.integer("max_position_embeddings")
    values = dict(cfg.raw)
    if window is not None and window >= limit:
        values["sliding_window"] = None  # a window as long as the longest text is none
    text = readers["phi3"](Config(values, cfg.path, cfg.notes))
    sizes = Config({}, tower_cfg.path, cfg.notes, TOWERS[NAMED_CLIP[name]])
    tower = vit.clip(sizes, "model.vision_embed_tokens.img_processor.vision_model.")
    if tower_cfg.integer("image_dim_out") != tower.hidden:
        raise tower_cfg.bad("image_dim_out", "choice")
    if layer.string("projection_cls", default="linear") != "mlp" or not layer.flag("use_hd_transform"):
        raise layer.bad("projection_cls", "choice")
    source = 4 * tower.hidden
    parts = Parts("projector", "model.vision_embed_tokens.")
    if layer.flag("with_learnable_separator"):
        parts.add("glb_GN", 1, 1, source).add("sub_GN", 1, 1, 1, source)
    parts.linear("img_projection.0", text.hidden, source).linear("img_projection.2", text.hidden, text.hidden)
    return compose(text, (tower,), parts.done(), prefix="model.", head="lm_head.")


def deepseek_vl2(cfg: Config, readers: Readers) -> ModelShape:
    """SigLIP with its pooling head, patches merged two by two, and DeepSeek's experts with or without MLA."""
    language = text_config(cfg, "language_config", "deepseek_v2")
    plain = not language.flag("use_mla", default=True, silent=True)
    if plain:
        language.ignore("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    text = read_text(language, readers, {"deepseek_v2": "deepseek"} if plain else None)
    vision = cfg.require_sub("vision_config")
    hidden = vision.integer("width", high=2**20)
    described = {
        "hidden_size": hidden,
        "num_hidden_layers": vision.integer("layers", high=vit.MAX_TOWER_LAYERS),
        "num_attention_heads": vision.integer("heads", default=16, silent=True),
        "intermediate_size": int(hidden * vision.number("mlp_ratio", default=None, low=0.1, high=64)),
        "patch_size": vision.integer("patch_size"),
        "image_size": vision.integer("image_size", default=SIGLIP_SIDE),
        "num_channels": 3,
    }
    tower = vit.pooled_siglip(Config({**vision.raw, **described}, vision.path, cfg.notes), "vision.")
    projector = cfg.require_sub("projector_config")
    if projector.string("projector_type", default="downsample_mlp_gelu") != "downsample_mlp_gelu":
        raise projector.bad("projector_type", "choice")
    wide = projector.integer("n_embed", high=2**20) * projector.integer("mlp_ratio", default=1, high=64, silent=True)
    projector.ignore("input_dim", "depth", "downsample_ratio")
    parts = Parts("projector", "").linear("projector.layers.0", wide, 4 * hidden)
    parts.linear("projector.layers.2", text.hidden, wide)
    parts.add("image_newline", text.hidden).add("view_seperator", text.hidden)
    return compose(text, (tower,), parts.done(), prefix="language.model.", head="language.lm_head.")


def minicpmv(cfg: Config, readers: Readers) -> ModelShape:
    """Flat: the language model by version, SigLIP's tower and a resampler. The first two versions name their tower."""
    version = cfg.get("version")
    if version is None and cfg.has("vision_encoder"):
        return _first_minicpmv(cfg, readers)
    families = {"2.5": "llama", "2.6": "qwen2", "4.0": "llama"}
    if version is None:
        raise cfg.missing("version")
    family = families.get(str(version))
    if family is None:
        raise cfg.bad("version", "choice")
    text = readers[family](cfg)
    vision = cfg.require_sub("vision_config")
    tower = vit.siglip(vision, "vpm.")
    if cfg.flag("drop_vision_last_layer", default=str(version) != "2.5"):
        layers = tower.layers - 1
        tower = vit.siglip(Config({**vision.raw, "num_hidden_layers": layers}, vision.path, vision.notes), "vpm.")
    cfg.ignore("patch_size", "image_size", "slice_config")
    projector = other.resampler(text.hidden, tower.hidden, cfg.integer("query_num"), "resampler.")
    return compose(text, (tower,), projector, prefix="llm.model.", head="llm.lm_head.")


SO400M = "vit_so400m_patch14_siglip_384"


def _first_minicpmv(cfg: Config, readers: Readers) -> ModelShape:
    """MiniCPM-V and MiniCPM-V 2: MiniCPM, timm's SigLIP tower without its pooling head, stored positions of queries."""
    if cfg.string("vision_encoder", default="").split(".")[0] != SO400M:
        raise cfg.bad("vision_encoder", "choice")
    text = readers["minicpm"](cfg)
    layers = 26 if cfg.flag("drop_vision_last_layer", default=True) else 27
    sizes = {**TOWERS["siglip_so400m"], "num_hidden_layers": layers}
    tower = vit.siglip(Config(sizes, "vision_encoder.", cfg.notes), "vpm.")
    cfg.ignore("image_size", "patch_size")
    queries = cfg.integer("query_num")
    projector = other.resampler(text.hidden, tower.hidden, queries, "resampler.")
    positions = Parts("projector", "resampler.").table("pos_embed", queries, text.hidden).done()
    return compose(text, (tower,), (*projector, *positions), prefix="llm.model.", head="llm.lm_head.")


def vila(cfg: Config, readers: Readers) -> ModelShape:
    """Each part in a folder of its own, described in an object of its own; patches merged two by two."""
    text = read_text(text_config(cfg, "llm_cfg"), readers)
    vision = cfg.require_sub("vision_tower_cfg")
    if vision.string("model_type", default="siglip_vision_model") != "siglip_vision_model":
        raise vision.bad("model_type", "choice")
    tower = vit.pooled_siglip(vision, "vision_tower.").model_copy(update={"merge": 2})
    projector = cfg.require_sub("mm_projector_cfg")
    if projector.string("mm_projector_type", default="mlp_downsample") != "mlp_downsample":
        raise projector.bad("mm_projector_type", "choice")
    if cfg.flag("s2", silent=True):
        raise cfg.bad("s2", "choice")
    cfg.ignore("hidden_size", "mm_hidden_size", "vision_resolution")
    parts = Parts("projector", "mm_projector.layers.").norm("1", 4 * tower.hidden)
    parts.linear("2", text.hidden, 4 * tower.hidden).linear("4", text.hidden, text.hidden)
    return compose(text, (tower,), parts.done(), prefix="llm.model.", head="llm.lm_head.")


REMOTE: dict[str, Callable[[Config, Readers], ModelShape]] = {
    "phi3_v": phi3_v,
    "deepseek_vl_v2": deepseek_vl2,
    "minicpmv": minicpmv,
    "llava_llama": vila,
}
