"""What the hub's own description of a repository says, checked field by field: it is data from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from calculator.base import Frozen
from calculator.errors import CalculatorError, ModelIdError, NoConfigError, NotALanguageModelError
from calculator.hub.address import Address, checked
from calculator.text import Text

_COMMIT = re.compile(r"[0-9a-f]{40}")


class RepoFile(Frozen):
    """A file of the repository; ``size_bytes`` None where the hub does not say."""

    name: str
    size_bytes: int | None


class Facts(Frozen):
    """What the hub says about a repository. ``gated`` is "" for an open one, else the way access is granted."""

    repo: str
    commit: str
    private: bool
    gated: str
    library: str
    task: str
    base_model: str | None
    quantized_by: str | None
    gguf_files: tuple[RepoFile, ...]
    notes: tuple[Text, ...] = ()


def revision(info: Mapping[str, Any], address: Address) -> str:
    """The commit that all further requests name, so that a push between two of them changes nothing."""
    commit = info.get("sha")
    return commit if isinstance(commit, str) and _COMMIT.fullmatch(commit) else address.revision or "main"


def own_name(info: Mapping[str, Any], address: Address) -> str:
    """The repository's present name, which a moved or short-named one reports."""
    named = info.get("id")
    return checked(named, None).repo if isinstance(named, str) else address.repo


def files(info: Mapping[str, Any]) -> dict[str, int | None]:
    """File names and sizes."""
    found: dict[str, int | None] = {}
    siblings = info.get("siblings")
    for entry in siblings if isinstance(siblings, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("rfilename"), str):
            size = entry.get("size")
            found[entry["rfilename"]] = size if type(size) is int and size >= 0 else None
    return found


def totals(info: Mapping[str, Any]) -> dict[str, int]:
    published = info.get("safetensors")
    by_dtype = published.get("parameters") if isinstance(published, dict) else None
    if not isinstance(by_dtype, dict):
        return {}
    return {dtype: n for dtype, n in by_dtype.items() if type(n) is int and n >= 0}


def no_config(id_: str, info: Mapping[str, Any], files: Mapping[str, int | None]) -> CalculatorError:
    """Why a repository without config.json has none, as far as its files tell."""
    base = base_model(info)
    if "model_index.json" in files:
        return NotALanguageModelError("hub.not_language_model", field="model", id=id_)
    if "adapter_config.json" in files:
        key = "hub.adapter_of" if base else "hub.adapter_only"
        return NoConfigError(key, field="model", id=id_, base=base or "")
    if any(name.endswith(".gguf") for name in files):
        key = "hub.gguf_of" if base else "hub.gguf_only"
        return NoConfigError(key, field="model", id=id_, base=base or "")
    return NoConfigError("hub.no_config", field="model", id=id_)


def base_model(info: Mapping[str, Any]) -> str | None:
    card = info.get("cardData")
    named = card.get("base_model") if isinstance(card, dict) else None
    for candidate in named if isinstance(named, list) else [named]:
        if isinstance(candidate, str):
            try:
                return checked(candidate, None).repo
            except ModelIdError:  # a card is free text
                continue
    return None


def facts(
    info: Mapping[str, Any],
    repo: str,
    commit: str,
    files: Mapping[str, int | None],
    config: Mapping[str, Any],
    notes: tuple[Text, ...],
) -> Facts:
    gated = info.get("gated")
    return Facts(
        repo=repo,
        commit=commit,
        private=info.get("private") is True,
        gated=gated if isinstance(gated, str) else "auto" if gated is True else "",
        library=_word(info.get("library_name")),
        task=_word(info.get("pipeline_tag")),
        base_model=base_model(info),
        quantized_by=_quantized_by(config),
        gguf_files=tuple(RepoFile(name=n, size_bytes=s) for n, s in sorted(files.items()) if n.endswith(".gguf")),
        notes=notes,
    )


def _word(value: object) -> str:
    return value[:80] if isinstance(value, str) else ""


def _quantized_by(config: Mapping[str, Any]) -> str | None:
    """The ``quant_method`` of the config, wherever its dialect keeps it."""
    for holder in (config, config.get("text_config")):
        if isinstance(holder, dict):
            for key in ("quantization_config", "compression_config", "quantization"):
                if isinstance(part := holder.get(key), dict):
                    return _word(part.get("quant_method")) or "unnamed"
    return None
