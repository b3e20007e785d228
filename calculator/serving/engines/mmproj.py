"""The projector of a model of towers (mmproj) in llama.cpp: a file of its own, loaded whole on the first card.

Source: tools/mtmd/clip.cpp (``load_tensors``, ``warmup``, ``alloc_compute_meta``), tools/server/server-context.cpp.
The scratch buffer was counted from two printed ones of Qwen's encoder (1,152 wide, patches of 16, 92 x 92 of them):
248.10 MiB with flash attention, 4,884,066,560 bytes without.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from calculator.gguf.mixes import projector_weights
from calculator.gguf.projector import encoder_in
from calculator.model.shape import ModelShape
from calculator.model.stored import ImageEncoder, StoredWeights
from calculator.serving.plan import ServingPlan
from calculator.serving.start import Rows, Span, Term
from calculator.sources import Source
from calculator.text import text

FLASH_BUILD = 6900
"""Build from which the encoder uses flash attention and is warmed up with a picture (November 2025), to the month."""
SOURCE = Source(
    title="llama.cpp source, tools/mtmd/clip.cpp",
    url="https://github.com/ggml-org/llama.cpp/blob/master/tools/mtmd/clip.cpp",
    checked_on="2026-11-29",
    versions="November 2025 to 2026",
)
_COMPONENTS = ("vision", "audio", "projector")
_TOKENS: Mapping[str, tuple[int, int]] = MappingProxyType({
    "qwen2vl_merger": (46 * 46, 4096), "qwen2.5vl_merger": (46 * 46, 4096), "qwen3vl_merger": (46 * 46, 4096),
    "qwen2.5o": (46 * 46, 4096), "glm4v": (46 * 46, 4096), "pixtral": (256, 1024), "kimivl": (256, 1024),
    "gemma4v": (256, 280), "lfm2": (256, 256), "phi4": (256, 1024),
})  # fmt: skip
"""Tokens of the picture that the encoder is warmed up with, and of the largest; encoders of other kinds take pictures
of one size."""
_UNKNOWN = (256, 4096)
_WINDOWED = frozenset(("qwen2.5vl_merger", "qwen2.5o"))


@dataclass(frozen=True, slots=True)
class Projected:
    """What the projector takes of the first card, or of the host. ``scratch`` is empty where nothing is known of it."""

    weights_bytes: int
    scratch: Span
    rows: Rows
    on_host: bool

    @property
    def card_bytes(self) -> int:
        return 0 if self.on_host else self.weights_bytes + self.scratch.value


def projected(shape: ModelShape, plan: ServingPlan, stored: StoredWeights | None, build: int) -> Projected | None:
    """The projector of the plan; None where the model, or the repository that was read, has none, or it is left out."""
    if plan.mmproj == "none":
        return None
    read = stored is not None and stored.gguf
    weights = sum(stored.by_component.get(name, 0) for name in _COMPONENTS) if read and stored is not None else 0
    encoder = stored.encoder if read and stored is not None else None
    if not weights and (not read or plan.mmproj is not None):
        read = False
        made = projector_weights(shape)
        weights, encoder = (made.total_bytes, encoder_in(shape)) if made is not None else (0, None)
    if not weights:
        return None
    scratch = Span(0, 0, 0)
    rows: Rows = (
        ("mmproj", Term(Span.exact(weights), text("serving.item.mmproj", mmproj_bytes=weights),
                        "header" if read else "computed", SOURCE)),
    )  # fmt: skip
    if encoder is not None:
        flash = plan.flash_attn is not False and build >= FLASH_BUILD
        usual, largest = patches(encoder)
        scratch = Span(*(scratch_bytes(encoder, count, flash=flash) for count in (usual, usual, largest)))
        kind = "windows" if encoder.kind in _WINDOWED else "flash" if flash else "plain"
        formula = text(
            f"serving.item.mmproj_compute.{kind}", patches_count=usual, hidden=encoder.hidden, patch=encoder.patch,
            heads=encoder.heads, largest_count=largest,
        )  # fmt: skip
        rows = (*rows, ("mmproj_compute", Term(scratch, formula, "assumed", SOURCE)))
    return Projected(weights, scratch, rows, plan.mmproj == "host")


def patches(encoder: ImageEncoder) -> tuple[int, int]:
    """Patches of the picture that the encoder is warmed up with and of the largest that it takes."""
    if encoder.kind not in _TOKENS and encoder.image_size:
        return ((encoder.image_size // encoder.patch) ** 2,) * 2
    usual, largest = _TOKENS.get(encoder.kind, _UNKNOWN)
    area = encoder.merge * encoder.merge
    return usual * area, largest * area


def scratch_bytes(encoder: ImageEncoder, count: int, *, flash: bool) -> int:
    """The graph's buffer for a picture of so many patches: rows in fp32, the picture itself and the patches' four
    positions, and without flash attention the scores of all heads. Encoders with windows hold the mask of all pairs, in
    fp32 and once more in 16 bit."""
    rows = 6 if flash else 7
    scores = 0 if flash else encoder.heads * count * count
    masks = 6 * count * count if encoder.kind in _WINDOWED else 0
    return 4 * (scores + count * (rows * encoder.hidden + 3 * encoder.patch * encoder.patch + 4)) + masks
