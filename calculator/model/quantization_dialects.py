"""The dialects in which quantisers write down what they did, one reader each.

A reader gets the raw object and where it stands in the file, and gives the normalised form or None where the weights
are plain. Wrong values raise ``ValueError`` and the like, which ``read_quantization`` turns into a typed error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from calculator.errors import BadValueError
from calculator.model.patterns import module_patterns, regex_pattern, substring_patterns
from calculator.model.shape import Quantization
from calculator.precision import Format, weight_format

Raw = Mapping[str, Any]

NOTHING = (r"(?!)",)
"""As ``only``: no module takes the base format, all that are packed stand in ``per_module``."""

EXPERTS = (r"(?:.*\.)?experts(?:\..*)?",)


def _spec(format_: Format) -> str:
    return f"{format_.key}:bits={format_.bits:g}" + (f",group={format_.group_size}" if format_.group_size else "")


def _names(value: object) -> tuple[str, ...]:
    """A list of names, however nested; anything else is none."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, (list, tuple)):
        return tuple(name for item in value for name in _names(item))
    return ()


def _int(value: object, default: int) -> int:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r} is not a whole number")
    return value


def _excluded(raw: Raw, *keys: str) -> tuple[str, ...]:
    return module_patterns(n for key in keys for n in _names(raw.get(key)))


def _fp8(raw: Raw, where: str) -> Quantization:
    excluded = _excluded(raw, "modules_to_not_convert", "ignored_layers")
    block = raw.get("weight_block_size")
    if block is None:
        return Quantization(format="fp8", bits=8, excluded=excluded)
    rows, columns = (_int(side, 128) for side in block)
    if min(rows, columns) < 1:
        raise ValueError(f"weight_block_size {block}")
    return Quantization(format="fp8_block", bits=8, block=(rows, columns), excluded=excluded)


def _fbgemm(raw: Raw, where: str) -> Quantization:
    return Quantization(format="fbgemm_fp8", bits=8, excluded=_excluded(raw, "modules_to_not_convert"))


def _mxfp4(raw: Raw, where: str) -> Quantization:
    excluded = _excluded(raw, "modules_to_not_convert")
    return Quantization(format="mxfp4", bits=4, group_size=32, excluded=excluded, only=EXPERTS)


def _awq(raw: Raw, where: str) -> Quantization:
    # AutoAWQ skips a module whose path contains the text.
    return Quantization(
        format="awq",
        bits=_int(raw.get("bits", raw.get("w_bit")), 4),
        group_size=_int(raw.get("group_size", raw.get("q_group_size")), 128),
        symmetric=not raw.get("zero_point", True),
        excluded=substring_patterns(_names(raw.get("modules_to_not_convert"))),
    )


def _gptq(raw: Raw, where: str) -> Quantization:
    bits, group = _int(raw.get("bits"), 4), _int(raw.get("group_size"), 128)
    per_module: dict[str, str] = {}
    excluded = list(_excluded(raw, "modules_to_not_convert"))
    for written, change in (raw.get("dynamic") or {}).items():
        # GPTQModel: "-:" skips what the expression matches, "+:" (or nothing) changes its parameters.
        pattern = regex_pattern(written.removeprefix("+:").removeprefix("-:"))
        if written.startswith("-:"):
            excluded.append(pattern)
        else:
            other = weight_format("gptq", bits=change.get("bits", bits), group_size=change.get("group_size", group))
            per_module[pattern] = _spec(other)
    if raw.get("lm_head") is True:
        per_module["lm_head"] = f"gptq:bits={bits},group={group}"
    return Quantization(
        format="gptq",
        bits=bits,
        group_size=group,
        symmetric=bool(raw.get("sym", True)),
        desc_act=bool(raw.get("desc_act", False)),
        excluded=tuple(excluded),
        only=module_patterns(_names(raw.get("modules_in_block_to_quantize"))),
        per_module=per_module,
    )


