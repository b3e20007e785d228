"""A shape as the JSON that ``shape --json`` prints."""

from __future__ import annotations

from typing import Any

from calculator.errors import UnknownFamilyError
from calculator.model.shape import ModelShape


def shape_json(shape: ModelShape) -> dict[str, Any]:
    """``parameters`` by component, ``layers``, ``cache`` (null where the model's cache is refused, with the reason as
    an assumption), ``indexer_bytes_per_token`` and ``assumptions`` as message ids with their values."""
    assumptions = [note.model_dump() for note in shape.assumptions]
    try:
        cache: dict[str, Any] | None = shape.cache.model_dump()
    except UnknownFamilyError as error:
        cache = None
        assumptions.append(error.message.model_dump())
    indexer = cache.pop("indexer_bytes_per_token") if cache else 0
    sparse = cache.pop("sparse_bytes_per_token") if cache else 0
    return {
        "model_type": shape.model_type,
        "architecture": shape.architecture,
        "kind": shape.kind,
        "parameters": shape.parameters.model_dump(),
        "layers": shape.layers,
        "cache": cache,
        "indexer_bytes_per_token": indexer,
        "sparse_bytes_per_token": sparse,
        "assumptions": assumptions,
    }
