"""Pictures, videos and sound in vLLM: what a request may hold, the items that the profiling run sends through the
towers, and the cache of their outputs.

Encoder budget and cache are as large as a step's tokens or the largest item. The V1 run takes the modality with the
most tokens an item and fills the budget with items of the largest size; the peak is that of the towers or of the text
model with the outputs and the pixels still alive (vllm/multimodal/encoder_budget.py,
vllm/v1/worker/gpu_model_runner.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from calculator.errors import PlanError
from calculator.model.shape import ModelShape, Tower
from calculator.serving.plan import ServingPlan
from calculator.serving.versions import Version
from calculator.serving.weights import Recent

MODALITIES = ("image", "video", "audio")
UNLIMITED = 999
"""Items of a modality that a V1 request may hold where nothing is said; V0 allows one (vllm/config/multimodal.py)."""
IDLE_TOWERS: Version = (0, 10, 0)
"""From here on a tower none of whose modalities is allowed is not loaded (Qwen2.5-VL first, later all)."""

IMAGE_TOKENS_UNBOUNDED = 16384
"""Tokens of the largest image of Qwen2-VL-class models, whose resolution is free (12,845,056 pixels of 28 x 28), and of
Qwen3-VL (16,777,216 of 32 x 32)."""
FREE_SIZE = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")
IMAGE_TOKENS = {"gemma4": 280}
"""Tokens of an image by family where the tower has no fixed picture size of its own (``default_output_length``)."""
VIDEO_TOKENS = {"gemma4": 2496, "qwen3_vl": 12288, "qwen3_vl_moe": 12288, "qwen3_5": 12288, "qwen3_5_moe": 12288}
"""Tokens of the largest video, as start-ups print their budget."""
FRAME_PAIRS = {"qwen2_vl": 7, "qwen2_5_vl": 7}
"""Pairs of frames, each of the tokens of a largest image, of the longest video that the run makes up (14 frames)."""
ENCODER_ROWS = 10
"""Bytes over the hidden size that a tower's forward pass holds for a patch beside its MLP: five 16-bit rows. Read off a
start of Qwen2.5-VL-3B in V0 (4.06 GiB); Qwen2.5-VL-7B in V1 with 114,688 tokens of video took 15.5 GiB (15.4 so)."""


def check_limits(plan: ServingPlan) -> None:
    """Raises ``PlanError`` ("serving.mm_modality", "serving.mm_count") for a modality that there is not and for a count
    below nothing."""
    for name, count in (plan.limit_mm_per_prompt or {}).items():
        if name not in MODALITIES:
            raise PlanError("serving.mm_modality", field="limit_mm_per_prompt", text=name[:40],
                            candidates=", ".join(MODALITIES))  # fmt: skip
        if count < 0:
            raise PlanError("serving.mm_count", field="limit_mm_per_prompt", text=name, count=count)


def limits(shape: ModelShape, plan: ServingPlan, runner: str) -> dict[str, int]:
    """Items of each modality that the model takes and a request may hold; 0 where the plan forbids it."""
    vision = any(t.modality == "vision" for t in shape.towers)
    takes = {
        "image": vision, "video": vision and shape.model_type in (*VIDEO_TOKENS, *FRAME_PAIRS),
        "audio": any(t.modality == "audio" for t in shape.towers),
    }  # fmt: skip
    given = plan.limit_mm_per_prompt or {}
    usual = 1 if runner == "v0" else UNLIMITED
    return {name: given.get(name, usual) for name, taken in takes.items() if taken}


_recent = Recent(16)


def without_idle_towers(shape: ModelShape, plan: ServingPlan, version: Version) -> ModelShape:
    """The model as it is loaded: without towers none of whose modalities a request may hold."""
    given = plan.limit_mm_per_prompt or {}
    if not shape.towers or version < IDLE_TOWERS or 0 not in given.values():
        return shape
    allowed = limits(shape, plan, "v1")
    vision = any(allowed.get(name, 0) for name in ("image", "video"))
    kept = tuple(t for t in shape.towers if (vision if t.modality == "vision" else allowed.get("audio", 0)))
    if len(kept) == len(shape.towers):
        return shape
    changes = {"towers": kept, "projector": shape.projector if kept else ()}
    return cast(ModelShape, _recent.get(shape, (vision, len(kept)), lambda: shape.model_copy(update=changes)))


@dataclass(frozen=True, slots=True)
class Items:
    """The run's made-up items: their modality, how many of how many tokens, and the encoder's budget in tokens."""

    modality: str
    count: int
    tokens: int
    budget: int


def image_tokens(shape: ModelShape, tower: Tower, context: int) -> int:
    """Tokens of the largest picture: fixed by the tower's picture size, else as many as the processor allows."""
    if tower.image_size and tower.patch:
        return int((tower.image_size // tower.patch // max(tower.merge, 1)) ** 2)
    if shape.model_type in FREE_SIZE:
        return IMAGE_TOKENS_UNBOUNDED
    return IMAGE_TOKENS.get(shape.model_type, min(IMAGE_TOKENS_UNBOUNDED, max(context, 1)))


def _video_tokens(shape: ModelShape, image: int, context: int, *, pictures: bool) -> int:
    """Tokens of the longest video: pairs of frames fill the context that a picture leaves."""
    if shape.model_type in FRAME_PAIRS:
        room = context - (image if pictures else 0)
        return max(1, min(FRAME_PAIRS[shape.model_type], room // image)) * image
    return VIDEO_TOKENS[shape.model_type]


def items(
    shape: ModelShape, allowed: Mapping[str, int], *, seqs: int, tokens: int, context: int
) -> Items | None:  # fmt: skip
    """What the V1 run makes up: None where no tower runs or the sizes of its items are not known."""
    tower = next((t for t in shape.towers if t.modality == "vision"), None)
    if tower is None:
        return None
    image = max(image_tokens(shape, tower, context), 1)
    sizes = {}
    if allowed.get("image"):
        sizes["image"] = image
    if allowed.get("video"):
        sizes["video"] = _video_tokens(shape, image, context, pictures=bool(allowed.get("image")))
    if not sizes:
        return None
    modality = max(sizes, key=lambda name: (sizes[name], name))
    size = sizes[modality]
    budget = max(tokens, size)
    in_prompt = max(1, min(allowed[modality], context // size))
    return Items(modality, max(1, min(budget // size, seqs * in_prompt)), size, budget)


def patch_bytes(tower: Tower, tp: int = 1) -> int:
    """Bytes that a tower's widest layer holds for one patch: MLP intermediates of the rank and five hidden rows. A
    plain MLP's activation works in place: two starts of Qwen2-VL-7B (0.11, 24 GB) left 1.5 GiB for everything."""
    matrices = [t for t in tower.tensors if len(t.shape) == 2]
    widths = [t.out_features for t in matrices if ".mlp." in t.name and "up" in t.name]
    gated = bool(widths)
    widths += [t.out_features for t in matrices if t.name.endswith("mlp.fc1.weight")]
    width = max(widths, default=4 * tower.hidden)
    return (6 if gated else 2) * width // tp + ENCODER_ROWS * tower.hidden


def encoder_bytes(tower: Tower, tokens: int, tp: int) -> int:
    """The peak of a tower's forward pass over so many output tokens."""
    return tokens * max(tower.merge, 1) ** 2 * patch_bytes(tower, tp)


def pixel_bytes(tower: Tower, found: Items) -> int:
    """16-bit pixels of the items: of the picture size, or two frames of every patch."""
    if tower.image_size:
        return 2 * found.count * 3 * tower.image_size**2
    patches = found.tokens * max(tower.merge, 1) ** 2
    return 2 * found.count * patches * 2 * 3 * (tower.patch or 14) ** 2
