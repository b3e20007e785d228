"""A model as the hub holds it: its config.json at a commit, what its weight files say, and facts of the repository."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from calculator.base import Frozen
from calculator.errors import (
    CalculatorError,
    HubAnswerError,
    ModelIdError,
    NoConfigError,
    NotAConfigError,
    NotALanguageModelError,
)
from calculator.hub.address import Address, checked, parse_address
from calculator.hub.client import Client, FileMissing, Limits, endpoint_from_environment
from calculator.hub.headers import HubFiles, WeightHeaders, from_hub_totals, read_headers
from calculator.jsonin import LIMIT_BYTES, parse_object
from calculator.text import Text, text

INFO_LIMIT_BYTES = 16_000_000
CONFIG_NAME = "config.json"
SIDECAR_NAME = "hf_quant_config.json"
CACHE_SECONDS = 600.0
CACHE_ENTRIES = 64

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
    weight_file_bytes: int | None
    notes: tuple[Text, ...] = ()


class HubModel(Frozen):
    """What was read of one model at one commit. The JSON is kept as text, so that a cached value cannot be changed."""

    endpoint: str
    address: Address
    config_json: str
    sidecar_json: str | None
    headers: WeightHeaders | None
    facts: Facts

    @property
    def config(self) -> dict[str, Any]:
        return parse_object(self.config_json)

    @property
    def sidecar(self) -> dict[str, Any] | None:
        return None if self.sidecar_json is None else parse_object(self.sidecar_json)

    @property
    def commit(self) -> str:
        return self.facts.commit


_cache: dict[tuple[str, str, str | None], tuple[float, HubModel]] = {}
_cache_lock = threading.Lock()


def fetch_model(
    model_id: str | Address,
    revision: str | None = None,
    token: str | None = None,
    *,
    endpoint: str | None = None,
    limits: Limits | None = None,
) -> HubModel:
    """Config, weight headers and facts of a model, from the endpoint that ``HF_ENDPOINT`` names.

    ``revision`` wins over one in ``model_id``. ``token`` is one person's and used for this call only; without it
    ``HF_TOKEN`` of the environment is. Weight headers that cannot be read do not fail the call: ``facts.notes`` says
    why.

    Raises ``ModelIdError``, and a ``HubError`` (see ``calculator.errors``) or ``NotALanguageModelError``.
    """
    endpoint = (endpoint or endpoint_from_environment()).rstrip("/")
    address = parse_address(model_id, endpoint) if isinstance(model_id, str) else model_id
    if revision is not None:
        address = checked(address.repo, revision)
    own_token = (token or "").strip() or None
    key = (endpoint, address.repo, address.revision)
    if own_token is None and (kept := _cached(key)) is not None:
        return kept
    client = Client(endpoint, address, own_token or os.environ.get("HF_TOKEN", "").strip() or None, limits or Limits())
    model = _fetch(client, address)
    # What anybody can read may be shared between visitors; nothing else may.
    if own_token is None and not model.facts.private and not model.facts.gated:
        _keep(key, model)
    return model


def clear_cache() -> None:
    """Forget what was fetched, as after a change of the model on the hub."""
    with _cache_lock:
        _cache.clear()


def _cached(key: tuple[str, str, str | None]) -> HubModel | None:
    with _cache_lock:
        kept = _cache.get(key)
        return kept[1] if kept is not None and time.monotonic() - kept[0] < CACHE_SECONDS else None


def _keep(key: tuple[str, str, str | None], model: HubModel) -> None:
    with _cache_lock:
        _cache[key] = (time.monotonic(), model)
        while len(_cache) > CACHE_ENTRIES:
            del _cache[min(_cache, key=lambda k: _cache[k][0])]


def _fetch(client: Client, address: Address) -> HubModel:
    info = _info(client, address)
    repo = _own_name(info, address)
    files = _files(info)
    commit = info.get("sha")
    revision = commit if isinstance(commit, str) and _COMMIT.fullmatch(commit) else address.revision or "main"
    try:
        config_json = _json_text(client, repo, revision, CONFIG_NAME)
    except FileMissing:
        raise _no_config(client, info, files) from None
    sidecar_json = None
    if SIDECAR_NAME in files:
        try:
            sidecar_json = _json_text(client, repo, revision, SIDECAR_NAME)
        except FileMissing:
            raise HubAnswerError("hub.malformed", id=str(address), file=SIDECAR_NAME) from None
    headers, note = read_headers(HubFiles(client, repo, revision), tuple(files))
    notes = () if note is None else (note,)
    if headers is None and (headers := from_hub_totals(_totals(info), _count(files, ".safetensors"))) is not None:
        notes = (*notes, text("hub.totals_used"))
    return HubModel(
        endpoint=client.endpoint,
        address=address,
        config_json=config_json,
        sidecar_json=sidecar_json,
        headers=headers,
        facts=_facts(info, repo, revision, files, parse_object(config_json), notes),
    )


def _info(client: Client, address: Address) -> dict[str, Any]:
    at = "" if address.revision is None else f"/revision/{quote(address.revision, safe='')}"
    try:
        answer = client.api(f"models/{address.repo}{at}?blobs=true", INFO_LIMIT_BYTES)
        return parse_object(answer.body, limit_bytes=INFO_LIMIT_BYTES)
    except (NotAConfigError, FileMissing):
        raise HubAnswerError("hub.malformed", id=str(address), file="api") from None


def _json_text(client: Client, repo: str, revision: str, name: str) -> str:
    """The text of a small JSON file, checked to be an object."""
    body = client.file(repo, revision, name, LIMIT_BYTES).body
    try:
        parse_object(body)
    except NotAConfigError as error:
        raise HubAnswerError("hub.json_malformed", id=str(client.repo), file=name, reason=error.message) from None
    return body.decode("utf-8-sig", errors="replace")


def _own_name(info: Mapping[str, Any], address: Address) -> str:
    """The repository's present name, which a moved or short-named one reports."""
    named = info.get("id")
    return checked(named, None).repo if isinstance(named, str) else address.repo


