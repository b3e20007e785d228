"""What is known of a model's weights in bytes, however it became known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal, Self

from calculator.base import Frozen
from calculator.sources import Source


class ImageEncoder(Frozen):
    """What decides an image encoder's scratch memory: its widths, the pixels of a patch's side, those of the picture
    (0: any), and the patches on a side that become one token. ``kind`` is the projector's name ("" if unknown)."""

    hidden: int
    heads: int
    patch: int
    image_size: int = 0
    merge: int = 1
    kind: str = ""


class StoredWeights(Frozen):
    """Weights of a whole model in bytes. ``by_component`` has the keys of ``ParameterCount`` and adds up to
    ``total_bytes``, as does ``by_format`` (formats, or the files' dtypes where ``basis`` is "header"). Multi-token
    prediction layers, which most engines leave unloaded, are counted in and stand apart as "mtp".

    ``tied_copy_bytes``: files of some tools hold the head of a tied model a second time. Loading drops the copy, and
    whether there is one is known from the files only. ``gguf``: read from a GGUF file; ``mix`` is what its name states,
    and ``encoder`` the image encoder of the projector file that is counted in (under "vision", "audio", "projector").
    """

    total_bytes: int
    by_component: dict[str, int]
    by_format: dict[str, int]
    basis: Literal["header", "computed"]
    source: Source
    tied_copy_bytes: int = 0
    gguf: bool = False
    mix: str = ""
    encoder: ImageEncoder | None = None

    @property
    def loaded_bytes(self) -> int:
        """What an engine without speculative decoding keeps: no prediction layers, no second head."""
        return self.total_bytes - self.by_component.get("mtp", 0) - self.tied_copy_bytes

    @classmethod
    def summed(
        cls, parts: Iterable[tuple[str, str, int]], *, basis: Literal["header", "computed"], source: Source
    ) -> Self:
        """From tensors as (component, format, bytes)."""
        by_component: Counter[str] = Counter()
        by_format: Counter[str] = Counter()
        for component, form, size in parts:
            by_component[component] += size
            by_format[form] += size
        return cls(
            total_bytes=by_component.total(),
            by_component=dict(by_component),
            by_format=dict(by_format),
            basis=basis,
            source=source,
        )
