"""Where a browser is looked for, and what is installed where there is none."""

import shutil
import subprocess
from types import SimpleNamespace

import pytest

from scripts import chromium


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A machine with apt and nothing else; returns the packages that get installed on it."""
    installed: list[str] = []

    def which(name: str) -> str | None:
        return f"/usr/bin/{name}" if name in {"apt-get", *installed} else None

    def apt_install(packages: list[str]) -> bool:
        installed.extend(packages)
        return True

    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.setattr(chromium, "shutil", SimpleNamespace(which=which))
    monkeypatch.setattr(chromium, "_driver_can_start", lambda: "libatomic1" in installed)
    monkeypatch.setattr(chromium, "_has_chinese_font", lambda: "fonts-noto-cjk" in installed)
    monkeypatch.setattr(chromium, "_playwrights_own", lambda: None)
    monkeypatch.setattr(chromium, "_apt_install", apt_install)
    return installed


def test_a_named_browser_is_taken(bare: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHROMIUM", "/opt/browser")
    assert chromium.find() == "/opt/browser"


def test_root_gets_what_is_missing_and_no_more(bare: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chromium.os, "geteuid", lambda: 0)
    assert chromium.find() is None
    assert chromium.ensure() == "/usr/bin/chromium"
    assert sorted(bare) == ["chromium", "fonts-noto-cjk", "libatomic1"]
    assert chromium.ensure() == "/usr/bin/chromium"
    assert len(bare) == 3


def test_others_let_playwright_download(bare: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []

    def run(command: list[str], **_: object) -> None:
        calls.append(command)
        monkeypatch.setattr(chromium, "_playwrights_own", lambda: "/cache/chrome")

    monkeypatch.setattr(chromium.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(chromium, "_driver_can_start", lambda: True)
    monkeypatch.setattr(chromium, "subprocess", SimpleNamespace(run=run))
    assert chromium.ensure() == "/cache/chrome"
    assert [command[1:] for command in calls] == [["-m", "playwright", "install", "chromium"]]
    assert bare == []


def test_the_found_browser_starts() -> None:
    """On the machine that runs the tests: a path that is there, and is a Chromium."""
    path = chromium.find()
    assert path
    assert shutil.which(path)
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
    assert "Chrom" in version
