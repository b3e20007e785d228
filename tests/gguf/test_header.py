"""The header reader: what it reads, how little it reads, and what it refuses."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculator.errors import CalculatorError, HubAnswerError
from calculator.gguf.components import component_of
from calculator.gguf.header import MOST_HEADER_BYTES, ReadRange, read_header
from calculator.gguf.weights import weights_of
from tests.gguf.writer import head, text

PAIRS: dict[str, object] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.rope.freq_base": 10000.0,
    "tokenizer.ggml.add_bos_token": True,
    "tokenizer.ggml.tokens": [f"token {i}" for i in range(5000)],
    "tokenizer.ggml.token_type": [1] * 5000,
    "llama.attention.head_count_kv": [8, 4],
}
TENSORS = [
    ("token_embd.weight", (5000, 512), "Q4_K"),
    ("blk.0.attn_norm.weight", (512,), "F32"),
    ("blk.0.attn_q.weight", (512, 512), "Q4_K"),
    ("blk.0.ffn_down_exps.weight", (8, 512, 1024), "Q6_K"),
    ("output.weight", (5000, 512), "Q8_0"),
]
FILE = head(PAIRS, TENSORS)


def reader(data: bytes, log: list[tuple[int, int]] | None = None, most: int | None = None) -> ReadRange:
    def read(offset: int, length: int) -> bytes:
        if log is not None:
            log.append((offset, length))
        return data[offset : offset + (min(length, most) if most else length)]

    return read


def test_metadata_and_tensors_are_read() -> None:
    found = read_header(reader(FILE))
    assert found.architecture == "llama"
    assert found.metadata["llama.rope.freq_base"] == 10000.0
    assert found.metadata["tokenizer.ggml.add_bos_token"] is True
    assert found.numbers["llama.attention.head_count_kv"] == (8, 4)
    assert found.lengths["tokenizer.ggml.tokens"] == 5000
    assert "tokenizer.ggml.token_type" not in found.numbers
    assert [(t.name, t.shape, t.type) for t in found.tensors] == TENSORS
    assert found.tensors[0].bytes == 5000 * 2 * 144
    assert found.tensors[3].bytes == 8 * 512 * 4 * 210
    assert found.data_offset == -(-len(FILE) // 32) * 32
    assert found.parts == 1


def test_weights_of_a_file_by_component_and_type() -> None:
    first, second = (
        read_header(reader(FILE)),
        read_header(reader(head({"split.count": 2}, [("v.blk.0.w", (2, 2), "F16")]))),
    )
    assert second.parts == 2
    weights = weights_of([first, second])
    assert weights.total_bytes == first.tensor_bytes + second.tensor_bytes
    assert weights.by_component["experts"] == first.tensors[3].bytes
    assert weights.by_component["norm"] == 2048
    assert weights.by_component["vision"] == 8
    assert weights.by_format["Q4_K"] == first.tensors[0].bytes + first.tensors[2].bytes
    assert sum(weights.by_component.values()) == sum(weights.by_format.values()) == weights.total_bytes


def test_only_the_head_is_asked_for() -> None:
    log: list[tuple[int, int]] = []
    read_header(reader(FILE + bytes(50_000_000), log))
    assert log == [(0, 1 << 20)]


def test_a_long_array_of_numbers_is_stepped_over() -> None:
    log: list[tuple[int, int]] = []
    data = head({"a": [0] * 2_000_000, "b": 7}, [("t.weight", (4, 4), "F32")])
    assert read_header(reader(data, log)).metadata == {"b": 7}
    assert sum(min(length, len(data) - offset) for offset, length in log) < len(data) / 2


@pytest.mark.parametrize("most", [1, 7, 100, None])
def test_short_reads_are_put_together_or_reported(most: int | None) -> None:
    small = head({"general.architecture": "llama"}, [("x.weight", (1, 2), "F16")])
    if most is None or most >= len("general.architecture"):
        assert read_header(reader(small, most=most)).tensor_bytes == 4
    else:
        with pytest.raises(HubAnswerError) as caught:
            read_header(reader(small, most=most))
        assert caught.value.key == "gguf.cut_short"


MANY_TENSORS = b"GGUF" + struct.pack("<IQQ", 3, 1 << 40, 0)
BAD: list[tuple[str, bytes, str]] = [
    ("empty", b"", "gguf.cut_short"),
    ("other", b"PK\x03\x04" + bytes(100), "gguf.not_gguf"),
    ("big endian", b"GGUF" + struct.pack(">I", 3) + bytes(100), "gguf.version"),
    ("version 1", b"GGUF" + struct.pack("<I", 1) + bytes(100), "gguf.version"),
    ("cut", FILE[: len(FILE) - 3], "gguf.cut_short"),
    ("many tensors", MANY_TENSORS, "gguf.too_large"),
    ("long key", b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 50) + bytes(99), "gguf.malformed"),
    ("bad kind", b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<I", 77), "gguf.malformed"),
    ("nested", b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IIQ", 9, 9, 1), "gguf.malformed"),
    ("long array", b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IIQ", 9, 8, 1 << 40),
     "gguf.too_large"),
    ("no dimension", b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text("t") + struct.pack("<I", 0), "gguf.malformed"),
    ("many dimensions", b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text("t") + struct.pack("<I", 9), "gguf.malformed"),
    ("zero side", b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text("t") + struct.pack("<IQIQ", 1, 0, 0, 0),
     "gguf.malformed"),
    ("huge side", b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text("t") + struct.pack("<IQIQ", 1, 1 << 60, 0, 0),
     "gguf.malformed"),
    ("new type", b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text("t") + struct.pack("<IQIQ", 1, 32, 999, 0),
     "gguf.unknown_type"),
    ("alignment", head({"general.alignment": 0}, []), "gguf.malformed"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "data", "key"), BAD, ids=[b[0] for b in BAD])
def test_what_is_no_header_is_refused(name: str, data: bytes, key: str) -> None:
    with pytest.raises(HubAnswerError) as caught:
        read_header(reader(data), name="model.gguf")
    assert caught.value.key == key
    assert caught.value.field == "model.gguf"


def test_an_endless_header_stops() -> None:
    """Texts without end: the reader gives up instead of reading on."""
    start = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IIQ", 9, 8, 1 << 22)
    item = struct.pack("<Q", 1000) + bytes(1000)
    read = [0]

    def endless(offset: int, length: int) -> bytes:
        read[0] += length
        if offset < len(start):
            return (start + item * (length // len(item) + 1))[offset : offset + length]
        shift = (offset - len(start)) % len(item)
        return (item * (length // len(item) + 2))[shift : shift + length]

    with pytest.raises(HubAnswerError) as caught:
        read_header(endless)
    assert caught.value.key == "gguf.too_large"
    assert read[0] < MOST_HEADER_BYTES + (32 << 20)


@given(st.binary(max_size=300), st.integers(0, 400))
def test_damaged_heads_are_read_or_refused_by_type(junk: bytes, at: int) -> None:
    small = head({"general.architecture": "llama", "x": [1, 2]}, [("x.weight", (2, 32), "Q8_0"), ("y", (4,), "F32")])
    damaged = small[:at] + junk + small[at + len(junk) :]
    try:
        found: Any = read_header(reader(damaged))
    except CalculatorError:
        return
    assert found.tensor_bytes >= 0


@pytest.mark.parametrize(
    ("name", "component"),
    [
        ("token_embd.weight", "embedding"), ("output.weight", "head"), ("output_norm.weight", "norm"),
        ("blk.3.attn_qkv.weight", "attention"), ("blk.3.attn_q_norm.weight", "norm"), ("blk.0.ffn_up.weight", "mlp"),
        ("blk.0.ffn_gate_inp.weight", "router"), ("blk.0.ffn_gate_exps.weight", "experts"),
        ("blk.0.ffn_up_shexp.weight", "shared_experts"), ("blk.0.ssm_in.weight", "ssm"),
        ("v.blk.0.attn_q.weight", "vision"), ("mm.0.weight", "projector"), ("a.conv1d.1.weight", "audio"),
        ("blk.61.nextn.eh_proj.weight", "mtp"), ("rope_freqs.weight", "other"),
    ],
)  # fmt: skip
def test_components_by_name(name: str, component: str) -> None:
    assert component_of(name) == component
