"""The composites of the Gemma family: which tower, which projector, which paths.

Facts are those of the modelling code in the public transformers repository, release 5.24; paths are those of the
published checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt

from calculator.model.compose import Readers, compose, need_tower, read_text, text_config, tower_config
from calculator.model.config import Config
from calculator.model.families.composite import NEW
from calculator.model.shape import ModelShape, Tower
from calculator.model.towers import conformer, mobilenet, other, vit
from calculator.model.towers.layers import Parts


def gemma3(cfg: Config, readers: Readers) -> ModelShape:
    text = read_text(text_config(cfg), readers)
    tower = vit.pooled_siglip(need_tower(cfg, "vision_config", "siglip"), "vision_tower.vision_model.")
    # The projector pools the patches of an image to a fixed number of tokens.
    side = tower.image_size // tower.patch
    tokens = cfg.integer("mm_tokens_per_image", default=256, high=65_536, silent=True)
    tower = tower.model_copy(update={"merge": max(side // isqrt(tokens), 1)})
    parts = Parts("projector", "multi_modal_projector.")
    parts.add("mm_input_projection_weight", tower.hidden, text.hidden, kind="linear")
    parts.norm("mm_soft_emb_norm", tower.hidden, bias=False)
    if text.max_context is None:
        cfg.notes.assume("assumption.class_default", key="text_config.max_position_embeddings", value="131072")
        text = text.model_copy(update={"max_context": 131_072})
    return compose(text, (tower,), parts.done())


def paligemma(cfg: Config, readers: Readers) -> ModelShape:
    """SigLIP without its pooling head, one matrix with a bias, Gemma or Gemma 2."""
    text = read_text(text_config(cfg), readers)
    tower = vit.siglip(need_tower(cfg, "vision_config", "siglip"), "vision_tower.vision_model.")
    cfg.ignore("projection_dim", "hidden_size")
    parts = Parts("projector", "multi_modal_projector.").linear("linear", text.hidden, tower.hidden)
    return compose(text, (tower,), parts.done())


def gemma4(cfg: Config, readers: Readers) -> ModelShape:
    """A vision tower always, an audio tower in the small models, one matrix behind each."""
    text = read_text(text_config(cfg), readers, {"gemma4_unified_text": "gemma4_text"})
    unified = cfg.string("model_type", default="") == "gemma4_unified"
    towers: list[Tower] = []
    parts = Parts("projector", "model.")
    vision = tower_config(cfg, "vision_config", "", optional=True)
    if vision is not None:
        towers.append(
            other.gemma4_unified(vision, "model.embed_vision.")
            if unified
            else other.gemma4(vision, "model.vision_tower.")
        )
        middle = "embed_vision.multimodal_embedder" if unified else "embed_vision"
        parts.linear(f"{middle}.embedding_projection", text.hidden, towers[-1].hidden, bias=False)
    sound = tower_config(cfg, "audio_config", "", optional=True)
    if sound is not None:
        if unified:
            source = sound.integer("audio_embed_dim", high=2**20)
        else:
            towers.append(conformer.gemma4(sound, "model.audio_tower."))
            source = sound.integer("output_proj_dims", high=2**20)
        parts.linear("embed_audio.embedding_projection", text.hidden, source, bias=False)
    return compose(text, towers, parts.done(), prefix=NEW, head="lm_head.")


def gemma3n(cfg: Config, readers: Readers) -> ModelShape:
    """MobileNet V5 and a Conformer. Pictures and sounds have token tables of their own beside their projections."""
    text = read_text(text_config(cfg, default_type="gemma3n_text"), readers)
    towers: list[Tower] = []
    parts = Parts("projector", "model.")
    vision = tower_config(cfg, "vision_config", "", optional=True)
    if vision is not None:
        name = vision.string("architecture", default="mobilenetv5_300m_enc")
        if name != "mobilenetv5_300m_enc":
            raise vision.bad("architecture", "choice")
        hidden = vision.integer("hidden_size", high=2**20)
        towers.append(mobilenet.mobilenet_v5("model.vision_tower.timm_model.", hidden))
        _embedder(parts, "embed_vision.", vision, hidden, text.hidden)
    sound = tower_config(cfg, "audio_config", "", optional=True)
    if sound is not None:
        towers.append(conformer.gemma3n(sound, "model.audio_tower."))
        _embedder(parts, "embed_audio.", sound, towers[-1].hidden, text.hidden)
    return compose(text, towers, parts.done(), prefix=NEW, head="lm_head.")


def _embedder(parts: Parts, at: str, cfg: Config, hidden: int, text: int) -> None:
    parts.table(f"{at}embedding.weight", cfg.integer("vocab_size"), hidden)
    parts.norm(f"{at}hard_embedding_norm", hidden, bias=False).norm(f"{at}soft_embedding_norm", hidden, bias=False)
    parts.linear(f"{at}embedding_projection", text, hidden, bias=False)
    cfg.ignore("vocab_offset")


GEMMA: dict[str, Callable[[Config, Readers], ModelShape]] = {
    "gemma3": gemma3,
    "paligemma": paligemma,
    "gemma3n": gemma3n,
    "gemma4": gemma4,
    "gemma4_unified": gemma4,
}
