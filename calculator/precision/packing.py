"""How one matrix is laid down in a file: words, scales, zero points, index vectors, padding."""

from __future__ import annotations

from fractions import Fraction
from math import prod
from typing import Literal

from calculator.base import Frozen


def ceil_div(amount: int, size: int) -> int:
    return -(-amount // size)


class Packing(Frozen):
    """Storage of a matrix of ``rows`` (out features) by ``columns`` (in features).

    Weights of ``bits`` are packed into words of ``word_bytes`` along ``along``: within each row, within each column
    or over the whole matrix. One scale of ``scale_bytes`` serves what ``scales`` says: the tensor, a row, a group of
    ``group`` columns of a row, a ``block`` of rows by columns, or ``group`` consecutive elements ("flat"). Each group
    may have a zero point of ``zero_bits``, packed over the rows into words of ``zero_word_bytes``. Scales may
    themselves be quantised: one value of ``nested_bytes`` for every ``nested_group`` of them, ``nested_fixed_bytes``
    once. ``column_bytes`` and ``row_bytes`` are further vectors (an activation order, sign vectors), ``fixed_bytes``
    what the tensor carries once. Dimensions are first rounded up to multiples of ``pad_rows`` and ``pad_columns``.
    """

    bits: float
    word_bytes: int = 1
    along: Literal["row", "column", "flat"] = "row"
    scales: Literal["none", "tensor", "row", "group", "block", "flat"] = "none"
    scale_bytes: int = 0
    group: int = 1
    block: tuple[int, int] = (1, 1)
    zero_bits: int = 0
    zero_word_bytes: int = 4
    nested_group: int = 0
    nested_bytes: int = 4
    nested_fixed_bytes: int = 0
    column_bytes: int = 0
    row_bytes: int = 0
    fixed_bytes: int = 0
    pad_rows: int = 1
    pad_columns: int = 1

    def tensor_bytes(self, shape: tuple[int, ...]) -> int:
        """Bytes of a tensor; leading dimensions before the last two are so many matrices (experts), and a vector is a
        matrix of one row."""
        if len(shape) < 2:
            return self.matrix_bytes(1, prod(shape))
        return prod(shape[:-2]) * self.matrix_bytes(shape[-2], shape[-1])

    def matrix_bytes(self, rows: int, columns: int) -> int:
        rows = ceil_div(rows, self.pad_rows) * self.pad_rows
        columns = ceil_div(columns, self.pad_columns) * self.pad_columns
        return (
            self._weights(rows, columns)
            + self._scales(rows, columns)
            + self._zeros(rows, columns)
            + rows * self.row_bytes
            + columns * self.column_bytes
            + self.fixed_bytes
        )

    def _weights(self, rows: int, columns: int) -> int:
        lines, length = {"row": (rows, columns), "column": (columns, rows), "flat": (1, rows * columns)}[self.along]
        return lines * self._words(length, self.bits, self.word_bytes)

    @staticmethod
    def _words(count: int, bits: float, word_bytes: int) -> int:
        if isinstance(bits, float) and not bits.is_integer():
            exact = Fraction(str(bits)) * count
            total_bits = -(-exact.numerator // exact.denominator)
        else:
            total_bits = int(bits) * count
        return ceil_div(total_bits, 8 * word_bytes) * word_bytes

    def _scale_count(self, rows: int, columns: int) -> int:
        match self.scales:
            case "none":
                return 0
            case "tensor":
                return 1
            case "row":
                return rows
            case "group":
                return rows * ceil_div(columns, self.group)
            case "block":
                return ceil_div(rows, self.block[0]) * ceil_div(columns, self.block[1])
            case "flat":
                return ceil_div(rows * columns, self.group)

    def _scales(self, rows: int, columns: int) -> int:
        count = self._scale_count(rows, columns)
        total = count * self.scale_bytes
        if self.nested_group:
            total += ceil_div(count, self.nested_group) * self.nested_bytes + self.nested_fixed_bytes
        return total

    def _zeros(self, rows: int, columns: int) -> int:
        if not self.zero_bits:
            return 0
        groups = 1 if self.scales == "row" else ceil_div(columns, self.group)
        return groups * self._words(rows, self.zero_bits, self.zero_word_bytes)