def _auto_round(raw: Raw, where: str) -> Quantization:
    bits, group = _int(raw.get("bits"), 4), _int(raw.get("group_size"), 128)
    excluded: list[str] = list(_excluded(raw, "modules_to_not_convert"))
    per_module: dict[str, str] = {}
    packing = str(raw.get("packing_format", raw.get("backend", "")))
    base = "awq" if "awq" in packing else "auto_round"
    for name, change in (raw.get("extra_config") or {}).items():
        pattern = regex_pattern(name) if any(c in name for c in "*^$(|") else module_patterns([name])[0]
        own = _int(change.get("bits"), bits)
        if own >= 16:
            excluded.append(pattern)
        else:
            per_module[pattern] = f"{base}:bits={own},group={_int(change.get('group_size'), group)}"
    return Quantization(
        format=base,
        bits=bits,
        group_size=group,
        symmetric=bool(raw.get("sym", True)),
        excluded=tuple(excluded),
        only=module_patterns(_names(raw.get("block_name_to_quantize") or raw.get("to_quant_block_names"))),
        per_module=per_module,
    )


def _bitsandbytes(raw: Raw, where: str) -> Quantization | None:
    excluded = _excluded(raw, "llm_int8_skip_modules")
    if raw.get("load_in_8bit") or raw.get("_load_in_8bit"):
        return Quantization(format="bnb_int8", bits=8, excluded=excluded)
    if not (raw.get("load_in_4bit") or raw.get("_load_in_4bit")):
        return None
    double = bool(raw.get("bnb_4bit_use_double_quant"))
    kind = "nf4" if str(raw.get("bnb_4bit_quant_type", "fp4")).lower() == "nf4" else "fp4"
    return Quantization(
        format=f"{kind}_dq" if double else kind, bits=4, group_size=64, double_quant=double, excluded=excluded
    )


def _compressed_tensors(raw: Raw, where: str) -> Quantization | None:
    groups = [g for g in (raw.get("config_groups") or {}).values() if isinstance(g, Mapping) and g.get("weights")]
    if not groups:
        return None
    ignored = _names(raw.get("ignore")) or _names(raw.get("ignored_layers"))
    excluded = (
        *module_patterns(n for n in ignored if not n.startswith("re:")),
        *(regex_pattern(n[3:]) for n in ignored if n.startswith("re:")),
    )
    read = [_scheme(g["weights"], str(g.get("format") or raw.get("format") or "")) for g in groups]
    first, weights = read[0], groups[0]["weights"]
    per_module = {
        pattern: _spec(other) for group, other in zip(groups[1:], read[1:], strict=True) for pattern in _targets(group)
    }
    block = weights.get("block_structure")
    return Quantization(
        format=first.key,
        bits=first.bits,
        group_size=first.group_size if first.packing.scales != "row" or first.key != "w4a16" else -1,
        block=(int(block[0]), int(block[1])) if first.key == "fp8_block" and block else None,
        symmetric=bool(weights.get("symmetric", True)),
        desc_act=weights.get("actorder") in ("group", True),
        excluded=excluded,
        only=_targets(groups[0]),
        kv_format=_kv_scheme(raw.get("kv_cache_scheme")),
        per_module=per_module,
    )


def _targets(group: Raw) -> tuple[str, ...]:
    """Modules of a config group; a class name such as "Linear" means all linears, hence no pattern."""
    names = [n for n in _names(group.get("targets")) if n not in ("Linear", "FusedMoE", "MoEGate")]
    return (
        *(regex_pattern(n[3:]) for n in names if n.startswith("re:")),
        *module_patterns(n for n in names if not n.startswith("re:")),
    )


def _scheme(weights: Raw, layout: str) -> Format:
    """The weight format of a compressed-tensors scheme."""
    bits, kind = _int(weights.get("num_bits"), 8), str(weights.get("type", "int"))
    strategy, group = str(weights.get("strategy") or ""), weights.get("group_size")
    if kind == "float":
        if bits == 4:
            return weight_format("mxfp4" if group == 32 or "mxfp4" in layout else "nvfp4")
        if strategy == "group" and group == 32:
            return weight_format("mxfp8")
        key = {"block": "fp8_block", "channel": "fp8_channel"}.get(strategy, "fp8")
        return weight_format("fp8_block" if weights.get("block_structure") else key)
    if bits == 8 and "pack" not in layout and strategy in ("channel", "tensor", "token", ""):
        return weight_format("int8")
    return weight_format("w4a16", bits=bits, group_size=group if isinstance(group, int) and group > 0 else -1)


