"""The link: settings to a short query and back, version 1. Pure, no Streamlit.

``encode`` drops what is at its default, so a link says only what somebody chose; the defaults are therefore part of
the format, and changing one asks for a new ``VERSION``. ``decode`` takes any text whatsoever: what it cannot use it
names and leaves at the default, so an old, cut or forged link still opens the page.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args, get_origin
from urllib.parse import quote, urlencode

from pydantic import BaseModel, StringConstraints, TypeAdapter, ValidationError

from calculator import hardware
from calculator.errors import UnknownGpuError
from calculator.serving.plan import ServingPlan
from calculator.training.plan import Adapter, TrainingPlan
from ui import compact
from ui.settings import (
    CONTEXT_FIELDS,
    ConfigChoice,
    FileName,
    HubChoice,
    Language,
    ModelChoice,
    Page,
    PresetChoice,
    Revision,
    Settings,
)

VERSION = "1"

TRAINING_KEYS: Mapping[str, str] = MappingProxyType({
    "method": "me", "lora_dropout": "ld", "adapter_dtype": "ad", "base_quant": "q", "base_quant_group": "qg",
    "kbit_prepared": "kp",
    "precision": "pr", "fp8_compute": "f8", "fp8_recipe": "fr", "fp8_param_gather": "fg", "optimizer": "op",
    "optimizer_state_dtype": "os", "grad_dtype": "gd",
    "optimizer_in_backward": "ob", "micro_batch": "b", "seq_len": "t", "grad_accum": "ga", "packed": "pk",
    "checkpointing": "ck", "checkpointing_reentrant": "cr", "checkpoint_every": "ce", "attention": "at", "loss": "lo",
    "compile": "co", "tiled_mlp": "tm", "experts_impl": "xi", "outputs_held": "oh", "framework": "fw",
    "framework_version": "fv", "torch_version": "tv", "transformers_version": "xv", "peft_version": "pv",
    "sharding": "sh", "hsdp_shard_size": "hs", "tp": "tp", "pp": "pp", "vpp": "vp", "pp_schedule": "ps",
    "micro_batches": "mb", "cp": "cp", "ep": "ep", "expert_tp": "et", "sequence_parallel": "sp", "offload": "of",
    "zero_reduce_bucket": "zr", "zero_allgather_bucket": "za", "zero_prefetch_bucket": "zp",
    "zero_max_live_parameters": "zl", "zero_overlap_comm": "zo", "allocator": "al", "max_split_mb": "ms",
    "dropout": "dr",
})  # fmt: skip
ADAPTER_KEYS: Mapping[str, str] = MappingProxyType({"rank": "rk", "targets": "tg", "train_embeddings": "te"})
SERVING_KEYS: Mapping[str, str] = MappingProxyType({
    "engine": "en", "engine_version": "ev", "weights": "w", "kv_cache_dtype": "kv", "memory_fraction": "mf",
    "kv_cache_memory_bytes": "km", "max_model_len": "ml", "max_num_seqs": "mq", "max_num_batched_tokens": "bt",
    "block_size": "bs", "cuda_graphs": "cg", "prefix_caching": "pc", "usage": "us", "sampler": "sm", "runner": "ru",
    "concurrency": "cc", "context_tokens": "ct", "practical_share": "sf", "tp": "stp", "pp": "spp", "dp": "sdp",
    "ep": "sep", "dcp": "sdc", "n_gpu_layers": "gl", "fit": "fi",
    "mmproj": "mm", "ttft_goal_s": "tf", "tpot_goal_s": "to",
    "request_lengths": "rl", "prompt_median_tokens": "rlp", "prompt_spread": "rls", "output_median_tokens": "rlo",
    "output_spread": "rlt", "speculative": "sd", "draft_model": "dm", "draft_tokens": "dt",
    "draft_acceptance": "da", "gpus_per_node": "gn", "max_loras": "nl",
    "max_lora_rank": "nr",
})  # fmt: skip
"""Short keys of the plans' fields. A field that has none yet travels under its own name."""

