"""From a config.json to a model shape."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from calculator.errors import BadValueError, NotALanguageModelError
from calculator.model.build import linear, table
from calculator.model.config import Config, check_is_config
from calculator.model.decoder import DTYPES
from calculator.model.families.encoders import labels
from calculator.model.generic import read_generic
from calculator.model.keys import refuse_leftovers
from calculator.model.quantization import read_quantization
from calculator.model.registry import READERS
from calculator.model.shape import ModelShape, RopeScaling

MAX_PARAMETERS = 10**14
MAX_STRETCH = 10**9

ARCHITECTURES = {"MiniMaxM2ForCausalLM": "minimax_m2"}
"""Architectures that decide where a file carries another family's model_type."""

CLASS_NAMES = frozenset(re.sub(r"[_-]|_text$", "", name) for name in READERS)
"""Class names of the families, lower case and without tails: "qwen3moe"."""

ANYWHERE = ("vocab_size", "tie_word_embeddings")
"""Keys that composites repeat at the top although their language model's object decides."""

BARE_MODEL = re.compile(r"(?!ChatGLM|.*(?:For[A-Z]|LMHead)).*Model")
"""Class names of models without a head: "MistralModel", not "LlamaForCausalLM", "GPT2LMHeadModel" or "ChatGLMModel"
(which has one all the same)."""


def read(config: Mapping[str, Any], *, sidecar: Mapping[str, Any] | None = None) -> ModelShape:
    """The shape that a config.json describes. ``sidecar`` is the repository's hf_quant_config.json, if it has one.

    Raises ``NotAConfigError``, ``UnknownFamilyError``, ``MissingKeyError``, ``BadValueError`` or
    ``NotALanguageModelError``, each naming the key at fault.
    """
    cfg = Config(check_is_config(config))
    family = _family(cfg)
    architecture = _architecture(cfg)
    reader = READERS.get(ARCHITECTURES.get(architecture, family))
    if reader is None:
        shape = read_generic(cfg, family, CLASS_NAMES - {"llama"})
    else:
        shape = reader(cfg)
        cfg.ignore(*ANYWHERE)
        refuse_leftovers(cfg.notes, family)
    shape = _headed(cfg, shape, architecture)
    shape = shape.model_copy(
        update={
            "model_type": family,
            "architecture": architecture,
            "dtype": _dtype(cfg),
            "quantization": read_quantization(cfg.raw, sidecar),
            "rope_scaling": _rope_scaling(cfg),
            "assumptions": tuple(cfg.notes.assumptions),
        }
    )
    if not 0 < shape.parameters.total <= MAX_PARAMETERS:
        raise BadValueError("shape.too_large", field="num_hidden_layers", total_params=shape.parameters.total)
    return shape


def _family(cfg: Config) -> str:
    """``model_type``; files of the mamba_ssm package have none and are known by their ``ssm_cfg``."""
    family = cfg.string("model_type", default="")
    if not family and (cfg.has("ssm_cfg") or cfg.has("d_model")):
        return "mamba_ssm"
    if not family and "_class_name" in cfg.raw:
        raise NotALanguageModelError("shape.not_a_language_model", field="_class_name", value="diffusers")
    if not family:
        raise cfg.missing("model_type")
    return family


def _headed(cfg: Config, shape: ModelShape, architecture: str) -> ModelShape:
    """Without its head where the architecture is the bare model, as in embedding repositories; with a classifier's
    where it is one, as in reward models and rerankers; with that over a reduced vocabulary in EAGLE-3's drafts."""
    if shape.kind != "decoder" or shape.towers:
        return shape
    if not architecture:
        cfg.notes.assume("assumption.causal_head", key="architectures")
    if "Eagle3" in architecture and cfg.has("draft_vocab_size"):
        reduced = table("lm_head.weight", cfg.integer("draft_vocab_size"), shape.hidden, component="head")
        return shape.model_copy(update={"head": (reduced,), "tied": False})
    if BARE_MODEL.fullmatch(architecture):
        return shape.model_copy(update={"head": (), "tied": False})
    if "ForSequenceClassification" in architecture:
        return shape.model_copy(update={"head": linear("score", labels(cfg), shape.hidden, "head"), "tied": False})
    if "ForTokenClassification" in architecture:
        head = linear("score", labels(cfg), shape.hidden, "head", bias=True)
        return shape.model_copy(update={"head": head, "tied": False})
    return shape


def _architecture(cfg: Config) -> str:
    """The first class name; "" where the list is absent or empty."""
    names = cfg.strings("architectures")
    return names[0] if names else ""


def _places(cfg: Config) -> list[Config]:
    """The top and the objects in which composites keep their language model."""
    return [cfg, *(c for key in ("text_config", "llm_config", "language_config") if (c := cfg.sub(key)))]


def _rope_scaling(cfg: Config) -> RopeScaling | None:
    """``rope_scaling``, or ``rope_parameters`` (transformers 5; there may be one for each kind of layer: the one that
    stretches most). None where nothing stretches or the object cannot be read: sizes do not depend on it."""
    found: list[RopeScaling] = []
    for place in _places(cfg):
        for key in ("rope_scaling", "rope_parameters"):
            stated = place.get(key)
            if not isinstance(stated, dict):
                continue
            for one in (stated, *stated.values()):
                kind = one.get("rope_type", one.get("type")) if isinstance(one, dict) else None
                factor, original = (one.get("factor"), one.get("original_max_position_embeddings")) if kind else (0, 0)
                if isinstance(kind, str) and isinstance(factor, int | float) and 1 < factor < MAX_STRETCH:
                    known = isinstance(original, int) and 0 < original < MAX_STRETCH
                    found.append(RopeScaling(kind=kind[:40], factor=factor, original=original if known else None))
    return max(found, key=lambda scaling: scaling.factor, default=None)


def _dtype(cfg: Config) -> str:
    """``dtype`` (transformers 5) or ``torch_dtype``, at the top or in the text object; bfloat16 where none is said."""
    for place in _places(cfg):
        for key in ("dtype", "torch_dtype"):
            value = place.get(key)
            if isinstance(value, str):
                name = value.removeprefix("torch.")
                if name in DTYPES:
                    return name
                cfg.notes.assume("assumption.dtype_unknown", value="bfloat16", written=value[:40])
                return "bfloat16"
    cfg.notes.assume("assumption.dtype", value="bfloat16")
    return "bfloat16"
