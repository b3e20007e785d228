"""Requests to the hub, bounded in every direction: time, size, retries and where a redirect may lead.

The session, its headers and its offline switch are ``huggingface_hub``'s; the loop around it is here because that
library's own downloads read an answer of any size, wait as long as the server asks, and write to disk.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn
from urllib.parse import quote, urljoin, urlsplit

import httpx2
from huggingface_hub import constants, get_session
from huggingface_hub.errors import OfflineModeIsEnabled
from huggingface_hub.utils._headers import build_hf_headers
from huggingface_hub.utils._http import parse_ratelimit_headers

from calculator.base import Frozen
from calculator.errors import (
    GatedModelError,
    HubAnswerError,
    HubError,
    HubOfflineError,
    HubTimeoutError,
    ModelNotFoundError,
    NotAuthorisedError,
    RateLimitedError,
)
from calculator.hub.address import Address

RETRIED_STATUS = frozenset({408, 429, 500, 502, 503, 504})
REDIRECT_STATUS = frozenset({301, 302, 303, 307, 308})
MOST_REDIRECTS = 5
STORAGE_DOMAINS = ("huggingface.co", "hf.co")
"""Where the hub sends a reader for the bytes of a large file, besides hosts below the endpoint's own. The token does
not travel there."""


class Limits(Frozen):
    """How long and how often: per request, over all requests, and between two attempts."""

    request_s: float = 10.0
    overall_s: float = 30.0
    attempts: int = 3
    first_wait_s: float = 0.5
    longest_wait_s: float = 6.0


@dataclass(frozen=True)
class Answer:
    """A successful answer. ``body`` holds at most as many bytes as were asked for."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(eq=False)
class _Retry(Exception):  # noqa: N818 - not an error, a turn of the loop
    """The attempt failed in a way that another may cure; ``wait_s`` is what the server asked for."""

    final: HubError
    wait_s: float | None = None


class FileMissing(Exception):  # noqa: N818 - an answer, which the caller may well expect
    """The repository has no file of that name at that revision."""


