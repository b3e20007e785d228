"""How a checkpoint's weights are stored, read from whichever dialect its authors used.

Dialects: ``quantization_config`` at the top of config.json or in its text object, ``compression_config`` of early
compressed-tensors files, ``quantization`` of MLX, and the sidecar hf_quant_config.json of Model Optimizer.
"""

from __future__ import annotations

from collections.abc import Mapping

from calculator.errors import BadValueError, PlanError
from calculator.model.quantization_dialects import EXPERTS, READERS, Raw
from calculator.model.shape import Quantization
from calculator.precision import Format, weight_format

_TEXT_OBJECTS = ("text_config", "llm_config", "language_config", "thinker_config")


def read_quantization(config: Raw, sidecar: Raw | None = None) -> Quantization | None:
    """The stored format that a config.json (and its hf_quant_config.json, if any) states, or None if it states none.

    Raises ``BadValueError`` ("quantization.unknown_method", "quantization.bad_value", "quantization.bad_pattern")
    naming the key.
    """
    raw, where = _find(config)
    beside = sidecar.get("quantization", sidecar) if sidecar is not None else None
    if isinstance(beside, Mapping) and beside:
        if raw is None:
            where = "hf_quant_config.json"
        raw = {**beside, **{k: v for k, v in (raw or {}).items() if v is not None}}
    if raw is None:
        return None
    method = _method(raw)
    reader = READERS.get(method)
    if reader is None:
        raise BadValueError("quantization.unknown_method", field=f"{where}.quant_method", value=method[:40])
    try:
        found = reader(raw, where)
        if found is not None:
            _check(found)
    except PlanError as error:
        raise BadValueError("quantization.bad_value", field=where, value=error.message) from error
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise BadValueError("quantization.bad_value", field=where, value=str(dict(raw))[:80]) from error
    if found is not None and config.get("expert_dtype") == "fp4":
        found = found.model_copy(update={"per_module": {**found.per_module, EXPERTS[0]: "mxfp4"}})
    return found


def _check(quantization: Quantization) -> None:
    """Formats that no tensor can have fail here, where the key is known, and not later."""
    format_of(quantization)
    if quantization.group_size is not None and quantization.group_size < -1:
        raise ValueError(f"group_size {quantization.group_size}")
    for spec in quantization.per_module.values():
        weight_format(spec)


def _find(config: Raw) -> tuple[Raw | None, str]:
    for key in ("quantization_config", "compression_config", "quantization"):
        for prefix, holder in (("", config), *((f"{k}.", config.get(k)) for k in _TEXT_OBJECTS)):
            found = holder.get(key) if isinstance(holder, Mapping) else None
            if isinstance(found, Mapping) and found and (key != "quantization" or "bits" in found):
                return found, f"{prefix}{key}"
            if found and not isinstance(found, Mapping) and key == "quantization_config":
                raise BadValueError("quantization.bad_value", field=f"{prefix}{key}", value=str(found)[:80])
    return None, ""


def _method(raw: Raw) -> str:
    method = raw.get("quant_method")
    if isinstance(method, str):
        return method.lower().replace("_", "-").removeprefix("intel/")
    if "quant_algo" in raw:
        return "modelopt"
    if "config_groups" in raw:
        return "compressed-tensors"
    if "load_in_4bit" in raw or "load_in_8bit" in raw:
        return "bitsandbytes"
    if "bits" in raw and "group_size" in raw:
        return "mlx"
    return str(method)


def format_of(quantization: Quantization) -> Format:
    """The base format with its parameters."""
    return weight_format(
        quantization.format,
        bits=quantization.bits,
        group_size=quantization.group_size,
        block=quantization.block,
        symmetric=quantization.symmetric,
        desc_act=quantization.desc_act,
    )
