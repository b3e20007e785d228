"""Ollama's commands: ``ollama serve`` and ``ollama run`` with the server's environment, read and written.

Names and meanings of the variables are those of envconfig/config.go (github.com/ollama/ollama, v0.30.0). Models of
Ollama's own library stand for the built-in ones of the same weights, in the type that the library's page names.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from calculator.errors import PlanError
from calculator.serving import environment as variables
from calculator.serving.plan import ServingPlan
from calculator.serving.shell import OLLAMA_COMMANDS

_CACHE = MappingProxyType({"f16": "fp16", "q8_0": "q8_0", "q4_0": "q4_0"})
_TRUE = ("1", "t", "true", "on", "yes")
_LIBRARY: Mapping[str, tuple[str, str | None]] = MappingProxyType({
    "llama3.2:1b": ("llama-3.2-1b", "Q8_0"), "llama3.2:3b": ("llama-3.2-3b", "Q4_K_M"),
    "llama3.1:8b": ("llama-3.1-8b", "Q4_K_M"), "llama3.1:70b": ("llama-3.1-70b", "Q4_K_M"),
    "llama3.1:405b": ("llama-3.1-405b", "Q4_K_M"), "llama4:16x17b": ("llama-4-scout", "Q4_K_M"),
    "qwen2.5:0.5b": ("qwen2.5-0.5b", "Q4_K_M"), "qwen2.5:1.5b": ("qwen2.5-1.5b", "Q4_K_M"),
    "qwen2.5:3b": ("qwen2.5-3b", "Q4_K_M"), "qwen2.5:7b": ("qwen2.5-7b", "Q4_K_M"),
    "qwen2.5:14b": ("qwen2.5-14b", "Q4_K_M"), "qwen2.5:32b": ("qwen2.5-32b", "Q4_K_M"),
    "qwen2.5:72b": ("qwen2.5-72b", "Q4_K_M"), "qwen2.5vl:7b": ("qwen2.5-vl-7b", "Q4_K_M"),
    "qwen3:0.6b": ("qwen3-0.6b", "Q4_K_M"), "qwen3:4b": ("qwen3-4b", "Q4_K_M"), "qwen3:8b": ("qwen3-8b", "Q4_K_M"),
    "qwen3:14b": ("qwen3-14b", "Q4_K_M"), "qwen3:32b": ("qwen3-32b", "Q4_K_M"),
    "qwen3:30b": ("qwen3-30b-a3b", "Q4_K_M"), "qwen3:235b": ("qwen3-235b-a22b", "Q4_K_M"),
    "qwen3-coder:480b": ("qwen3-coder-480b", "Q4_K_M"), "mistral:7b": ("mistral-7b-v0.3", "Q4_K_M"),
    "mistral-nemo:12b": ("mistral-nemo", "Q4_0"), "mistral-small3.2:24b": ("mistral-small-3.2", "Q4_K_M"),
    "mixtral:8x7b": ("mixtral-8x7b", "Q4_0"), "gemma2:9b": ("gemma-2-9b", "Q4_0"),
    "gemma3:4b": ("gemma-3-4b", "Q4_K_M"), "gemma3:27b": ("gemma-3-27b", "Q4_K_M"), "phi4:14b": ("phi-4", "Q4_K_M"),
    "phi4-mini:3.8b": ("phi-4-mini", "Q4_K_M"), "deepseek-v2:16b": ("deepseek-v2-lite", "Q4_0"),
    "deepseek-v3:671b": ("deepseek-v3", "Q4_K_M"), "deepseek-r1:671b": ("deepseek-r1", "Q4_K_M"),
    "gpt-oss:20b": ("gpt-oss-20b", None), "gpt-oss:120b": ("gpt-oss-120b", None),
    "smollm2:135m": ("smollm2-135m", "F16"), "smollm2:360m": ("smollm2-360m", "F16"),
    "tinyllama:1.1b": ("tinyllama-1.1b", "Q4_0"), "olmo2:7b": ("olmo-2-7b", "Q4_K_M"),
})  # fmt: skip
_LATEST = MappingProxyType({
    "llama3.2": "3b", "llama3.1": "8b", "llama4": "16x17b", "qwen2.5": "7b", "qwen2.5vl": "7b", "qwen3": "8b",
    "mistral": "7b", "mistral-nemo": "12b", "mistral-small3.2": "24b", "mixtral": "8x7b", "gemma2": "9b",
    "gemma3": "4b", "phi4": "14b", "phi4-mini": "3.8b", "deepseek-v2": "16b", "deepseek-v3": "671b",
    "gpt-oss": "20b", "tinyllama": "1.1b", "olmo2": "7b",
})  # fmt: skip
"""What a name without a size is."""


class Read(NamedTuple):
    """The model as the calculator names it, words that are kept, and what was not understood."""

    model: str
    kept: tuple[str, ...]
    unknown: tuple[str, ...]


def read(words: list[str], environment: Mapping[str, str], fields: dict[str, Any]) -> Read:
    """The words after ``ollama`` and the environment; ``fields`` takes what they set.

    The context of the environment is one slot's, the plan's that of all. Raises ``PlanError`` ("command.bad_value").
    """
    model, kept, unknown = "", [], []
    command = ""
    for word in words:
        if word == "ollama" or (word in OLLAMA_COMMANDS and command in ("", "serve", "start", "pull")):
            command = word if word in OLLAMA_COMMANDS else command
        elif word.startswith("-"):
            kept.append(word)
        elif command not in ("", "serve", "start"):
            model = model or word  # what follows is a prompt
    named = _named(model, fields) if model else ""
    if model and not named:
        unknown.append(model)
    left: dict[str, str] = {}
    for name, value in environment.items():
        if not _variable(name, value.strip(), fields):
            left[name] = value
    slots = fields.get("max_num_seqs", 1)
    if "max_model_len" in fields:
        fields["max_model_len"] *= slots
    assignments, names = variables.read("ollama", left, fields)
    return Read(named, (*assignments, *kept), tuple(dict.fromkeys((*unknown, *names))))


def emit(model: str, plan: ServingPlan, kept: tuple[str, ...] = ()) -> str:
    """``ollama serve`` with the plan's environment, and ``ollama run`` with the model; the first only where something
    differs from the defaults. Settings that only a request or a Modelfile takes (layers, batch) are left out."""
    slots = plan.max_num_seqs or 1
    settings, words = variables.split_kept(kept)
    settings += variables.written(plan)
    if plan.max_model_len is not None:
        settings.append(f"OLLAMA_CONTEXT_LENGTH={-(-plan.max_model_len // slots)}")
    if plan.max_num_seqs is not None:
        settings.append(f"OLLAMA_NUM_PARALLEL={plan.max_num_seqs}")
    cache = next((word for word, meant in _CACHE.items() if meant == plan.kv_cache_dtype), None)
    if cache is not None:
        settings.append(f"OLLAMA_KV_CACHE_TYPE={cache}")
    if plan.flash_attn is not None:
        settings.append(f"OLLAMA_FLASH_ATTENTION={int(plan.flash_attn)}")
    if plan.fit_target_bytes:
        settings.append(f"OLLAMA_GPU_OVERHEAD={plan.fit_target_bytes}")
    run = shlex.join(["ollama", "run", _address(model), *(word for word in words if word.startswith("-"))])
    return " ".join([*settings, "ollama serve"]) + "\n" + run if settings else run


def library_name(key: str, weights: str | None) -> str | None:
    """The name in Ollama's library of a built-in model in that type (None: the library's own); None if it is not
    there."""
    found = ((name, mix) for name, (preset, mix) in _LIBRARY.items() if preset == key)
    return next((name for name, mix in found if weights in (None, mix)), None)


def _address(model: str) -> str:
    return (
        f"hf.co/{model}"
        if re.match(r"[\w.-]+/", model) and not model.startswith(("hf.co/", "huggingface.co/"))
        else model
    )


def _named(model: str, fields: dict[str, Any]) -> str:
    """A model of the hub as its id; one of the library as the built-in one, with the type of its weights."""
    hub = re.match(r"(https?://)?(hf\.co|huggingface\.co)/(?P<id>.+)", model)
    if hub is not None:
        return hub["id"].removesuffix(":latest")
    name, _, tag = model.lower().removeprefix("library/").partition(":")
    size, _, rest = tag.partition("-")
    if size in ("", "latest"):
        size = _LATEST.get(name, "")
    found = _LIBRARY.get(f"{name}:{size}")
    if found is None:
        return ""
    mix = re.search(r"(?:^|-)(i?q\d\w*|fp16|bf16)$", rest)
    weights = mix[1].upper().replace("FP16", "F16") if mix else found[1]
    if weights is not None:
        fields["weights"] = weights
    return found[0]


def _variable(name: str, value: str, fields: dict[str, Any]) -> bool:
    """Whether the variable is one that the plan has, which then takes its value."""
    whole = {"OLLAMA_CONTEXT_LENGTH": "max_model_len", "OLLAMA_NUM_PARALLEL": "max_num_seqs",
             "OLLAMA_GPU_OVERHEAD": "fit_target_bytes"}  # fmt: skip
    if name in whole:
        if not value.isdigit() or len(value) > 18:
            raise PlanError("command.bad_value", field=whole[name], text=f"{name}={value}"[:60])
        if int(value):
            fields[whole[name]] = int(value)
    elif name == "OLLAMA_FLASH_ATTENTION":
        fields["flash_attn"] = value.lower() in _TRUE
    elif name == "OLLAMA_KV_CACHE_TYPE":
        if value.lower() not in _CACHE:
            return False
        fields["kv_cache_dtype"] = _CACHE[value.lower()]
    else:
        return False
    return True
