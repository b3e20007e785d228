"""``python -m llama_cpp.server`` in the words of llama-server: the same engine with names and defaults of its own.

Source: llama_cpp/server/settings.py (github.com/abetlen/llama-cpp-python, 0.2.90 to 0.3.16).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

_NAMES: Mapping[str, str] = MappingProxyType({
    "model": "--model", "n_ctx": "--ctx-size", "n_gpu_layers": "--n-gpu-layers", "n_gpu": "--n-gpu-layers",
    "n_batch": "--batch-size", "n_ubatch": "--ubatch-size", "n_threads": "--threads",
    "n_threads_batch": "--threads-batch", "flash_attn": "--flash-attn", "type_k": "--cache-type-k",
    "type_v": "--cache-type-v", "clip_model_path": "--mmproj", "host": "--host", "port": "--port", "seed": "--seed",
    "model_alias": "--alias", "api_key": "--api-key", "lora_path": "--lora",
})  # fmt: skip
_DEFAULTS: Mapping[str, str] = MappingProxyType({
    "--ctx-size": "2048", "--n-gpu-layers": "0", "--batch-size": "512", "--flash-attn": "off",
})  # fmt: skip
_FIXED = ("--parallel", "1", "--fit", "off")
"""One request at a time, and no automatic fit."""
_TYPES: Mapping[str, str] = MappingProxyType({
    "0": "f32", "1": "f16", "2": "q4_0", "3": "q4_1", "6": "q5_0", "7": "q5_1", "8": "q8_0", "20": "iq4_nl",
    "30": "bf16",
})  # fmt: skip
"""Numbers of ggml's types (ggml/include/ggml.h)."""
_WITHOUT_EFFECT = frozenset(("chat_format", "verbose", "interrupt_requests", "root_path", "hf_tokenizer_config_path"))


def as_server(words: list[str]) -> list[str]:
    """The words after ``llama_cpp.server`` as llama-server's, its own defaults included. Flags that have no counterpart
    pass through, so that they are named."""
    found = dict(_DEFAULTS)
    rest: list[str] = []
    for name, value in _pairs(words):
        flag = _NAMES.get(name)
        if name in _WITHOUT_EFFECT:
            continue
        if flag is None:
            rest += [f"--{name}"] if value is None else [f"--{name}", value]
        else:
            found[flag] = _value(flag, value or "")
    return [*(word for pair in found.items() for word in pair), *_FIXED, *rest]


def _pairs(words: list[str]) -> Iterator[tuple[str, str | None]]:
    index = 0
    while index < len(words):
        name, equal, value = words[index].lstrip("-").partition("=")
        index += 1
        follows = index < len(words) and (not words[index].startswith("-") or words[index][1:].isdigit())
        if not equal and follows:
            value, equal = words[index], "="
            index += 1
        yield name.replace("-", "_"), value if equal else None


def _value(flag: str, value: str) -> str:
    if flag == "--n-gpu-layers" and value == "-1":
        return "all"
    if flag == "--flash-attn":
        return "on" if value.lower() in ("1", "true", "on", "yes", "t") else "off"
    return _TYPES.get(value, value) if flag in ("--cache-type-k", "--cache-type-v") else value
