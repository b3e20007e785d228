"""The measuring script without a card: its grid, its rows, and that it imports nothing before it must."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from validation import measure_gpu
from validation.models import config_of
from validation.plans import training_plan
from validation.rows import kind_of, packaged

MACHINE = {
    "torch": "2.8.0", "transformers": "4.57.0", "peft": "0.18.0", "source": "here", "driver": "1",
    "key": "a100-80gb-sxm4", "total_bytes": 84_986_665_370, "idle_bytes": 0, "params": 1_100_048_384,
}  # fmt: skip
SCRIPT = Path(measure_gpu.__file__)


def test_a_dry_run_needs_no_library():
    code = f"""
import runpy, sys
sys.argv = ["measure_gpu.py", "--dry-run"]
try:
    runpy.run_path({str(SCRIPT)!r}, run_name="__main__")
except SystemExit as stop:
    assert stop.code == 0
for name in ("torch", "transformers", "peft", "calculator", "pydantic"):
    assert name not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(measure_gpu.grid(80 * measure_gpu.GIB))


@pytest.mark.parametrize("card_gib", [16, 24, 80])
def test_the_grid_covers_what_is_in_doubt(card_gib):
    cases = measure_gpu.grid(card_gib * measure_gpu.GIB)
    assert len({case["id"] for case in cases}) == len(cases)
    assert {"adamw_foreach", "adamw_fused"} <= {case["optimizer"] for case in cases}
    assert {"default", "expandable"} == {case["allocator"] for case in cases}
    assert {"full", "lora"} == {case["method"] for case in cases}


def test_a_row_has_every_field_of_the_training_cases_and_is_a_plan():
    known = set().union(*(row.data for row in packaged("training")))
    for case in measure_gpu.grid(80 * measure_gpu.GIB):
        row = measure_gpu.row(case, {"peak_allocated_bytes": 10, "process_bytes": 20}, MACHINE)
        assert kind_of(row) == "training"
        assert known <= set(row)
        plan = training_plan(row)
        assert (plan.optimizer, plan.allocator, plan.micro_batch) == (
            case["optimizer"], case["allocator"], case["micro_batch"],
        )  # fmt: skip
        assert row["score"] == ["peak_allocated_bytes", "process_bytes"]
        assert row["fits"] is True


def test_running_out_of_memory_is_a_row_without_readings():
    row = measure_gpu.row(measure_gpu.grid(0)[0], None, MACHINE)
    assert (row["fits"], row["measured"], row["score"], row["saturated"]) == (False, {}, [], False)


def test_a_full_card_is_marked():
    row = measure_gpu.row(measure_gpu.grid(0)[0], {"process_bytes": 84_000_000_000}, MACHINE)
    assert row["saturated"] is True


@pytest.mark.parametrize("model", list(measure_gpu.CONFIGS))
def test_the_sizes_written_in_the_script_are_the_published_ones(model):
    published, _ = config_of(model)
    for key in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"):
        assert measure_gpu.CONFIGS[model][key] == published[key]


def test_a_child_answers_with_the_error_instead_of_a_traceback(monkeypatch):
    def out_of_memory(*_):
        raise RuntimeError("CUDA out of memory. Tried to allocate")

    monkeypatch.setattr(measure_gpu, "measure", out_of_memory)
    assert measure_gpu.child({"id": "x"}, "cuda") == {"oom": True}

    def broken(*_):
        raise ModuleNotFoundError("No module named 'torch'")

    monkeypatch.setattr(measure_gpu, "measure", broken)
    assert "ModuleNotFoundError" in measure_gpu.child({"id": "x"}, "cuda")["error"]


def test_no_case_starts_when_the_time_is_up(tmp_path, monkeypatch):
    monkeypatch.setattr(measure_gpu, "machine_of", lambda device: dict(MACHINE))
    monkeypatch.setattr(measure_gpu, "run_child", lambda *_: pytest.fail("started"))
    assert measure_gpu.run(tmp_path / "rows.jsonl", "cpu", minutes=0.1) == 0


def test_rows_are_written_as_they_come(tmp_path, monkeypatch):
    answers = iter([{"params": 5, "process_bytes": 100, "peak_allocated_bytes": 50}, {"oom": True}, {"error": "no"}])
    monkeypatch.setattr(measure_gpu, "machine_of", lambda device: MACHINE | {"idle_bytes": 7})
    monkeypatch.setattr(measure_gpu, "run_child", lambda *_: next(answers, {"error": "over"}))
    out = tmp_path / "rows.jsonl"
    assert measure_gpu.run(out, "cpu", minutes=8) == 2
    import json

    first, second = (json.loads(line) for line in out.read_text("utf-8").splitlines())
    assert first["measured"] == {"process_bytes": 93, "peak_allocated_bytes": 50}
    assert (first["params"], second["fits"]) == (5, False)
