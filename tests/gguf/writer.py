"""Writes small GGUF heads, as the format's description has them, for the reader to read."""

import struct
from collections.abc import Mapping, Sequence
from math import prod

# id, elements of a block, bytes of a block
TYPES = {"F32": (0, 1, 4), "F16": (1, 1, 2), "Q4_K": (12, 256, 144), "Q6_K": (14, 256, 210), "Q8_0": (8, 32, 34)}


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str, value: object) -> bytes:
    head = text(key)
    match value:
        case bool():
            return head + struct.pack("<I?", 7, value)
        case int():
            return head + struct.pack("<Iq", 11, value)
        case float():
            return head + struct.pack("<Id", 12, value)
        case str():
            return head + struct.pack("<I", 8) + text(value)
        case list() if value and isinstance(value[0], str):
            return head + struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
        case list():
            return head + struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
    raise TypeError(value)


def head(
    pairs: Mapping[str, object], tensors: Sequence[tuple[str, tuple[int, ...], str]], *, version: int = 3
) -> bytes:
    """The head of a file whose tensors follow each other, each at a multiple of 32; shapes in checkpoint order."""
    body = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(pairs))
    body += b"".join(pair(k, v) for k, v in pairs.items())
    offset = 0
    for name, shape, kind in tensors:
        body += text(name) + struct.pack("<I", len(shape))
        body += b"".join(struct.pack("<Q", side) for side in reversed(shape))
        number, block, size = TYPES[kind]
        body += struct.pack("<IQ", number, offset)
        offset += -(-prod(shape) // block * size // 32) * 32
    return body
