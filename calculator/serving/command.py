"""An engine's command line as a plan, and a plan as a command line.

Reading never runs anything: the text is split as a shell would and matched against the engines' flags. Flags that have
no bearing on memory are kept and written back; what matters or may matter and is not understood is named.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from calculator.base import Frozen
from calculator.errors import PlanError, TooLargeError
from calculator.serving import environment as variables
from calculator.serving import ollama_command
from calculator.serving.drafts import METHODS
from calculator.serving.flags import FLAGS, SETS, UNDERSCORES, Flag
from calculator.serving.harmless import HARMLESS, SECRET, SWITCHES
from calculator.serving.plan import Engine, ServingPlan
from calculator.serving.shell import leading_environment, program_of, split_words
from calculator.serving.versions import parse

LONGEST = 20_000
_SECRET = frozenset(("api-key", "api-keys", "hf-token", "hft"))
_MODEL_FLAGS = frozenset(("model", "model-path", "model-id", "m", "hf", "hfr", "hf-repo", "model_path"))
_PROJECTOR_FILES = frozenset(("mmproj", "mm", "mmproj-url", "mmu"))
_ALL_LAYERS = 999
"""Written for llama.cpp's "all": more layers than any model has."""
_PROGRAMS: dict[Engine, list[str]] = {
    "vllm": ["vllm", "serve", "{model}"],
    "sglang": ["python3", "-m", "sglang.launch_server", "--model-path", "{model}"],
    "tensorrt_llm": ["trtllm-serve", "{model}"],
    "llama_cpp": ["llama-server", "-m", "{model}"],
    "lmdeploy": ["lmdeploy", "serve", "api_server", "{model}"],
    "tgi": ["text-generation-launcher", "--model-id", "{model}"],
}
_DEFAULT_LORAS: dict[Engine, int] = {"vllm": 1, "sglang": 8}
"""Adapters of a batch where a command only turns them on (vllm/config/lora.py, sglang/srt/server_args.py)."""
_ADAPTER_FILES: frozenset[tuple[str, str]] = frozenset((("tgi", "lora-adapters"), ("llama_cpp", "lora")))
"""Flags that name the adapters themselves: they are counted, and kept as they are."""
_SGLANG_METHODS = {"mtp": "NEXTN", "draft_model": "STANDALONE"}

_ON_OFF = ("flash_attn", "fit")
HUB_MODEL = re.compile(r"(?P<repo>[A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]*)(:(?P<file>[\w.+/-]+))?")

_DEFAULT = ServingPlan.model_validate({})


class Command(Frozen):
    """A command line that was read: the engine, the model, the plan's fields that it sets, the words that are kept
    as they are (assignments of the environment first), and the flags and variables that were not understood."""

    engine: Engine
    model: str
    fields: dict[str, Any]
    kept: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    def plan(self, base: ServingPlan | None = None) -> ServingPlan:
        """The plan: ``base`` with what the command says. Raises ``PlanError`` ("command.bad_value")."""
        values = {**(base or _DEFAULT).model_dump(), **self.fields, "engine": self.engine}
        try:
            return ServingPlan.model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(str(part) for part in first["loc"])
            raise PlanError("command.bad_value", field=name, text=str(first.get("input"))[:60]) from None


def parse_command(written: str) -> Command:
    """Read ``vllm serve``, ``python -m vllm.entrypoints...``, ``python -m sglang.launch_server``, ``trtllm-serve``,
    ``llama-server``, ``lmdeploy serve api_server``, ``text-generation-launcher``, ``docker run`` of their images, and
    ``ollama serve`` and ``ollama run`` with their environment.

    Raises ``TooLargeError`` ("command.too_long") and ``PlanError`` ("command.unreadable", "command.unknown_engine",
    "command.bad_value").
    """
    if len(written) > LONGEST:
        raise TooLargeError("command.too_long", field="command", limit_count=LONGEST)
    words = split_words(written)
    environment, words = leading_environment(words)
    fields: dict[str, Any] = {}
    engine, words = program_of(words, fields, environment)
    if engine == "ollama":
        read = ollama_command.read(words, environment, fields)
        return Command(engine=engine, model=read.model, fields=fields, kept=read.kept, unknown=read.unknown)
    reader = _Reader(engine, fields)
    for name, value in variables.options(engine, environment):
        reader.flag(name, f"--{name}", value)
    reader.read(words)
    kept, unknown = variables.read(engine, environment, fields)
    reader.kept[:0] = kept
    reader.unknown += unknown
    return reader.command()


