"""The tensor types of GGUF files: elements and bytes of one block.

Numbers follow from the block structs of ``ggml/src/ggml-common.h`` and the type list of ``ggml/include/ggml.h``
(github.com/ggml-org/llama.cpp); ids are those written in a file's tensor table.
"""

from __future__ import annotations

from math import prod
from types import MappingProxyType

from calculator.base import Frozen
from calculator.precision.packing import ceil_div
from calculator.sources import Source

GGML_SOURCE = Source(
    title="llama.cpp, ggml-common.h and ggml.h",
    url="https://github.com/ggml-org/llama.cpp/blob/master/ggml/src/ggml-common.h",
    checked_on="2026-11-29",
)


class GgmlType(Frozen):
    """One block holds ``block`` consecutive elements of a row in ``block_bytes``."""

    id: int
    name: str
    block: int
    block_bytes: int

    @property
    def bits(self) -> float:
        return 8 * self.block_bytes / self.block

    def tensor_bytes(self, shape: tuple[int, ...]) -> int:
        """Bytes of a tensor in checkpoint order (last dimension contiguous); rows are filled up to whole blocks."""
        return prod(shape[:-1]) * ceil_div(shape[-1], self.block) * self.block_bytes


# id, name, elements of a block, bytes of a block. 4, 5 and 31 to 38 were withdrawn (repacked layouts); files that
# hold the repacked Q4_0 layouts have the same size.
_TABLE = (
    (0, "F32", 1, 4), (1, "F16", 1, 2), (2, "Q4_0", 32, 18), (3, "Q4_1", 32, 20), (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24), (8, "Q8_0", 32, 34), (9, "Q8_1", 32, 36), (10, "Q2_K", 256, 84), (11, "Q3_K", 256, 110),
    (12, "Q4_K", 256, 144), (13, "Q5_K", 256, 176), (14, "Q6_K", 256, 210), (15, "Q8_K", 256, 292),
    (16, "IQ2_XXS", 256, 66), (17, "IQ2_XS", 256, 74), (18, "IQ3_XXS", 256, 98), (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18), (21, "IQ3_S", 256, 110), (22, "IQ2_S", 256, 82), (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1), (25, "I16", 1, 2), (26, "I32", 1, 4), (27, "I64", 1, 8), (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56), (30, "BF16", 1, 2), (31, "Q4_0_4_4", 32, 18), (32, "Q4_0_4_8", 32, 18),
    (33, "Q4_0_8_8", 32, 18), (34, "TQ1_0", 256, 54), (35, "TQ2_0", 256, 66), (39, "MXFP4", 32, 17),
    (40, "NVFP4", 64, 36),
)  # fmt: skip

GGML_TYPES = MappingProxyType({name: GgmlType(id=i, name=name, block=n, block_bytes=b) for i, name, n, b in _TABLE})
GGML_TYPES_BY_ID = MappingProxyType({t.id: t for t in GGML_TYPES.values()})