def endpoint_from_environment() -> str:
    """``HF_ENDPOINT`` as it is now, else the public hub, without a trailing slash."""
    return (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")


@dataclass
class Client:
    """One errand at the hub: a deadline that all of its requests share, and at most one token.

    ``repo`` names the model in errors. The token is kept out of ``repr``, and no error carries it.
    """

    endpoint: str
    repo: Address
    token: str | None = field(default=None, repr=False)
    limits: Limits = field(default_factory=Limits)
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    started_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.started_s = self.clock()
        if urlsplit(self.endpoint).scheme not in ("http", "https") or not urlsplit(self.endpoint).hostname:
            raise HubOfflineError("hub.bad_endpoint", endpoint=self.endpoint[:80])
        if self.token is not None and not (self.token.isascii() and self.token.isprintable() and " " not in self.token):
            raise NotAuthorisedError("hub.token_malformed", field="token")

    @property
    def remaining_s(self) -> float:
        return self.started_s + self.limits.overall_s - self.clock()

    def api(self, path: str, limit_bytes: int) -> Answer:
        """GET of ``/api/...``."""
        return self.get(f"{self.endpoint}/api/{path}", limit_bytes=limit_bytes)

    def file(self, repo: str, revision: str, name: str, limit_bytes: int) -> Answer:
        """The whole of a small file of the repository."""
        return self.get(self.file_url(repo, revision, name), limit_bytes=limit_bytes)

    def file_range(self, repo: str, revision: str, name: str, start: int, length: int) -> bytes:
        """Up to ``length`` bytes of a file from ``start`` on; fewer if the file ends before."""
        url = self.file_url(repo, revision, name)
        return self.get(url, limit_bytes=length, start=start, ranged=True).body

    def file_url(self, repo: str, revision: str, name: str) -> str:
        return f"{self.endpoint}/{repo}/resolve/{quote(revision, safe='')}/{quote(name)}"

    def get(self, url: str, *, limit_bytes: int, start: int = 0, ranged: bool = False) -> Answer:
        """GET with retries. Raises a ``HubError``, or ``FileMissing`` where the repository lacks the file."""
        wait_s = self.limits.first_wait_s
        for attempt in range(1, self.limits.attempts + 1):
            try:
                return self._attempt(url, limit_bytes, start, ranged)
            except _Retry as failed:
                asked_s = failed.wait_s if failed.wait_s is not None else wait_s
                if attempt == self.limits.attempts or asked_s > min(self.limits.longest_wait_s, self.remaining_s):
                    raise failed.final from None
                self.sleep(asked_s)
                wait_s = min(2 * wait_s, self.limits.longest_wait_s)
        raise AssertionError("the last attempt returns or raises")

    def _attempt(self, url: str, limit_bytes: int, start: int, ranged: bool) -> Answer:
        headers = dict(build_hf_headers(token=self.token or False, library_name="vram-bill"))
        headers["accept-encoding"] = "identity"
        if ranged:
            headers["range"] = f"bytes={start}-{start + limit_bytes - 1}"
        try:
            for _ in range(MOST_REDIRECTS):
                timeout = min(self.limits.request_s, self.remaining_s)
                if timeout <= 0:
                    raise HubTimeoutError("hub.timeout", id=str(self.repo), seconds_count=round(self.limits.overall_s))
                with get_session().stream(
                    "GET", url, headers=headers, timeout=timeout, follow_redirects=False
                ) as response:
                    if response.status_code not in REDIRECT_STATUS:
                        return self._read(response, limit_bytes, start, ranged)
                    url = self._redirected(url, response.headers.get("location", ""), headers)
        except OfflineModeIsEnabled:
            raise HubOfflineError("hub.offline_mode") from None
        except httpx2.TimeoutException:
            seconds = round(self.limits.request_s)
            raise _Retry(HubTimeoutError("hub.timeout", id=str(self.repo), seconds_count=seconds)) from None
        except (httpx2.RemoteProtocolError, httpx2.ReadError):
            raise _Retry(HubAnswerError("hub.truncated", id=str(self.repo))) from None
        except (httpx2.NetworkError, httpx2.ProxyError):
            raise _Retry(HubOfflineError("hub.offline", host=urlsplit(self.endpoint).netloc)) from None
        except (httpx2.HTTPError, httpx2.InvalidURL):
            raise HubAnswerError("hub.malformed", id=str(self.repo), file=_leaf(url)) from None
        raise HubAnswerError("hub.redirects", id=str(self.repo))

    def _redirected(self, url: str, location: str, headers: dict[str, str]) -> str:
        """The next address. Off the endpoint only to the hub's own storage, over TLS and without the token."""
        target = urljoin(url, location)
        own, there = urlsplit(self.endpoint), urlsplit(target)
        if (there.scheme, there.netloc) == (own.scheme, own.netloc):
            return target
        host = (there.hostname or "").lower()
        below = tuple(f".{domain}" for domain in (*STORAGE_DOMAINS, own.hostname))
        if there.scheme == "https" and (host in STORAGE_DOMAINS or host.endswith(below)):
            headers.pop("authorization", None)
            return target
        raise HubAnswerError("hub.redirect_elsewhere", id=str(self.repo), host=host[:80])

    def _read(self, response: httpx2.Response, limit_bytes: int, start: int, ranged: bool) -> Answer:
        if response.status_code not in (200, 206):
            self._refuse(response)
        partial = response.status_code == 206
        # A server that ignores the range sends the file from its first byte.
        skip = 0 if partial or not ranged else start
        body = bytearray()
        # Without a chunk size: filling chunks would wait on a trickle, out of the deadline's sight.
        for chunk in response.iter_bytes():
            body += chunk
            if ranged and len(body) >= skip + limit_bytes:
                break
            if not ranged and len(body) > limit_bytes:
                raise HubAnswerError(
                    "hub.oversized", id=str(self.repo), file=_leaf(str(response.url)), limit_bytes=limit_bytes
                )
            if self.remaining_s <= 0:
                raise HubTimeoutError("hub.timeout", id=str(self.repo), seconds_count=round(self.limits.overall_s))
        headers = {name.lower(): value for name, value in response.headers.items()}
        return Answer(response.status_code, headers, bytes(body[skip : skip + limit_bytes] if ranged else body))

    def _refuse(self, response: httpx2.Response) -> NoReturn:
        """The typed error of a status, by the hub's ``X-Error-Code`` first (its 401 has three meanings)."""
        status, code = response.status_code, response.headers.get("x-error-code", "")
        said = response.headers.get("x-error-message", "")
        repo = str(self.repo)
        if status in RETRIED_STATUS:
            if status == 429:
                wait_s = _asked_wait(response.headers)
                limited = RateLimitedError("hub.rate_limited", id=repo, seconds_count=round(wait_s or 60))
                raise _Retry(limited, wait_s)
            raise _Retry(HubAnswerError("hub.server_error", id=repo, status=status), _asked_wait(response.headers))
        if code == "GatedRepo":
            key = "hub.gated" if self.token is None else "hub.gated_token"
            raise GatedModelError(key, id=repo, url=f"{self.endpoint}/{self.repo.repo}")
        if code == "RevisionNotFound":
            raise ModelNotFoundError(
                "hub.no_revision", field="revision", id=self.repo.repo, revision=self.repo.revision or ""
            )
        if code == "EntryNotFound":
            raise FileMissing(_leaf(str(response.url)))
        if status == 401 and self.token is not None and "credentials" in said.lower():
            raise NotAuthorisedError("hub.token_refused", field="token")
        if status == 451 or "disabled" in said.lower():
            raise ModelNotFoundError("hub.disabled", field="model", id=repo)
        if code == "RepoNotFound" or status in (401, 404, 410):
            key = "hub.not_found" if self.token is None else "hub.not_found_token"
            raise ModelNotFoundError(key, field="model", id=repo)
        if status == 403:
            raise NotAuthorisedError("hub.forbidden", field="token", id=repo)
        raise HubAnswerError("hub.refused", id=repo, status=status)


def _asked_wait(headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asks to wait, from ``RateLimit`` or ``Retry-After``; None if it does not say."""
    limits = parse_ratelimit_headers(headers)
    if limits is not None and limits.remaining == 0:
        return float(limits.reset_in_seconds)
    written = headers.get("retry-after", "").strip()
    return float(written) if written.isdigit() and len(written) < 9 else None


def _leaf(url: str) -> str:
    """The last part of an address, without query: a signed address is nobody's business."""
    return urlsplit(url).path.rpartition("/")[2][:80]
