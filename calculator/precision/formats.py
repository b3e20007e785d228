"""Weight formats by key: how each quantiser lays out a matrix, and which tensors it touches.

Layouts follow the checkpoints that the tools write; each format carries where its layout is defined.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

from calculator.base import Frozen
from calculator.errors import PlanError
from calculator.precision.ggml import GGML_SOURCE, GGML_TYPES
from calculator.precision.packing import Packing
from calculator.sources import Source

Scope = Literal["all", "linear", "linear_no_tower", "experts", "linear_and_embedding"]
"""Which tensors the format's own tool packs when it is given an unquantised model: every tensor; every linear but the
head; those of the language model's layers only; the routed experts only; linears, head and embedding."""


class Format(Frozen):
    """A weight format with its parameters settled. ``bits`` are those of the packed words alone."""

    key: str
    bits: float
    group_size: int | None
    packing: Packing
    scope: Scope
    head_bits: int | None = None
    source: Source

    def tensor_bytes(self, shape: tuple[int, ...]) -> int:
        """Everything stored for one weight of ``shape`` (out, in); leading dimensions are so many matrices."""
        return self.packing.tensor_bytes(shape)

    @property
    def plain(self) -> bool:
        """A dtype rather than a quantisation."""
        return self.packing.scales == "none" and self.bits >= 16


def _source(title: str, url: str, versions: str = "") -> Source:
    return Source(title=title, url=url, checked_on="2026-11-29", versions=versions)


_ELEMENT = Source(title="the element size")
_HF = "https://github.com/huggingface/transformers/blob/main/src/transformers/integrations/"
_SOURCES = {
    "fp8": _source("transformers, fine-grained FP8 linear", _HF + "finegrained_fp8.py"),
    "ct": _source(
        "compressed-tensors, compressors",
        "https://github.com/vllm-project/compressed-tensors/tree/main/src/compressed_tensors/compressors",
    ),
    "awq": _source("AutoAWQ, WQLinear_GEMM", "https://github.com/casper-hansen/AutoAWQ/blob/main/awq/modules/linear/gemm.py"),
    "gptq": _source("GPTQModel, packed linear", "https://github.com/ModelCloud/GPTQModel/tree/main/gptqmodel/nn_modules/qlinear"),
    "bnb": _source(
        "bitsandbytes, QuantState and Linear8bitLt",
        "https://github.com/bitsandbytes-foundation/bitsandbytes/blob/main/bitsandbytes/functional.py",
    ),
    "modelopt": _source(
        "TensorRT Model Optimizer, unified Hugging Face checkpoint",
        "https://github.com/NVIDIA/TensorRT-Model-Optimizer/blob/main/modelopt/torch/export/quant_utils.py",
    ),
    "mxfp4": _source("gpt-oss, MXFP4 expert blocks", "https://huggingface.co/openai/gpt-oss-20b"),
    "bitnet": _source("transformers, BitLinear", _HF + "bitnet.py"),
    "exl2": _source("ExLlamaV2, EXL2", "https://github.com/turboderp-org/exllamav2"),
    "exl3": _source("ExLlamaV3, EXL3", "https://github.com/turboderp-org/exllamav3/blob/master/doc/exl3.md"),
    "hqq": _source("HQQ, HQQLinear", "https://github.com/mobiusml/hqq/blob/master/hqq/core/quantize.py"),
    "torchao": _source("torchao, quantize_", "https://github.com/pytorch/ao/tree/main/torchao/quantization"),
    "mlx": _source("MLX, quantize", "https://ml-explore.github.io/mlx/build/html/python/_autosummary/mlx.core.quantize.html"),
}  # fmt: skip


class _Maker(Frozen):
    """The defaults of a key and its layout as a function of (bits, group size, symmetric, act order)."""

    bits: float
    group: int | None
    scope: Scope
    source: str
    layout: Callable[[float, int, bool, bool], Packing]
    head_bits: int | None = None


def _plain(bits: int) -> _Maker:
    return _Maker(bits=bits, group=None, scope="all", source="", layout=lambda b, g, s, a: Packing(bits=b))


