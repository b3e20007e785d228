"""Take the README's picture of the app: starts it, opens a page in Chromium, and writes ``assets/screenshots/``.

    python scripts/screenshots.py

Needs no hub: the pages shown use built-in models. Pictures are reduced to a palette, which keeps them small.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "assets" / "screenshots"
PICTURES = {
    "training.png": ("/?v=1&n=8&sh=fsdp2&pr=mixed_bf16&b=2&t=8192", "light"),
    "serving-dark.png": ("/serving?v=1&p=gpt-oss-20b&g=l40s-48gb&cc=32", "dark"),
}
SIZE = {"width": 1360, "height": 1000}
DRAWN = """() => document.querySelector('[data-testid=stApp]')?.dataset.testScriptState === 'notRunning'
  && !document.querySelector('[data-testid=stSkeleton]') && document.querySelector('.js-plotly-plot .main-svg')"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_up(address: str) -> None:
    for _ in range(300):
        try:
            with urllib.request.urlopen(f"{address}/_stcore/health", timeout=2):
                return
        except OSError:
            time.sleep(0.3)
    sys.exit("screenshots: the app did not start")


def take(address: str, chromium: str) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for name, (path, theme) in PICTURES.items():
            page = browser.new_page(viewport=SIZE, color_scheme="dark" if theme == "dark" else "light", locale="en-US")
            page.goto(address + path)
            page.wait_for_function(DRAWN, timeout=120_000)
            page.wait_for_timeout(1500)
            page.screenshot(path=FOLDER / name)
            reduce(FOLDER / name)
            page.close()
        browser.close()


def reduce(picture: Path) -> None:
    """A palette of 255 colours is enough for a page, and half of the bytes. Pillow comes with Streamlit."""
    from PIL import Image

    with Image.open(picture) as image:
        image.convert("RGB").quantize(255).save(picture, optimize=True)


def main() -> None:
    sys.path.insert(0, str(ROOT))
    from scripts.chromium import ensure

    chromium = ensure()
    if chromium is None:
        sys.exit("screenshots: no Chromium")
    FOLDER.mkdir(parents=True, exist_ok=True)
    port = free_port()
    command = [sys.executable, "-m", "streamlit", "run", "app.py", "--server.headless", "true"]
    command += ["--server.port", str(port), "--server.address", "127.0.0.1", "--server.fileWatcherType", "none"]
    server = subprocess.Popen(command, cwd=ROOT, env=dict(os.environ), stdout=subprocess.DEVNULL)
    try:
        wait_until_up(f"http://127.0.0.1:{port}")
        take(f"http://127.0.0.1:{port}", chromium)
    finally:
        server.terminate()


if __name__ == "__main__":
    main()