def emit_command(model: str, plan: ServingPlan, kept: tuple[str, ...] = ()) -> str:
    """The plan as the engine's command line; fields at their defaults are left out, and ``kept`` follows as it is. What
    no word says is named by ``calculator.serving.left_out``.

    ``model`` may be a GGUF file or mix of the hub (``org/name:Q4_K_M``) for llama.cpp and Ollama. Raises ``PlanError``
    ("command.no_command") for engines that are not started by one.
    """
    if plan.engine == "ollama":
        return ollama_command.emit(model, plan, kept)
    program = _PROGRAMS.get(plan.engine)
    if program is None:
        raise PlanError("command.no_command", field="engine", engine=plan.engine)
    words = [model if word == "{model}" else word for word in program]
    if plan.engine == "llama_cpp":
        words = [program[0], *_gguf_words(model)]
        if words[1] == "-m" and plan.mmproj == "none":
            plan = plan.model_copy(update={"mmproj": None})
    defaults = _DEFAULT
    done: set[str] = set()
    for flag in FLAGS[plan.engine]:
        value = getattr(plan, flag.field)
        if flag.field in done or value == getattr(defaults, flag.field):
            continue
        if plan.engine_version is not None and any(flag.since) and parse(plan.engine_version) < flag.since:
            continue
        written = flag.write(_outwards(flag, value), underscores=plan.engine in UNDERSCORES)
        if written:
            words += written
            done.add(flag.field)
    words += _specials(plan)
    environment, rest = variables.split_kept(kept)
    return " ".join([*environment, *variables.written(plan), shlex.join([*words, *rest])])


def _gguf_words(model: str) -> list[str]:
    """llama.cpp's flags for a model: of the hub where it is written as an id, else a file."""
    match = HUB_MODEL.fullmatch(model)
    if match is None or (match["file"] is None and model.endswith(".gguf")):
        return ["-m", model]
    if match["file"] is not None and match["file"].endswith(".gguf"):
        return ["-hf", match["repo"], "-hff", match["file"]]
    return ["-hf", model]


def _outwards(flag: Flag, value: Any) -> Any:
    if flag.field in _ON_OFF:
        return "on" if value else "off"
    return value


def _specials(plan: ServingPlan) -> list[str]:
    """Flags that are made of several fields."""
    words: list[str] = []
    if plan.engine in _DEFAULT_LORAS and plan.max_loras:
        words.append("--enable-lora")
    if plan.engine == "vllm":
        if plan.ep > 1 and plan.ep == plan.tp * plan.dp:
            words.append("--enable-expert-parallel")
        if plan.speculative is not None:
            config: dict[str, Any] = {"method": plan.speculative}
            if plan.draft_model is not None:
                config["model"] = plan.draft_model
            config["num_speculative_tokens"] = max(plan.draft_tokens, 1)
            words += ["--speculative-config", json.dumps(config, separators=(",", ":"))]
    if plan.engine == "sglang" and plan.max_num_batched_tokens is not None and plan.chunked_prefill_size is None:
        words += ["--chunked-prefill-size", str(plan.max_num_batched_tokens)]
    if plan.engine == "sglang" and plan.speculative in METHODS["sglang"]:
        words += ["--speculative-algorithm", _SGLANG_METHODS.get(plan.speculative, plan.speculative.upper())]
    if plan.engine == "llama_cpp" and plan.kv_cache_dtype != "auto" and plan.v_cache_dtype is None:
        flag = next(flag for flag in FLAGS["llama_cpp"] if flag.field == "v_cache_dtype")
        words += flag.write(plan.kv_cache_dtype)
    said: set[str] = set()
    for name, (field, value) in SETS.get(plan.engine, {}).items():
        if field not in said and getattr(plan, field) == value:
            words.append(f"--{name}")
            said.add(field)
    return words


