"""Screens to look at, in ``screenshots/``: every page in both languages, both themes and both widths."""

import pytest
from playwright.sync_api import Page

from tests.browser.conftest import SHOTS, OpenPage, assert_no_crash, settled

PAGES = {
    "training": "/?v=1&n=8&sh=fsdp2&pr=mixed_bf16&b=2&t=8192",
    "finetuning": "/finetuning?v=1&p=qwen2.5-14b&g=rtx-4090-24gb&me=qlora",
    "serving": "/serving?v=1&p=gpt-oss-20b&g=l40s-48gb&cc=32",
}
WIDTHS = {"desktop": 1440, "phone": 390}
TALLEST = 6000


def whole(page: Page, width: int) -> None:
    """Makes the window as tall as the page, so that one picture holds it."""
    page.set_viewport_size({"width": width, "height": 1000})
    settled(page)
    height = page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
    page.set_viewport_size({"width": width, "height": min(height + 20, TALLEST)})
    settled(page)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
@pytest.mark.parametrize("name", PAGES)
def test_screen(open_page: OpenPage, name: str, locale: str, dark: bool) -> None:
    page = open_page(PAGES[name], dark=dark, locale=locale)
    page.locator(".js-plotly-plot .main-svg").first.wait_for()
    theme = "dark" if dark else "light"
    for device, width in WIDTHS.items():
        whole(page, width)
        assert_no_crash(page)
        page.screenshot(path=SHOTS / f"{name}-{locale[:2]}-{theme}-{device}.png")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, "the page scrolls sideways"
    background = page.evaluate("getComputedStyle(document.querySelector('[data-testid=stApp]')).backgroundColor")
    assert background == ("rgb(15, 18, 24)" if dark else "rgb(255, 255, 255)")
