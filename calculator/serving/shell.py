"""Finding the inference server in a shell line: its words, its environment, its image."""

from __future__ import annotations

import re
import shlex
from typing import Any

from calculator.errors import PlanError
from calculator.serving.plan import Engine

_IMAGES: tuple[tuple[str, Engine], ...] = (
    ("vllm/vllm-openai", "vllm"), ("rocm/vllm", "vllm"), ("lmsysorg/sglang", "sglang"),
    ("huggingface/text-generation-inference", "tgi"), ("ggml-org/llama.cpp", "llama_cpp"),
    ("ggerganov/llama.cpp", "llama_cpp"), ("openmmlab/lmdeploy", "lmdeploy"), ("nvidia/tensorrt-llm", "tensorrt_llm"),
)  # fmt: skip


def split_words(written: str) -> list[str]:
    """The words of the first command, line continuations joined, comments and what follows a pipe or ; left out."""
    joined = re.sub(r"[\\^`][ \t]*\r?\n", " ", written).strip()
    lexer = shlex.shlex(joined, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words: list[str] = []
    try:
        for word in lexer:
            if re.fullmatch(r"[|&;<>]+", word):
                if words and (word[0] in "<>" or words != ["export"]):
                    break
                continue
            words.append(word)
    except ValueError:
        raise PlanError("command.unreadable", field="command") from None
    if words and words[0] in ("$", ">", "sudo", "exec", "nohup", "command:"):
        words = words[1:]
    if not words:
        raise PlanError("command.unreadable", field="command")
    return words


def leading_environment(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Leading NAME=value words."""
    found: dict[str, str] = {}
    rest = list(words)
    while rest and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*=.*", rest[0]):
        name, _, value = rest.pop(0).partition("=")
        found[name] = value
    return found, rest


def program_of(words: list[str], fields: dict[str, Any]) -> tuple[Engine, list[str]]:
    """The engine and the words after its program."""
    text = " ".join(words)
    if words[:1] and words[0].rsplit("/", 1)[-1] in ("docker", "podman") and len(words) > 1:
        return _container(words, fields)
    base = [word.rsplit("/", 1)[-1] for word in words[:4]]
    for index, name in enumerate(base[:3]):
        rest = words[index + 1 :]
        if name == "vllm" and rest[:1] == ["serve"]:
            return "vllm", rest[1:]
        if name == "-m" and rest[:1]:
            module = rest[0]
            if module.startswith("vllm.entrypoints"):
                return "vllm", rest[1:]
            if module == "sglang.launch_server":
                return "sglang", rest[1:]
        if name == "sglang" and rest[:1] == ["serve"]:
            return "sglang", rest[1:]
        if name == "trtllm-serve":
            return "tensorrt_llm", rest[1:] if rest[:1] == ["serve"] else rest
        if name in ("llama-server", "llama-server.exe"):
            return "llama_cpp", rest
        if name == "lmdeploy" and rest[:2] == ["serve", "api_server"]:
            return "lmdeploy", rest[2:]
        if name == "text-generation-launcher":
            return "tgi", rest
    raise PlanError("command.unknown_engine", field="command", text=text[:60])


def _container(words: list[str], fields: dict[str, Any]) -> tuple[Engine, list[str]]:
    """``docker run``: the image tells engine and release, its arguments are the engine's."""
    for index, word in enumerate(words):
        for image, engine in _IMAGES:
            if image not in word:
                continue
            tag = re.search(r":v?(\d+\.\d+(?:\.\d+)?)", word)
            if tag:
                fields["engine_version"] = tag[1]
            _devices(words[:index], fields)
            rest = words[index + 1 :]
            try:
                return program_of(rest, fields)
            except PlanError:
                return engine, rest
    raise PlanError("command.unknown_engine", field="command", text=" ".join(words)[:60])


def _devices(options: list[str], fields: dict[str, Any]) -> None:
    for index, word in enumerate(options):
        value = word.partition("=")[2] if word.startswith("--gpus=") else ""
        if word == "--gpus" and index + 1 < len(options):
            value = options[index + 1]
        listed = re.search(r"device=([\d,]+)", value)
        if listed:
            fields["n_gpus"] = len([part for part in listed[1].split(",") if part])
        elif value.isdigit():
            fields["n_gpus"] = int(value)