class _Reader:
    """Matches words against one engine's flags."""

    def __init__(self, engine: Engine, fields: dict[str, Any]) -> None:
        self.engine = engine
        self.fields = fields
        self.model = ""
        self.kept: list[str] = []
        self.unknown: list[str] = []
        self.experts = False
        self.file: str | None = None
        self.own_file = False
        self.flags = {name: flag for flag in FLAGS[engine] for name in flag.names}
        self.specials: dict[str, Callable[[str], None]] = {
            "speculative-config": self._speculative, "speculative-algorithm": self._algorithm,
            "speculative-model": self._drafter, "num-speculative-tokens": self._drafted,
        }  # fmt: skip

    def read(self, words: list[str]) -> None:
        index = 0
        while index < len(words):
            word = words[index]
            index += 1
            if not word.startswith("-") or _is_number(word):
                if not self.model:
                    self.model = word
                else:
                    self.kept.append(word)
                continue
            name, given, value = word.lstrip("-").partition("=")
            root, dot, inner = name.partition(".")
            name = root.replace("_", "-") + dot + inner
            takes = self._takes_value(name)
            if takes and not given and index < len(words) and _is_value(words[index]):
                value, given = words[index], "="
                index += 1
            self.flag(name, word.partition("=")[0], value if given else None)

    def _takes_value(self, name: str) -> bool:
        flag = self.flags.get(name)
        if flag is not None:
            return flag.takes_value
        if name in SETS.get(self.engine, {}):
            return False
        return name not in SWITCHES and name not in ("enable-expert-parallel", "enable-lora")

    def flag(self, name: str, written: str, value: str | None) -> None:
        root, _, inner = name.partition(".")
        flag = self.flags.get(root)
        if name in _MODEL_FLAGS and value is not None:
            self.model = value
            self.own_file = self.engine == "llama_cpp" and name in ("m", "model")
        elif name in ("enable-expert-parallel", "ep") and self.engine == "vllm":
            self.experts = True
        elif name == "enable-lora":
            self.fields.setdefault("max_loras", _DEFAULT_LORAS.get(self.engine, 1))
        elif root in self.specials and value is not None:
            self.specials[root](json.dumps({inner: _plain(value)}) if inner else value)
        elif flag is not None and inner and flag.kind == "json" and value is not None:
            self.fields[flag.field] = {**(self.fields.get(flag.field) or {}), inner: _plain(value)}
        elif flag is not None and not inner:
            self._set(flag, written, value)
        elif (self.engine, name) in _ADAPTER_FILES and value is not None:
            self.fields["max_loras"] = self.fields.get("max_loras", 0) + len(value.split(","))
            self.kept += [written, value]
        elif name in SETS.get(self.engine, {}):
            field, set_to = SETS[self.engine][name]
            self.fields[field] = set_to
        elif self.engine == "llama_cpp" and name in ("hf-file", "hff") and value is not None:
            self.file = value
        elif self.engine == "llama_cpp" and name in _PROJECTOR_FILES and value is not None:
            self.fields.setdefault("mmproj", "gpu")
            self.kept += [written, value]
        elif name in HARMLESS[self.engine]:
            self.kept += [written] if value is None else [written, value]
        elif SECRET.search(name):
            if name not in _SECRET:
                self.unknown.append(written)
        else:
            self.unknown.append(written)
            self.kept += [written] if value is None else [written, value]

    def _set(self, flag: Flag, written: str, value: str | None) -> None:
        if not flag.takes_value:
            self.fields[flag.field] = flag.kind == "on"
            return
        if value is None:
            if flag.field in _ON_OFF:
                self.fields[flag.field] = True
                return
            raise PlanError("command.bad_value", field=flag.field, text=written)
        try:
            read = flag.read(value)
        except (ValueError, OverflowError, RecursionError):
            if flag.spelled is None:
                raise PlanError("command.bad_value", field=flag.field, text=value[:60]) from None
            if value.lower() not in flag.quiet:
                self.unknown.append(written)
            self.kept += [written, value]
            return
        if flag.field in _ON_OFF:
            read = None if read == "auto" else read == "on"
        if self.engine == "llama_cpp" and flag.field == "n_gpu_layers" and value == "all":
            read = _ALL_LAYERS
        if self.engine == "llama_cpp" and flag.field == "max_model_len" and read == 0:
            read = None  # the model's own
        if read is not None:
            self.fields[flag.field] = read

    def _speculative(self, value: str) -> None:
        try:
            config = json.loads(value)
        except (ValueError, RecursionError):
            raise PlanError("command.bad_value", field="speculative", text=value[:60]) from None
        if not isinstance(config, dict):
            raise PlanError("command.bad_value", field="speculative", text=value[:60])
        method = config.get("method")
        model = config.get("model")
        if method is None and isinstance(model, str) and "speculative" not in self.fields:
            method = _method_of_name(model)
        if method is not None:
            self.fields["speculative"] = "mtp" if "mtp" in str(method) else str(method)
        if isinstance(model, str) and "ngram" not in model:
            self.fields["draft_model"] = model
        if isinstance(config.get("num_speculative_tokens"), int):
            self.fields["draft_tokens"] = config["num_speculative_tokens"]

    def _drafter(self, value: str) -> None:
        """vLLM's flag before it had a JSON object for all of it."""
        if value == "[ngram]":
            self.fields["speculative"] = "ngram"
        else:
            self.fields |= {"speculative": _method_of_name(value), "draft_model": value}

    def _drafted(self, value: str) -> None:
        if not value.isdigit():
            raise PlanError("command.bad_value", field="draft_tokens", text=value[:60])
        self.fields["draft_tokens"] = int(value)

    def _algorithm(self, value: str) -> None:
        known = {written: method for method, written in _SGLANG_METHODS.items()} | {"MTP": "mtp"}
        self.fields["speculative"] = known.get(value.upper(), value.lower())

    def command(self) -> Command:
        fields = self.fields
        ranks = [int(fields.get(name, 1)) for name in ("tp", "pp", "dp")]
        spread = 1 if fields.get("dp_attention") else ranks[2]
        if self.experts:
            fields["ep"] = ranks[0] * ranks[2]
        needed = ranks[0] * ranks[1] * spread
        if needed > 1 or "n_gpus" in fields:
            fields["n_gpus"] = max(needed, int(fields.get("n_gpus", 1)))
        if self.engine == "llama_cpp":
            _one_type(fields)
        if self.own_file:
            fields.setdefault("mmproj", "none")  # a file of one's own comes without its projector
        model = self.model if self.file is None else f"{self.model.partition(':')[0]}:{self.file}"
        return Command(
            engine=self.engine, model=model, fields=fields, kept=tuple(self.kept),
            unknown=tuple(dict.fromkeys(self.unknown)),
        )  # fmt: skip


def _one_type(fields: dict[str, Any]) -> None:
    """Values keep their default, 16 bits, where keys alone are given another type; the same type needs one field."""
    keys = fields.get("kv_cache_dtype", "fp16")
    if fields.setdefault("v_cache_dtype", "fp16") == keys:
        del fields["v_cache_dtype"]


def _method_of_name(model: str) -> str:
    """The method that vLLM takes from a draft model's name (vllm/config/speculative.py)."""
    lowered = model.lower()
    for method in ("eagle3", "eagle", "medusa"):
        if method in lowered:
            return method
    return "draft_model"


def _plain(value: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _is_number(word: str) -> bool:
    return re.fullmatch(r"-\d+(\.\d+)?", word) is not None


def _is_value(word: str) -> bool:
    return not word.startswith("-") or _is_number(word)
