"""Any options on any kind of model: a bill that holds together, or a typed refusal. Never a fault, never a minus."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic.fields import FieldInfo

from calculator.cli import main
from calculator.cli.commands import PLANS
from calculator.cli.options import choices, is_flag, is_list, option_fields
from calculator.hardware import catalogue
from calculator.serving.drafts import ALL

MODELS = (
    "qwen2.5-0.5b", "qwen3-30b-a3b", "deepseek-v2-lite", "gemma-3-4b", "gpt-oss-20b", "qwen3.5-0.8b", "llama-4-scout",
    "gpt2", "kimi-k2", "gemma-4-e4b", "lfm2-8b-a1b",
)  # fmt: skip
NUMBERS = ("1", "2", "3", "4", "7", "8", "16", "64", "2048", "8192", "131072", "16777216", "0", "-1")
SHARES = ("0", "0.1", "0.9", "1", "2", "nan", "inf")
VERSIONS = ("0.8.5", "2.5.0", "0.0.1", "99.9", "abc", "")
WEIGHTS = ("awq", "gptq", "gguf:Q4_K_M", "fp8", "nf4", "bf16", "unheard-of")


def values(name: str, field: FieldInfo) -> st.SearchStrategy[str]:
    allowed = choices(field)
    if is_list(field):
        return st.lists(st.sampled_from(allowed or NUMBERS), min_size=1, max_size=3, unique=True).map(",".join)
    if is_flag(field):
        return st.sampled_from(("yes", "no"))
    if allowed:
        return st.sampled_from(allowed)
    if name == "gpu":
        return st.sampled_from([*catalogue(), "custom"])
    if name == "draft_model":
        return st.sampled_from(MODELS)
    if name == "speculative":
        return st.sampled_from((*ALL, "zzz"))
    if name == "weights":
        return st.sampled_from(WEIGHTS)
    if name.endswith("_version"):
        return st.sampled_from(VERSIONS)
    if name.endswith("_bytes"):
        return st.sampled_from(("1", "1GiB", "24GiB", "80GB"))
    return st.sampled_from(SHARES if float in getattr(field.annotation, "__args__", (field.annotation,)) else NUMBERS)


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    command = draw(st.sampled_from(sorted(PLANS)))
    fields = {n: f for n, f in option_fields(PLANS[command]).items() if n not in ("adapter", "request_lengths")}
    names = draw(st.lists(st.sampled_from(sorted(fields)), max_size=5, unique=True))
    options = [f"--{n.replace('_', '-')}={draw(values(n, fields[n]))}" for n in names]
    # The replay takes a hundred times as long as the rest of a bill.
    replay = [] if draw(st.integers(0, 4)) == 0 else ["--no-replay"]
    return [command, draw(st.sampled_from(MODELS)), *replay, *options]


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(arguments=command_lines())
def test_any_options(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code = main([*arguments, "--json"])
    captured = capsys.readouterr()
    assert code in (0, 1, 2, 4), captured.err
    out: dict[str, Any] = json.loads(captured.out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    if code == 2:
        assert out["error"]["message"] != out["error"]["key"]
        assert out["error"]["remedy"] != f"{out['error']['key']}.remedy"
        return
    assert all(item["bytes"] >= 0 and item["max_bytes"] >= item["bytes"] for item in out["items"])
    assert out["need_bytes"]["value"] > 0
    assert all(size >= 0 for phase in out["phases"] for size in phase["items"].values())
    assert sum(i["bytes"] for i in out["items"] if i["layer"] == "tensor") == out["allocated_bytes"]["value"]
    for said in (*(item["formula"] for item in out["items"]), *out["assumptions"]):
        assert "{" not in said
        assert " " in said or not said.isascii(), said
