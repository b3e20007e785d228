"""Number formats: dtypes, quantised weight formats and cache formats, and the exact bytes they take.

``weight_format("awq").tensor_bytes((4096, 4096))`` counts everything that is stored for that weight: packed words,
scales, zero points, index vectors and padding. ``kv_format("q8_0").vector_bytes(128)`` is one head's key or value.
"""

from calculator.precision.cache import KV_FORMATS, KvFormat, kv_format
from calculator.precision.dtypes import dtype_bits, dtype_bytes
from calculator.precision.formats import FORMAT_KEYS, Format, weight_format
from calculator.precision.ggml import GGML_TYPES, GgmlType
from calculator.precision.packing import Packing

__all__ = [
    "FORMAT_KEYS", "GGML_TYPES", "KV_FORMATS", "Format", "GgmlType", "KvFormat", "Packing", "dtype_bits",
    "dtype_bytes", "kv_format", "weight_format",
]  # fmt: skip
