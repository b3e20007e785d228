"""Tensor, expert and pipeline parallelism: what part of every layer and of the stack a rank holds.

Sources: Megatron-LM core 0.19 ``tensor_parallel/layers.py``, ``pipeline_parallel/schedules.py``,
``training/theoretical_memory_usage.py``; Korthikanti et al. 2022, "Reducing Activation Recomputation in Large
Transformer Models" (https://arxiv.org/abs/2205.05198).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from calculator.model.shape import Attention, Block, DenseMlp, LatentAttention, Mixer, Mlp, ModelShape, MoeMlp, Tensor
from calculator.training.plan import TrainingPlan

ROW_NAMES = ("w2", "down", "wo", "fc2", "c_proj", "out", "dense_4h_to_h")
"""Parts of names of expert matrices that are split by their inputs; the others are split by their outputs."""


class Degrees(NamedTuple):
    """Ranks over which layers are cut: ``tensor`` for dense matrices, ``expert`` for whole experts, ``expert_tensor``
    within an expert."""

    tensor: int = 1
    expert: int = 1
    expert_tensor: int = 1


def degrees(plan: TrainingPlan) -> Degrees:
    return Degrees(plan.tp, plan.ep, plan.expert_tp or (1 if plan.ep > 1 else plan.tp))


def share(amount: int, ranks: int) -> int:
    """The largest part of an amount that is cut into whole pieces."""
    return -(-amount // ranks)


def local_block(block: Block, d: Degrees) -> Block:
    """A layer as one rank computes it: its heads, its part of the MLP, its experts."""
    if d == Degrees():
        return block
    before = block.before
    if before is not None:
        shortcut = before.shortcut and _local_mlp(before.shortcut, d)
        parts = {"mixer": _local_mixer(before.mixer, d), "mlp": _local_mlp(before.mlp, d), "shortcut": shortcut}
        before = before.model_copy(update=parts)
    return block.model_copy(
        update={
            "mixer": _local_mixer(block.mixer, d),
            "mlp": _local_mlp(block.mlp, d),
            "beside": block.beside and _local_mixer(block.beside, d),
            "before": before,
        }
    )


def _local_mixer(mixer: Mixer, d: Degrees) -> Mixer:
    if isinstance(mixer, Attention):
        return mixer.model_copy(
            update={"heads": share(mixer.heads, d.tensor), "kv_heads": max(1, share(mixer.kv_heads, d.tensor))}
        )
    if isinstance(mixer, LatentAttention):
        return mixer.model_copy(update={"heads": share(mixer.heads, d.tensor)})
    return mixer


def _local_mlp(mlp: Mlp, d: Degrees) -> Mlp:
    if isinstance(mlp, DenseMlp):
        return mlp.model_copy(update={"width": share(mlp.width, d.tensor)})
    if isinstance(mlp, MoeMlp):
        return mlp.model_copy(
            update={
                "experts": share(mlp.experts, d.expert),
                "width": share(mlp.width, d.expert_tensor),
                "shared_width": share(mlp.shared_width, d.tensor),
                "dense_width": share(mlp.dense_width, d.tensor),
            }
        )
    return mlp


def local_tensor(tensor: Tensor, d: Degrees, kv_heads: int) -> Tensor:
    """A weight as one rank holds it."""
    shape, copies = list(tensor.shape), tensor.copies
    match tensor.split:
        case "column" | "vocab":
            shape[0] = share(shape[0], d.tensor)
        case "row":
            shape[-1] = share(shape[-1], d.tensor)
        case "kv":
            head = shape[0] // max(1, kv_heads)
            shape[0] = head * max(1, share(kv_heads, d.tensor)) if kv_heads else share(shape[0], d.tensor)
        case "expert":
            copies = share(copies, d.expert)
            side = -1 if any(part in tensor.name for part in ROW_NAMES) else 0
            shape[side] = share(shape[side], d.expert_tensor)
    return tensor.model_copy(update={"shape": tuple(shape), "copies": copies})


@lru_cache(maxsize=64)
def _cut(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each stage: as even as it goes, the middle stages taking what is left over."""
    base, rest = divmod(layers, stages)
    sizes = [base] * stages
    for i in range(rest):
        sizes[(i + 1) % stages] += 1
    return tuple(sizes)


@dataclass(frozen=True)
class Part:
    """The stretch of the model that one rank runs: its layers as block indices, and whether it has the embedding and
    the head. ``in_flight``: micro-batches whose activations wait at once, as a fraction of one micro-batch through
    the part."""

    layers: tuple[int, ...]
    embedding: bool = True
    head: bool = True
    in_flight: float = 1.0
    name: str = "0"


def waiting(plan: TrainingPlan, stage: int) -> float:
    """Micro-batches in flight on a stage. 1F1B: as many as there are stages from here on; interleaved: chunks of
    1 / (virtual stages) of a part; GPipe: all; without micro-batches (a plain layer split): one."""
    micro_batches = plan.micro_batches or plan.grad_accum
    if plan.framework != "megatron" and plan.pp_schedule is None and micro_batches == 1:
        return 1.0
    if plan.pp_schedule == "gpipe":
        return float(micro_batches)
    if plan.vpp > 1:
        chunks = min((plan.pp - stage - 1) * 2 + (plan.vpp - 1) * plan.pp + 1, micro_batches * plan.vpp)
        return chunks / plan.vpp
    return float(min(micro_batches, plan.pp - stage))


def parts_of(shape: ModelShape, plan: TrainingPlan) -> tuple[Part, ...]:
    """The parts of a pipeline, first stage first."""
    if plan.pp == 1:
        return (Part(shape.order),)
    found, at = [], 0
    for stage, count in enumerate(_cut(shape.layers, plan.pp)):
        found.append(
            Part(
                shape.order[at : at + count],
                embedding=stage == 0,
                head=stage == plan.pp - 1,
                in_flight=waiting(plan, stage),
                name=f"pp{stage}",
            )
        )
        at += count
    return tuple(found)
