"""Vision and audio composites: which tower, which projector, which paths.

Facts are those of the modelling code in the public transformers repository, release 5.24; paths are those of the
published checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable

from calculator.model.build import Tensors
from calculator.model.compose import Readers, compose, need_tower, read_text, text_config
from calculator.model.config import Config
from calculator.model.shape import ModelShape, Tower
from calculator.model.towers import audio, other, qwen, vit
from calculator.model.towers.layers import Parts

NEW = "model.language_model."


def two_layers(text: int, source: int, *, bias: bool = True, prefix: str = "multi_modal_projector.") -> Tensors:
    """LLaVA's projector: two linear layers with a GELU between."""
    return (
        Parts("projector", prefix)
        .linear("linear_1", text, source, bias=bias)
        .linear("linear_2", text, text, bias=bias)
        .done()
    )


def picture_tower(cfg: Config, kind_when_absent: str, prefix: str) -> Tower:
    """LLaVA's tower by the vision object's own model_type."""
    raw = cfg.sub("vision_config")
    if raw is not None and not raw.has("model_type"):
        raise raw.missing("model_type")
    name = raw.string("model_type", default="") if raw is not None else ""
    kinds: dict[str, tuple[str, Callable[[Config, str], Tower]]] = {
        "clip_vision_model": ("clip", vit.clip),
        "siglip_vision_model": ("siglip", vit.pooled_siglip),
        "pixtral": ("pixtral", vit.pixtral),
        "": (kind_when_absent, vit.clip),
    }
    if raw is not None and name not in kinds:
        raise raw.bad("model_type", "choice")
    kind, reader = kinds[name]
    return reader(need_tower(cfg, "vision_config", kind if raw is not None else kind_when_absent), prefix)


def llava(cfg: Config, readers: Readers) -> ModelShape:
    """LLaVA in the transformers layout, and flat files of the original code, whose CLIP tower is a repository of its
    own and stands here by its class."""
    if cfg.has("text_config"):
        text = read_text(text_config(cfg), readers)
        cfg.ignore("num_key_value_heads")
    else:
        text = readers["llama"](cfg)
        cfg.ignore("mm_hidden_size")
    tower = picture_tower(cfg, "clip_large", "vision_tower.")
    bias = cfg.flag("multimodal_projector_bias", default=True, silent=True)
    if isinstance(cfg.get("vision_feature_layer"), list):
        taps = len(cfg.ints("vision_feature_layer", low=-512, high=512, at_most=512) or (0,))
    else:
        cfg.integer("vision_feature_layer", "mm_vision_select_layer", default=-2, low=-512, high=512)
        cfg.ignore("mm_vision_select_feature")
        taps = 1
    return compose(text, (tower,), two_layers(text.hidden, tower.hidden * taps, bias=bias))


def llava_next(cfg: Config, readers: Readers) -> ModelShape:
    """LLaVA with one learned vector that ends a row of tiles."""
    shape = llava(cfg, readers)
    newline = Parts("projector").add("image_newline", shape.hidden).done()
    return shape.model_copy(update={"projector": (*shape.projector, *newline)})


def mistral3(cfg: Config, readers: Readers) -> ModelShape:
    """Pixtral's tower, a norm, a patch merger, two linear layers without bias."""
    text = read_text(text_config(cfg), readers)
    tower = picture_tower(cfg, "pixtral", "vision_tower.")
    merge = cfg.integer("spatial_merge_size", default=2, high=64)
    bias = cfg.flag("multimodal_projector_bias")
    parts = Parts("projector", "multi_modal_projector.").norm("norm", tower.hidden, bias=False)
    parts.linear("patch_merger.merging_layer", tower.hidden, merge**2 * tower.hidden, bias=False)
    parts.linear("linear_1", text.hidden, tower.hidden, bias=bias)
    parts.linear("linear_2", text.hidden, text.hidden, bias=bias)
    return compose(text, (tower,), parts.done())


