"""Reading cases: the kind from the row, nothing dropped, dates turned into releases, sizes into cards."""

from __future__ import annotations

import json

import pytest

from calculator.units import GIB
from validation.cards import card_fields, usual_total
from validation.releases import current, month_of, version_of
from validation.rows import PACKAGED, kind_of, lab_id, packaged, parse_rows, read_file


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ({"method": "lora", "measured": {}}, "training"),
        ({"engine": "vllm", "measured": {}}, "serving"),
        ({"quantity": "param_count", "value": 1}, "facts"),
        ({"case": {}, "peaks": {}}, "lab"),
        ({"figure": "tokens_per_s", "prompt": 1, "engine": "vllm"}, "throughput"),
        ({"text": "CUDA out of memory", "expected": {}}, "unknown"),
        ({}, "unknown"),
    ],
)
def test_the_kind_is_told_from_the_row(row, kind):
    assert kind_of(row) == kind


def test_every_line_is_accounted_for():
    lines = ["", '{"id": "a", "method": "full", "measured": {}}', "{broken", "[1, 2]", '"text"', '{"id": "b"}', "  "]
    rows = parse_rows(lines, "some.jsonl")
    assert [(row.kind, row.id) for row in rows] == [
        ("training", "a"), ("unknown", "some.jsonl:3"), ("unknown", "some.jsonl:4"), ("unknown", "some.jsonl:5"),
        ("unknown", "b"),
    ]  # fmt: skip


def test_a_repeated_id_stays_two_rows():
    line = '{"id": "a", "method": "full", "measured": {}}'
    assert [row.id for row in parse_rows([line, line], "x")] == ["a", "a#2"]


def test_lab_rows_are_named_by_what_differs_from_the_plain_step():
    assert lab_id({"model": "gpt2", "seq": 1024, "ckpt": True, "layers": 2, "batch": 1, "lora": None}) == (
        "lab:gpt2 ckpt layers=2 seq=1024"
    )
    assert lab_id({"model": "m", "lora": {"r": 16}}) == 'lab:m lora={"r":16}'


def test_the_packaged_cases_are_all_of_their_kind_and_uniquely_named():
    counts = {kind: len(packaged(kind)) for kind in PACKAGED}
    assert counts == {"training": 670, "serving": 124, "facts": 65, "lab": 292, "throughput": 277}
    for kind in PACKAGED:
        assert {row.kind for row in packaged(kind)} == {kind}
        assert len({row.id for row in packaged(kind)}) == counts[kind]


def test_every_packaged_case_names_its_source():
    for kind in ("training", "serving", "facts", "throughput"):
        assert all(row.data.get("source") for row in packaged(kind))


def test_read_file_names_lines_by_the_file(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text(json.dumps({"id": "x", "engine": "vllm", "measured": {}}) + "\nnot json\n", "utf-8")
    assert [row.id for row in read_file(path)] == ["x", "mine.jsonl:2"]


@pytest.mark.parametrize(
    ("written", "month"),
    [
        ("0.1 (spring 2024)", "2024-04"),
        ("2.x (early 2024), torch 2.1.1", "2024-02"),
        ("late 2023, torch 2.0, CUDA 11.8", "2023-11"),
        ("2024-12-26 (9dec370), torch 2024-12-23 nightly", "2024-12"),
        ("2026", "2026-06"),
        ("deepspeed 0.14.2, torch 2.2.0", None),
    ],
)
def test_months_are_read_from_free_text(written, month):
    assert month_of(written) == month


def test_a_stated_version_wins_over_a_date():
    written = "late 2023, torch 2.0, CUDA 11.8"
    assert version_of("torch", written) == "2.0"
    assert version_of("transformers", written) == "4.35"
    assert version_of("peft", "transformers 4.48.1, trl 0.13, torch 2.4.1") is None
    assert version_of("torch", None) is None


def test_the_current_release_is_the_last_one_before_the_month_ends():
    assert current("transformers", "2024-08") == "4.44"
    assert current("transformers", "2024-02") == "4.37"
    assert current("transformers", "2019-01") is None
    assert current("transformers", "2026-11") is None


def test_a_short_key_finds_its_card_and_a_size_becomes_a_custom_card():
    assert card_fields("a100-80gb", None) == {"gpu": "a100-80gb-sxm4"}
    assert card_fields("h100-80gb", 85_029_615_043) == {"gpu": "h100-80gb-sxm", "gpu_capacity_bytes": 85_029_615_043}
    assert card_fields("class-24gb", None) == {"gpu": "custom", "gpu_capacity_bytes": usual_total(24)}
    assert card_fields(None, 7 * GIB) == {"gpu": "custom", "gpu_capacity_bytes": 7 * GIB}
    assert card_fields(None, None) == {}


def test_the_usual_total_is_below_what_the_box_says():
    for size in (8, 16, 24, 80):
        assert 0.9 * size * GIB < usual_total(size) < size * GIB
