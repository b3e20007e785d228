"""Precision recipes: the types that weights, gradients and optimizer states are held in.

Source: transformers, accelerate, DeepSpeed and Megatron-LM as cited at each rule of ``SOURCES``.
"""

from __future__ import annotations

from typing import NamedTuple

from calculator.model.shape import ModelShape
from calculator.training.plan import Precision, TrainingPlan
from calculator.training.stack import before

BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "int8": 1.0, "int4": 0.5}


class Recipe(NamedTuple):
    """``weight``: type of the weights that compute; ``autocast``: compute type under autocast, else None; ``gradient``:
    type in which gradients wait for the step; ``state``: type of each optimizer moment; ``master``: an fp32 copy of the
    weights lives in the optimizer. ``small``: type of embedding and head, ``norm`` of norms; ``held``: type of the
    weights at rest, which FSDP's mixed precision keeps in fp32 shards."""

    weight: str
    small: str
    norm: str
    autocast: str | None
    gradient: str
    state: str
    master: bool
    adapter: str
    held: str

    @property
    def compute(self) -> str:
        return self.autocast or self.weight


def sixteen(name: str) -> str:
    return "fp16" if name.endswith("fp16") else "bf16"


def adapted(plan: TrainingPlan) -> bool:
    return plan.method in ("lora", "qlora", "dora")


def usual_precision(plan: TrainingPlan) -> Precision:
    """The recipe that a framework's 16-bit flag means under the plan's sharding, where nobody says more.

    DeepSpeed and Megatron keep fp32 master weights (``bf16_master_weights_and_grads`` is off by default); FSDP under
    accelerate and torchtitan keeps fp32 shards and casts them for the step, torchtune trains 16-bit ones. Elsewhere,
    and with adapters, the plan's own stands. Sources: DeepSpeed ``runtime/bf16_optimizer.py``, accelerate
    ``utils/fsdp_utils.py`` (upcast of trained parameters), torchtune ``recipes/full_finetune_distributed.py``.
    """
    if adapted(plan) or plan.precision not in ("bf16", "fp16"):
        return plan.precision
    half = sixteen(plan.precision)
    if plan.sharding in ("zero1", "zero2", "zero3", "distributed_optimizer"):
        return "mixed_fp16" if half == "fp16" else "mixed_bf16"
    if plan.sharding in ("fsdp1", "fsdp2", "hsdp") and plan.framework != "torchtune":
        return "fsdp_mixed_fp16" if half == "fp16" else "fsdp_mixed_bf16"
    return plan.precision


def resolve(shape: ModelShape, plan: TrainingPlan) -> Recipe:
    """The recipe of a plan."""
    del shape
    half = sixteen(plan.precision)
    autocast = None
    master = False
    if plan.precision == "fp32":
        weight = gradient = "fp32"
    elif plan.precision.startswith("amp"):
        weight, gradient, autocast = "fp32", "fp32", half
        if adapted(plan) and plan.base_quant != "none":
            weight = half
    elif plan.precision.startswith("mixed"):
        weight, master = half, True
        gradient = "fp32" if plan.framework in ("megatron",) else half
    elif plan.precision.startswith("fsdp_mixed"):
        weight, gradient = half, "fp32"
    else:
        weight = gradient = half
        if plan.framework in TRAINERS:
            autocast = half
    small = norm = weight
    if (
        adapted(plan)
        and plan.base_quant in ("nf4", "nf4_dq", "int8")
        and plan.kbit_prepared
        and plan.sharding not in ("fsdp1", "fsdp2", "hsdp")
    ):
        norm = "fp32" if plan.framework not in CAST_BACK else weight
        small = "fp32" if plan.framework not in (*CAST_BACK, "hf_trainer") else weight
    sharded_quantised = plan.base_quant != "none" and plan.sharding in ("fsdp1", "fsdp2", "hsdp")
    adapter = (
        plan.adapter_dtype
        or (weight if master else None)
        or (weight if sharded_quantised else None)
        or ("fp32" if plan.framework in PEFT_FRAMEWORKS and _cast_up(plan) else weight)
    )
    trained = adapter if adapted(plan) else ("fp32" if plan.precision.startswith("fsdp_mixed") else weight)
    if adapted(plan) and not master:
        gradient = trained
    state = "fp32" if master else trained
    return Recipe(
        weight=weight,
        small=small,
        norm=norm,
        autocast=autocast,
        gradient=plan.grad_dtype or gradient,
        state=plan.optimizer_state_dtype or state,
        master=master,
        adapter=adapter,
        held="fp32" if plan.precision.startswith("fsdp_mixed") and not adapted(plan) else weight,
    )


def _cast_up(plan: TrainingPlan) -> bool:
    """Whether PEFT holds adapters in fp32: made so up to 0.5, cast so by ``autocast_adapter_dtype`` since 0.12; in
    between they took the base weight's type where that is a floating-point one (``peft/tuners/lora/layer.py``,
    ``update_layer``)."""
    release = plan.peft_version
    return plan.base_quant != "none" or before(release, 0, 6) or not before(release, 0, 12)


def copied(recipe: Recipe, plan: TrainingPlan) -> Recipe:
    """The recipe of whole copies of embedding and head beside adapters: they keep the frozen ones' type, since only
    adapter layers are cast up (``peft/utils/other.py`` ModulesToSaveWrapper, ``cast_adapter_dtype``). Under a master
    copy all that is trained has the same bytes."""
    if recipe.master or not adapted(plan):
        return recipe
    own = recipe.small
    return recipe._replace(adapter=own, gradient=plan.grad_dtype or own, state=plan.optimizer_state_dtype or own)


TRAINERS = ("hf_trainer", "axolotl", "llamafactory", "ms_swift", "unsloth")
"""Frameworks on transformers' Trainer, whose 16-bit flags put an autocast block around forward whatever the weights'
type."""

CAST_BACK = ("axolotl", "llamafactory", "unsloth")
"""Frameworks that hold norms, embedding and head in 16 bit after PEFT's k-bit preparation, or do not run it. Under
transformers' Trainer embedding and head are 16 bit again at training, the norms fp32 (end-of-run readings of
fms-acceleration's baseline QLoRA runs)."""

PEFT_FRAMEWORKS = (
    "hf_trainer",
    "plain_torch",
    "peft",
    "unsloth",
    "axolotl",
    "llamafactory",
    "ms_swift",
    "deepspeed",
    "other",
)
"""Frameworks whose adapters are PEFT's, which keeps them in fp32 (``autocast_adapter_dtype``); the rest use the run's
own type. An engine with a master copy casts the whole module, adapters with it, to 16 bit (DeepSpeed
``runtime/engine.py`` _configure_distributed_model; Megatron makes them so)."""
