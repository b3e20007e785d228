"""Ollama's commands as plans and back."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculator.errors import CalculatorError, PlanError
from calculator.hardware import find
from calculator.presets import find_preset
from calculator.serving import bill
from calculator.serving.command import emit_command, parse_command
from calculator.serving.left_out import left_out
from calculator.serving.ollama_command import _LATEST, _LIBRARY, library_name
from calculator.serving.plan import ServingPlan
from tests.serving.shapes import llama

# Lines of Ollama's documentation (docs/docker, docs/faq, docs/import) and of public threads.
READ: list[tuple[str, str, dict[str, Any]]] = [
    ("ollama run llama3.2", "llama-3.2-3b", {"weights": "Q4_K_M"}),
    ("ollama run llama3.1:70b", "llama-3.1-70b", {"weights": "Q4_K_M"}),
    ("ollama run qwen2.5:7b-instruct-q8_0 'why is the sky blue?'", "qwen2.5-7b", {"weights": "Q8_0"}),
    ("ollama run gpt-oss:20b", "gpt-oss-20b", {}),
    ("ollama run hf.co/bartowski/Llama-3.2-3B-Instruct-GGUF:Q6_K --verbose",
     "bartowski/Llama-3.2-3B-Instruct-GGUF:Q6_K", {}),
    ("OLLAMA_CONTEXT_LENGTH=8192 ollama serve", "", {"max_model_len": 8192}),
    ("OLLAMA_FLASH_ATTENTION=1 OLLAMA_KV_CACHE_TYPE=q8_0 OLLAMA_NUM_PARALLEL=4 OLLAMA_CONTEXT_LENGTH=32768 "
     "ollama serve", "", {"flash_attn": True, "kv_cache_dtype": "q8_0", "max_num_seqs": 4,
                         "max_model_len": 4 * 32_768}),
    ("export OLLAMA_NUM_PARALLEL=2; export OLLAMA_CONTEXT_LENGTH=4096 && ollama serve & ollama run qwen3:8b",
     "qwen3-8b", {"max_num_seqs": 2, "max_model_len": 8192, "weights": "Q4_K_M"}),
    ("CUDA_VISIBLE_DEVICES=0,1 OLLAMA_GPU_OVERHEAD=1073741824 ollama serve\nollama run phi4", "phi-4",
     {"n_gpus": 2, "fit_target_bytes": 2**30, "weights": "Q4_K_M"}),
    ("docker run -d --gpus=all -v ollama:/data -p 11434:11434 --name ollama ollama/ollama", "", {}),
    ("docker run -d --gpus='\"device=0,1\"' -e OLLAMA_KV_CACHE_TYPE=q4_0 --env OLLAMA_FLASH_ATTENTION=1 -p 1:1 "
     "ollama/ollama:0.12.3", "",
     {"engine_version": "0.12.3", "n_gpus": 2, "kv_cache_dtype": "q4_0", "flash_attn": True}),
    ("docker exec -it ollama ollama run llama3.1", "llama-3.1-8b", {"weights": "Q4_K_M"}),
    ("ollama pull mistral", "mistral-7b-v0.3", {"weights": "Q4_K_M"}),
]  # fmt: skip


@pytest.mark.parametrize(("written", "model", "fields"), READ, ids=[written[:40] for written, _, _ in READ])
def test_what_a_command_says(written: str, model: str, fields: dict[str, Any]) -> None:
    read = parse_command(written)
    assert (read.engine, read.model, read.fields) == ("ollama", model, fields)
    assert not read.unknown
    read.plan()


def test_what_is_not_understood_is_named_and_no_secret_is_kept() -> None:
    read = parse_command(
        "OLLAMA_HOST=0.0.0.0 OLLAMA_MAX_LOADED_MODELS=2 OLLAMA_KV_CACHE_TYPE=q6_0 HF_TOKEN=hf_x ollama run nobody:9b"
    )
    assert read.unknown == ("nobody:9b", "OLLAMA_MAX_LOADED_MODELS", "OLLAMA_KV_CACHE_TYPE")
    assert read.kept == ("OLLAMA_HOST=0.0.0.0", "OLLAMA_MAX_LOADED_MODELS=2", "OLLAMA_KV_CACHE_TYPE=q6_0")
    assert read.model == ""


@pytest.mark.parametrize("written", ["OLLAMA_CONTEXT_LENGTH=many ollama serve", "OLLAMA_NUM_PARALLEL=-1 ollama serve"])
def test_bad_values_name_the_field(written: str) -> None:
    with pytest.raises(PlanError) as caught:
        parse_command(written)
    assert caught.value.key == "command.bad_value"


def test_the_library_names_built_in_models() -> None:
    for name, (preset, mix) in _LIBRARY.items():
        assert find_preset(preset) is not None, name
        assert library_name(preset, None) == name
        assert library_name(preset, mix) == name
    assert all(f"{name}:{size}" in _LIBRARY for name, size in _LATEST.items())
    assert library_name("llama-3.1-8b", "Q8_0") is None
    assert library_name("glm-5", None) is None


def test_a_plan_as_two_lines() -> None:
    plan = ServingPlan(engine="ollama", max_model_len=32_768, max_num_seqs=4, kv_cache_dtype="q8_0", flash_attn=True)
    assert emit_command("org/repo-GGUF:Q4_K_M", plan) == (
        "OLLAMA_CONTEXT_LENGTH=8192 OLLAMA_NUM_PARALLEL=4 OLLAMA_KV_CACHE_TYPE=q8_0 OLLAMA_FLASH_ATTENTION=1 "
        "ollama serve\nollama run hf.co/org/repo-GGUF:Q4_K_M"
    )
    assert emit_command("llama3.1:8b", ServingPlan(engine="ollama")) == "ollama run llama3.1:8b"


@given(
    slots=st.none() | st.integers(1, 64), each=st.none() | st.integers(1, 262_144),
    cache=st.sampled_from(["auto", "fp16", "q8_0", "q4_0"]), flash=st.none() | st.booleans(),
    overhead=st.none() | st.integers(1, 2**34), model=st.sampled_from(["org/repo:Q4_K_M", "org/repo", "a/b:c/d.gguf"]),
    kept=st.sampled_from([(), ("OLLAMA_HOST=0.0.0.0", "OLLAMA_X=a 'b", "--verbose")]), cards=st.integers(1, 4),
)  # fmt: skip
def test_every_plan_survives_as_commands(
    slots: int | None, each: int | None, cache: Any, flash: bool | None, overhead: int | None, model: str,
    kept: tuple[str, ...], cards: int,
) -> None:  # fmt: skip
    plan = ServingPlan(
        engine="ollama", n_gpus=cards, max_num_seqs=slots, max_model_len=None if each is None else each * (slots or 1),
        kv_cache_dtype=cache, flash_attn=flash, fit_target_bytes=overhead,
    )  # fmt: skip
    read = parse_command(emit_command(model, plan, kept))
    assert (read.model, read.unknown, read.kept) == (model, ("OLLAMA_X",) if kept else (), kept)
    assert read.plan() == plan
    assert left_out(model, plan, kept) == ()


@given(
    st.text(max_size=120), st.sampled_from(["ollama run ", "ollama serve & ", "docker run -e OLLAMA_X= ollama/ollama "])
)
def test_junk_is_read_or_refused(text: str, start: str) -> None:
    with suppress(CalculatorError):
        parse_command(start + text).plan()


def test_the_default_context_is_that_of_the_card() -> None:
    plan = parse_command("ollama run llama3.1").plan(ServingPlan(concurrency=16))
    for card, context in (("h100-80gb-sxm", 131_072), ("rtx-4090-24gb", 32_768), ("t4-16gb", 4096)):
        serving = bill(llama(), plan, find(card)).serving
        assert serving is not None
        assert (serving.max_model_len, serving.max_num_seqs) == (context, 1)
