"""From a config.json to a model shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calculator.errors import BadValueError, MissingKeyError, UnknownFamilyError
from calculator.model.config import Config, check_is_config
from calculator.model.decoder import DTYPES
from calculator.model.registry import READERS
from calculator.model.shape import ModelShape

MAX_PARAMETERS = 10**14


def read(config: Mapping[str, Any], *, sidecar: Mapping[str, Any] | None = None) -> ModelShape:
    """The shape that a config.json describes. ``sidecar`` is the repository's hf_quant_config.json, if it has one.

    Raises ``NotAConfigError``, ``UnknownFamilyError``, ``MissingKeyError``, ``BadValueError`` or
    ``NotALanguageModelError``, each naming the key at fault.
    """
    cfg = Config(check_is_config(config))
    family = cfg.string("model_type", default="")
    if not family:
        raise MissingKeyError("shape.missing_key", field="model_type")
    if family not in READERS:
        raise UnknownFamilyError("shape.unknown_family", field="model_type", value=family)
    shape = READERS[family](cfg)
    shape = shape.model_copy(update={
        "model_type": family, "architecture": _architecture(cfg), "dtype": _dtype(cfg),
        "assumptions": tuple(cfg.notes.assumptions),
    })
    if not 0 < shape.parameters.total <= MAX_PARAMETERS:
        raise BadValueError("shape.too_large", field="num_hidden_layers", total_params=shape.parameters.total)
    return shape


def _architecture(cfg: Config) -> str:
    names = cfg.get("architectures")
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""


def _dtype(cfg: Config) -> str:
    """``dtype`` (transformers 5) or ``torch_dtype``, at the top or in the text object; bfloat16 where none is said."""
    places = [cfg, *(c for key in ("text_config", "llm_config", "language_config") if (c := cfg.sub(key)))]
    for place in places:
        for key in ("dtype", "torch_dtype"):
            value = place.get(key)
            if isinstance(value, str):
                name = value.removeprefix("torch.")
                return name if name in DTYPES else "bfloat16"
    cfg.notes.assume("assumption.dtype", value="bfloat16")
    return "bfloat16"
