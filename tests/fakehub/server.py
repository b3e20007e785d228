"""A hub on loopback: the requests that huggingface_hub makes for a model, answered as the real hub answers them.

``GET /api/models/ID[/revision/REV]`` and ``HEAD|GET /ID/resolve/REV/FILE`` with ETag, X-Repo-Commit, byte ranges,
redirects for moved repositories and for large files, and its errors by X-Error-Code. A repository's ``fault`` makes it
misbehave; see ``Fault``.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from tests.fakehub.files import File

Fault = Literal[
    "", "rate_limited", "rate_limited_once", "rate_limited_by_policy", "server_error", "flaky", "slow", "trickle",
    "truncated", "truncated_once", "endless", "html", "forbidden", "disabled", "teapot", "redirect_elsewhere",
    "redirect_loop", "no_range", "via_cache", "unnamed_status", "gzip",
]  # fmt: skip

GOOD_TOKEN = "hf_fakegoodfakegoodfakegoodfakegood"
UNLISTED_TOKEN = "hf_fakeothrfakeothrfakeothrfakeothr"
"""Valid, but its owner has not been let into the gated repositories and owns no private one."""


@dataclass(frozen=True)
class Repo:
    """A model repository. ``fault_at`` limits the fault to requests whose path holds that text."""

    id: str
    files: dict[str, File]
    gated: Literal["", "auto", "manual"] = ""
    private: bool = False
    info: dict[str, Any] = field(default_factory=dict)
    moved_from: tuple[str, ...] = ()
    revisions: tuple[str, ...] = ()
    fault: Fault = ""
    fault_at: str = ""
    fault_seconds: float = 2.0

    @property
    def sha(self) -> str:
        return hashlib.sha1(self.id.encode(), usedforsecurity=False).hexdigest()


class FakeHub:
    """The server, which answers from its making to its ``close``; also ``with FakeHub(repos) as hub: ...``.

    ``requests`` lists what came in as (method, path, authorization).
    """

    def __init__(self, repos: list[Repo], port: int = 0) -> None:
        self.repos = {repo.id: repo for repo in repos}
        self.moved = {old: repo.id for repo in repos for old in repo.moved_from}
        self.requests: list[tuple[str, str, str | None]] = []
        self.seen: Counter[str] = Counter()
        self.stop = threading.Event()
        hub = self

        class Handler(_Handler):
            fakehub = hub

        self.server = _Server(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def __enter__(self) -> FakeHub:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Let the answers that never end end, and stop."""
        self.stop.set()
        self.server.shutdown()
        self.server.server_close()

    def paths(self, containing: str = "") -> list[str]:
        return [path for _, path, _ in self.requests if containing in path]


