"""Predicting a step measured tensor by tensor: one training step of a real model class under fake tensors.

``peaks.<phase>.peak`` is the highest sum of live tensors within a phase, each storage rounded up to 512 bytes; memory
that kernels take inside themselves is not seen. ``fwd_end.acts.layers_total`` is what all layers keep at the end of the
forward pass.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from calculator.bill import Bill
from calculator.errors import CalculatorError
from calculator.hardware import resolve
from calculator.training import bill
from calculator.training.build import saved_layers
from calculator.training.plan import TrainingPlan
from calculator.training.step import step
from validation.models import arch_class, lab_shape
from validation.outcome import Missed, Outcome, Scored, UnpredictableError
from validation.rows import Row

PHASES = ("forward", "loss", "backward", "optimizer")
KEYS = ("peak", *(f"peak_{phase}" for phase in PHASES), "saved_layers")

_PRECISION = {"bf16": "bf16", "fp16": "fp16", "fp32": "fp32", "autocast": "amp_bf16"}
_OPTIMIZER = {
    "adamw": "adamw_foreach", "adamw_fused": "adamw_fused", "adamw_loop": "adamw_loop", "adamw_master": "adamw_foreach",
    "sgd": "sgd", "sgd_momentum": "sgd_momentum", "none": "none",
}  # fmt: skip
_TARGETS = {f"{name}_proj": name for name in ("q", "k", "v", "o", "gate", "up", "down")}
_CARDS = {75: "t4-16gb", 80: "a100-80gb-sxm4", 90: "h100-80gb-sxm", 100: "b200-180gb-sxm"}
_EXPERTS = {"eager_balanced": "eager", "batched_mm": "batched_mm", "grouped_mm": "grouped_mm"}


def predict(row: Row) -> Outcome:
    """The six figures of a lab row."""
    case = row.data["case"]
    base: dict[str, Any] = {"kind": row.kind, "id": row.id, "complete": True}
    try:
        measured = readings(row.data)
        named = {key: case.get(key) for key in ("model", "layers", "config", "dropout")}
        shape = lab_shape(json.dumps(named, sort_keys=True))
        plan = lab_plan(case, row.data)
        gpu = resolve(plan.gpu, plan.gpu_capacity_bytes)
        result = bill(shape, plan, gpu, tensors_only=True)
        once = plan.model_copy(update={"grad_accum": 1})
        kept = saved_layers(step(shape, once, gpu, tensors_only=True).program)
        predicted = predictions(result, kept)
    except UnpredictableError as error:
        return _missed(base, error)
    except CalculatorError as error:
        return _missed(base, UnpredictableError("validation.reason.refused", message=error.message))
    tags = {
        "method": "lora" if case.get("lora") else "full",
        "framework": f"transformers {row.data.get('transformers', '')}",
        "arch_class": arch_class(shape),
        "model": str(case["model"]),
        "source": f"lab {case['model']}",
        "group": str(case["model"]),
    }
    scored, missed = [], []
    for key, value in measured.items():
        if key in predicted:
            p = predicted[key]
            scored.append(Scored(**base, key=key, measured=value, predicted=p, low=p, high=p, tags=tags))
        else:
            reason = UnpredictableError("validation.reason.no_figure", quantity=key).reason
            missed.append(Missed(**base, key=key, reason=reason))
    return Outcome(**base, wanted=len(measured), scored=tuple(scored), missed=tuple(missed))


def readings(data: Mapping[str, Any]) -> dict[str, int]:
    """The measured figures of a row, by key. A row may lack a phase."""
    peaks = data["peaks"]
    found = {f"peak_{phase}": int(peaks[phase]["peak"]) for phase in PHASES if phase in peaks}
    found = {"peak": int(data.get("peak") or max(found.values())), **found}
    saved = ((data.get("fwd_end") or {}).get("acts") or {}).get("layers_total")
    return found if saved is None else found | {"saved_layers": int(saved)}


def predictions(result: Bill, saved_layers_bytes: int) -> dict[str, int]:
    """The same figures from a bill: the peak of each phase, and the highest of them."""
    by_phase = {phase.name: phase.allocated_bytes for phase in result.phases}
    found = {f"peak_{phase}": by_phase[phase] for phase in PHASES if phase in by_phase}
    return {"peak": max(found.values()), **found, "saved_layers": saved_layers_bytes} if found else {}


def lab_plan(case: Mapping[str, Any], data: Mapping[str, Any]) -> TrainingPlan:
    """The plan of a lab step. Raises ``UnpredictableError`` for an option that no plan has."""
    lora = case.get("lora")
    values: dict[str, Any] = {
        "method": "lora" if lora else "full",
        "precision": _PRECISION[case.get("precision", "bf16")],
        "optimizer": _OPTIMIZER[case.get("optim", "adamw")],
        "micro_batch": case.get("batch", 1),
        "seq_len": case.get("seq", 2048),
        "grad_accum": case.get("accum", 1),
        "packed": True,
        "checkpointing": "full" if case.get("ckpt") else "none",
        "checkpointing_reentrant": False,
        "attention": "eager" if case.get("attn") == "eager" else "sdpa",
        "loss": "standard",
        "outputs_held": case.get("flow") == "loop",
        "framework": "plain_torch",
        "torch_version": str(data.get("torch", "")).split("+")[0] or None,
        "transformers_version": data.get("transformers"),
        "gpu": _CARDS.get(case.get("cc", 80), "a100-80gb-sxm4"),
        "dropout": case.get("dropout"),
    }
    if case.get("optim") == "adamw_master":
        values |= {"precision": "mixed_bf16", "grad_dtype": "bf16"}
    if case.get("experts"):
        values["experts_impl"] = _EXPERTS[case["experts"]]
    if lora:
        targets = lora.get("targets", ["q_proj", "v_proj"])
        named = (targets,) if isinstance(targets, str) else tuple(_TARGETS[name] for name in targets)
        base_dtype = "fp32" if case.get("precision") in ("autocast", "fp32") else "bf16"
        values |= {
            "adapter": {"rank": lora.get("r", 16), "targets": named},
            "lora_dropout": lora.get("dropout", 0.0),
            "adapter_dtype": base_dtype if lora.get("dtype") == "base" else "fp32",
        }
    # Clipping allocates nothing that lives longer than one norm, so it is no option of a plan.
    once = case.get("steps", 1) == 1
    extra = {
        "first_step": bool(case.get("cold")) and once,
        "resumed": case.get("flow") == "loop" and not case.get("cold") and once,
        "convert_outputs_fp32": case.get("flow") == "accelerate",
    }
    for name, value in extra.items():
        if name in TrainingPlan.model_fields:
            values[name] = value
        elif value:
            raise UnpredictableError("validation.reason.plan", field=name, value=str(value))
    return TrainingPlan.model_validate({key: value for key, value in values.items() if value is not None})


def _missed(base: dict[str, Any], error: UnpredictableError) -> Outcome:
    return Outcome(**base, wanted=len(KEYS), missed=tuple(Missed(**base, key=key, reason=error.reason) for key in KEYS))
