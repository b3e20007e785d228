"""The command line end to end: exit codes, tables, JSON, and every way to mistype."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from calculator.bill import Bill
from calculator.cli.commands import PLANS
from calculator.cli.main import COMMANDS
from calculator.cli.options import option_fields
from calculator.model.shape import CacheShape, ParameterCount
from calculator.presets import presets
from calculator.render import catalogue
from tests.cli.conftest import Run
from tests.fakehub import GOOD_TOKEN, FakeHub, good_repos, troubled_repos
from tests.fakehub.models import TINY
from ui.settings import Settings

Call = Callable[..., Run]
ROOT = Path(__file__).resolve().parents[2]


# --------------------------------------------------------------------------------------------------------- bills


def test_fits_and_does_not_fit(run: Call) -> None:
    assert run("finetune", "qwen2.5-7b", "--gpu", "h100-80gb-sxm").code == 0
    refused = run("train", "qwen2.5-7b", "--gpu", "rtx-4090-24gb")
    assert refused.code == 1
    assert "Does not fit on" in refused.out


def test_tight_when_the_range_straddles_the_card(run: Call) -> None:
    need = run("finetune", "qwen2.5-7b", "--json").json["need_bytes"]
    middle = (need["low"] + need["high"]) // 2
    tight = run("finetune", "qwen2.5-7b", "--gpu-capacity-bytes", str(middle), "--json")
    assert tight.code == 4
    assert tight.json["verdict"] == "tight"
    assert tight.json["capacity_bytes"] == middle


def test_host_memory_is_a_bill_of_its_own(run: Call) -> None:
    """ZeRO-3 with everything on the host: 20 bytes a parameter over 8 processes, beside the loading file."""
    plan = ["--n-gpus", "8", "--sharding", "zero3", "--precision", "mixed_bf16", "--framework", "deepspeed"]
    offload = ["--offload", "optimizer,parameters"]
    host = run("train", "llama-3.1-8b", *plan, *offload, "--json").json["host"]
    assert (host["processes"], host["peak_phase"]) == (8, "train")
    held = {i["key"]: i for i in host["items"]}
    training = [i for i in host["items"] if i["phase"] == "train" and i["key"] != "pinned_rounding"]
    assert sum(i["node_bytes"]["value"] for i in training) == pytest.approx(20 * 8_030_261_248, rel=1e-3)
    assert host["node_bytes"]["value"] == sum(i["node_bytes"]["value"] for i in host["items"] if i["phase"] == "train")
    assert (held["parameters"]["residence"], held["optimizer_states"]["residence"]) == ("pinned", "pageable")
    assert all("{" not in i["formula"] and i["source"]["title"] for i in host["items"])
    for language, words in (("en", ("pinned", "pageable")), ("zh", ("锁页", "可换页"))):
        said = run("train", "llama-3.1-8b", *plan, *offload, "--lang", language).out
        assert all(word in said for word in words)
    assert "pinned" not in run("train", "llama-3.1-8b", *plan).out


@pytest.mark.parametrize("command", PLANS)
def test_json_has_the_keys_of_the_contract(run: Call, command: str) -> None:
    out = run(command, "qwen2.5-7b", "--json").json
    assert out["schema"] == 1
    assert out.keys() >= {
        "schema", "model", "plan", "gpu", "verdict", "capacity_bytes", "need_bytes", "allocated_bytes",
        "reserved_bytes", "process_bytes", "peak_phase", "rank", "items", "phases", "assumptions", "serving",
        "host",
    }  # fmt: skip
    for total in ("need_bytes", "allocated_bytes", "reserved_bytes", "process_bytes"):
        assert set(out[total]) == {"value", "low", "high"}
        assert all(type(n) is int for n in out[total].values())
    for item in out["items"]:
        assert item.keys() >= {
            "key", "bytes", "max_bytes", "low", "high", "phases", "formula", "formula_values", "divided_by", "basis",
            "source",
        }  # fmt: skip
        assert item["basis"] in ("header", "computed", "calibrated", "assumed")
        assert "{" not in item["formula"]
        assert item["formula"] != item["key"]
    assert sum(i["bytes"] for i in out["items"] if i["layer"] == "tensor") == out["allocated_bytes"]["value"]
    for phase in out["phases"]:
        assert set(phase) == {"name", "allocated_bytes", "items"}
    assert all(isinstance(said, str) for said in out["assumptions"])
    assert out["model"]["parameters"] == 7_615_616_512
    if command == "serve":
        assert out["serving"].keys() >= {
            "weights_bytes", "activation_bytes", "non_torch_bytes", "cuda_graph_bytes", "kv_pool_bytes", "kv_tokens",
            "max_concurrency", "bytes_per_token", "state_bytes_per_sequence",
        }  # fmt: skip
        assert out["serving"]["bytes_per_token"] == 57_344
    else:
        assert out["serving"] is None


def test_the_table_holds_the_numbers_of_the_json(run: Call) -> None:
    out = run("finetune", "qwen2.5-7b", "--json").json
    table = run("finetune", "qwen2.5-7b").out
    for name in ("need_bytes", "allocated_bytes", "process_bytes"):
        assert f"{out[name]['value'] / 2**30:,.2f} GiB" in table
    assert f"{out['need_bytes']['value'] / 1e9:,.2f} GB" in run("finetune", "qwen2.5-7b", "--unit", "GB").out


def test_every_option_reaches_the_plan(run: Call) -> None:
    given = (
        *("--method", "lora", "--rank", "8", "--targets", "q,v", "--micro-batch", "4", "--seq-len", "1_024"),
        *("--checkpointing", "none", "--precision", "amp_bf16", "--compile", "--no-packed", "--offload", "none"),
        *("--dropout", "none", "--gpu-capacity-bytes", "100GiB", "--gpu", "custom"),
    )
    plan = run("finetune", "qwen2.5-7b", "--json", *given).json["plan"]
    assert plan["adapter"] == {"rank": 8, "targets": ["q", "v"], "train_embeddings": False}
    assert (plan["micro_batch"], plan["seq_len"], plan["checkpointing"]) == (4, 1024, "none")
    assert (plan["compile"], plan["packed"], plan["offload"], plan["dropout"]) == (True, False, [], None)
    assert plan["gpu_capacity_bytes"] == 100 * 2**30
    assert run("serve", "qwen2.5-7b", "--count", "2", "--json").json["plan"]["n_gpus"] == 2
    limits = run("serve", "qwen2.5-vl-7b", "--limit-mm-per-prompt", '{"image": 2}', "--json").json["plan"]
    assert limits["limit_mm_per_prompt"] == {"image": 2}


def test_a_wish_without_length_is_the_page_s(run: Call) -> None:
    plain = run("serve", "qwen2.5-7b", "--json").json
    assert plain["plan"]["max_model_len"] == Settings().serving.max_model_len == 8192
    assert any("8,192" in said for said in plain["assumptions"])
    own = run("serve", "qwen2.5-7b", "--max-model-len", "auto", "--json").json
    assert own["serving"]["max_model_len"] == 131_072
    short = run("serve", "qwen2.5-7b", "--context-tokens", "1000", "--json").json
    assert short["plan"]["max_model_len"] is None


def test_the_replay_changes_no_verdict(run: Call) -> None:
    estimated = run("finetune", "qwen2.5-0.5b", "--no-replay", "--json").json
    replayed = run("finetune", "qwen2.5-0.5b", "--json").json
    for same in ("need_bytes", "allocated_bytes", "verdict", "capacity_bytes"):
        assert estimated[same] == replayed[same]
    spread = [b["reserved_bytes"]["high"] - b["reserved_bytes"]["low"] for b in (estimated, replayed)]
    assert spread[1] < spread[0]


def test_defaults_that_the_command_fills_in_are_said(run: Call) -> None:
    for arguments, said in (
        (("finetune", "qwen2.5-7b", "--method", "qlora"), "4-bit NF4"),
        (("finetune", "qwen2.5-7b"), "rank 16 on all linear layers"),
        (("train", "qwen2.5-0.5b", "--count", "2"), "DDP"),
        (("serve", "qwen2.5-7b", "--count", "2"), "tensor parallelism"),
    ):
        assert any(said in line for line in run(*arguments, "--json").json["assumptions"]), said


@pytest.mark.parametrize(
    ("sharding", "state_bytes"), [("zero1", 12), ("zero3", 12), ("distributed_optimizer", 12), ("fsdp2", 8), ("ddp", 4)]
)
def test_a_sharding_has_its_usual_recipe(run: Call, sharding: str, state_bytes: int) -> None:
    """fp32 master and two moments under ZeRO; two fp32 moments beside fp32 shards under FSDP; all in bf16 under DDP."""
    bill = run("train", "qwen2.5-0.5b", "--n-gpus", "8", "--sharding", sharding, "--no-replay", "--json").json
    (states,) = (item for item in bill["items"] if item["key"] == "optimizer_states")
    assert states["formula_values"]["each"] == pytest.approx(state_bytes, rel=1e-3)
    assert any("usual recipe" in line for line in bill["assumptions"]) == (sharding != "ddp")


def test_a_plan_file_without_end_is_refused(run: Call) -> None:
    refused = run("train", "qwen2.5-7b", "--plan", "/dev/zero", "--json")
    assert (refused.code, refused.json["error"]["key"]) == (2, "plan.file_json")


def test_a_bill_is_a_plan_file(run: Call, tmp_path: Path) -> None:
    first = run("finetune", "qwen2.5-7b", "--rank", "32", "--json")
    file = tmp_path / "bill.json"
    file.write_text(first.out)
    again = run("finetune", "qwen2.5-7b", "--plan", str(file), "--json")
    assert again.json["plan"] == first.json["plan"]
    assert again.json["need_bytes"] == first.json["need_bytes"]
    other = run("finetune", "qwen2.5-7b", "--plan", str(file), "--rank", "64", "--json")
    assert other.json["plan"]["adapter"]["rank"] == 64, "an option wins over the file"


def test_chinese(run: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "放得下" in run("finetune", "qwen2.5-7b", "--lang", "zh").out
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    assert "没有选项" in run("finetune", "qwen2.5-7b", "--rnak", "3").err


# -------------------------------------------------------------------------------------------------------- shapes


def test_shape_json(run: Call) -> None:
    out = run("shape", "qwen3-30b-a3b", "--json").json
    assert list(out["parameters"]) == list(ParameterCount.model_fields)
    assert out["parameters"]["total"] == 30_532_122_624
    assert out["layers"] == 48
    assert out["cache"]["bytes_per_token_full_layers"] == 98_304
    assert isinstance(out["assumptions"], list)
    assert "30.5 B" in run("shape", "qwen3-30b-a3b").out


def test_shape_of_a_file_and_a_folder(run: Call, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    by_file = run("shape", str(tmp_path / "config.json"), "--json")
    by_folder = run("shape", str(tmp_path), "--json")
    assert by_file.json["parameters"] == by_folder.json["parameters"]
    assert by_file.json["layers"] == 2


def test_lists(run: Call) -> None:
    assert {p["key"] for p in run("presets", "--json").json["presets"]} == set(presets())
    cards = {card["key"]: card for card in run("gpus", "--json").json["gpus"]}
    assert cards["h100-80gb-sxm"]["total_bytes"] < cards["h100-80gb-sxm"]["marketed_bytes"]
    assert "h100-80gb-sxm" in run("gpus").out
    assert "qwen2.5-7b" in run("presets").out


def test_every_name_in_a_table_has_a_sentence() -> None:
    for language in ("en", "zh"):
        known = catalogue(language)
        wanted = [f"cli.cache.{name}" for name in CacheShape.model_fields]
        wanted += [f"component.{name}" for name in ParameterCount.model_fields]
        assert not [id_ for id_ in wanted if id_ not in known]


@pytest.mark.parametrize("command", PLANS)
def test_every_item_and_phase_has_a_name(command: str, run: Call) -> None:
    for extra in ((), ("--count", "2")):
        out = run(command, "qwen2.5-7b", "--json", *extra).json
        for language in ("en", "zh"):
            known = catalogue(language)
            assert not [i["key"] for i in out["items"] if f"item.{i['key']}" not in known]
            assert not [p["name"] for p in out["phases"] if f"phase.{p['name']}" not in known]


# -------------------------------------------------------------------------------------------------------- errors

WRONG = [
    (("nonsense",), "cli.unknown_command"),
    (("trian", "qwen2.5-7b"), "cli.unknown_command"),
    (("train",), "cli.usage"),
    (("train", "qwen2.5-7b", "extra"), "cli.extra"),
    (("train", "qwen2.5-7b", "--micro-bach", "3"), "cli.unknown_option_near"),
    (("train", "qwen2.5-7b", "--zzzzqqq"), "cli.unknown_option"),
    (("serve", "qwen2.5-7b", "--micro-batch", "3"), "cli.unknown_option_near"),
    (("train", "qwen2.5-7b", "--micro-batch"), "cli.usage"),
    (("train", "qwen2.5-7b", "--micro-batch", "many"), "plan.number"),
    (("train", "qwen2.5-7b", "--micro-batch", "0"), "plan.range"),
    (("train", "qwen2.5-7b", "--micro-batch", "1.5"), "plan.number"),
    (("train", "qwen2.5-7b", "--optimizer", "adamw8bit"), "plan.choice_near"),
    (("train", "qwen2.5-7b", "--optimizer", "zzz"), "plan.choice"),
    (("train", "qwen2.5-7b", "--compile", "perhaps"), "plan.flag"),
    (("train", "qwen2.5-7b", "--gpu", "h101"), "gpu.unknown"),
    (("train", "qwen2.5-7b", "--gpu", "custom"), "gpu.capacity_missing"),
    (("train", "qwen2.5-7b", "--gpu-capacity-bytes", "1"), "gpu.capacity_range"),
    (("train", "qwen2.5-7b", "--gpu-capacity-bytes", "a lot"), "units.unreadable"),
    (("train", "qwen2.5-7b", "--plan", "/nowhere/plan.json"), "plan.file"),
    (("train", "a/b/c"), "hub.id_malformed"),
    (("train", "/nowhere/config.json"), "local.missing"),
    (("train", "{}"), None),
    (("train", ""), "hub.id_empty"),
    (("gpus", "--unit", "MB"), "cli.usage"),
]


@pytest.mark.parametrize(("arguments", "key"), WRONG)
def test_wrong_input_is_a_typed_error(run: Call, arguments: tuple[str, ...], key: str | None) -> None:
    refused = run(*arguments, "--json")
    assert refused.code == 2
    told = refused.json["error"]
    assert key in (None, told["key"])
    assert told["message"]
    assert told["remedy"]
    assert "{" not in told["message"] + told["remedy"]
    assert "Traceback" not in refused.err
    assert "Traceback" not in run(*arguments).err


def test_bad_plan_files(run: Call, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    for content, key in (
        ("{", "plan.file_json"),
        ("[]", "plan.file_json"),
        ('{"micro_batch": 1, "micro_batch": 2}', "plan.file_json"),
        ('{"micro_bach": 1}', "plan.unknown_field"),
        ('{"micro_batch": "x"}', "plan.number"),
        ('{"micro_batch": [1]}', "plan.number"),
        ('{"adapter": {"r": 4}}', "plan.unknown_field"),
        ('{"adapter": 4}', "plan.value"),
        ('{"attention": null}', "plan.choice"),
    ):
        file.write_text(content)
        refused = run("train", "qwen2.5-7b", "--plan", str(file), "--json")
        assert (refused.code, refused.json["error"]["key"]) == (2, key), content
        assert "config.json" not in refused.json["error"]["remedy"]


def test_a_misspelt_field_of_the_adapter_is_told_its_neighbours(run: Call, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text('{"adapter": {"rnak": 8}}')
    told = run("finetune", "qwen2.5-7b", "--plan", str(file), "--json").json["error"]["message"]
    assert "rnak" in told
    assert "rank" in told
    assert "micro_batch" not in told


def test_a_file_cannot_steer_the_terminal(run: Call, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "\x1b[2Jgone\u202e[bold]"}))
    refused = run("shape", str(file))
    assert refused.code == 2
    assert "[2Jgone" in refused.err
    assert not {"\x1b", "\u202e"} & set(refused.err)


def test_the_hub_failing_is_exit_code_3(run: Call) -> None:
    refused = run("train", "someone/something", "--json")
    assert (refused.code, refused.json["error"]["key"]) == (3, "hub.offline")


def test_a_fault_of_our_own_is_no_verdict(run: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own exit code for an exception is 1, which would read as "does not fit"."""

    def broken(*_: object, **__: object) -> Bill:
        raise ZeroDivisionError("[bold]inside[/bold]")

    monkeypatch.setattr("calculator.training.bill", broken)
    failed = run("train", "qwen2.5-7b")
    assert failed.code == 70
    assert "ZeroDivisionError: [bold]inside[/bold]" in " ".join(failed.err.split())
    assert "Traceback" not in failed.err


