"""The head of a GGUF file: its metadata and its tensor table, read in ranges, never a weight.

Layout (github.com/ggml-org/ggml, docs/gguf.md): magic, version, the numbers of tensors and of metadata pairs, the
pairs, and for each tensor its name, dimensions, type and offset; data follow at the next multiple of the alignment.
Everything is little-endian; the first dimension is the contiguous one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from math import prod

from calculator.base import Frozen
from calculator.errors import HubAnswerError
from calculator.precision.ggml import GGML_TYPES_BY_ID, GgmlType

ReadRange = Callable[[int, int], bytes]
"""``read(offset, length)`` gives up to ``length`` bytes of the file from ``offset``; fewer only at its end."""

Scalar = int | float | bool | str

MAGIC = b"GGUF"
VERSIONS = (2, 3)
FIRST_READ_BYTES = 1 << 20
LARGEST_READ_BYTES = 8 << 20
MOST_HEADER_BYTES = 96 << 20
MOST_PAIRS = 4_096
MOST_TENSORS = 65_536
MOST_ITEMS = 1 << 22
LONGEST_NAME = 256
LONGEST_TEXT = 16 << 20
KEPT_TEXT = 1_000
KEPT_ITEMS = 2_048
MOST_DIMENSIONS = 4

_FIXED = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


class GgufTensor(Frozen):
    """One entry of the table; ``shape`` in checkpoint order, the contiguous dimension last."""

    name: str
    shape: tuple[int, ...]
    type: str
    bytes: int
    offset: int

    @property
    def elements(self) -> int:
        return prod(self.shape)


class GgufHeader(Frozen):
    """Metadata and tensors of one file. ``metadata`` holds scalars and short arrays of numbers; a long array or one
    of texts is left out, its length stands in ``lengths``."""

    version: int
    metadata: dict[str, Scalar]
    numbers: dict[str, tuple[int | float, ...]]
    lengths: dict[str, int]
    tensors: tuple[GgufTensor, ...]
    data_offset: int

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))

    @property
    def tensor_bytes(self) -> int:
        """All weights of this file, without metadata and padding."""
        return sum(t.bytes for t in self.tensors)

    @property
    def parts(self) -> int:
        """Files that the model is split into."""
        count = self.metadata.get("split.count", 1)
        return int(count) if isinstance(count, int) and count > 0 else 1


def read_header(read: ReadRange, name: str = "") -> GgufHeader:
    """The header of the file that ``read`` gives ranges of; ``name`` is said in errors.

    Reads forward in growing ranges and stops at the end of the tensor table, or raises ``HubAnswerError``:
    "gguf.not_gguf", "gguf.version", "gguf.cut_short", "gguf.malformed", "gguf.unknown_type" or "gguf.too_large" (more
    than 96 MiB, 4,096 pairs or 65,536 tensors).
    """
    source = _Stream(read, name)
    if source.take(4) != MAGIC:
        raise HubAnswerError("gguf.not_gguf", field=name)
    version = source.number("I")
    if version not in VERSIONS:
        raise HubAnswerError("gguf.version", field=name, version=version)
    tensor_count, pair_count = source.number("Q"), source.number("Q")
    if tensor_count > MOST_TENSORS or pair_count > MOST_PAIRS:
        raise HubAnswerError("gguf.too_large", field=name)
    metadata: dict[str, Scalar] = {}
    numbers: dict[str, tuple[int | float, ...]] = {}
    lengths: dict[str, int] = {}
    for _ in range(pair_count):
        key = source.text(LONGEST_NAME)
        kind = source.number("I")
        if kind == _ARRAY:
            length, items = _array(source)
            lengths[key] = length
            if items is not None:
                numbers[key] = items
        else:
            metadata[key] = _scalar(source, kind)
    tensors = tuple(_tensor(source) for _ in range(tensor_count))
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or isinstance(alignment, bool) or not 0 < alignment <= 1 << 20:
        raise source.malformed()
    data_offset = -(-source.position // alignment) * alignment
    return GgufHeader(
        version=version, metadata=metadata, numbers=numbers, lengths=lengths, tensors=tensors, data_offset=data_offset
    )


def _scalar(source: _Stream, kind: int) -> Scalar:
    if kind == _STRING:
        return source.text(LONGEST_TEXT)[:KEPT_TEXT]
    if kind not in _FIXED:
        raise source.malformed()
    return source.value(_FIXED[kind])


def _array(source: _Stream) -> tuple[int, tuple[int | float, ...] | None]:
    kind, length = source.number("I"), source.number("Q")
    if length > MOST_ITEMS:
        raise HubAnswerError("gguf.too_large", field=source.name)
    if kind == _STRING:
        source.skip_texts(length)
        return length, None
    if kind not in _FIXED:  # arrays of arrays occur in no known file
        raise source.malformed()
    size = struct.calcsize("<" + _FIXED[kind])
    if length > KEPT_ITEMS:
        source.skip(length * size)
        return length, None
    return length, struct.unpack(f"<{length}{_FIXED[kind]}", source.take(length * size))


def _tensor(source: _Stream) -> GgufTensor:
    name = source.text(LONGEST_NAME)
    dimensions = source.number("I")
    if not 0 < dimensions <= MOST_DIMENSIONS:
        raise source.malformed()
    shape = tuple(reversed([source.number("Q") for _ in range(dimensions)]))
    kind, offset = source.number("I"), source.number("Q")
    if any(side < 1 or side > 1 << 40 for side in shape) or prod(shape) > 1 << 50 or offset > 1 << 60:
        raise source.malformed()
    if kind not in GGML_TYPES_BY_ID:
        raise HubAnswerError("gguf.unknown_type", field=source.name, tensor=name[:80], type=kind)
    type_: GgmlType = GGML_TYPES_BY_ID[kind]
    return GgufTensor(name=name, shape=shape, type=type_.name, bytes=type_.tensor_bytes(shape), offset=offset)


class _Stream:
    """Reads forward through ranges; keeps only the range it is in."""

    def __init__(self, read: ReadRange, name: str) -> None:
        self._read = read
        self.name = name
        self._buffer = b""
        self._start = 0
        self._at = 0
        self._next = FIRST_READ_BYTES

    @property
    def position(self) -> int:
        return self._start + self._at

    def take(self, length: int) -> bytes:
        self._need(length)
        taken = self._buffer[self._at : self._at + length]
        self._at += length
        return taken

    def skip(self, length: int) -> None:
        inside = len(self._buffer) - self._at
        if length <= inside:
            self._at += length
            return
        self._start += self._at + length
        self._buffer, self._at = b"", 0
        self._check()

    def value(self, code: str) -> int | float | bool:
        result: int | float | bool = struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]
        return result

    def number(self, code: str) -> int:
        return int(self.value(code))

    def text(self, longest: int) -> str:
        length = self.number("Q")
        if length > longest:
            raise self.malformed()
        return self.take(length).decode("utf-8", "replace")

    def skip_texts(self, count: int) -> None:
        for _ in range(count):
            length = self.number("Q")
            if length > LONGEST_TEXT:
                raise self.malformed()
            self.skip(length)

    def malformed(self) -> HubAnswerError:
        return HubAnswerError("gguf.malformed", field=self.name, offset=self.position)

    def _need(self, length: int) -> None:
        missing = length - (len(self._buffer) - self._at)
        if missing <= 0:
            return
        rest = self._buffer[self._at :]
        wanted = max(missing, self._next)
        self._next = min(self._next * 2, LARGEST_READ_BYTES)
        more = self._read(self._start + self._at + len(rest), wanted)
        self._start += self._at
        self._buffer, self._at = rest + more, 0
        self._check()
        if len(self._buffer) < length:
            raise HubAnswerError("gguf.cut_short", field=self.name, offset=self.position)

    def _check(self) -> None:
        if self.position > MOST_HEADER_BYTES:
            raise HubAnswerError("gguf.too_large", field=self.name)
