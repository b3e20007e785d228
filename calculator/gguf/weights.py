"""Weights as GGUF files hold them, by component, from the files' own tables."""

from __future__ import annotations

from collections.abc import Sequence

from calculator.gguf.components import components_of
from calculator.gguf.header import GgufHeader
from calculator.gguf.projector import encoder_of
from calculator.model.stored import StoredWeights
from calculator.sources import Source

GGUF_SOURCE = Source(
    title="GGUF file header", url="https://github.com/ggml-org/ggml/blob/master/docs/gguf.md", checked_on="2026-11-29"
)


def weights_of(headers: Sequence[GgufHeader], projector: Sequence[GgufHeader] = (), *, mix: str = "") -> StoredWeights:
    """The weights in one or several files (the parts of a model), exactly, with those of a projector beside them.
    ``mix`` is what the file's name states."""
    tensors = [tensor for header in (*headers, *projector) for tensor in header.tensors]
    components = components_of(t.name for t in tensors)
    parts = ((components[t.name], t.type, t.bytes) for t in tensors)
    summed = StoredWeights.summed(parts, basis="header", source=GGUF_SOURCE)
    return summed.model_copy(update={"gguf": True, "mix": mix, "encoder": encoder_of(projector)})
