"""Finding the inference server in a shell line: its words, its environment, its image."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from typing import Any

from calculator.errors import PlanError
from calculator.serving import llama_cpp_python
from calculator.serving.plan import Engine

_SHELLS = ("bash", "sh", "zsh", "dash")
_LAUNCHERS = frozenset((*_SHELLS, "mpirun", "mpiexec", "srun", "numactl", "taskset", "nice", "time", "stdbuf", "setsid",
                        "uv", "conda", "trtllm-llmapi-launch", "nsys"))  # fmt: skip
_PROGRAMS = frozenset(("vllm", "sglang", "trtllm-serve", "llama-server", "llama-server.exe", "lmdeploy",
                       "text-generation-launcher", "ollama"))  # fmt: skip
OLLAMA_COMMANDS = ("serve", "start", "run", "pull", "show", "create")
_IMAGES: tuple[tuple[str, Engine], ...] = (
    ("vllm/vllm-openai", "vllm"), ("rocm/vllm", "vllm"), ("lmsysorg/sglang", "sglang"),
    ("huggingface/text-generation-inference", "tgi"), ("ggml-org/llama.cpp", "llama_cpp"), ("ollama/ollama", "ollama"),
    ("ggerganov/llama.cpp", "llama_cpp"), ("openmmlab/lmdeploy", "lmdeploy"), ("nvidia/tensorrt-llm", "tensorrt_llm"),
)  # fmt: skip


def split_words(written: str) -> list[str]:
    """The words of the first command, line continuations joined, comments and what follows a pipe or ; left out.
    Settings of the environment before it, and the client's command after Ollama's server, count with it."""
    joined = re.sub(r"[\\^`][ \t]*\r?\n", " ", written)
    # A copied command often has lost its line ends: the sign of continuation is left between two words.
    joined = re.sub(r"(?<=\s)[\\^`](?=\s)|\\\s+(?=--?[A-Za-z])|[\\^`]\s*$", " ", joined).strip()
    lexer = shlex.shlex(joined, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words: list[str] = []
    try:
        for word in lexer:
            if re.fullmatch(r"[|&;<>]+", word):
                if words and (word[0] in "<>" or not _goes_on(words)):
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


_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_BEFORE = ("export", "env", "set")


def _goes_on(words: list[str]) -> bool:
    """Whether what stands before a separator is not yet all: settings alone, or Ollama's server."""
    return words[-2:] == ["ollama", "serve"] or all(w in _BEFORE or _ASSIGNMENT.fullmatch(w) for w in words)


def leading_environment(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Leading NAME=value words."""
    found: dict[str, str] = {}
    rest = list(words)
    while rest and (rest[0] in _BEFORE or _ASSIGNMENT.fullmatch(rest[0])):
        word = rest.pop(0)
        if word not in _BEFORE:
            name, _, value = word.partition("=")
            found[name] = value
    return found, rest


def program_of(
    words: list[str], fields: dict[str, Any], environment: dict[str, str] | None = None
) -> tuple[Engine, list[str]]:
    """The engine and the words after its program; ``environment`` takes what a container is given of it."""
    text = " ".join(words)
    environment = environment if environment is not None else {}
    first = words[0].rsplit("/", 1)[-1] if words else ""
    if first in ("docker", "podman") and len(words) > 1:
        return _container(words, fields, environment)
    inner = _launched(words, environment) if first in _LAUNCHERS else None
    if inner is not None:
        return program_of(inner, fields, environment)
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
            if module == "llama_cpp.server":
                return "llama_cpp", llama_cpp_python.as_server(rest[1:])
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
        if name in ("ollama", "ollama.exe") and rest[:1] and rest[0] in OLLAMA_COMMANDS:
            return "ollama", rest
    raise PlanError("command.unknown_engine", field="command", text=text[:60])


def _launched(words: list[str], environment: dict[str, str]) -> list[str] | None:
    """The command that a launcher or a shell starts; ``environment`` takes what the launcher passes on. None where no
    server's program stands among the words."""
    for index, word in enumerate(words[1:], 1):
        name = word.rsplit("/", 1)[-1]
        if name in ("-c", "-lc", "-ic") and words[index - 1].rsplit("/", 1)[-1] in _SHELLS and index + 1 < len(words):
            inner = split_words(words[index + 1])
            found, inner = leading_environment(inner)
            environment |= found
            return inner
        if word == "-x" and index + 1 < len(words) and _ASSIGNMENT.fullmatch(words[index + 1]):
            key, _, value = words[index + 1].partition("=")
            environment[key] = value
        if name in _PROGRAMS or (name.startswith("python") and "-m" in words[index + 1 : index + 3]):
            return words[index:]
    return None


def _container(words: list[str], fields: dict[str, Any], environment: dict[str, str]) -> tuple[Engine, list[str]]:
    """``docker run``: the image tells engine and release, its arguments are the engine's. ``docker exec``: the words
    after the container's name are a command of their own."""
    inner = next((i for i, pair in enumerate(pairwise(words)) if pair[0] == "ollama" and pair[1] in OLLAMA_COMMANDS), 0)
    if words[1] == "exec" and inner:
        return program_of(words[inner:], fields)
    for index, word in enumerate(words):
        for image, engine in _IMAGES:
            if image not in word:
                continue
            tag = re.search(r":v?(\d+\.\d+(?:\.\d+)?)", word)
            if tag:
                fields["engine_version"] = tag[1]
            build = re.search(r"-(b\d{3,6})$", word)
            if build and engine == "llama_cpp":
                fields["engine_version"] = build[1]
            _devices(words[:index], fields)
            environment |= _given(words[:index])
            rest = words[index + 1 :]
            try:
                return program_of(rest, fields, environment)
            except PlanError:
                return engine, rest
    raise PlanError("command.unknown_engine", field="command", text=" ".join(words)[:60])


def _given(options: list[str]) -> dict[str, str]:
    """Variables that a container is given."""
    found = {}
    for index, word in enumerate(options):
        name, equal, value = word.partition("=")
        if word in ("-e", "--env") and index + 1 < len(options):
            name, equal, value = options[index + 1].partition("=")
        elif name == "--env":
            name, equal, value = value.partition("=")
        elif word.startswith("-e") and not word.startswith("--"):
            name, equal, value = word[2:].partition("=")
        else:
            continue
        if equal and value:
            found[name] = value
    return found


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