SHARED_FIELDS = frozenset({"gpu", "gpu_capacity_bytes", "n_gpus"})
ADAPTER_FIELDS = frozenset({"method", "lora_dropout", "adapter_dtype", "base_quant", "kbit_prepared"})
"""Fields of the training plan that only the fine-tuning page offers."""

_IGNORED = re.compile(r"utm_\w+|gclid|fbclid|msclkid|ref|embed|embed_options")
"""What mail programs, search engines and embedding add to an address."""

_WORD = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:+-]*$", max_length=40)]
_MODEL = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:+-]*(/[A-Za-z0-9_.-]+)?$", max_length=120)]
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHOWN_LENGTH = 40
_MOST = 2**60
_CONTEXT = "max_model_len"
"""Written at its default too where somebody has chosen it, so that it does not count as the usual one."""
_NONE = "~"
"""A field that was emptied, so that the framework's or engine's own default holds."""
_DEFAULTS = Settings()

Reason = Literal["value", "unknown", "version", "model"]


@dataclass(frozen=True, slots=True)
class Problem:
    """A parameter of a link that was not used: its key, the start of its value, and why."""

    key: str
    value: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class _Field:
    """One plan field in the link."""

    key: str
    plan: Literal["training", "adapter", "serving"]
    name: str
    adapter: TypeAdapter[Any]
    default: Any
    form: Literal["plain", "sequence", "json"]


def encode(settings: Settings, page: Page) -> dict[str, str]:
    """The query of a page's link; empty where nothing differs from the defaults."""
    query = _encode_shared(settings)
    for field in _fields():
        if _in_scope(field, page):
            value = _value(settings, field)
            if value != field.default or (field.name == _CONTEXT and not settings.usual_context):
                query[field.key] = _text(field, value)
    return {"v": VERSION, **query} if query else {}


def to_query_string(query: Mapping[str, str]) -> str:
    """The part of the address after the question mark. Characters that browsers keep as they are stay readable."""
    return urlencode(query, safe="/@.,~:", quote_via=quote)


def decode(
    query: Mapping[str, str | Sequence[str]], page: Page, base: Settings = _DEFAULTS
) -> tuple[Settings, tuple[Problem, ...]]:
    """Settings of a query, and what in it could not be used.

    What the page's own link would carry but this query lacks is at its default; what belongs to other pages stays as
    in ``base``. Never raises.
    """
    given = {key: value if isinstance(value, str) else (value[-1] if value else "") for key, value in query.items()}
    problems: list[Problem] = []
    if given and given.get("v", VERSION) != VERSION:
        problems.append(_problem("v", given["v"], "version"))
    settings = _decode_shared(given, base, problems)
    changes: dict[str, dict[str, Any]] = {"training": {}, "adapter": {}, "serving": {}}
    for field in _fields():
        if field.key in given:
            changes[field.plan][field.name] = _parsed(field, given[field.key], problems)
        elif _in_scope(field, page):
            changes[field.plan][field.name] = field.default
    training = settings.training
    adapter = (training.adapter or Adapter()).model_copy(update=changes["adapter"])
    known = {"v", *_SHARED_KEYS, *(field.key for field in _fields())}
    problems += [_problem(k, v, "unknown") for k, v in given.items() if k not in known and not _IGNORED.fullmatch(k)]
    usual = settings.usual_context
    chosen = any(f.key in given for f in _fields() if f.plan == "serving" and f.name in CONTEXT_FIELDS)
    if chosen or page == "serving":
        usual = not chosen
    return settings.model_copy(update={
        "usual_context": usual,
        "training": training.model_copy(update={**changes["training"], "adapter": adapter}),
        "serving": settings.serving.model_copy(update=changes["serving"]),
    }), tuple(problems)  # fmt: skip


# ---------------------------------------------------------------------------------- model, hardware, language