def _files(info: Mapping[str, Any]) -> dict[str, int | None]:
    """File names and sizes."""
    files: dict[str, int | None] = {}
    siblings = info.get("siblings")
    for entry in siblings if isinstance(siblings, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("rfilename"), str):
            size = entry.get("size")
            files[entry["rfilename"]] = size if type(size) is int and size >= 0 else None
    return files


def _totals(info: Mapping[str, Any]) -> dict[str, int]:
    published = info.get("safetensors")
    by_dtype = published.get("parameters") if isinstance(published, dict) else None
    if not isinstance(by_dtype, dict):
        return {}
    return {dtype: n for dtype, n in by_dtype.items() if type(n) is int and n >= 0}


def _count(files: Mapping[str, int | None], ending: str) -> int:
    return sum(name.endswith(ending) for name in files)


def _no_config(client: Client, info: Mapping[str, Any], files: Mapping[str, int | None]) -> CalculatorError:
    """Why a repository without config.json has none, as far as its files tell."""
    id_, base = str(client.repo), _base_model(info)
    if "model_index.json" in files:
        return NotALanguageModelError("hub.not_language_model", field="model", id=id_)
    if "adapter_config.json" in files:
        key = "hub.adapter_of" if base else "hub.adapter_only"
        return NoConfigError(key, field="model", id=id_, base=base or "")
    if any(name.endswith(".gguf") for name in files):
        key = "hub.gguf_of" if base else "hub.gguf_only"
        return NoConfigError(key, field="model", id=id_, base=base or "")
    return NoConfigError("hub.no_config", field="model", id=id_)


def _base_model(info: Mapping[str, Any]) -> str | None:
    card = info.get("cardData")
    named = card.get("base_model") if isinstance(card, dict) else None
    for candidate in named if isinstance(named, list) else [named]:
        if isinstance(candidate, str):
            try:
                return checked(candidate, None).repo
            except ModelIdError:  # a card is free text
                continue
    return None


def _facts(
    info: Mapping[str, Any],
    repo: str,
    commit: str,
    files: Mapping[str, int | None],
    config: Mapping[str, Any],
    notes: tuple[Text, ...],
) -> Facts:
    gated = info.get("gated")
    sizes = [size for name, size in files.items() if name.endswith(".safetensors") and "/" not in name]
    return Facts(
        repo=repo,
        commit=commit,
        private=info.get("private") is True,
        gated=gated if isinstance(gated, str) else "auto" if gated is True else "",
        library=_word(info.get("library_name")),
        task=_word(info.get("pipeline_tag")),
        base_model=_base_model(info),
        quantized_by=_quantized_by(config),
        gguf_files=tuple(RepoFile(name=n, size_bytes=s) for n, s in sorted(files.items()) if n.endswith(".gguf")),
        weight_file_bytes=sum(s for s in sizes if s is not None) if sizes and None not in sizes else None,
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
