"""What the weight files' headers say: exact bytes and elements by dtype, without reading a weight.

A safetensors file starts with eight bytes, the header's length (little-endian), and the header: a JSON object of
tensor name to ``dtype``, ``shape`` and ``data_offsets`` (https://github.com/huggingface/safetensors, "Format"). The
shards of a model are read side by side, the first 100 kB of each, which holds most headers whole.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import prod
from pathlib import Path
from typing import Any, Literal, Protocol

from calculator.base import Frozen
from calculator.errors import HubAnswerError, HubError
from calculator.hub.client import Client, FileMissing
from calculator.text import Text, text

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
FIRST_READ_BYTES = 100_000
HEADER_LIMIT_BYTES = 25_000_000
INDEX_LIMIT_BYTES = 64_000_000
MOST_SHARDS = 512
WORKERS = 8

DTYPE_BITS: Mapping[str, int] = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "U16": 16, "I16": 16, "F16": 16, "BF16": 16,
    "U32": 32, "I32": 32, "F32": 32, "U64": 64, "I64": 64, "F64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
"""Bits of an element. A dtype that is not here is taken at the length that its offsets give."""


class TensorGroup(Frozen):
    """Tensors that differ in layer or expert number only: "{i}" and "{e}" stand for the numbers in ``name``."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    count: int
    bytes: int


class WeightHeaders(Frozen):
    """Stored weights of a repository.

    ``origin``: read from each file's header, or the totals that the hub itself publishes, which have no tensors. An
    element is what the file stores: a 32-bit word of a packed format counts once, whatever it holds.
    """

    origin: Literal["headers", "hub_totals"]
    bytes_by_dtype: dict[str, int]
    elements_by_dtype: dict[str, int]
    files: int
    tensors: tuple[TensorGroup, ...] = ()

    @property
    def total_bytes(self) -> int:
        return sum(self.bytes_by_dtype.values())

    @property
    def total_elements(self) -> int:
        return sum(self.elements_by_dtype.values())


