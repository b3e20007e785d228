"""Plain number types by every name that configs, safetensors headers and plans give them."""

from calculator.errors import PlanError

_BITS = {
    64: ("float64", "fp64", "double", "f64", "int64", "i64", "u64"),
    32: ("float32", "fp32", "float", "f32", "int32", "i32", "u32", "tf32"),
    16: ("bfloat16", "bf16", "float16", "fp16", "half", "f16", "int16", "i16", "u16"),
    8: (
        "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "fp8", "fp8_e4m3", "fp8_e5m2", "f8_e4m3", "f8_e5m2",
        "f8_e8m0", "float8_e8m0fnu", "int8", "i8", "uint8", "u8", "bool",
    ),
    6: ("f6_e2m3", "f6_e3m2"),
    4: ("float4_e2m1fn_x2", "f4", "fp4", "int4", "uint4"),
}  # fmt: skip
_BY_NAME = {name: bits for bits, names in _BITS.items() for name in names}


def dtype_bits(name: str) -> int:
    """Bits of one element of a torch, safetensors or plan dtype name, with or without "torch.".

    Raises ``PlanError`` ("format.unknown_dtype").
    """
    bits = _BY_NAME.get(name.strip().lower().removeprefix("torch."))
    if bits is None:
        raise PlanError("format.unknown_dtype", field="dtype", text=name[:40])
    return bits


def dtype_bytes(name: str) -> int:
    """Whole bytes of one element; raises ``PlanError`` for sub-byte types too, whose tensors need their packing."""
    bits = dtype_bits(name)
    if bits % 8:
        raise PlanError("format.sub_byte_dtype", field="dtype", text=name[:40])
    return bits // 8
