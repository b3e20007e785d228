"""The multimodal file beside a model (mmproj): its image encoder, by the file's metadata or by the model's shape.

The metadata keys are facts of ``tools/mtmd/clip-impl.h`` (github.com/ggml-org/llama.cpp).
"""

from __future__ import annotations

from collections.abc import Sequence

from calculator.gguf.header import GgufHeader
from calculator.model.shape import ModelShape, Tower
from calculator.model.stored import ImageEncoder

GENERATES = ("talker", "token2wav", "code2wav")
"""Parts of speech-generating models that are no encoders: the converter leaves them out of the projector file."""

_KINDS = {
    "qwen2_vl": "qwen2vl_merger", "qwen2_5_vl": "qwen2.5vl_merger", "qwen2_5_omni": "qwen2.5o",
    "qwen3_vl": "qwen3vl_merger", "qwen3_vl_moe": "qwen3vl_merger", "qwen3_5": "qwen3vl_merger",
    "qwen3_5_moe": "qwen3vl_merger", "glm4v": "glm4v", "glm4v_moe": "glm4v", "mistral3": "pixtral",
    "pixtral": "pixtral", "kimi_vl": "kimivl", "gemma3": "gemma3", "gemma4": "gemma4v", "llama4": "llama4",
}  # fmt: skip


def encoders(shape: ModelShape) -> tuple[Tower, ...]:
    """The towers that the projector file holds."""
    return tuple(tower for tower in shape.towers if not tower.prefix.startswith(GENERATES))


def encoder_in(shape: ModelShape) -> ImageEncoder | None:
    """The image encoder of a model of towers; None where it has none."""
    tower = next((t for t in encoders(shape) if t.modality == "vision" and t.layers), None)
    if tower is None or not tower.patch:
        return None
    return ImageEncoder(
        hidden=tower.hidden, heads=tower.heads, patch=tower.patch, image_size=tower.image_size, merge=tower.merge,
        kind=_KINDS.get(shape.model_type, ""),
    )  # fmt: skip


def encoder_of(headers: Sequence[GgufHeader]) -> ImageEncoder | None:
    """The image encoder that a projector file describes; None where it holds none."""
    for header in headers:
        known = header.metadata

        def number(key: str, known: dict[str, int | float | bool | str] = known) -> int:
            value = known.get(f"clip.vision.{key}")
            return value if isinstance(value, int) and not isinstance(value, bool) else 0

        hidden, patch = number("embedding_length"), number("patch_size")
        if hidden > 0 and patch > 0:
            kind = known.get("clip.vision.projector_type", known.get("clip.projector_type", ""))
            return ImageEncoder(
                hidden=hidden, heads=max(number("attention.head_count"), 1), patch=patch,
                image_size=max(number("image_size"), 0),
                merge=max(number("spatial_merge_size") or number("projector.scale_factor"), 1), kind=str(kind)[:40],
            )  # fmt: skip
    return None