def _gptq(bits: float, group: int, symmetric: bool, act_order: bool) -> Packing:
    # Zero points are stored even for symmetric weights; g_idx is written whatever the activation order.
    return Packing(
        bits=bits, word_bytes=4, scales="group", scale_bytes=2, group=group,
        zero_bits=int(bits), column_bytes=4,
    )  # fmt: skip


def _auto_round(bits: float, group: int, symmetric: bool, act_order: bool) -> Packing:
    return _gptq(bits, group, symmetric, act_order).model_copy(update={"column_bytes": 0})


def _awq(bits: float, group: int, symmetric: bool, act_order: bool) -> Packing:
    return Packing(
        bits=bits, word_bytes=4, along="column", scales="group", scale_bytes=2, group=group, zero_bits=int(bits)
    )


def _pack_quantized(bits: float, group: int, symmetric: bool, act_order: bool) -> Packing:
    # weight_shape: two int64.
    return Packing(
        bits=bits, word_bytes=4, scales="group", scale_bytes=2, group=group, zero_bits=0 if symmetric else int(bits),
        column_bytes=4 if act_order else 0, fixed_bytes=16,
    )  # fmt: skip


def _bnb4(bits: float, group: int, symmetric: bool, act_order: bool) -> Packing:
    return Packing(bits=bits, along="flat", scales="flat", scale_bytes=4, group=group, fixed_bytes=64)


def _bnb4_double(bits: float, group: int, symmetric: bool, act_order: bool) -> Packing:
    # One byte for each absmax, fp32 for each 256 of them; code tables of 16 and 256 fp32 entries and an fp32 offset.
    return Packing(
        bits=bits, along="flat", scales="flat", scale_bytes=1, group=group, nested_group=256, nested_bytes=4,
        nested_fixed_bytes=4, fixed_bytes=64 + 1024,
    )  # fmt: skip


def _mlx(bits: float, group: int, symmetric: bool, act_order: bool) -> Packing:
    # A 16-bit scale and a 16-bit bias for each group.
    return Packing(bits=bits, word_bytes=4, scales="group", scale_bytes=4, group=group)


def _fixed(packing: Packing) -> Callable[[float, int, bool, bool], Packing]:
    return lambda b, g, s, a: packing


def _grouped(**fields: int | str) -> Callable[[float, int, bool, bool], Packing]:
    return lambda b, g, s, a: Packing.model_validate({"bits": b, "scales": "group", "group": g, **fields})


