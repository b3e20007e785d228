"""What products in 8 bits keep: casts of weights, inputs held for the weights' gradients.

torchao (torchtitan, accelerate) casts inside each product and keeps what a 16-bit product keeps. TransformerEngine
(Megatron) keeps inputs as 8-bit tensors and every weight's cast over the micro-batches of a step, on cards whose
8-bit products read one order of operands only also transposed; with 8-bit parameters these take the place of the
16-bit weights. Scales are a number each, or (MXFP8) one byte for 32 values.

Sources: torchao ``float8/float8_linear.py``; TransformerEngine 2.18 ``pytorch/module/linear.py``, ``utils.py``
(is_non_tn_fp8_gemm_supported), ``tensor/mxfp8_tensor.py``, ``fp8.py`` (amax history of 1,024 steps).
"""

from __future__ import annotations

from typing import Literal

from calculator.hardware import Gpu
from calculator.training.holdings import Weights
from calculator.training.plan import TrainingPlan
from calculator.training.template import rounded

Engine = Literal["", "torchao", "te"]
HISTORY_BYTES = 4 * 1024 * 5
"""Delayed scaling: maxima of 1,024 steps of a product's input, weight, output and two gradients, fp32."""


def engine(plan: TrainingPlan) -> Engine:
    """Whose products run in 8 bits: Megatron's are TransformerEngine's; elsewhere torchao's unless the recipe says
    otherwise."""
    if not plan.fp8_compute:
        return ""
    return "te" if recipe(plan).startswith("te") else "torchao"


def recipe(plan: TrainingPlan) -> str:
    return plan.fp8_recipe or ("te_delayed" if plan.framework == "megatron" else "torchao")


def copies(plan: TrainingPlan, gpu: Gpu) -> float:
    """Bytes that TransformerEngine keeps for each weight of a product beside its 16-bit form: one 8-bit cast, and a
    transposed one where the card needs it (all but compute capability 10)."""
    name, blackwell = recipe(plan), (gpu.compute_capability or "").startswith("10.")
    if name == "te_mxfp8":
        return 2 * (1 + 1 / 32)
    return 1.0 if blackwell else 2.0


def resident_bytes(weights: Weights, plan: TrainingPlan, gpu: Gpu) -> int:
    """What the 8-bit weights of a part add over its 16-bit weights; below zero where they replace them and take
    less."""
    if engine(plan) != "te":
        return 0
    each = copies(plan, gpu) - (2 if plan.fp8_param_gather else 0)
    products = [w for w in weights if w.packable]
    history = rounded(HISTORY_BYTES) * len(products) if recipe(plan) == "te_delayed" else 0
    return sum(int(each * w.elements) for w in products) + history