def _kv_scheme(scheme: object) -> str | None:
    if not isinstance(scheme, Mapping) or not scheme.get("num_bits"):
        return None
    return "fp8" if scheme.get("type") == "float" else f"int{scheme['num_bits']}"


_MODELOPT_FORMATS = {
    "FP8": "fp8", "FP8_PER_CHANNEL_PER_TOKEN": "fp8_channel", "FP8_PB_WO": "fp8_block", "FP8_PB_REAL": "fp8_block",
    "FP8_BLOCK_SCALES": "fp8_block", "NVFP4": "nvfp4", "W4A16_NVFP4": "nvfp4", "NVFP4_AWQ": "nvfp4",
    "NVFP4_SVDQUANT": "nvfp4", "W4A8_NVFP4_FP8": "nvfp4", "MXFP8": "mxfp8", "MXFP4": "mxfp4",
    "W4A8_MXFP4_FP8": "mxfp4", "W4A16_MXFP4": "mxfp4", "INT8_SQ": "int8", "W8A8_SQ_PER_CHANNEL": "int8",
    "W4A16": "w4a16", "W4A16_AWQ": "w4a16", "W4A8_AWQ": "w4a16", "INT4_AWQ": "w4a16",
}  # fmt: skip


def _modelopt(raw: Raw, where: str) -> Quantization | None:
    algorithm = str(raw.get("quant_algo") or "").upper()
    if not algorithm and not raw.get("quantized_layers"):
        return None
    excluded = _excluded(raw, "exclude_modules", "ignore")
    kv = str(raw.get("kv_cache_quant_algo") or "").lower() or _kv_scheme(raw.get("kv_cache_scheme"))
    if algorithm in _MODELOPT_FORMATS:
        base = weight_format(_MODELOPT_FORMATS[algorithm])
        return Quantization(
            format=base.key, bits=base.bits, group_size=base.group_size, excluded=excluded, kv_format=kv
        )
    if algorithm != "MIXED_PRECISION":
        raise BadValueError("quantization.unknown_method", field=f"{where}.quant_algo", value=algorithm[:40])
    by_format: dict[str, list[str]] = {}
    for name, settings in (raw.get("quantized_layers") or {}).items():
        layer = str(settings.get("quant_algo", "")).upper()
        if layer not in _MODELOPT_FORMATS:
            raise BadValueError("quantization.unknown_method", field=f"{where}.quantized_layers", value=layer[:40])
        by_format.setdefault(_MODELOPT_FORMATS[layer], []).append(name)
    most = max(by_format, key=lambda key: len(by_format[key]), default="fp8")
    base = weight_format(most)
    return Quantization(
        format=base.key,
        bits=base.bits,
        group_size=base.group_size,
        excluded=excluded,
        only=NOTHING,
        kv_format=kv,
        per_module={p: key for key, names in by_format.items() for p in module_patterns(names)},
    )


def _mlx(raw: Raw, where: str) -> Quantization:
    bits, group = _int(raw.get("bits"), 4), _int(raw.get("group_size"), 64)
    mode = str(raw.get("mode", "affine"))
    excluded: list[str] = []
    by_spec: dict[str, list[str]] = {}
    for name, change in raw.items():
        if change is False and "." in name:
            excluded.append(name)
        elif isinstance(change, Mapping) and "bits" in change:
            own = str(change.get("mode", mode))
            spec = f"mlx:bits={_int(change['bits'], bits)},group={_int(change.get('group_size'), group)}"
            by_spec.setdefault(spec if own == "affine" else _mlx_mode(own), []).append(name)
    return Quantization(
        format="mlx" if mode == "affine" else _mlx_mode(mode),
        bits=bits,
        group_size=group,
        symmetric=False,
        excluded=module_patterns(excluded),
        per_module={p: spec for spec, names in by_spec.items() for p in module_patterns(names)},
    )