_MAKERS: dict[str, _Maker] = {
    "fp32": _plain(32),
    "bf16": _plain(16),
    "fp16": _plain(16),
    # One fp32 weight scale and one fp32 input scale a tensor.
    "fp8": _Maker(
        bits=8, group=None, scope="linear_no_tower", source="modelopt",
        layout=_fixed(Packing(bits=8, scales="tensor", scale_bytes=4, fixed_bytes=4)),
    ),
    "fp8_channel": _Maker(
        bits=8, group=None, scope="linear_no_tower", source="ct",
        layout=_fixed(Packing(bits=8, scales="row", scale_bytes=2)),
    ),
    "fp8_block": _Maker(
        bits=8, group=None, scope="linear_no_tower", source="fp8",
        layout=_fixed(Packing(bits=8, scales="block", scale_bytes=4, block=(128, 128))),
    ),
    "fbgemm_fp8": _Maker(
        bits=8, group=None, scope="linear_no_tower", source="fp8",
        layout=_fixed(Packing(bits=8, scales="row", scale_bytes=4)),
    ),
    "int8": _Maker(
        bits=8, group=None, scope="linear_no_tower", source="ct",
        layout=_fixed(Packing(bits=8, scales="row", scale_bytes=2)),
    ),
    "w4a16": _Maker(bits=4, group=128, scope="linear_no_tower", source="ct", layout=_pack_quantized),
    "awq": _Maker(bits=4, group=128, scope="linear_no_tower", source="awq", layout=_awq),
    "gptq": _Maker(bits=4, group=128, scope="linear_no_tower", source="gptq", layout=_gptq),
    "auto_round": _Maker(bits=4, group=128, scope="linear_no_tower", source="gptq", layout=_auto_round),
    "nf4": _Maker(bits=4, group=64, scope="linear", source="bnb", layout=_bnb4),
    "nf4_dq": _Maker(bits=4, group=64, scope="linear", source="bnb", layout=_bnb4_double),
    "fp4": _Maker(bits=4, group=64, scope="linear", source="bnb", layout=_bnb4),
    "fp4_dq": _Maker(bits=4, group=64, scope="linear", source="bnb", layout=_bnb4_double),
    # One fp32 scale (SCB) a row.
    "bnb_int8": _Maker(
        bits=8, group=None, scope="linear", source="bnb", layout=_fixed(Packing(bits=8, scales="row", scale_bytes=4))
    ),
    # An fp8 scale for each 16 weights, and two fp32 scales (weight, input) a tensor.
    "nvfp4": _Maker(
        bits=4, group=16, scope="linear_no_tower", source="modelopt", layout=_grouped(scale_bytes=1, fixed_bytes=8)
    ),
    # An e8m0 scale for each 32 weights.
    "mxfp4": _Maker(bits=4, group=32, scope="experts", source="mxfp4", layout=_grouped(scale_bytes=1)),
    "mxfp6": _Maker(bits=6, group=32, scope="linear_no_tower", source="ct", layout=_grouped(scale_bytes=1)),
    "mxfp8": _Maker(bits=8, group=32, scope="linear_no_tower", source="ct", layout=_grouped(scale_bytes=1)),
    # Four ternary weights a byte, packed over the rows, one 16-bit scale a tensor.
    "bitnet": _Maker(
        bits=2, group=None, scope="linear_no_tower", source="bitnet",
        layout=_fixed(Packing(bits=2, along="column", scales="tensor", scale_bytes=2)),
    ),
    # The target is an average over the layers that includes scales; a permutation of 16-bit indices a matrix is extra.
    "exl2": _Maker(
        bits=4, group=None, scope="linear_no_tower", source="exl2", head_bits=6,
        layout=lambda b, g, s, a: Packing(bits=b, word_bytes=4, along="flat", column_bytes=2),
    ),
    # 16 x 16 tiles of a trellis; sign and scale vectors in 16 bit on both sides, the codebook's multiplier.
    "exl3": _Maker(
        bits=4, group=None, scope="linear_no_tower", source="exl3", head_bits=6,
        layout=lambda b, g, s, a: Packing(
            bits=b, word_bytes=2, along="flat", column_bytes=2, row_bytes=2, fixed_bytes=4, pad_rows=16, pad_columns=16
        ),
    ),
    # A 16-bit scale and a 16-bit zero point for each group of consecutive elements.
    "hqq": _Maker(
        bits=4, group=64, scope="linear", source="hqq",
        layout=lambda b, g, s, a: Packing(bits=b, along="flat", scales="flat", scale_bytes=4, group=g),
    ),
    # bf16 scale and zero point for each group of a row.
    "torchao_int4": _Maker(
        bits=4, group=128, scope="linear", source="torchao", layout=_grouped(scale_bytes=4, pad_rows=8)
    ),
    "torchao_int8": _Maker(
        bits=8, group=None, scope="linear", source="torchao",
        layout=_fixed(Packing(bits=8, scales="row", scale_bytes=2)),
    ),
    "torchao_fp8": _Maker(
        bits=8, group=None, scope="linear", source="torchao",
        layout=_fixed(Packing(bits=8, scales="row", scale_bytes=4)),
    ),
    "mlx": _Maker(bits=4, group=64, scope="linear_and_embedding", source="mlx", layout=_mlx),
}  # fmt: skip