class _Server(ThreadingHTTPServer):
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is what several tests are about; anything else is worth its traceback."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "fakehub"
    fakehub: FakeHub

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        authorization = self.headers.get("authorization")
        self.fakehub.requests.append((self.command, self.path, authorization))
        try:
            self._route(urlsplit(self.path).path, (authorization or "").removeprefix("Bearer "), body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _route(self, path: str, token: str, body: bool) -> None:
        api = re.fullmatch(r"/api/models/(?P<id>[^/]+(?:/[^/]+)?)(?:/revision/(?P<rev>[^/]+))?", path)
        file = re.fullmatch(r"/(?P<id>[^/]+(?:/[^/]+)?)/resolve/(?P<rev>[^/]+)/(?P<file>.+)", path)
        cached = re.fullmatch(r"/api/resolve-cache/models/(?P<id>[^/]+/[^/]+)/(?P<rev>[^/]+)/(?P<file>.+)", path)
        match = cached or file or api
        if match is None:
            return self._json(404, {"error": "Not Found"}, body)
        if token not in ("", GOOD_TOKEN, UNLISTED_TOKEN):
            said = "Invalid credentials in Authorization header"
            return self._error(401, "", said, body)
        id_ = match["id"]
        if id_ in self.fakehub.moved:
            there = path.replace(f"/{id_}", f"/{self.fakehub.moved[id_]}", 1)
            return self._redirect(there, body)
        repo = self.fakehub.repos.get(id_)
        if repo is None or (repo.private and token != GOOD_TOKEN):
            return self._error(404 if token else 401, "RepoNotFound", "Repository not found", body)
        revision = unquote(match["rev"] or "main")
        if revision not in ("main", repo.sha, *repo.revisions):
            return self._error(404, "RevisionNotFound", f"Invalid rev id: {revision}", body)
        if repo.fault and repo.fault_at in path and self._misbehave(repo, path, body):
            return None
        if api is not None:
            return self._json(200, self._info(repo), body)
        if repo.gated and token != GOOD_TOKEN:
            said = f"Access to model {repo.id} is restricted."
            return self._error(403 if token else 401, "GatedRepo", said, body)
        name = unquote(match["file"])
        if name not in repo.files:
            return self._error(404, "EntryNotFound", "Entry not found", body)
        if repo.fault == "via_cache" and cached is None:
            return self._redirect(f"/api/resolve-cache/models/{repo.id}/{repo.sha}/{match['file']}", body)
        return self._file(repo, repo.files[name], body)

    def _info(self, repo: Repo) -> dict[str, Any]:
        siblings = [{"rfilename": name, "size": file.size} for name, file in repo.files.items()]
        return {
            "_id": repo.sha[:24], "id": repo.id, "modelId": repo.id, "sha": repo.sha, "private": repo.private,
            "gated": repo.gated or False, "disabled": False, "downloads": 1, "likes": 1, "tags": ["safetensors"],
            "lastModified": "2026-01-01T00:00:00.000Z", "createdAt": "2026-01-01T00:00:00.000Z",
            "library_name": "transformers", "pipeline_tag": "text-generation", "siblings": siblings, **repo.info,
        }  # fmt: skip

    # ------------------------------------------------------------------------------------------------ answers

    def _head(self, status: int, headers: dict[str, str], length: int | None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()

    def _json(self, status: int, value: Any, body: bool, headers: dict[str, str] | None = None) -> None:
        raw = json.dumps(value).encode()
        self._head(status, {"Content-Type": "application/json; charset=utf-8"} | (headers or {}), len(raw))
        if body:
            self.wfile.write(raw)

    def _error(self, status: int, code: str, said: str, body: bool) -> None:
        headers = {"X-Error-Message": said} | ({"X-Error-Code": code} if code else {})
        self._json(status, {"error": said}, body, headers)

    def _redirect(self, location: str, body: bool) -> None:
        self._json(307, {}, body, {"Location": location})

    def _file(self, repo: Repo, file: File, body: bool) -> None:
        headers = {"ETag": f'"{file.etag}"', "X-Repo-Commit": repo.sha, "Accept-Ranges": "bytes"}
        if file.lfs:
            headers |= {"X-Linked-Etag": f'"{file.etag}"', "X-Linked-Size": str(file.size)}
        start, end, status = 0, file.size, 200
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range", ""))
        if wanted is not None and repo.fault != "no_range":
            start, end = int(wanted[1]), min(file.size, int(wanted[2]) + 1 if wanted[2] else file.size)
            if start >= file.size:
                return self._error(416, "", "Range not satisfiable", body)
            status = 206
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{file.size}"
        self._head(status, headers, end - start)
        if body:
            for chunk in file.read(start, end):
                self.wfile.write(chunk)
        return None

    # ------------------------------------------------------------------------------------------------ faults

    def _misbehave(self, repo: Repo, path: str, body: bool) -> bool:
        """Play the repository's fault; False lets the request be answered normally."""
        turn = self.fakehub.seen[path]
        self.fakehub.seen[path] += 1
        match repo.fault:
            case "rate_limited" | "rate_limited_once":
                if repo.fault.endswith("once") and turn:
                    return False
                wait = {"Retry-After": str(round(repo.fault_seconds))}
                self._json(429, {"error": "Too Many Requests"}, body, wait)
            case "rate_limited_by_policy":
                wait = {"RateLimit": f'"api";r=0;t={round(repo.fault_seconds)}'}
                self._json(429, {"error": "Too Many Requests"}, body, wait)
            case "server_error":
                self._json(500, {"error": "Internal Error"}, body)
            case "flaky":
                if turn >= 2:
                    return False
                self._json(503, {"error": "Service Unavailable"}, body)
            case "slow":
                self.fakehub.stop.wait(repo.fault_seconds)
                return False
            case "trickle":
                self._head(200, {"Content-Type": "application/json"}, 100_000)
                while not self.fakehub.stop.wait(0.05):
                    self.wfile.write(b" ")
            case "truncated" | "truncated_once":
                if repo.fault.endswith("once") and turn:
                    return False
                self._head(200, {"Content-Type": "application/json"}, 5_000)
                self.wfile.write(b'{"hidden_size": 40')
                self.close_connection = True
            case "endless":
                self._head(200, {"Content-Type": "application/json", "Connection": "close"}, None)
                self.close_connection = True
                self.wfile.write(b'{"x": "')
                while not self.fakehub.stop.is_set():
                    self.wfile.write(b"y" * 65_536)
            case "gzip":
                self._head(200, {"Content-Encoding": "gzip"}, 9)
                self.wfile.write(b"not gzip!")
            case "html":
                raw = b"<!doctype html><title>Sign in to the network</title>"
                self._head(200, {"Content-Type": "text/html"}, len(raw))
                self.wfile.write(raw)
            case "forbidden":
                self._error(403, "", "Your token may not read this", body)
            case "disabled":
                self._error(403, "", "Access to this resource is disabled.", body)
            case "teapot":
                self._json(418, {"error": "no coffee"}, body)
            case "redirect_elsewhere":
                self._redirect("http://169.254.169.254/latest/meta-data", body)
            case "redirect_loop":
                self._redirect(path, body)
            case _:
                return False
        return True


def wait_forever(hub: FakeHub) -> None:
    """Serve until interrupted."""
    with hub:
        while True:
            time.sleep(3600)
