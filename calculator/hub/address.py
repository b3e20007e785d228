"""What a person typed as the address of a model, checked before any request is made.

Understood are ``org/name``, ``name`` (the hub's oldest models have no organisation), both with ``@revision`` and, for
GGUF, with ``:FILE`` or ``:MIX`` as ollama writes it (before or after the revision), ``hf://org/name``, and the
addresses that a browser shows: ``https://huggingface.co/org/name`` with or without ``/tree/REVISION``,
``/blob/REVISION/FILE``, ``/resolve/...``, ``/raw/...``, ``/commit/...``, also of a mirror.
"""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils._validators import validate_repo_id

from calculator.base import Frozen
from calculator.errors import ModelIdError

LONGEST_ADDRESS = 512
HUB_HOSTS = frozenset({"huggingface.co", "www.huggingface.co", "hf.co", "hf-mirror.com", "www.hf-mirror.com"})

_REPO = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*(/[A-Za-z0-9_][A-Za-z0-9_.\-]*)?", re.ASCII)
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-+]*(/[A-Za-z0-9_][A-Za-z0-9_.\-+]*)*", re.ASCII)
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-+/]{0,200}", re.ASCII)
_LOOKS_LIKE_TOKEN = re.compile(r"(hf|api_org)_[A-Za-z0-9]{16,}")
_HOST_FIRST = re.compile(r"(https?://|hf://)|([a-z0-9\-]+\.)+(co|com|cn|ai|org|net|io)/", re.IGNORECASE)
_NOT_MODELS = {"datasets", "spaces", "docs", "papers", "collections", "blog", "learn", "organizations", "join", "login"}
_REVISION_VERBS = {"tree", "blob", "resolve", "raw", "commit", "commits", "blame"}


class Address(Frozen):
    """A repository of the hub and, where they were named, a branch, tag or commit of it, and a GGUF file or mix."""

    repo: str
    revision: str | None = None
    file: str | None = None

    def __str__(self) -> str:
        file = "" if self.file is None else f":{self.file}"
        return f"{self.repo}{file}" if self.revision is None else f"{self.repo}{file}@{self.revision}"


def parse_address(written: str, endpoint: str = "") -> Address:
    """The repository and revision that ``written`` names; ``endpoint`` is a further host to accept.

    Raises ``ModelIdError``: "hub.id_empty", "hub.id_long", "hub.id_is_token", "hub.id_malformed",
    "hub.revision_malformed", "hub.file_malformed", "hub.other_host" or "hub.not_a_model". No text that may be a token
    is repeated in them.
    """
    wanted = written.strip().strip("\"'`<>").strip()
    if not wanted:
        raise ModelIdError("hub.id_empty", field="model")
    if len(wanted) > LONGEST_ADDRESS:
        raise ModelIdError("hub.id_long", field="model", limit_count=LONGEST_ADDRESS)
    if _LOOKS_LIKE_TOKEN.search(wanted):
        raise ModelIdError("hub.id_is_token", field="model")
    if _HOST_FIRST.match(wanted):
        return _from_url(wanted, endpoint)
    return _with_revision(wanted.rstrip("/"))


def checked(repo: str, revision: str | None, file: str | None = None) -> Address:
    """An address whose parts are well formed; raises as ``parse_address``."""
    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise ModelIdError("hub.id_malformed", field="model", id=repo) from error
    if not _REPO.fullmatch(repo):
        raise ModelIdError("hub.id_malformed", field="model", id=repo)
    if revision is not None and (len(revision) > 128 or ".." in revision or not _REVISION.fullmatch(revision)):
        raise ModelIdError("hub.revision_malformed", field="revision", id=repo, revision=revision)
    if file is not None and (".." in file or not _FILE.fullmatch(file)):
        raise ModelIdError("hub.file_malformed", field="model", id=repo, file=file[:80])
    return Address(repo=repo, revision=revision, file=file)


def _with_revision(written: str) -> Address:
    """``repo[:file][@revision]`` or ``repo[@revision][:file]``: neither name holds the other's sign."""
    named, at, rest = written.partition("@")
    revision, late, after = rest.partition(":")
    repo, early, before = named.partition(":")
    if early and late:
        raise ModelIdError("hub.file_malformed", field="model", id=repo[:96], file=f"{before}:{after}"[:80])
    return checked(repo, revision if at else None, before if early else after if late else None)


def _from_url(written: str, endpoint: str) -> Address:
    if written.lower().startswith("hf://"):
        return _with_revision(written[len("hf://") :].strip("/").removeprefix("models/"))
    try:
        url = urlsplit(written if "://" in written else f"https://{written}")
        host, port = (url.hostname or "").lower(), url.port
    except ValueError as error:
        raise ModelIdError("hub.id_malformed", field="model", id=written[:80]) from error
    own = urlsplit(endpoint)
    if host not in HUB_HOSTS and (host, port) != (own.hostname, own.port):
        raise ModelIdError("hub.other_host", field="model", host=host)
    prefix = [p for p in own.path.split("/") if p] if host == own.hostname else []
    segments = [unquote(p) for p in url.path.split("/") if p]
    segments = segments[len(prefix) :] if segments[: len(prefix)] == prefix else segments
    if segments[:2] == ["api", "models"]:
        segments = segments[2:]
        segments = ["tree" if i in (1, 2) and s == "revision" else s for i, s in enumerate(segments)]
    if not segments or segments[0] in _NOT_MODELS:
        raise ModelIdError("hub.not_a_model", field="model", path=url.path[:80])
    verb = next((i for i in (1, 2) if i < len(segments) and segments[i] in _REVISION_VERBS), None)
    if verb is None:
        return _with_revision("/".join(segments[:2]))
    if verb + 1 >= len(segments):
        return checked("/".join(segments[:verb]), None)
    named = segments[verb + 1 :]
    # A pull request's revision has slashes of its own, which browsers do not always escape.
    deep = 3 if named[:2] == ["refs", "pr"] else 1
    file = "/".join(named[deep:])
    return checked("/".join(segments[:verb]), "/".join(named[:deep]), file if file.endswith(".gguf") else None)