_SHARED_KEYS = ("p", "m", "r", "f", "c", "g", "gc", "n", "l", "u")
_CAPACITY: TypeAdapter[int] = TypeAdapter(int)
_N_GPUS: TypeAdapter[int] = TypeAdapter(Annotated[int, *Settings.model_fields["n_gpus"].metadata])
_LANGUAGE: TypeAdapter[Language] = TypeAdapter(Language)
_UNIT: TypeAdapter[Literal["GiB", "GB"]] = TypeAdapter(Literal["GiB", "GB"])
_REVISION: TypeAdapter[str] = TypeAdapter(Revision)
_FILE: TypeAdapter[str] = TypeAdapter(FileName)


def _encode_shared(settings: Settings) -> dict[str, str]:
    query = _encode_model(settings.model)
    if settings.gpu != _DEFAULTS.gpu:
        query["g"] = settings.gpu
    if settings.gpu_capacity_bytes is not None:
        query["gc"] = str(settings.gpu_capacity_bytes)
    if settings.n_gpus != _DEFAULTS.n_gpus:
        query["n"] = str(settings.n_gpus)
    if settings.language is not None:
        query["l"] = settings.language
    if settings.unit != _DEFAULTS.unit:
        query["u"] = settings.unit
    return query


def _encode_model(model: ModelChoice) -> dict[str, str]:
    if model == _DEFAULTS.model:
        return {}
    if isinstance(model, PresetChoice):
        return {"p": model.key}
    if isinstance(model, ConfigChoice):
        return {"c": compact.pack(model.config)}
    query = {"m": model.id}
    if model.revision is not None:
        query["r"] = _short_revision(model.revision)
    if model.file is not None:
        query["f"] = model.file
    return query


def _short_revision(revision: str) -> str:
    """A commit as 27 characters instead of 40; a branch or tag after a tilde."""
    if _COMMIT.fullmatch(revision):
        return base64.urlsafe_b64encode(bytes.fromhex(revision)).decode().rstrip("=")
    return "~" + revision


def _long_revision(text: str) -> str:
    """Raises ``ValueError`` on anything that ``_short_revision`` does not write."""
    if text.startswith("~"):
        return _REVISION.validate_python(text[1:])
    raw = base64.b64decode(text + "=", altchars=b"-_", validate=True) if len(text) == 27 else b""
    if len(raw) != 20:
        raise ValueError("not a commit")
    return raw.hex()


def _decode_shared(given: Mapping[str, str], base: Settings, problems: list[Problem]) -> Settings:
    changes: dict[str, Any] = {
        "model": _decode_model(given, problems),
        "gpu": _DEFAULTS.gpu, "gpu_capacity_bytes": None, "n_gpus": _DEFAULTS.n_gpus,
        "unit": _DEFAULTS.unit, "language": base.language,
    }  # fmt: skip
    for key, name, parse in (
        ("g", "gpu", _gpu_key), ("gc", "gpu_capacity_bytes", _capacity), ("n", "n_gpus", _N_GPUS.validate_python),
        ("l", "language", _LANGUAGE.validate_python), ("u", "unit", _UNIT.validate_python),
    ):  # fmt: skip
        if key in given:
            try:
                changes[name] = parse(given[key])
            except ValueError:
                problems.append(_problem(key, given[key], "value"))
    if changes["gpu"] == hardware.CUSTOM and changes["gpu_capacity_bytes"] is None:
        problems.append(_problem("g", given["g"], "value"))
        changes["gpu"] = _DEFAULTS.gpu
    return base.model_copy(update=changes)


def _gpu_key(text: str) -> str:
    if text == hardware.CUSTOM:
        return text
    try:
        return hardware.find(text[:80]).key
    except UnknownGpuError as error:
        raise ValueError(text[:80]) from error


def _capacity(text: str) -> int:
    value = _CAPACITY.validate_python(text)
    try:
        return hardware.resolve(hardware.CUSTOM, value).total_bytes
    except Exception as error:
        raise ValueError(text[:80]) from error


