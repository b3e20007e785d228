"""Variables of the environment as settings of a plan, and back.

Text Generation Inference's launcher takes each of its options from the variable of the same name, llama-server most of
them from ``LLAMA_ARG_...``. vLLM, SGLang and the launcher have settings that only a variable says. Sources:
vllm/envs.py, vllm/distributed/utils.py, sglang/srt/distributed/utils.py, launcher/src/main.rs and
server/text_generation_server/models/globals.py of text-generation-inference, tools/server/README.md of llama.cpp.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from calculator.errors import PlanError
from calculator.serving.flags import FLAGS, SETS
from calculator.serving.harmless import HARMLESS, SECRET, VARIABLES
from calculator.serving.plan import Engine, ServingPlan
from calculator.serving.versions import Version, parse

_LLAMA_ARG = "LLAMA_ARG_"
_OPTIONS: Mapping[str, str] = MappingProxyType({
    "n-parallel": "parallel", "batch": "batch-size", "ubatch": "ubatch-size", "temperature": "temp",
    "endpoint-metrics": "metrics", "endpoint-slots": "slots", "endpoint-props": "props", "think": "reasoning-format",
    "think-budget": "reasoning-budget", "n-predict": "predict",
})  # fmt: skip
"""Options of llama-server whose variable has another name."""
_TRUE = ("1", "t", "true", "on", "yes", "enabled")
_FALSE = ("0", "f", "false", "off", "no", "disabled")
_MODELS = frozenset(("model-id", "model", "hf-repo", "hf-file", "mmproj", "lora-adapters"))
_DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_PARTITION: Mapping[str, str] = MappingProxyType({
    "vllm": "VLLM_PP_LAYER_PARTITION", "sglang": "SGLANG_PP_LAYER_PARTITION",
})  # fmt: skip
_VALUES: Mapping[tuple[str, str, str], tuple[str, Any]] = MappingProxyType({
    ("vllm", "VLLM_USE_V1", "0"): ("runner", "v0"), ("vllm", "VLLM_USE_V1", "1"): ("runner", "v1"),
    ("vllm", "VLLM_USE_V2_MODEL_RUNNER", "1"): ("runner", "v2"),
    ("vllm", "VLLM_USE_V2_MODEL_RUNNER", "0"): ("runner", "v1"),
    ("vllm", "VLLM_MLA_DISABLE", "1"): ("mla", False),
    ("vllm", "VLLM_USE_FLASHINFER_SAMPLER", "1"): ("sampler", "flashinfer"),
    ("tgi", "PREFIX_CACHING", "1"): ("prefix_caching", True), ("tgi", "PREFIX_CACHING", "0"): ("prefix_caching", False),
    ("tgi", "USE_PREFIX_CACHING", "1"): ("prefix_caching", True),
    ("tgi", "USE_PREFIX_CACHING", "0"): ("prefix_caching", False),
})  # fmt: skip
_SECOND_RUNNER: Version = (0, 12, 0)
"""The release from which V0 is gone, so that the choice is between the two runners of V1."""


def options(engine: Engine, environment: dict[str, str]) -> Iterator[tuple[str, str | None]]:
    """The engine's flags that variables stand for, with their values; those variables leave ``environment``."""
    for variable, value in list(environment.items()):
        name = _option(engine, variable)
        if name is None:
            continue
        del environment[variable]
        flag = next((flag for flag in FLAGS[engine] if name in flag.names), None)
        if name in _MODELS or (flag.takes_value if flag is not None else not _truth(value)):
            yield name, value
        elif value.strip().lower() in _TRUE:
            yield name, None
        elif f"no-{name}" in SETS.get(engine, {}):
            yield f"no-{name}", None


def read(
    engine: Engine, environment: Mapping[str, str], fields: dict[str, Any]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """``fields`` take what the variables set. The assignments that are kept, and the names that were not understood.

    Raises ``PlanError`` ("command.bad_value")."""
    kept, unknown = [], []
    for name, written in environment.items():
        value = written.strip()
        known = _VALUES.get((engine, name, value))
        if name in _DEVICES:
            listed = len([part for part in value.split(",") if part.strip()])
            if listed:
                fields["n_gpus"] = max(listed, int(fields.get("n_gpus", 1)))
        elif name == _PARTITION.get(engine):
            try:
                fields["pp_layer_partition"] = tuple(int(part) for part in value.split(","))
            except ValueError:
                raise PlanError("command.bad_value", field="pp_layer_partition", text=f"{name}={value}"[:60]) from None
        elif known is not None:
            fields[known[0]] = known[1]
        elif not SECRET.search(name):
            if not is_harmless(engine, name):
                unknown.append(name)
            kept.append(f"{name}={written}")
    return tuple(kept), tuple(unknown)


def is_harmless(engine: str, name: str) -> bool:
    own = VARIABLES.get(engine)
    return VARIABLES[""].fullmatch(name) is not None or (own is not None and own.fullmatch(name) is not None)


def written(plan: ServingPlan) -> list[str]:
    """The plan's settings that only the environment takes, as assignments."""
    found = []
    ranks = 1 if plan.engine in ("llama_cpp", "ollama") else plan.tp * plan.pp * (1 if plan.dp_attention else plan.dp)
    if plan.n_gpus > ranks:
        found.append("CUDA_VISIBLE_DEVICES=" + ",".join(str(number) for number in range(plan.n_gpus)))
    if plan.pp_layer_partition is not None and plan.engine in _PARTITION:
        found.append(f"{_PARTITION[plan.engine]}={','.join(map(str, plan.pp_layer_partition))}")
    for field, value in (("runner", plan.runner), ("mla", plan.mla), ("sampler", plan.sampler),
                         ("prefix_caching", plan.prefix_caching)):  # fmt: skip
        said = [(name, set_to) for (engine, name, set_to), meant in _VALUES.items()
                if engine == plan.engine and meant == (field, value) and type(meant[1]) is type(value)]  # fmt: skip
        if said:
            name, set_to = said[-1] if field == "runner" and _two_runners(plan) else said[0]
            found.append(f"{name}={set_to}")
    return found


def split_kept(kept: Iterable[str]) -> tuple[list[str], list[str]]:
    """The assignments at the beginning of the words that are kept, quoted for a shell, and the rest."""
    rest = list(kept)
    found = []
    while rest and re.match(r"[A-Za-z_]\w*=", rest[0]):
        name, _, value = rest.pop(0).partition("=")
        found.append(f"{name}={shlex.quote(value)}")
    return found, rest


def _two_runners(plan: ServingPlan) -> bool:
    return plan.engine_version is None or parse(plan.engine_version) >= _SECOND_RUNNER


def _option(engine: Engine, variable: str) -> str | None:
    """The option that the variable stands for; None where it is none of this engine's that are known."""
    if engine == "llama_cpp" and variable.startswith(_LLAMA_ARG):
        name = variable.removeprefix(_LLAMA_ARG).lower().replace("_", "-")
        name = _OPTIONS.get(name, name)
    elif engine == "tgi" and variable.isupper():
        name = variable.lower().replace("_", "-")
    else:
        return None
    known = {name for flag in FLAGS[engine] for name in flag.names}
    known |= HARMLESS[engine] | _MODELS | set(SETS.get(engine, {}))
    known |= {f"{name.removeprefix('no-')}" for name in SETS.get(engine, {})}
    return name if name in known else None


def _truth(value: str) -> bool:
    return value.strip().lower() in (*_TRUE, *_FALSE)
