"""``python -m validation``: what it prints, for people and for machines."""

from __future__ import annotations

import json

import pytest

from validation.__main__ import main
from validation.rows import packaged

KEYS = {"n", "median_ape", "p90_ape", "bias", "within_5", "within_10", "within_20", "in_range"}


@pytest.fixture
def files(tmp_path):
    """A file of each kind, a few rows long, and one line that is no case."""
    training = [row.data for row in packaged("training") if row.id.startswith("fms-bench-mistral")][:4]
    open_row = dict(training[0], id="open", seq_len=None)
    serving = [row.data for row in packaged("serving") if row.id.startswith("tab019-llama31")][:3]
    facts = [row.data for row in packaged("facts")][25:29]
    lab = [row.data for row in packaged("lab")][:2]
    paths = []
    for name, rows in {"a": [*training, open_row], "b": serving, "c": facts, "d": lab}.items():
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows) + ("{oops\n" if name == "a" else ""), "utf-8")
        paths.append(str(path))
    return paths


def test_json_holds_every_figure_and_every_row_that_was_not_predicted(files, capsys, tmp_path):
    out = tmp_path / "rows.jsonl"
    assert main([*files, "--json", "--rows", str(out), "--no-replay"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report["kinds"]) == {"training", "unknown", "serving", "facts", "lab"}
    for found in (report, *report["kinds"].values()):
        assert {"quantities", "fits", "unpredicted", "groups", "incomplete"} <= set(found)
        assert all(set(figure) >= KEYS for figure in found["quantities"].values())
        assert all(set(group) >= KEYS | {"by", "value", "quantity"} for group in found["groups"])
        assert {"n", "right", "wrong_fits", "wrong_does_not_fit", "ran", "ran_out"} <= set(found["fits"])
    missed = {miss["id"]: miss["reason"] for miss in report["unpredicted"]}
    assert missed["open"] == "the source does not say seq_len"
    assert missed["a.jsonl:6"] == "not a case of a known form"

    lines = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    assert all(set(line) == {"id", "key", "measured", "predicted", "low", "high"} for line in lines)
    assert {"value", "peak", "saved_layers", "peak_allocated_bytes", "weights_bytes"} <= {line["key"] for line in lines}
    scored = sum(figure["n"] for figure in report["quantities"].values())
    assert len(lines) == scored + sum(f["n"] for f in report["incomplete"]["quantities"].values())


def test_figures_are_those_of_the_rows(files, capsys, tmp_path):
    out = tmp_path / "rows.jsonl"
    main([*files, "--json", "--rows", str(out), "--no-replay"])
    report = json.loads(capsys.readouterr().out)
    rows = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    for key, figure in report["quantities"].items():
        errors = sorted(abs(r["predicted"] / r["measured"] - 1) for r in rows if r["key"] == key)
        middle = len(errors) // 2
        expected = errors[middle] if len(errors) % 2 else (errors[middle - 1] + errors[middle]) / 2
        assert figure["median_ape"] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("language", "word"), [("en", "Quantity"), ("zh", "误差中位数")])
def test_the_table_is_printed_in_both_languages(files, capsys, language, word):
    assert main([*files, "--lang", language, "--no-replay"]) == 0
    printed = capsys.readouterr().out
    assert word in printed
    assert "validation." not in printed.replace("python -m validation", "")


def test_a_file_that_cannot_be_read_is_named(capsys, tmp_path):
    assert main([str(tmp_path / "nowhere.jsonl")]) == 2
    assert "nowhere.jsonl" in capsys.readouterr().err
    binary = tmp_path / "binary.jsonl"
    binary.write_bytes(b"\xff\xfe\x00")
    assert main([str(binary)]) == 2


def test_a_place_that_cannot_be_written_is_named(files, capsys, tmp_path):
    assert main([files[1], "--rows", str(tmp_path / "no" / "such.jsonl")]) == 2
    assert "such.jsonl" in capsys.readouterr().err