# ------------------------------------------------------------------------------------------------- as a process


def process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k not in ("LANG", "LC_ALL", "HF_TOKEN")} | environment
    command = [sys.executable, "-m", "calculator", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env, timeout=60, check=False)


def test_over_a_real_hub() -> None:
    with FakeHub([*good_repos(), *troubled_repos()]) as hub:
        served = process("serve", "Qwen/Qwen2.5-7B", "--json", HF_ENDPOINT=hub.endpoint)
        assert served.returncode in (0, 4)
        out = json.loads(served.stdout)
        assert out["model"]["commit"] == hub.repos["Qwen/Qwen2.5-7B"].sha
        assert out["model"]["stored_bytes"] == 15_231_233_024
        weights = next(item for item in out["items"] if item["key"] == "weights")
        assert weights["basis"] == "header"
        assert 0 <= weights["bytes"] - out["model"]["stored_bytes"] < 0.01 * weights["bytes"]
        refused = process("shape", "fake/gated", HF_ENDPOINT=hub.endpoint)
        assert refused.returncode == 3
        assert "gated" in refused.stderr
        assert process("shape", "fake/gated", HF_ENDPOINT=hub.endpoint, HF_TOKEN=GOOD_TOKEN).returncode == 0


def test_help_names_every_field() -> None:
    shown = process("train", "--help").stdout
    for field in option_fields(PLANS["train"]):
        assert f"--{field.replace('_', '-')}" in shown
    general = process("--help")
    assert general.returncode == 0
    assert all(command in general.stdout for command in COMMANDS)


def test_a_reader_that_leaves_is_no_error() -> None:
    command = f"{sys.executable} -m calculator gpus --json | head -c 10"
    ended = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, cwd=ROOT)
    assert "Traceback" not in ended.stderr
    assert "Exception" not in ended.stderr
