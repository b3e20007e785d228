"""Shapes of the models that the cases name, from the configs in ``data/``; nothing is fetched."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from calculator.model import read
from calculator.model.shape import Attention, LatentAttention, ModelShape, StateMixer
from validation.outcome import UnpredictableError

_LAYER_KEYS = ("num_hidden_layers", "n_layer", "num_layers", "num_decoder_layers")
_DROPOUT_KEYS = (
    "resid_pdrop", "embd_pdrop", "attn_pdrop", "dropout", "attention_dropout", "hidden_dropout", "hidden_dropout_prob",
    "attention_probs_dropout_prob", "dropout_rate",
)  # fmt: skip


@cache
def _lines(name: str) -> Mapping[str, str]:
    """Lines of a data file by model id, still as text: most runs need few of them."""
    text = files("validation").joinpath(f"data/{name}").read_text("utf-8")
    return MappingProxyType({json.loads(line)["id"]: line for line in text.splitlines()})


def config_of(model_id: str) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The config.json of a model and its quantisation sidecar, if the package has them.

    A model whose tensors have the shapes of another's takes that config with its own ``quantization_config``.
    Raises ``UnpredictableError`` ("validation.reason.model") for a model that the package does not know.
    """
    lines = _lines("models.jsonl")
    if model_id in lines:
        row = json.loads(lines[model_id])
        return row["config"], row.get("sidecar")
    alias = _lines("aliases.jsonl").get(model_id)
    if alias is None:
        raise UnpredictableError("validation.reason.model", model=model_id)
    row = json.loads(alias)
    config, _ = config_of(row["same_shape_as"])
    config = {key: value for key, value in config.items() if key != "quantization_config"}
    if row.get("quantization_config"):
        config["quantization_config"] = row["quantization_config"]
    return config, None


@lru_cache(maxsize=512)
def shape_of(model_id: str | None) -> ModelShape:
    """The shape of a case's model. Raises ``UnpredictableError``, or ``ShapeError`` if the config is not understood."""
    if not model_id:
        raise UnpredictableError("validation.reason.no_model")
    config, sidecar = config_of(model_id)
    return read(config, sidecar=sidecar)


@lru_cache(maxsize=512)
def lab_shape(case_json: str) -> ModelShape:
    """The shape of a lab step; the case as JSON text, so that equal steps are read once."""
    return read(lab_config(json.loads(case_json)))


def lab_config(case: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a lab step: its preset with the step's own number of layers, config changes and dropout.

    Raises ``UnpredictableError`` ("validation.reason.model") for a preset that the package does not know.
    """
    model = case["model"]
    if isinstance(model, dict):
        config = dict(model)
    else:
        lines = _lines("lab_models.jsonl")
        if model not in lines:
            raise UnpredictableError("validation.reason.model", model=str(model))
        config = dict(json.loads(lines[model])["config"])
    if case.get("layers"):
        config.update({key: case["layers"] for key in _LAYER_KEYS if key in config})
        config.pop("layer_types", None)
    if case.get("dropout") is not None:
        config.update(dict.fromkeys(_DROPOUT_KEYS, case["dropout"]))
    config.update(case.get("config") or {})
    return config


def arch_class(shape: ModelShape) -> str:
    """The first of hybrid, mla, swa, multimodal, moe, mha, dense_gqa that applies: the classes of the serving cases."""
    mixers = [mixer for i in shape.order for mixer in shape.blocks[i].mixers]
    attention = [m for m in mixers if isinstance(m, Attention)]
    if any(isinstance(m, StateMixer) for m in mixers):
        return "hybrid"
    if any(isinstance(m, LatentAttention) for m in mixers):
        return "mla"
    if any(m.window or m.chunk for m in attention):
        return "swa"
    if shape.towers:
        return "multimodal"
    if any(block.mixture for block in shape.blocks):
        return "moe"
    if all(m.kv_heads == m.heads for m in attention):
        return "mha"
    return "dense_gqa"
