"""What a plan means for the recordings: numerics, the head, checkpointing, row counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from calculator.hardware import Gpu
from calculator.model.shape import Attention, ModelShape
from calculator.training.dialect import dialect
from calculator.training.fp8 import engine
from calculator.training.numerics import AttentionImpl, Numerics, Stored
from calculator.training.parallel import degrees, share
from calculator.training.plan import TrainingPlan
from calculator.training.recipe import TRAINERS, Recipe, adapted, resolve
from calculator.training.stack import (
    HUGGING_FACE,
    adapter_dropout,
    before,
    chunk_form,
    liger_chunk,
    outputs_held,
    stack_of,
)
from calculator.training.stretches import HeadForm
from calculator.training.tape import PADDED, ROW_KINDS

LINEAR_ROLES = frozenset({"q", "k", "v", "o", "gate", "up", "down", "other"})


def row_counts(shape: ModelShape, plan: TrainingPlan) -> tuple[int, ...]:
    """The row counts of ``tape`` for a plan's micro-batch and length."""
    b, s = plan.micro_batch, share(plan.seq_len, plan.cp)
    moe = next((block.mixture for block in shape.blocks if block.mixture), None)
    routed = max(1, b * s * moe.top_k // (moe.experts + moe.zero_experts)) if moe is not None else 0
    chunk = loss_chunk(shape, plan)
    rows = [
        1,
        s,
        b * s,
        b * s * plan.seq_len,
        s * s,
        b,
        b * (s + 1),
        b * max(0, s - 1),
        share(b * s, plan.tp),
        chunk,
        routed,
        min(b * s, shape.hidden),
    ]
    assert len(rows) == ROW_KINDS
    assert rows[PADDED] == b * (s + 1)
    return tuple(rows)


def loss_chunk(shape: ModelShape, plan: TrainingPlan) -> int:
    """Tokens whose logits exist at once in a loss that works in pieces."""
    tokens = plan.micro_batch * share(plan.seq_len, plan.cp)
    if plan.loss == "fused_linear_ce":
        return min(tokens, liger_chunk(tokens, shape.vocab, shape.hidden))
    return min(tokens, 128) if plan.framework == "litgpt" else -(-tokens // 8)


class Regime(NamedTuple):
    """What of a plan's micro-batch and length changes operations, and not only sizes: ``windowed``, sequences longer
    than a layer's window; ``single``, a micro-batch of one."""

    windowed: bool
    single: bool


def regime(shape: ModelShape, plan: TrainingPlan) -> Regime:
    windows = (mixer.window for block in shape.blocks for mixer in block.mixers if isinstance(mixer, Attention))
    return Regime(
        windowed=any(window is not None and window < plan.seq_len for window in windows),
        single=plan.micro_batch == 1,
    )


STORED: Mapping[str, Stored] = {"none": "", "nf4": "bnb4", "nf4_dq": "bnb4", "int8": "int8"}
"""How a frozen base is stored, as layers see it; anything else is packed words."""


def numerics(shape: ModelShape, plan: TrainingPlan, recipe: Recipe, gpu: Gpu, *, scratch: bool) -> Numerics:
    """What of the plan the recordings depend on."""
    stack = stack_of(plan, shape.model_type)
    lora = adapted(plan)
    targets: frozenset[str] = frozenset()
    rank = 0
    if lora:
        adapter = plan.adapter
        names = adapter.targets if adapter is not None else ("all-linear",)
        targets = LINEAR_ROLES if "all-linear" in names else frozenset(names)
        rank = adapter.rank if adapter is not None else 16
    attention: AttentionImpl = "eager" if plan.attention == "eager" else "flash"
    softmax = [m for b in shape.blocks for m in b.mixers if isinstance(m, Attention)]
    if plan.framework == "litgpt" and any(m.softcap for m in softmax):
        attention = "eager"  # its own code writes capped scores out
    if attention == "flash" and recipe.compute == "fp32":
        attention = "efficient"
    windowed, single = regime(shape, plan)
    quantised = STORED.get(plan.base_quant, "packed")
    packed_compute = recipe.compute
    if quantised == "bnb4" and plan.framework == "litgpt":
        quantised = "bnb4_half"
        packed_compute = recipe.weight
    return Numerics(
        code="litgpt" if plan.framework == "litgpt" else "transformers",
        weight=recipe.weight,
        small=recipe.small,
        norm=recipe.norm,
        autocast=recipe.autocast,
        trainable=not lora,
        rank=rank,
        targets=targets,
        adapter=recipe.adapter,
        adapter_dropout=adapter_dropout(plan),
        fused_adapters=stack.kernels in ("unsloth", "triton") and plan.base_quant != "none",
        dora=plan.method == "dora",
        quantised=quantised,
        packed_compute=packed_compute,
        attention=attention,
        masked=windowed and plan.attention == "sdpa",
        dropout=plan.dropout,
        experts=stack.experts,
        repeat_kv=stack.repeat_kv,
        fused_norm=stack.kernels != "written_out",
        fused_rope=stack.kernels != "written_out",
        fused_mlp=stack.kernels in ("liger", "unsloth"),
        cudnn=gpu.vendor == "NVIDIA" and float(gpu.compute_capability or 0) >= 9,
        single=single,
        scratch=scratch,
        tiled_mlp=plan.tiled_mlp,
        train_embeddings=bool(plan.adapter and plan.adapter.train_embeddings),
        degrees=degrees(plan),
        sequence_parallel=plan.sequence_parallel and plan.tp > 1,
        exchanged=plan.cp > 1,
        fp8=engine(plan),
    )


def head_form(shape: ModelShape, plan: TrainingPlan) -> HeadForm:
    """The head and the loss. A decoder with modelling code of its own may leave the cast to autocast; without that
    (DeepSpeed) the published runs contradict each other, so the library's form stays."""
    casts = resolve(shape, plan).autocast is not None
    upcast = shape.loss_upcast and dialect(shape.model_type).logits_upcast
    own = shape.kind == "decoder" and not upcast and casts and plan.framework in HUGGING_FACE
    return HeadForm(
        vocab=share(shape.vocab, plan.tp),
        norm=shape.final_norm,
        tied=shape.tied and plan.framework != "litgpt",
        softcap=shape.final_softcap,
        upcast=not own,
        kernel=plan.loss,
        chunked=chunk_form(plan),
        era="shifted_held" if own else stack_of(plan).era,
        outputs_held=outputs_held(plan),
        outputs_fp32=outputs_fp32(plan),
        compiled=compiles_loss(plan),
    )


def outputs_fp32(plan: TrainingPlan) -> bool:
    """Whether the model's outputs are cast to fp32 behind its forward: accelerate does so wherever it has wrapped that
    in autocast (``convert_outputs_to_fp32``); under DeepSpeed it wraps nothing."""
    if "convert_outputs_fp32" in plan.model_fields_set:
        return plan.convert_outputs_fp32
    return plan.framework in TRAINERS and plan.precision != "fp32" and not plan.sharding.startswith("zero")


def compiles_loss(plan: TrainingPlan) -> bool:
    """torchtitan compiles the loss with the model since 0.1 (early 2025, torch 2.6); before, its script left that
    out."""
    compiles = plan.compile and plan.framework == "torchtitan" and plan.loss == "standard"
    return compiles and not before(plan.torch_version, 2, 6)


def checkpoint_form(plan: TrainingPlan) -> str:
    """ "" for none, else the form. Selective recomputation of attention's core changes nothing where a fused kernel
    keeps no scores; torchtitan's keeps operators' outputs (``operators``), of which a compiler saves what backward
    reads (``needed``)."""
    if plan.checkpointing == "selective" and per_operator(plan):
        return "needed" if plan.compile else "operators"
    if plan.checkpointing == "none" or (plan.checkpointing == "selective" and plan.framework != "torchtitan"):
        return ""
    return "reentrant" if stack_of(plan).reentrant else "plain"


def per_operator(plan: TrainingPlan) -> bool:
    """torchtitan's selective mode as its Llama 8B configurations set it; a number of layers asks for whole blocks."""
    return plan.framework == "torchtitan" and plan.checkpoint_every == 1


def checkpoint_every(plan: TrainingPlan) -> int:
    """Every how many layers one is checkpointed."""
    return plan.checkpoint_every
