"""Constants fitted once more without a release or a source."""

from __future__ import annotations

import json

import pytest

from validation import leaveout
from validation.__main__ import main
from validation.leaveout import GRAPHS, NON_TORCH, Reading
from validation.rows import packaged

MIB = 2**20
GIB = 2**30


def reading(release, held, kind=("one", "large"), key=NON_TORCH, layer_graphs=0, **more):
    id_ = f"{release} {held} {layer_graphs}"
    return Reading(id_, release, key, held, more.pop("predicted", 100 * MIB), kind, layer_graphs, **more)


def test_a_refit_never_sees_the_release_it_is_judged_on():
    """With one outlying release, its own refit is the others' median, and its error all of the distance."""
    found = [reading("0.6", 900 * MIB), reading("0.7", 90 * MIB), reading("0.8", 100 * MIB), reading("0.9", 110 * MIB)]
    by_release = {entry["value"]: entry for entry in leaveout.leave_one_version_out(found)}
    assert by_release["0.6"]["refit_bytes"] == 800 * MIB
    assert by_release["0.6"]["shipped_bytes"] == 800 * MIB
    assert by_release["0.8"]["refit_bytes"] == 10 * MIB
    assert [entry["value"] for entry in leaveout.leave_one_version_out(found)] == [
        "all", "0.6", "0.7", "0.8", "0.9"
    ]  # fmt: skip
    assert by_release["all"]["n"] == 4


def test_the_refit_takes_the_nearest_kind_and_leaves_the_context_out():
    judged = reading("0.6", 0, known=500 * MIB)
    same, wider, other = reading("0.7", 100), reading("0.8", 300, ("one", "small")), reading("0.9", 999, ("two", "x"))
    assert leaveout.refit_non_torch(judged, [same, wider, other]) == 100 + 500 * MIB
    assert leaveout.refit_non_torch(judged, [wider, other]) == 300 + 500 * MIB
    assert leaveout.refit_non_torch(judged, [other]) is None


def test_the_graphs_refit_is_the_usual_layer_of_the_others():
    others = [reading("0.6", size * 7, key=GRAPHS, layer_graphs=size) for size in (100, 400)]
    others.append(reading("0.7", 9000, key=GRAPHS, layer_graphs=1000))
    assert leaveout.refit_graphs(reading("0.11", 0, key=GRAPHS, layer_graphs=50), others) == 350
    assert leaveout.refit_graphs(reading("0.11", 0, key=GRAPHS, layer_graphs=50), others[:1]) is None


def test_the_pool_moves_by_what_the_term_moves():
    pool = (10 * GIB, 10 * GIB)
    found = [reading("0.6", 100 * MIB, pool=pool), reading("0.7", 612 * MIB)]
    entry = leaveout.leave_one_version_out(found)[1]
    assert entry["shipped_ape"] == 0
    assert entry["refit_ape"] == pytest.approx(512 / 10240)


def test_the_packaged_starts_cover_the_releases():
    found = leaveout.readings(packaged("serving"))
    table = leaveout.leave_one_version_out(found)
    non_torch = [entry for entry in table if entry["quantity"] == NON_TORCH]
    assert len(non_torch) >= 6
    assert non_torch[0]["n"] == sum(entry["n"] for entry in non_torch[1:]) >= 35
    assert all(entry["refitted"] == entry["n"] for entry in non_torch)


def test_a_source_left_out_is_judged_with_the_shares_of_the_others():
    rows = [row for row in packaged("throughput") if row.data["figure"] == "single_stream"][::3]
    items = leaveout.published(rows)
    table = leaveout.leave_one_source_out(items)
    assert {entry["value"] for entry in table} == {row.data["publication"] for row in rows}
    for entry in table:
        assert entry["bandwidth"] in leaveout.BANDWIDTHS
        assert 0 <= entry["refit_in_range"] <= 1
    fast = [item for item in items if item.row.data["publication"] == table[0]["value"]]
    assert leaveout.leave_one_source_out(fast) == []


def test_both_tables_are_printed_and_in_the_json(tmp_path, capsys):
    path = tmp_path / "some.jsonl"
    serving = [row.data for row in packaged("serving") if row.data.get("engine") == "vllm"][40:60]
    speeds = [row.data for row in packaged("throughput") if row.data["figure"] == "single_stream"][::4]
    path.write_text("".join(json.dumps(row) + "\n" for row in [*serving, *speeds]), "utf-8")
    assert main([str(path), "--json"]) == 0
    kinds = json.loads(capsys.readouterr().out)["kinds"]
    assert kinds["serving"]["leave_one_version_out"]
    assert kinds["throughput"]["leave_one_source_out"]
    assert main([str(path), "--lang", "zh"]) == 0
    text = capsys.readouterr().out
    assert "逐一留出 vLLM 版本" in text
    assert "逐一留出来源" in text
