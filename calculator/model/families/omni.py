"""Qwen2.5-Omni and Qwen3-Omni: a thinker that reads text, pictures and sound, and a talker that speaks.

Facts are those of the modelling code in the public transformers repository, release 5.24
(src/transformers/models/{qwen2_5_omni,qwen3_omni_moe}).
"""

from __future__ import annotations

from calculator.model.class_defaults import TOWERS
from calculator.model.compose import Readers, compose, read_text, text_config
from calculator.model.config import Config
from calculator.model.shape import ModelShape, Tower
from calculator.model.towers import audio, qwen, speech
from calculator.model.towers.layers import Parts


def _speaks(cfg: Config) -> bool:
    return cfg.flag("enable_audio_output", "enable_talker", default=True) and cfg.has("talker_config")


def qwen2_5_omni(cfg: Config, readers: Readers) -> ModelShape:
    thinker = cfg.require_sub("thinker_config")
    text = read_text(text_config(thinker), readers, {"qwen2_5_omni_text": "qwen2"})
    towers: list[Tower] = [
        audio.qwen2_5_omni(thinker.require_sub("audio_config", TOWERS["whisper"]), "thinker.audio_tower."),
        qwen.qwen2_5_vl(thinker.require_sub("vision_config", TOWERS["qwen2_5_vl"]), "thinker.visual.", split_qkv=True),
    ]
    if _speaks(cfg):
        talker = cfg.require_sub("talker_config")
        small = readers["qwen2"](talker)
        source = talker.integer("embedding_size", high=2**20)
        parts = Parts("audio").linear("thinker_to_talker_proj", small.hidden, source)
        parts.table("model.embed_tokens.weight", small.vocab, source)
        parts.linear("codec_head", small.vocab, small.hidden, bias=False)
        bare = small.model_copy(update={"embedding": ()})
        towers.append(speech.talker_tower(parts, speech.flatten(bare, "model.", head=False), small))
        towers.append(speech.token2wav(cfg.require_sub("token2wav_config")))
    return compose(text, towers, prefix="thinker.model.", head="thinker.lm_head.")


def qwen3_omni(cfg: Config, readers: Readers) -> ModelShape:
    thinker = cfg.require_sub("thinker_config")
    text = read_text(text_config(thinker), readers, {"qwen3_omni_moe_text": "qwen3_moe"})
    towers: list[Tower] = [
        audio.qwen3_omni(thinker.require_sub("audio_config"), "thinker.audio_tower."),
        qwen.qwen3_vl(thinker.require_sub("vision_config", TOWERS["qwen3_vl"]), "thinker.visual.", omni=True),
    ]
    if _speaks(cfg):
        towers.append(_talker(cfg.require_sub("talker_config"), readers))
        towers.append(speech.code2wav(cfg.require_sub("code2wav_config")))
    return compose(text, towers, prefix="thinker.model.", head="thinker.lm_head.")


def _talker(cfg: Config, readers: Readers) -> Tower:
    """A small mixture of experts over the first codebook, and a smaller model over the others."""
    inner = cfg.require_sub("text_config")
    small = readers["qwen3_omni_talker"](inner)
    predictor_cfg = cfg.require_sub("code_predictor_config")
    predictor = readers["qwen3"](predictor_cfg)
    groups = cfg.integer("num_code_groups", high=1024)
    source = cfg.integer("thinker_hidden_size", high=2**20)
    middle = inner.integer("intermediate_size")
    parts = Parts("audio")
    for name in ("text_projection", "hidden_projection"):
        parts.linear(f"{name}.linear_fc1", middle, source).linear(f"{name}.linear_fc2", small.hidden, middle)
    parts.table("model.codec_embedding.weight", small.vocab, small.hidden)
    parts.linear("codec_head", small.vocab, small.hidden, bias=False)
    at = "code_predictor."
    parts.table(f"{at}model.codec_embedding.{{i}}.weight", predictor.vocab, predictor.hidden, copies=groups - 1)
    parts.linear(f"{at}lm_head.{{i}}", predictor.vocab, predictor.hidden, bias=False, copies=groups - 1)
    bare, bare_predictor = (s.model_copy(update={"embedding": ()}) for s in (small, predictor))
    return speech.talker_tower(
        parts,
        (*speech.flatten(bare, "model.", head=False), *speech.flatten(bare_predictor, f"{at}model.", head=False)),
        small,
    )


OMNI = {"qwen2_5_omni": qwen2_5_omni, "qwen3_omni_moe": qwen3_omni}
