"""A model's shape from a GGUF file alone, for repositories that hold nothing else.

The file's metadata name the sizes (github.com/ggml-org/ggml, docs/gguf.md); put under the keys of a config.json they
go through the same reader as any model. The file's own tensor table is the check: a shape whose parameters are not
those of the file is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from calculator.errors import HubAnswerError, UnknownFamilyError
from calculator.gguf.components import components_of
from calculator.gguf.families import FAMILIES, Config, Head
from calculator.gguf.header import GgufHeader
from calculator.model.read import read
from calculator.model.shape import ModelShape

TOLERANCE = 1e-4
"""Share of the parameters by which shape and file may differ: routing biases and the like."""

_ELSEWHERE = ("mtp", "vision", "audio", "projector")


def config_of(headers: Sequence[GgufHeader]) -> Config:
    """The metadata of a model's files under the keys of a config.json.

    Raises ``UnknownFamilyError`` ("gguf.unknown_architecture") and ``HubAnswerError`` ("gguf.no_model").
    """
    if not headers:
        raise HubAnswerError("gguf.no_files")
    head = Head(headers)
    family = FAMILIES.get(head.architecture)
    if family is None:
        raise UnknownFamilyError(
            "gguf.unknown_architecture", field="general.architecture", value=head.architecture[:40]
        )
    config: Config = {
        "hidden_size": head.get("embedding_length"),
        "num_hidden_layers": head.layers or None,
        "intermediate_size": head.get("feed_forward_length"),
        "num_attention_heads": head.get("attention.head_count"),
        "num_key_value_heads": head.get("attention.head_count_kv") or head.get("attention.head_count"),
        "head_dim": head.get("attention.key_length"),
        "vocab_size": head.vocabulary,
        "max_position_embeddings": head.get("context_length"),
        "sliding_window": head.get("attention.sliding_window"),
        "tie_word_embeddings": "output.weight" not in head.tensors,
        "torch_dtype": "bfloat16",
    }
    return {key: value for key, value in config.items() if value is not None} | family(head)


def shape_of(headers: Sequence[GgufHeader]) -> ModelShape:
    """The shape of the model in a file or in all its parts.

    Raises what ``config_of`` and the config reader raise, ``HubAnswerError`` ("gguf.missing_part"), and
    ``UnknownFamilyError`` ("gguf.shape_differs") where the shape does not have the parameters of the file.
    """
    if headers and headers[0].parts > len(headers):
        name = str(headers[0].metadata.get("general.name", headers[0].architecture))
        raise HubAnswerError("gguf.missing_part", field=name[:80], part=len(headers) + 1, part_count=headers[0].parts)
    shape = read(config_of(headers))
    tensors = [t for header in headers for t in header.tensors if not t.name.startswith("rope_")]
    components = components_of(t.name for t in tensors)
    stored = sum(t.elements for t in tensors if components[t.name] not in _ELSEWHERE)
    if abs(stored - shape.parameters.total) > TOLERANCE * stored:
        raise UnknownFamilyError(
            "gguf.shape_differs",
            field="general.architecture",
            value=headers[0].architecture[:40],
            file_params=stored,
            shape_params=shape.parameters.total,
        )
    return shape
