"""The environment is made on a machine without venv, kept while nothing changes, and renewed when a pin does."""

import hashlib
import io
import json
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from scripts import bootstrap

# A stand-in for pip that knows `install --no-index WHEEL` (unpack) and `install --requirement FILE` (write it down).
FAKE_PIP = """
import json, pathlib, sys, sysconfig, zipfile
target = pathlib.Path(sysconfig.get_path("purelib"))
if "--no-index" in sys.argv:
    zipfile.ZipFile(sys.argv[-1]).extractall(target)
else:
    log = target / "installed.json"
    runs = json.loads(log.read_text()) if log.exists() else []
    runs.append([pathlib.Path(a).read_text() for o, a in zip(sys.argv, sys.argv[1:]) if o == "--requirement"])
    log.write_text(json.dumps(runs))
    sys.exit(any("impossible" in text for text in runs[-1]))
"""


@pytest.fixture
def wheel() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("pip/__init__.py", "")
        archive.writestr("pip/__main__.py", FAKE_PIP)
    return content.getvalue()


@pytest.fixture
def index(tmp_path: Path, wheel: bytes) -> Iterator[str]:
    """A package index over HTTP that has pip's wheel, under a relative link as many mirrors write it."""
    folder = tmp_path / "index"
    (folder / "files").mkdir(parents=True)
    (folder / "simple" / "pip").mkdir(parents=True)
    (folder / "files" / bootstrap.PIP_WHEEL).write_bytes(wheel)
    links = ["pip-9.0.3.tar.gz", bootstrap.PIP_WHEEL + "#sha256=0"]
    page = "".join(f'<a href="../../files/{link}">{link}</a>\n' for link in links)
    (folder / "simple" / "pip" / "index.html").write_text(page)

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/simple"
    server.shutdown()
    server.server_close()


@pytest.fixture
def no_venv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter whose venv module refuses as Debian's does, for a person who is not root."""
    python = tmp_path / "python-without-venv"
    python.write_text(f'#!/bin/sh\n[ "$2" = venv ] && mkdir -p "$3/bin" && exit 1\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(bootstrap.sys, "executable", str(python))
    monkeypatch.setattr(bootstrap.os, "geteuid", lambda: 1000)


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch, index: str, wheel: bytes) -> None:
    monkeypatch.setattr(bootstrap, "PIP_WHEEL_SHA256", hashlib.sha256(wheel).hexdigest())
    monkeypatch.setattr(bootstrap, "pip_settings", lambda: {"index-url": index})


def installs(environment: Path) -> list[list[str]]:
    (log,) = environment.glob("lib/python*/site-packages/installed.json")
    return json.loads(log.read_text())


@pytest.mark.usefixtures("no_venv", "pinned")
def test_without_venv_the_environment_is_laid_out_and_pip_fetched(tmp_path: Path) -> None:
    environment = tmp_path / "env"
    requirement = tmp_path / "requirements.txt"
    requirement.write_text("a==1\n")
    bootstrap.prepare(environment, [requirement])

    python = bootstrap.python_of(environment)
    question = "import sys, pip; print(sys.prefix, sys.prefix != sys.base_prefix, pip.__file__)"
    prefix, is_environment, where = subprocess.check_output([python, "-c", question], text=True).split()
    assert Path(prefix) == environment
    assert is_environment == "True"
    assert Path(where).is_relative_to(environment)
    assert installs(environment) == [["a==1\n"]]
    assert not (environment / bootstrap.PIP_WHEEL).exists()


@pytest.mark.usefixtures("no_venv", "pinned")
def test_a_second_call_does_nothing_until_a_pin_changes(tmp_path: Path) -> None:
    environment = tmp_path / "env"
    run, dev = tmp_path / "requirements.txt", tmp_path / "requirements-dev.txt"
    run.write_text("a==1\n")
    dev.write_text("b==1\n")
    bootstrap.prepare(environment, [run])
    bootstrap.prepare(environment, [run])
    assert installs(environment) == [["a==1\n"]]
    bootstrap.prepare(environment, [run, dev])
    bootstrap.prepare(environment, [run])
    assert installs(environment) == [["a==1\n"], ["a==1\n", "b==1\n"]]
    run.write_text("a==2\n")
    bootstrap.prepare(environment, [run])
    assert installs(environment)[2:] == [["a==2\n"]]


@pytest.mark.usefixtures("no_venv", "pinned")
def test_a_failed_installation_is_tried_again(tmp_path: Path) -> None:
    environment = tmp_path / "env"
    requirement = tmp_path / "requirements.txt"
    requirement.write_text("impossible==1\n")
    for _ in range(2):
        with pytest.raises(bootstrap.BootstrapError, match="pip could not install"):
            bootstrap.prepare(environment, [requirement])
    assert len(installs(environment)) == 2


@pytest.mark.usefixtures("no_venv", "index")
def test_a_wheel_with_another_checksum_is_refused(
    tmp_path: Path, index: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bootstrap, "pip_settings", lambda: {"index-url": index})
    requirement = tmp_path / "requirements.txt"
    requirement.write_text("a==1\n")
    assert bootstrap.main([str(tmp_path / "env"), str(requirement)]) == 1
    message = capsys.readouterr().err
    assert "checksum differs" in message
    assert "python3-venv" in message


def test_another_folder_is_not_deleted(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(bootstrap.BootstrapError, match="not a Python environment"):
        bootstrap.create(tmp_path)
    assert (tmp_path / "thesis.txt").exists()


def test_an_old_python_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "OLDEST_PYTHON", (9, 1))
    with pytest.raises(bootstrap.BootstrapError, match=r"Python 9\.1 or newer is needed"):
        bootstrap.prepare(tmp_path / "env", [])


def test_pips_own_settings_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CERT"):
        monkeypatch.delenv(name, raising=False)
    general, own = tmp_path / "home", tmp_path / "own.conf"
    (general / "pip").mkdir(parents=True)
    (general / "pip" / "pip.conf").write_text("[global]\nindex-url = https://a.example/simple\ncert = /ca.pem\n")
    own.write_text("[install]\nindex-url = https://b.example/simple\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(general))
    monkeypatch.delenv("PIP_CONFIG_FILE", raising=False)
    assert bootstrap.pip_settings()["index-url"] == "https://a.example/simple"
    monkeypatch.setenv("PIP_CONFIG_FILE", str(own))
    assert bootstrap.pip_settings()["index-url"] == "https://b.example/simple"
    assert bootstrap.pip_settings()["cert"] == "/ca.pem"
    monkeypatch.setenv("PIP_INDEX_URL", "https://c.example/simple")
    assert next(iter(bootstrap.index_urls(bootstrap.pip_settings()))) == "https://c.example/simple"
