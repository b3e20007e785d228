"""The started app, its hub, and a browser that looks at it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from scripts.chromium import find
from tests.fakehub import FakeHub, good_repos, troubled_repos

ROOT = Path(__file__).resolve().parents[2]
SHOTS = ROOT / "screenshots"
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
PATIENCE_MS = 120_000
"""Generous: two workers on two cores, a software renderer, and a charting script of megabytes."""

expect.set_options(timeout=PATIENCE_MS)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def hub() -> Iterator[FakeHub]:
    served = FakeHub([*good_repos(), *troubled_repos()], 0)
    yield served
    served.close()


@pytest.fixture(scope="session")
def app(hub: FakeHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of the app, started as ``make run`` starts it, asking the fake hub."""
    port = free_port()
    log = tmp_path_factory.mktemp("app") / "server.log"
    environment = {k: v for k, v in os.environ.items() if k not in ("HF_TOKEN", "HF_HOME")} | {
        "HF_ENDPOINT": hub.endpoint,
        "HF_HOME": str(tmp_path_factory.mktemp("hf")),
    }
    command = [sys.executable, "-m", "streamlit", "run", "app.py", "--server.headless", "true"]
    command += ["--server.port", str(port), "--server.address", "127.0.0.1", "--server.fileWatcherType", "none"]
    with log.open("w") as out:
        server = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT)
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_until_up(address, server, log)
        yield address
        assert "Traceback" not in log.read_text(), log.read_text()[-4000:]
    finally:
        server.send_signal(signal.SIGINT)
        try:
            server.wait(15)
        except subprocess.TimeoutExpired:
            server.kill()


def _wait_until_up(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        if server.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"{address}/_stcore/health", timeout=2):
                return
        except OSError:
            time.sleep(0.3)
    raise RuntimeError(f"the app did not start: {log.read_text()[-2000:]}")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = find()
    if path is None:
        pytest.fail("no Chromium; run `python scripts/chromium.py`")
    SHOTS.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield started
        started.close()


OpenPage = Callable[..., Page]
Contexts = dict[tuple[bool, bool, str], BrowserContext]


@pytest.fixture(scope="session")
def contexts(browser: Browser) -> Iterator[Contexts]:
    """One context for each kind of visitor, so that the app's scripts are fetched once for each."""
    kept: Contexts = {}
    yield kept
    for context in kept.values():
        context.close()


@pytest.fixture
def open_page(browser: Browser, contexts: Contexts, app: str) -> Iterator[OpenPage]:
    """Opens an address of the app in a new page, and waits until it is drawn. ``fresh`` takes a context of its own:
    another person's browser, which has never seen the app."""
    opened_here: list[Page | BrowserContext] = []

    def opened(
        path: str = "/", *, phone: bool = False, dark: bool = False, locale: str = "en-US", fresh: bool = False
    ) -> Page:
        kind = (phone, dark, locale)
        context = None if fresh else contexts.get(kind)
        if context is None:
            context = browser.new_context(
                viewport={"width": 390, "height": 844} if phone else {"width": 1440, "height": 1000},
                color_scheme="dark" if dark else "light", locale=locale, has_touch=phone,
            )  # fmt: skip
            context.grant_permissions(["clipboard-read", "clipboard-write"])
            context.set_default_timeout(PATIENCE_MS)
            if fresh:
                opened_here.append(context)
            else:
                contexts[kind] = context
        page = context.new_page()
        opened_here.append(page)
        page.goto(path if path.startswith("http") else app + path)
        settled(page)
        return page

    yield opened
    for one in reversed(opened_here):
        one.close()


SETTLED = """() => {
  const app = document.querySelector('[data-testid=stApp]')
  const quiet = app?.dataset.testScriptState === 'notRunning' && document.querySelector('h1')
    && !document.querySelector('[data-testid=stSkeleton], [data-stale=true]')
    && !/estimating|估算/.test(document.querySelector(".st-key-figures")?.textContent ?? "")
  window.quietSince = quiet ? (window.quietSince ?? performance.now()) : undefined
  return quiet && performance.now() - window.quietSince > 600
}"""


def settled(page: Page) -> None:
    """Waits until nothing has run and nothing was missing for a while: a change starts its run a moment later."""
    page.evaluate("window.quietSince = undefined")
    page.wait_for_function(SETTLED, polling=100)


def assert_no_crash(page: Page) -> None:
    assert page.locator("[data-testid=stException]").count() == 0
