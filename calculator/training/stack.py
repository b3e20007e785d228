"""What the software of a run does by default, by framework and release.

Sources, read at the releases named: transformers ``loss/loss_utils.py``, ``modeling_utils.py``,
``integrations/sdpa_attention.py``; TRL ``sft_trainer.py``; Liger ``ops/``; Unsloth ``kernels/``; litgpt ``utils.py``;
torchtune ``modules/loss``; torchtitan ``components/loss.py``.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Literal, NamedTuple

from calculator.training.plan import TrainingPlan
from calculator.training.stretches import Era

Kernels = Literal["written_out", "triton", "liger", "unsloth"]

HUGGING_FACE = (
    "hf_trainer",
    "peft",
    "axolotl",
    "llamafactory",
    "ms_swift",
    "unsloth",
    "deepspeed",
    "plain_torch",
    "other",
)
"""Frameworks that run transformers' modelling code."""


class Stack(NamedTuple):
    """``era``: how logits meet labels; ``reentrant``: form of checkpointing; ``repeat_kv``: key heads are repeated
    before SDPA, ``inside`` a function of its own, or ``in_place`` of the projections, whose memory that frees;
    ``kernels``: modules written out in PyTorch, or replaced by Triton kernels; ``experts``: form of routed experts."""

    era: Era = "padded"
    reentrant: bool = False
    repeat_kv: Literal["", "inside", "in_place"] = ""
    kernels: Kernels = "written_out"
    experts: Literal["grouped_mm", "eager", "batched_mm", "modules"] = "grouped_mm"


@cache
def release(version: str | None) -> tuple[int, ...] | None:
    """The numbers of a release, or None where it is not given."""
    if version is None:
        return None
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in found.group().split(".")) if found else None


def before(version: str | None, *limit: int) -> bool:
    """Whether a release is known and older than ``limit``; an unknown one counts as the newest."""
    numbers = release(version)
    return numbers is not None and numbers < limit


def adapter_dropout(plan: TrainingPlan) -> float:
    """Dropout before adapters: TRL's, axolotl's, ms-swift's and litgpt's own settings have 0.05; PEFT's class,
    torchtune, Unsloth and LLaMA-Factory 0. Any rate costs the same."""
    if plan.lora_dropout is not None:
        return plan.lora_dropout
    return 0.05 if plan.framework in ("hf_trainer", "axolotl", "ms_swift", "litgpt") else 0.0


def chunk_form(plan: TrainingPlan) -> Literal["converted", "kept_32", "eager"]:
    """What a loss in pieces keeps. litgpt: all pieces' logits, which Fabric converts to
    fp32, and their log-probabilities; torchtune and xtuner: fp32
    log-probabilities; TRL and torchtitan run each piece's backward at once and keep none."""
    if plan.framework == "litgpt":
        return "converted"
    return "kept_32" if plan.framework == "torchtune" else "eager"


def outputs_held(plan: TrainingPlan) -> bool:
    """A loop written by hand keeps the model's outputs, logits included, while it calls backward; trainers drop
    them."""
    return plan.framework in ("plain_torch", "deepspeed", "litgpt") if plan.outputs_held is None else plan.outputs_held


def expandable(plan: TrainingPlan) -> bool:
    """Whether the allocator uses expandable segments: said so, or set by the framework's launch script (torchtitan's
    ``run_train.sh``, ``run_llama_train.sh`` before)."""
    chosen = "allocator" in plan.model_fields_set or plan.framework != "torchtitan"
    return plan.allocator == "expandable" if chosen else True


def longest_first(plan: TrainingPlan) -> bool:
    """Whether the longest sample comes first and the others are shorter: the scripts of lit-gpt's first year."""
    return plan.framework == "litgpt" and "2023" in (plan.framework_version or "")


def accumulates(plan: TrainingPlan) -> bool:
    """Whether gradients of several micro-batches are added up. litgpt's own settings always do (global batches of 16
    and more in pieces of 1 to 4)."""
    return plan.grad_accum > 1 or (plan.framework == "litgpt" and "grad_accum" not in plan.model_fields_set)


def stack_of(plan: TrainingPlan, model_type: str = "") -> Stack:
    """The defaults of a plan's framework and releases."""
    version = plan.transformers_version
    hugging_face = plan.framework in HUGGING_FACE
    era: Era = "padded"
    if hugging_face and (before(version, 4, 46) or (version is None and before(plan.torch_version, 2, 5))):
        era = "shifted_freed"
    elif hugging_face and before(version, 4, 49):
        era = "shifted_held"
    reentrant = plan.checkpointing_reentrant
    if reentrant is None:
        reentrant = hugging_face and (before(version, 5) or (version is None and before(plan.torch_version, 2, 5)))
    experts = plan.experts_impl or ("modules" if hugging_face and before(version, 5) else "grouped_mm")
    return Stack(
        era=era,
        reentrant=reentrant,
        repeat_kv=repeats_heads(plan, model_type) if hugging_face else "",
        kernels=kernels_of(plan),
        experts=experts,
    )


def repeats_heads(plan: TrainingPlan, model_type: str) -> Literal["", "inside", "in_place"]:
    """Whether key and value heads are copied to all query heads before the kernel: under SDPA before transformers 4.54,
    and by Mistral's own flash attention before 4.48, where every attention class still did it in its own forward."""
    old = before(plan.transformers_version, 4, 48)
    if plan.attention == "sdpa" and before(plan.transformers_version, 4, 54):
        return "in_place" if old else "inside"
    return "in_place" if old and plan.attention == "flash" and model_type in ("mistral", "mixtral") else ""


def kernels_of(plan: TrainingPlan) -> Kernels:
    """Unsloth brings its own kernels and Megatron fuses norms, gates and rotary embedding, as a compiler does; a
    fused loss under transformers comes with fused norms and rotary embedding."""
    if plan.framework == "unsloth":
        return "unsloth"
    if plan.framework == "megatron" or plan.compile:
        return "liger"
    if plan.framework in HUGGING_FACE and plan.loss in ("fused_ce", "fused_linear_ce"):
        return "triton"
    return "written_out"


def liger_chunk(tokens: int, vocab: int, hidden: int) -> int:
    """Tokens of a chunk of Liger's fused linear cross entropy: as many chunks as the logits are wider than the hidden
    states, rounded up to a power of two."""
    pieces = -(-vocab // hidden)
    return int(1 << (-(-tokens // pieces) - 1).bit_length())
