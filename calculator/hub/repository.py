"""A model as the hub holds it: its config.json at a commit, what its weight files say, and facts of the repository."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

from calculator.base import Frozen
from calculator.errors import HubAnswerError, NotAConfigError, NotAuthorisedError
from calculator.gguf.files import GgufFile, choose, group_files, projector
from calculator.gguf.header import GgufHeader, read_header
from calculator.hub import facts as about
from calculator.hub.address import Address, checked, parse_address
from calculator.hub.client import Client, FileMissing, Limits, endpoint_from_environment
from calculator.hub.facts import Facts
from calculator.hub.headers import HubFiles, WeightHeaders, from_hub_totals, read_headers
from calculator.jsonin import LIMIT_BYTES, parse_object
from calculator.text import text

INFO_LIMIT_BYTES = 16_000_000
CONFIG_NAME = "config.json"
SIDECAR_NAME = "hf_quant_config.json"
CACHE_SECONDS = 600.0
CACHE_ENTRIES = 64


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


class GgufModel(Frozen):
    """A GGUF model of the hub: the heads of its file or, in order, of its parts, and of the projector beside it."""

    facts: Facts
    file: GgufFile
    headers: tuple[GgufHeader, ...]
    projector_file: GgufFile | None = None
    projector_headers: tuple[GgufHeader, ...] = ()


T = TypeVar("T")

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
    ``HF_TOKEN`` of the environment is, so that whoever sets it lets all visitors see what it may read. Weight headers
    that cannot be read do not fail the call: ``facts.notes`` says why.

    Raises ``ModelIdError``, and a ``HubError`` (see ``calculator.errors``) or ``NotALanguageModelError``.
    """
    endpoint = (endpoint or endpoint_from_environment()).rstrip("/")
    address = parse_address(model_id, endpoint) if isinstance(model_id, str) else model_id
    address = checked(address.repo, revision or address.revision)
    own_token = (token or "").strip() or None
    key = (endpoint, address.repo, address.revision)
    if own_token is None and (kept := _cached(key)) is not None:
        return kept
    model = _with_token(lambda t: _fetch(Client(endpoint, address, t, limits or Limits()), address), own_token)
    # What anybody can read may be shared between visitors; nothing else may.
    if own_token is None and not model.facts.private and not model.facts.gated:
        _keep(key, model)
    return model


def fetch_gguf(
    address: Address, token: str | None = None, *, endpoint: str | None = None, limits: Limits | None = None
) -> GgufModel:
    """The heads of the GGUF file that ``address.file`` names, or of the one that is usually meant, those of the
    projector (mmproj) of the repository, and the facts.

    Raises as ``fetch_model``, and what ``calculator.gguf`` raises for a missing or unreadable file.
    """
    endpoint = (endpoint or endpoint_from_environment()).rstrip("/")
    own_token = (token or "").strip() or None
    return _with_token(lambda t: _fetch_gguf(Client(endpoint, address, t, limits or Limits()), address), own_token)


def _fetch_gguf(client: Client, address: Address) -> GgufModel:
    info = _info(client, address)
    repo, files = about.own_name(info, address), about.files(info)
    revision = about.revision(info, address)
    grouped = group_files(files)
    file, beside = choose(grouped, address.file), projector(grouped)
    source = HubFiles(client, repo, revision)

    def heads(of: GgufFile) -> tuple[GgufHeader, ...]:
        return tuple(read_header(partial(source.part, name), name) for name in of.names)

    try:
        headers, projected = heads(file), heads(beside) if beside is not None else ()
    except FileMissing:
        raise HubAnswerError("hub.malformed", id=str(address), file=file.names[0]) from None
    return GgufModel(
        facts=about.facts(info, repo, revision, files, {}, ()), file=file, headers=headers, projector_file=beside,
        projector_headers=projected,
    )  # fmt: skip


def clear_cache() -> None:
    """Forget what was fetched, as after a change of the model on the hub."""
    with _cache_lock:
        _cache.clear()


def _with_token(fetch: Callable[[str | None], T], own_token: str | None) -> T:
    """Fetch with the person's token, else with the environment's, else with none: a visitor who gave no token is not
    told that somebody else's has expired."""
    shared = os.environ.get("HF_TOKEN", "").strip() or None
    if own_token is not None or shared is None:
        return fetch(own_token)
    try:
        return fetch(shared)
    except NotAuthorisedError as error:
        if error.field != "token" or error.key == "hub.forbidden":
            raise
        return fetch(None)


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
    repo = about.own_name(info, address)
    files = about.files(info)
    revision = about.revision(info, address)
    try:
        config_json = _json_text(client, repo, revision, CONFIG_NAME)
    except FileMissing:
        raise about.no_config(str(address), info, files) from None
    sidecar_json = None
    if SIDECAR_NAME in files:
        try:
            sidecar_json = _json_text(client, repo, revision, SIDECAR_NAME)
        except FileMissing:
            raise HubAnswerError("hub.malformed", id=str(address), file=SIDECAR_NAME) from None
    headers, note = read_headers(HubFiles(client, repo, revision), tuple(files))
    notes = () if note is None else (note,)
    if headers is None:
        weight_files = sum(name.endswith(".safetensors") for name in files)
        headers = from_hub_totals(about.totals(info), weight_files)
        notes = notes if headers is None else (*notes, text("hub.totals_used"))
    return HubModel(
        endpoint=client.endpoint,
        address=address,
        config_json=config_json,
        sidecar_json=sidecar_json,
        headers=headers,
        facts=about.facts(info, repo, revision, files, parse_object(config_json), notes),
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