def _mlx_mode(mode: str) -> str:
    if mode not in ("mxfp4", "mxfp8", "nvfp4"):
        raise ValueError(f"mode {mode[:40]}")
    return mode


def _bitnet(raw: Raw, where: str) -> Quantization | None:
    if raw.get("quantization_mode") == "online":
        return None  # 16-bit master weights, made ternary in each forward
    return Quantization(format="bitnet", bits=2, excluded=_excluded(raw, "modules_to_not_convert"))


def _exllama(raw: Raw, where: str) -> Quantization:
    bits = float(raw["bits"])
    key = str(raw["quant_method"]).lower()
    head = float(raw.get("head_bits") or 16)
    per_module = {"lm_head": f"{key}:bits={head:g}"} if head < 16 else {}
    return Quantization(format=key, bits=bits, per_module=per_module)


def _hqq(raw: Raw, where: str) -> Quantization:
    inner = raw.get("quant_config") or raw
    weights = inner.get("weight_quant_params") or inner
    return Quantization(
        format="hqq",
        bits=_int(weights.get("nbits"), 4),
        group_size=_int(weights.get("group_size"), 64),
        symmetric=False,
        excluded=_excluded(raw, "skip_modules"),
    )


def _torchao(raw: Raw, where: str) -> Quantization:
    kind = raw.get("quant_type")
    settings: Raw = raw.get("quant_type_kwargs") or {}
    if isinstance(kind, Mapping):
        inner = kind.get("default") or {}
        kind, settings = inner.get("_type", ""), inner.get("_data") or {}
    name = str(kind).lower().replace("_", "")
    excluded = _excluded(raw, "modules_to_not_convert")
    if "int4" in name:
        group = _int(settings.get("group_size"), 128)
        return Quantization(format="torchao_int4", bits=4, group_size=group, symmetric=False, excluded=excluded)
    if "float8" in name:
        return Quantization(format="torchao_fp8", bits=8, excluded=excluded)
    if "int8" in name:
        return Quantization(format="torchao_int8", bits=8, excluded=excluded)
    raise BadValueError("quantization.unknown_method", field=f"{where}.quant_type", value=str(kind)[:40])


def _quark(raw: Raw, where: str) -> Quantization:
    weights = (raw.get("global_quant_config") or {}).get("weight") or {}
    if isinstance(weights, list):
        weights = weights[0]
    dtype, group = str(weights.get("dtype", "")).lower(), weights.get("group_size")
    excluded = _excluded(raw, "exclude")
    kv = "fp8" if (raw.get("kv_cache_quant_config") or raw.get("export", {}).get("kv_cache_group")) else None
    if dtype.startswith("fp4") or "mx" in dtype:
        return Quantization(format="mxfp4", bits=4, group_size=group or 32, excluded=excluded, kv_format=kv)
    if dtype.startswith("fp8"):
        key = "fp8_channel" if weights.get("qscheme") == "per_channel" else "fp8"
        return Quantization(format=key, bits=8, excluded=excluded, kv_format=kv)
    if dtype.startswith("int8"):
        return Quantization(format="int8", bits=8, excluded=excluded, kv_format=kv)
    if dtype.startswith(("int4", "uint4")):
        return Quantization(format="w4a16", bits=4, group_size=group or 128, excluded=excluded, kv_format=kv)
    raise BadValueError("quantization.unknown_method", field=f"{where}.global_quant_config", value=dtype[:40])


READERS: dict[str, Callable[[Raw, str], Quantization | None]] = {
    "fp8": _fp8, "finegrained-fp8": _fp8, "fbgemm-fp8": _fbgemm, "mxfp4": _mxfp4, "awq": _awq, "awq-marlin": _awq,
    "gptq": _gptq, "gptq-marlin": _gptq, "marlin": _gptq, "auto-round": _auto_round, "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _compressed_tensors, "modelopt": _modelopt, "modelopt-fp4": _modelopt, "mlx": _mlx,
    "bitnet": _bitnet, "exl2": _exllama, "exl3": _exllama, "hqq": _hqq, "torchao": _torchao, "quark": _quark,
}  # fmt: skip
