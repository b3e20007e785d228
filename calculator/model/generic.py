"""Families without a reader: read as Llama where the file says nothing that Llama does not."""

from __future__ import annotations

import re
from collections.abc import Set

from calculator.errors import NotALanguageModelError, UnknownFamilyError
from calculator.model.config import Config
from calculator.model.families.llama import LLAMA, read_dialect
from calculator.model.keys import refuse_unknown
from calculator.model.shape import ModelShape

LLAMA_KEYS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
EXPLICIT_KEYS = ("num_key_value_heads", "tie_word_embeddings", "hidden_act", "rms_norm_eps")
"""Keys whose defaults differ between families, so that an unknown family has to state them."""

CLASS_TAIL = re.compile(r"(For[A-Z].*|LMHeadModel|Model)$")

NESTED = ("text_config", "llm_config", "language_config", "thinker_config", "decoder", "generator")
PICTURES = ("image_size", "patch_size", "num_mel_bins", "sample_size", "_diffusers_version", "num_channels")


def read_generic(cfg: Config, family: str, known: Set[str]) -> ModelShape:
    """Llama's shapes for an unknown family that states Llama's keys, and nothing else that sizes anything.

    ``known``: the class names (lower case, without their tails) of families that have readers; a file that names one of
    those under another model_type is contradictory. Raises ``NotALanguageModelError`` where there is no vocabulary,
    ``UnknownFamilyError`` naming the family or the key that is not understood.
    """
    worded = any(cfg.has(key) for key in (*NESTED, "vocab_size", "padded_vocab_size", "n_vocab"))
    pictorial = any(key in cfg.raw for key in PICTURES) or not any(cfg.has(key) for key in LLAMA_KEYS)
    if not worded and pictorial:
        raise NotALanguageModelError("shape.not_a_language_model", field="vocab_size", value=family)
    names = cfg.strings("architectures") or ("",)
    if CLASS_TAIL.sub("", names[0]).lower() in known:
        raise UnknownFamilyError("shape.unknown_family", field="model_type", value=family)
    for key in (*LLAMA_KEYS, *EXPLICIT_KEYS):
        if not cfg.has(key):
            raise UnknownFamilyError("shape.unknown_family", field="model_type", value=family)
    shape = read_dialect(cfg, LLAMA)
    refuse_unknown(cfg.notes, family)
    if cfg.string("hidden_act", default="") not in ("silu", "swish"):
        raise UnknownFamilyError(
            "shape.unknown_family_key", field=f"{cfg.path}hidden_act", family=family, family_key="model_type"
        )
    cfg.notes.assume("assumption.generic", value=family)
    return shape