_ALIASES: dict[str, tuple[str, dict[str, float]]] = {
    "float32": ("fp32", {}), "float16": ("fp16", {}), "bfloat16": ("bf16", {}), "f32": ("fp32", {}),
    "f16": ("fp16", {}), "bnb_nf4": ("nf4", {}), "bnb_fp4": ("fp4", {}), "gptq_int4": ("gptq", {"bits": 4}),
    "gptq_int8": ("gptq", {"bits": 8}), "awq_int4": ("awq", {}), "w8a8": ("int8", {}), "w8a16": ("w4a16", {"bits": 8}),
    "int4": ("w4a16", {}), "modelopt_fp4": ("nvfp4", {}), "modelopt_fp8": ("fp8", {}),
}  # fmt: skip

FORMAT_KEYS = (*_MAKERS, *(f"ggml:{name}" for name in GGML_TYPES))


def weight_format(
    key: str,
    *,
    bits: float | None = None,
    group_size: int | None = None,
    block: tuple[int, int] | None = None,
    symmetric: bool = True,
    desc_act: bool = False,
    static_scales: bool | None = None,
) -> Format:
    """The format of a key with its parameters, each the tool's usual one when None.

    The key may carry its own parameters, as ``Quantization.per_module`` writes them: "mlx:bits=6,group=32".
    ``group_size`` of -1 or 0 means one group a row. ``static_scales`` False drops the input scale that per-tensor
    FP8 stores. "ggml:Q4_K" is a single ggml type; GGUF mixes such as Q4_K_M choose a type per tensor and are no
    weight format (see ``calculator.gguf``).

    Raises ``PlanError`` ("format.unknown", "format.bad_parameter").
    """
    name = key.strip().lower().replace("-", "_")
    if name.startswith("ggml:"):
        return _ggml_format(name.removeprefix("ggml:"))
    name, own_bits, own_group = _parameters(name)
    bits = own_bits if bits is None else bits
    group_size = own_group if group_size is None else group_size
    preset: dict[str, float] = {}
    if name in _ALIASES:
        name, preset = _ALIASES[name]
    maker = _MAKERS.get(name)
    if maker is None:
        raise PlanError("format.unknown", field="weights", text=key[:40], candidates=", ".join(_MAKERS))
    bits = bits if bits is not None else preset.get("bits", maker.bits)
    if not 0 < bits <= 64 or (group_size is not None and group_size > 1 << 24):
        raise PlanError("format.bad_parameter", field="weights", text=f"{key[:40]}: {bits}, {group_size}")
    per_row = group_size is not None and group_size <= 0
    group = group_size if group_size and group_size > 0 else maker.group
    packing = maker.layout(bits, group or 1, symmetric, desc_act)
    if per_row and packing.scales == "group":
        packing = packing.model_copy(update={"scales": "row"})
    if block is not None and packing.scales == "block":
        packing = packing.model_copy(update={"block": block})
    if static_scales is False and name == "fp8":
        packing = packing.model_copy(update={"fixed_bytes": 0})
    return Format(
        key=name,
        bits=bits,
        group_size=None if per_row else group,
        packing=packing,
        scope=maker.scope,
        head_bits=maker.head_bits,
        source=_SOURCES.get(maker.source, _ELEMENT),
    )


_SPEC = re.compile(r"([a-z0-9_]+)(?::bits=([0-9.]{1,8}))?(?:[:,]group=(-?[0-9]{1,9}))?")


def _parameters(name: str) -> tuple[str, float | None, int | None]:
    match = _SPEC.fullmatch(name)
    if match is None:
        return name, None, None
    bits, group = match[2], match[3]
    try:
        return match[1], None if bits is None else float(bits), None if group is None else int(group)
    except ValueError as error:
        raise PlanError("format.bad_parameter", field="weights", text=name[:40]) from error


def _ggml_format(name: str) -> Format:
    kind = GGML_TYPES.get(name.upper())
    if kind is None:
        raise PlanError("format.unknown", field="weights", text=name[:40], candidates=", ".join(GGML_TYPES))
    # A block is its own unit: no words apart from it.
    packing = Packing(bits=0, scales="group", scale_bytes=kind.block_bytes, group=kind.block)
    return Format(
        key=f"ggml:{kind.name}", bits=kind.bits, group_size=kind.block, packing=packing, scope="all", source=GGML_SOURCE
    )