def _decode_model(given: Mapping[str, str], problems: list[Problem]) -> ModelChoice:
    """The model of a link; the first of hub id, preset and configuration that can be read."""
    if "m" in given:
        try:
            choice = HubChoice(id=given["m"])
        except ValidationError:
            problems.append(_problem("m", given["m"], "model"))
        else:
            return _with_parts(choice, given, problems)
    problems += [_problem(key, given[key], "value") for key in ("r", "f") if key in given and "m" not in given]
    if "p" in given:
        try:
            return PresetChoice(key=given["p"])
        except ValidationError:
            problems.append(_problem("p", given["p"], "model"))
    if "c" in given:
        try:
            return ConfigChoice(config=compact.unpack(given["c"]))
        except ValueError:
            problems.append(_problem("c", given["c"], "model"))
    return _DEFAULTS.model


def _with_parts(choice: HubChoice, given: Mapping[str, str], problems: list[Problem]) -> HubChoice:
    """The hub's model with the revision and the GGUF file that the link names."""
    parts: dict[str, str] = {}
    for key, name, parse in (("r", "revision", _long_revision), ("f", "file", _FILE.validate_python)):
        if key in given:
            try:
                parts[name] = parse(given[key])
            except (ValueError, binascii.Error):
                problems.append(_problem(key, given[key], "value"))
    return choice.model_copy(update=parts)


# ------------------------------------------------------------------------------------------------------ plans


@cache
def _fields() -> tuple[_Field, ...]:
    return (
        *_fields_of(TrainingPlan, "training", TRAINING_KEYS, SHARED_FIELDS | {"adapter"}, _DEFAULTS.training),
        *_fields_of(Adapter, "adapter", ADAPTER_KEYS, frozenset(), _DEFAULTS.training.adapter or Adapter()),
        *_fields_of(ServingPlan, "serving", SERVING_KEYS, SHARED_FIELDS, _DEFAULTS.serving),
    )


def _fields_of(
    model: type[BaseModel],
    plan: Literal["training", "adapter", "serving"],
    keys: Mapping[str, str],
    left_out: Iterable[str],
    defaults: BaseModel,
) -> list[_Field]:
    fields = []
    for name, info in model.model_fields.items():
        if name in left_out:
            continue
        kind: Any = Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation
        if info.annotation is str:
            kind = _WORD
        elif name == "draft_model":
            kind = _MODEL | None
        elif info.annotation == str | None:
            kind = _WORD | None
        default = getattr(defaults, name)
        fields.append(_Field(keys.get(name, name), plan, name, TypeAdapter(kind), default, _form(info.annotation)))
    return fields


def _form(annotation: Any) -> Literal["plain", "sequence", "json"]:
    kinds = {get_origin(part) or part for part in (annotation, *get_args(annotation))}
    if tuple in kinds:
        return "sequence"
    if dict in kinds:
        return "json"
    return "plain"


def _in_scope(field: _Field, page: Page) -> bool:
    """Whether a page's link carries the field."""
    if page == "accuracy":
        return False
    if field.plan == "serving" or page == "serving":
        return field.plan == "serving" and page == "serving"
    return page == "finetuning" or (field.plan == "training" and field.name not in ADAPTER_FIELDS)


def _value(settings: Settings, field: _Field) -> Any:
    if field.plan == "adapter":
        return getattr(settings.training.adapter or Adapter(), field.name)
    return getattr(settings.training if field.plan == "training" else settings.serving, field.name)


def _text(field: _Field, value: Any) -> str:
    if value is None:
        return _NONE
    if field.form == "json":
        return json.dumps(value, separators=(",", ":"), sort_keys=True)
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    if isinstance(value, bool):
        return str(int(value))
    return str(value)


def _parsed(field: _Field, text: str, problems: list[Problem]) -> Any:
    try:
        given: Any = text[:200]
        if text == _NONE:
            given = None
        elif field.form == "sequence":
            given = tuple(filter(None, given.split(",")))
        elif field.form == "json":
            given = json.loads(given)
        value = field.adapter.validate_python(given)
        if isinstance(value, int) and value > _MOST:
            raise ValueError("beyond every memory there is")
        return value
    except (ValidationError, ValueError, OverflowError, RecursionError):
        problems.append(_problem(field.key, text, "value"))
        return field.default


def _problem(key: str, value: str, reason: Reason) -> Problem:
    return Problem(key[:_SHOWN_LENGTH], value[:_SHOWN_LENGTH], reason)