class Files(Protocol):
    """A repository at one revision, or a folder: whatever can be read by name. Raises a HubError or FileMissing."""

    label: str

    def whole(self, name: str, limit_bytes: int) -> bytes: ...

    def part(self, name: str, start: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``start`` on; fewer at the end of the file."""
        ...


class HubFiles:
    """The files of a repository of the hub at one revision."""

    def __init__(self, client: Client, repo: str, revision: str) -> None:
        self.label = str(client.repo)
        self._client, self._repo, self._revision = client, repo, revision

    def whole(self, name: str, limit_bytes: int) -> bytes:
        return self._client.file(self._repo, self._revision, name, limit_bytes).body

    def part(self, name: str, start: int, length: int) -> bytes:
        return self._client.file_range(self._repo, self._revision, name, start, length)


class FolderFiles:
    """The files of a folder of this machine."""

    def __init__(self, folder: Path) -> None:
        self.label = folder.name
        self._folder = folder

    def whole(self, name: str, limit_bytes: int) -> bytes:
        body = self.part(name, 0, limit_bytes + 1)
        if len(body) > limit_bytes:
            raise HubAnswerError("hub.oversized", id=self.label, file=name, limit_bytes=limit_bytes)
        return body

    def part(self, name: str, start: int, length: int) -> bytes:
        try:
            with (self._folder / name).open("rb") as file:
                file.seek(start)
                return file.read(length)
        except OSError:
            raise FileMissing(name) from None


def read_headers(files: Files, names: Sequence[str]) -> tuple[WeightHeaders | None, Text | None]:
    """The headers of the model's safetensors files, or None and why they could not be read. Never raises a HubError."""
    try:
        shards = _shards(files, names)
        if not shards:
            return None, text("hub.no_safetensors")
        if len(shards) > MOST_SHARDS:
            return None, text("hub.many_shards", files_count=len(shards), limit_count=MOST_SHARDS)
        pool = ThreadPoolExecutor(max_workers=min(WORKERS, len(shards)))
        try:
            return _summary(list(pool.map(lambda name: _shard(files, name), shards))), None
        finally:
            pool.shutdown(cancel_futures=True)
    except HubError as error:
        return None, text("hub.headers_unread", reason=error.message)
    except FileMissing as missing:
        return None, text("hub.shard_missing", file=str(missing))


def from_hub_totals(elements_by_dtype: Mapping[str, int], files: int) -> WeightHeaders | None:
    """The hub's own sums of elements by dtype, as bytes; None if one of the dtypes has no known width."""
    if not elements_by_dtype or any(dtype not in DTYPE_BITS for dtype in elements_by_dtype):
        return None
    sizes = {dtype: n * DTYPE_BITS[dtype] // 8 for dtype, n in elements_by_dtype.items()}
    return WeightHeaders(
        origin="hub_totals", bytes_by_dtype=sizes, elements_by_dtype=dict(elements_by_dtype), files=files
    )


def _shards(files: Files, names: Sequence[str]) -> tuple[str, ...]:
    """The files that a loader would open: those of the index, else the single file, else all at the top level."""
    if INDEX_NAME in names:
        index = _json_object(files.whole(INDEX_NAME, INDEX_LIMIT_BYTES), files, INDEX_NAME)
        weight_map = index.get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()):
            raise HubAnswerError("hub.malformed", id=files.label, file=INDEX_NAME)
        named = set(weight_map.values())
        if unknown := sorted(named - set(names)):
            raise FileMissing(unknown[0][:80])
        return tuple(sorted(named))
    if SINGLE_NAME in names:
        return (SINGLE_NAME,)
    return tuple(sorted(n for n in names if n.endswith(".safetensors") and "/" not in n and "adapter" not in n))


_Groups = Counter[tuple[str, str, tuple[int, ...], int]]
"""How often each (name pattern, dtype, shape, bytes) occurs."""


def _shard(files: Files, name: str) -> _Groups:
    first = files.part(name, 0, FIRST_READ_BYTES)
    length = int.from_bytes(first[:8], "little")
    if len(first) < 8 or length > HEADER_LIMIT_BYTES:
        raise HubAnswerError("hub.malformed", id=files.label, file=name)
    raw = first[8 : 8 + length]
    if len(raw) < length and len(first) == FIRST_READ_BYTES:
        raw += files.part(name, FIRST_READ_BYTES, length - len(raw))
    if len(raw) < length:
        raise HubAnswerError("hub.truncated", id=files.label)
    return _groups(_json_object(raw, files, name), files, name)


def _groups(header: Mapping[str, Any], files: Files, file: str) -> _Groups:
    groups: _Groups = Counter()
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        try:
            dtype, shape, (start, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
            sound = isinstance(dtype, str) and all(type(n) is int and n >= 0 for n in (*shape, start, end))
            size = end - start
            bits = DTYPE_BITS.get(dtype)
            sound = sound and size >= 0 and (bits is None or prod(shape) * bits == size * 8)
        except (KeyError, TypeError, ValueError):
            sound = False
        if not sound:
            raise HubAnswerError("hub.malformed", id=files.label, file=file)
        groups[pattern(name), dtype, shape, size] += 1
    return groups


def _summary(shards: Sequence[_Groups]) -> WeightHeaders:
    groups: _Groups = Counter()
    for shard in shards:
        groups.update(shard)
    sizes: Counter[str] = Counter()
    elements: Counter[str] = Counter()
    tensors = []
    for (name, dtype, shape, size), count in sorted(groups.items()):
        sizes[dtype] += size * count
        elements[dtype] += prod(shape) * count
        tensors.append(TensorGroup(name=name, dtype=dtype, shape=shape, count=count, bytes=size * count))
    return WeightHeaders(
        origin="headers",
        bytes_by_dtype=dict(sizes),
        elements_by_dtype=dict(elements),
        files=len(shards),
        tensors=tuple(tensors),
    )


def pattern(name: str) -> str:
    """``name`` with its expert number as "{e}" and every other number as "{i}"."""
    return re.sub(r"(?<=\.)\d+(?=\.)", "{i}", re.sub(r"(?<=experts\.)\d+(?=\.)", "{e}", name))


def _json_object(raw: bytes, files: Files, file: str) -> dict[str, Any]:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise HubAnswerError("hub.malformed", id=files.label, file=file)
    return value
