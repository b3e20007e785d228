"""A case as the calculator's plan. A field that the case leaves open stays open: the plan's own default holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from calculator.model.shape import ModelShape
from calculator.serving.plan import ServingPlan
from calculator.training.plan import TrainingPlan
from validation.cards import card_fields
from validation.outcome import UnpredictableError
from validation.releases import version_of

P = TypeVar("P", TrainingPlan, ServingPlan)
_NEEDED = ("method", "micro_batch", "seq_len")
_FIRST_STAGE = frozenset({"https://github.com/llm-d-incubation/llm-d-planner"})
"""Sources whose readings of pipelined starts are those of the stage with the embedding, as their notes say."""
_ADDED_TOKENS = {"Llama-3": 2, "Llama-2": 1, "Mistral": 1, "Mixtral": 1}
"""Special tokens that fms-hf-tuning adds where a tokenizer has none (padding; Llama 3 lacks the unknown token, too),
resizing the embedding: ``tuning/utils/tokenizer_data_utils.py`` of foundation-model-stack/fms-hf-tuning."""
_PACKED_FORMATS = frozenset({"fp8", "awq", "gptq", "int8", "nvfp4", "mxfp4", "bnb_nf4", "other"})


def training_plan(case: Mapping[str, Any]) -> TrainingPlan:
    """The plan of a training case.

    Raises ``UnpredictableError``: "validation.reason.open" where the method, the batch or the length is unknown,
    "validation.reason.plan" for a value that the plan does not take.
    """
    for field in _NEEDED:
        if case.get(field) is None:
            raise UnpredictableError("validation.reason.open", field=field)
    values = _shared(case, TrainingPlan.model_fields)
    if isinstance(values.get("adapter"), Mapping):
        values["adapter"] = {key: value for key, value in values["adapter"].items() if value is not None}
    written = case.get("framework_version")
    for project in ("torch", "transformers", "peft"):
        version = version_of(project, written)
        if version and f"{project}_version" not in values:
            values[f"{project}_version"] = version
    values |= card_fields(case.get("gpu"), case.get("gpu_capacity_bytes"))
    if case.get("source_group") == "fms":
        values["added_tokens"] = next((n for name, n in _ADDED_TOKENS.items() if name in str(case.get("model"))), 0)
    return validated(TrainingPlan, values)


def serving_plan(case: Mapping[str, Any], shape: ModelShape) -> ServingPlan:
    """The plan of a server's start, for one request of the full length, so that ``kv_needed_bytes`` is that of the
    engine's admission check.

    A stored quantisation is kept as the checkpoint has it; an unquantised checkpoint takes the case's format at load.
    Readings over all devices are those of one device that holds everything, and a server that ran is taken to hold what
    its log says, whatever its fit would have done here, and to have been told so where its context is beyond the
    model's limit. Raises ``UnpredictableError``.
    """
    flags = case.get("flags") or {}
    values = _shared(flags, ServingPlan.model_fields) | _shared(case, ServingPlan.model_fields)
    if case.get("engine_generation") in ("v0", "v1"):
        values["runner"] = case["engine_generation"]
    if values.get("engine_version") is None and case.get("engine") in ("vllm", "llama_cpp") and case.get("date"):
        values["engine_version"] = version_of(case["engine"], case["date"])
    if case.get("source") in _FIRST_STAGE and (case.get("pp") or 1) > 1:
        values["pp_rank"] = 0
    unquantised = shape.quantization is None and case.get("weights") == "other"
    if unquantised and str(flags.get("weights_detail", "")).startswith("int4"):
        values["weights"] = "w4a16"
    elif case.get("weights") == "other" or (shape.quantization and case.get("weights") in _PACKED_FORMATS):
        values.pop("weights", None)
    observed = case.get("observed") or {}
    total = case.get("gpu_total_bytes")
    if "memory_fraction" in (case.get("assumed") or ()) and observed.get("budget_bytes") and total:
        values["memory_fraction"] = observed["budget_bytes"] / total
    if "free_memory_bytes" in ServingPlan.model_fields and observed.get("free_before_pool_bytes"):
        values["free_memory_bytes"] = observed["free_before_pool_bytes"]
    if case.get("measured_scope") == "all_gpus":
        values |= {"n_gpus": 1, "tp": 1, "pp": 1}
    values |= card_fields(case.get("gpu"), total)
    values |= {"concurrency": 1, "fit": False, "longer_context": True}
    return validated(ServingPlan, {key: value for key, value in values.items() if value is not None})


def _shared(case: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: case[key] for key in fields if case.get(key) is not None and key not in ("gpu", "gpu_capacity_bytes")}


def validated(kind: type[P], values: dict[str, Any]) -> P:
    """A plan of these values. Raises ``UnpredictableError`` ("validation.reason.plan") for a value it does not take."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "plan"
        raise UnpredictableError("validation.reason.plan", field=field, value=str(first.get("input"))[:80]) from None