def aya_vision(cfg: Config, readers: Readers) -> ModelShape:
    """Pixel shuffle, a norm (Aya only), a gated pair of linear layers."""
    text = read_text(text_config(cfg), readers)
    tower = vit.pooled_siglip(need_tower(cfg, "vision_config", "siglip"), "vision_tower.vision_model.")
    shuffled = tower.hidden * cfg.integer("downsample_factor", default=2, high=64) ** 2
    wide = cfg.integer("alignment_intermediate_size", default=text.hidden)
    parts = Parts("projector", "multi_modal_projector.")
    if cfg.string("model_type", default="") == "aya_vision":
        parts.norm("layernorm", shuffled)
    parts.linear("linear_1", wide, shuffled).linear("linear_2", text.hidden, wide // 2)
    return compose(text, (tower,), parts.done())


def deepseek_vl(cfg: Config, readers: Readers) -> ModelShape:
    text = read_text(text_config(cfg), readers)
    tower = vit.pooled_siglip(need_tower(cfg, "vision_config", "siglip"), "model.vision_model.")
    parts = Parts("projector", "model.aligner.")
    parts.linear("linear1", text.hidden, tower.hidden).linear("linear2", text.hidden, text.hidden)
    return compose(text, (tower,), parts.done(), prefix=NEW, head="lm_head.")


def idefics3(cfg: Config, readers: Readers) -> ModelShape:
    """Idefics 3 and SmolVLM: pixel shuffle and one matrix."""
    text = read_text(text_config(cfg), readers)
    tower = vit.siglip(need_tower(cfg, "vision_config", "idefics3"), "model.vision_model.")
    scale = cfg.integer("scale_factor", default=2, high=64)
    parts = Parts("projector", "model.connector.modality_projection.")
    parts.linear("proj", text.hidden, tower.hidden * scale**2, bias=False)
    return compose(text, (tower,), parts.done(), prefix="model.text_model.", head="lm_head.")


def internvl(cfg: Config, readers: Readers) -> ModelShape:
    text = read_text(text_config(cfg), readers)
    tower = vit.internvl(need_tower(cfg, "vision_config", "internvl"), "vision_tower.")
    ratio = cfg.number("downsample_ratio", default=0.5, low=0.01, high=1.0)
    source = tower.hidden * int(1 / ratio) ** 2
    parts = Parts("projector", "multi_modal_projector.").norm("layer_norm", source)
    parts.linear("linear_1", text.hidden, source).linear("linear_2", text.hidden, text.hidden)
    return compose(text, (tower,), parts.done())


def internvl_chat(cfg: Config, readers: Readers) -> ModelShape:
    """InternVL with its own code: the language model sits in ``llm_config``."""
    text = read_text(text_config(cfg, "llm_config"), readers)
    tower = other.intern_vit(cfg.require_sub("vision_config"), "vision_model.")
    ratio = cfg.number("downsample_ratio", default=0.5, low=0.01, high=1.0)
    source = tower.hidden * int(1 / ratio) ** 2
    parts = Parts("projector", "mlp1.").norm("0", source)
    parts.linear("1", text.hidden, source).linear("3", text.hidden, text.hidden)
    return compose(text, (tower,), parts.done())


def lfm2_vl(cfg: Config, readers: Readers) -> ModelShape:
    text = read_text(text_config(cfg), readers)
    tower = vit.siglip2(need_tower(cfg, "vision_config", "siglip2"), "vision_tower.vision_model.")
    source = tower.hidden * cfg.integer("downsample_factor", default=2, high=64) ** 2
    wide, bias = cfg.integer("projector_hidden_size"), cfg.flag("projector_bias", default=True)
    parts = Parts("projector", "multi_modal_projector.")
    if cfg.flag("projector_use_layernorm", default=True):
        parts.norm("layer_norm", source)
    parts.linear("linear_1", wide, source, bias=bias).linear("linear_2", text.hidden, wide, bias=bias)
    return compose(text, (tower,), parts.done())


def llama4(cfg: Config, readers: Readers) -> ModelShape:
    text = read_text(text_config(cfg), readers)
    vision = need_tower(cfg, "vision_config", "llama4")
    tower = vit.llama4(vision, "vision_model.")
    parts = Parts("projector", "multi_modal_projector.")
    parts.linear("linear_1", text.hidden, vision.integer("vision_output_dim"), bias=False)
    return compose(text, (tower,), parts.done())


def mllama(cfg: Config, readers: Readers) -> ModelShape:
    text = read_text(text_config(cfg), readers)
    vision = need_tower(cfg, "vision_config", "mllama")
    tower = vit.mllama(vision, "vision_model.")
    parts = Parts("projector", "")
    parts.linear("multi_modal_projector", text.hidden, vision.integer("vision_output_dim"))
    return compose(text, (tower,), parts.done())


def aria(cfg: Config, readers: Readers) -> ModelShape:
    """SigLIP's tower, and a projector of one cross-attention layer whose queries depend on the patch count. Original
    files call the language model by another name and its experts' width ``moe_intermediate_size``."""
    language = text_config(cfg)
    if language.string("model_type", default="") == "aria_moe_lm":
        values = {
            **language.raw,
            "model_type": "aria_text",
            "intermediate_size": language.integer("moe_intermediate_size"),
        }
        language = Config(values, language.path, cfg.notes)
        language.ignore("moe_intermediate_size")
    text = read_text(language, readers)
    tower = vit.siglip(need_tower(cfg, "vision_config", "idefics3"), "vision_tower.")
    table = cfg.require_sub("projector_patch_to_query_dict")
    if not all(key.isdecimal() for key in table.raw):
        raise cfg.bad("projector_patch_to_query_dict", "items")
    queries = max((table.integer(key) for key in table.raw), default=0)
    if not queries:
        raise cfg.bad("projector_patch_to_query_dict", "length")
    hidden = tower.hidden
    parts = Parts("projector", "multi_modal_projector.").table("query", queries, hidden)
    for name in ("q_proj", "k_proj", "v_proj"):
        parts.linear(f"cross_attn.{name}", hidden, hidden, bias=False)
    parts.linear("cross_attn.multihead_attn.in_proj", 3 * hidden, hidden)
    parts.linear("cross_attn.multihead_attn.out_proj", hidden, hidden).linear("cross_attn.linear", hidden, hidden)
    parts.norm("cross_attn.layer_norm", hidden).norm("cross_attn.layer_norm_kv", hidden).norm("layer_norm", hidden)
    parts.linear("feed_forward.linear_in", text.hidden, hidden, bias=False)
    parts.linear("feed_forward.linear_out", text.hidden, text.hidden, bias=False)
    return compose(text, (tower,), parts.done())


def kimi(cfg: Config, readers: Readers) -> ModelShape:
    """Kimi-VL and Kimi K2.5: MoonViT and a two-layer projector over merged patches."""
    text = read_text(text_config(cfg), readers)
    tower = other.moonvit(cfg.require_sub("vision_config"), "vision_tower.")
    source = tower.hidden * tower.merge**2
    parts = Parts("projector", "mm_projector.").norm("pre_norm", tower.hidden)
    parts.linear("proj.0", source, source).linear("proj.2", text.hidden, source)
    return compose(text, (tower,), parts.done())


def flat_vision(
    family: str, kind: str, build: Callable[[Config, str], Tower]
) -> Callable[[Config, Readers], ModelShape]:
    """Qwen2-VL and Qwen2.5-VL: text sizes at the top of the file, or in ``text_config`` in newer files."""

    def read(cfg: Config, readers: Readers) -> ModelShape:
        if cfg.has("text_config") and not cfg.has("hidden_size"):
            text = read_text(text_config(cfg), readers, {f"{kind}_text": family})
        else:
            cfg.ignore("text_config")
            text = readers[family](cfg)
        tower = build(need_tower(cfg, "vision_config", kind), "visual.")
        return compose(text, (tower,), prefix="model.", head="lm_head.")

    return read


def nested_vision(
    kind: str, aliases: dict[str, str], build: Callable[[Config, str], Tower]
) -> Callable[[Config, Readers], ModelShape]:
    """Composites whose merger is part of the tower: Qwen3-VL, Qwen3.5, GLM-4V, EXAONE 4.5."""

    def read(cfg: Config, readers: Readers) -> ModelShape:
        text = read_text(text_config(cfg), readers, aliases)
        tower = build(need_tower(cfg, "vision_config", kind), "model.visual.")
        return compose(text, (tower,), prefix=NEW, head="lm_head.")

    return read


def exaone4_5(cfg: Config, readers: Readers) -> ModelShape:
    text = read_text(text_config(cfg), readers, {"exaone4_5_text": "exaone4"})
    tower = qwen.qwen2_5_vl(cfg.require_sub("vision_config"), "model.visual.", kv_heads=True)
    return compose(text, (tower,), prefix=NEW, head="lm_head.")


def minimax_m3_vl(cfg: Config, readers: Readers) -> ModelShape:
    text = read_text(text_config(cfg, default_type="minimax_m3"), readers)
    tower = other.minimax_m3(cfg.require_sub("vision_config"), "vision_tower.")
    wide = cfg.integer("projector_hidden_size", default=text.hidden)
    bias = cfg.flag("multimodal_projector_bias", default=True)
    source = text.hidden * tower.merge**2
    parts = Parts("projector", "multi_modal_projector.")
    parts.linear("linear_1", wide, tower.hidden, bias=bias).linear("linear_2", text.hidden, wide, bias=bias)
    parts.linear("merge_linear_1", wide, source, bias=bias).linear("merge_linear_2", text.hidden, wide, bias=bias)
    return compose(text, (tower,), parts.done())


def step3p7(cfg: Config, readers: Readers) -> ModelShape:
    """Text sizes in ``text_config`` or at the top; the tower's object, which some copies leave out, by its class."""
    text = readers["step3p5"](cfg) if cfg.has("hidden_size") else read_text(text_config(cfg), readers)
    cfg.ignore("text_config")
    tower = other.step3p7(need_tower(cfg, "vision_config", "step3p7"), "vision_model.")
    parts = Parts("projector", "").linear("vit_large_projector", text.hidden, 4 * tower.hidden, bias=False)
    return compose(text, (tower,), parts.done(), prefix="model.", head="lm_head.")


def fuyu(cfg: Config, readers: Readers) -> ModelShape:
    """No tower: flattened patches go through one matrix."""
    text = readers["persimmon"](cfg)
    flat = cfg.integer("patch_size", default=30) ** 2 * cfg.integer("num_channels", default=3)
    cfg.ignore("text_config")
    parts = Parts("vision", "").linear("vision_embed_tokens", text.hidden, flat)
    return compose(text, (), parts.done())


def speech(cfg: Config, readers: Readers) -> ModelShape:
    """Qwen2-Audio: Whisper's encoder and one matrix with a bias. Voxtral: four frames joined, two without."""
    voxtral = cfg.string("model_type", default="") == "voxtral"
    text = read_text(text_config(cfg), readers)
    sound = need_tower(cfg, "audio_config", "whisper")
    tower = audio.whisper(sound, "audio_tower.")
    parts = Parts("projector", "multi_modal_projector.")
    if voxtral:
        cfg.ignore("hidden_size")
        parts.linear("linear_1", text.hidden, sound.integer("encoder_ffn_dim", "intermediate_size"), bias=False)
        parts.linear("linear_2", text.hidden, text.hidden, bias=False)
    else:
        parts.linear("linear", text.hidden, tower.hidden)
    return compose(text, (tower,), parts.done())


def granite_speech(cfg: Config, readers: Readers) -> ModelShape:
    text = read_text(text_config(cfg), readers)
    tower = audio.granite_speech(cfg.require_sub("encoder_config"), "encoder.")
    window, rate = cfg.integer("window_size", high=4096), cfg.integer("downsample_rate", high=4096)
    projector = audio.qformer(
        cfg.require_sub("projector_config"), cfg.divide("window_size", window, rate), text.hidden, "projector."
    )
    return compose(text, (tower,), projector)


def phi4_multimodal(cfg: Config, readers: Readers) -> ModelShape:
    """Phi-3's text at the top of the file, SigLIP's tower with its pooling head, a Conformer, and a pair of linear
    layers for pictures, for sound, and for sound beside pictures. Its adapters are files of their own."""
    text = readers["phi3"](cfg)
    vision, sound = cfg.require_sub("vision_config"), cfg.require_sub("audio_config")
    at = "model.embed_tokens_extend."
    headed = Config({**vision.raw, "vision_use_head": True}, vision.path, vision.notes)
    tower = vit.pooled_siglip(headed, f"{at}image_embed.img_processor.").model_copy(update={"merge": 2})
    ears = audio.phi4(sound, f"{at}audio_embed.encoder.")
    heard = ears.hidden * sound.integer("downsample_rate", high=1024)
    parts = Parts("projector", at)
    parts.add("image_embed.global_img_feature_extensor", 1, 1, tower.hidden)
    parts.add("image_embed.sub_img_feature_extensor", 1, 1, 1, tower.hidden)
    parts.linear("image_embed.img_projection_up", text.hidden, tower.hidden)
    parts.linear("image_embed.img_projection_down", text.hidden, text.hidden)
    for use in ("speech", "vision_speech"):
        parts.linear(f"audio_embed.up_proj_for_{use}", text.hidden, heard)
        parts.linear(f"audio_embed.down_proj_for_{use}", text.hidden, text.hidden)
    return compose(text, (tower, ears), parts.done(), prefix="model.", head="lm_head.")


COMPOSITES: dict[str, Callable[[Config, Readers], ModelShape]] = {
    "llava": llava,
    "llava_next": llava_next,
    "llava_next_video": llava_next,
    "llava_onevision": llava_next,
    "mistral3": mistral3,
    "aya_vision": aya_vision,
    "cohere2_vision": aya_vision,
    "deepseek_vl": deepseek_vl,
    "idefics3": idefics3,
    "smolvlm": idefics3,
    "internvl": internvl,
    "internvl_chat": internvl_chat,
    "lfm2_vl": lfm2_vl,
    "llama4": llama4,
    "mllama": mllama,
    "aria": aria,
    "kimi_vl": kimi,
    "kimi_k25": kimi,
    "qwen2_vl": flat_vision("qwen2", "qwen2_vl", qwen.qwen2_vl),
    "qwen2_5_vl": flat_vision("qwen2", "qwen2_5_vl", qwen.qwen2_5_vl),
    "qwen3_vl": nested_vision("qwen3_vl", {"qwen3_vl_text": "qwen3"}, qwen.qwen3_vl),
    "qwen3_vl_moe": nested_vision("qwen3_vl", {"qwen3_vl_moe_text": "qwen3_moe"}, qwen.qwen3_vl),
    "qwen3_5": nested_vision("qwen3_vl", {}, lambda c, p: qwen.qwen3_vl(c, p, deep=False)),
    "qwen3_5_moe": nested_vision("qwen3_vl", {}, lambda c, p: qwen.qwen3_vl(c, p, deep=False)),
    "qwen4_exp": nested_vision("qwen3_vl", {}, lambda c, p: qwen.qwen3_vl(c, p, deep=False)),
    "glm4v": nested_vision("glm4v", {"glm4v_text": "glm4"}, qwen.glm4v),
    "glm4v_moe": nested_vision("glm4v", {"glm4v_moe_text": "glm4_moe"}, qwen.glm4v),
    "glm5_next": nested_vision("glm4v", {}, lambda c, p: qwen.glm4v(c, p, next_version=True)),
    "exaone4_5": exaone4_5,
    "minimax_m3_vl": minimax_m3_vl,
    "step3p7": step3p7,
    "fuyu": fuyu,
    "qwen2_audio": speech,
    "voxtral": speech,
    "granite_speech": granite_speech,
    "phi4_multimodal": phi4_multimodal,
}
