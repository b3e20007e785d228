"""Find a Chromium for the browser tests and the screenshots, or get one.

    python scripts/chromium.py          print its path, installing it first where there is none

Looked for in this order: the path in CHROMIUM, a browser of the system, Playwright's own. Where there is none, root on
Debian installs the distribution's package, and everybody else lets Playwright download its build. Root also gets what
a bare Debian lacks besides: the library that Playwright's driver is linked to, and a font with Chinese glyphs, without
which screenshots show boxes.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

SYSTEM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find() -> str | None:
    """Path of a Chromium that Playwright can start, or None."""
    named = os.environ.get("CHROMIUM")
    if named:
        return named
    for name in SYSTEM_NAMES:
        path = shutil.which(name)
        if path:
            return path
    return _playwrights_own()


def _playwrights_own() -> str | None:
    if not _driver_can_start():
        return None
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if Path(path).is_file() else None


def _driver_can_start() -> bool:
    if sys.platform != "linux":
        return True
    try:
        ctypes.CDLL("libatomic.so.1")
    except OSError:
        return False
    return True


def _has_chinese_font() -> bool:
    if not shutil.which("fc-list"):
        return False
    return bool(subprocess.run(["fc-list", ":lang=zh"], capture_output=True, check=False).stdout.strip())


def _apt_install(packages: list[str]) -> bool:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", *packages]):
        if subprocess.run(command, env=environment, stdout=sys.stderr, check=False).returncode:
            return False
    return True


def ensure() -> str | None:
    """Install what is missing; the path of the browser, or None if none could be had."""
    path = find()
    if os.geteuid() == 0 and shutil.which("apt-get"):
        wanted = {"chromium": path, "libatomic1": _driver_can_start(), "fonts-noto-cjk": _has_chinese_font()}
        missing = [package for package, present in wanted.items() if not present]
        if missing and _apt_install(missing):
            path = find()
    if path is None and _driver_can_start():
        subprocess.run([sys.executable, "-m", "playwright", "install", "chromium"], stdout=sys.stderr, check=False)
        path = find()
    return path


if __name__ == "__main__":
    browser = ensure()
    if browser is None or not _driver_can_start():
        sys.exit(
            "chromium: no browser that Playwright can drive, and none could be installed. "
            "Install one (Debian: apt install chromium libatomic1), or set CHROMIUM to its path."
        )
    print(browser)
