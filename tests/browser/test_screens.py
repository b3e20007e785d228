"""Screens to look at, in ``screenshots/``: every page in both languages, both themes and both widths."""

import pytest

from tests.browser.conftest import SHOTS, OpenPage, assert_no_crash, settled

PAGES = {
    "training": "/?v=1&n=8&sh=fsdp2&pr=mixed_bf16&b=2&t=8192",
    "finetuning": "/finetuning?v=1&p=qwen2.5-14b&g=rtx-4090-24gb&me=qlora",
    "serving": "/serving?v=1&p=gpt-oss-20b&g=l40s-48gb&cc=32",
}


@pytest.mark.parametrize("phone", [False, True], ids=["desktop", "phone"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
@pytest.mark.parametrize("name", PAGES)
def test_screen(open_page: OpenPage, name: str, locale: str, dark: bool, phone: bool) -> None:
    page = open_page(PAGES[name], phone=phone, dark=dark, locale=locale)
    assert_no_crash(page)
    page.locator(".js-plotly-plot .main-svg").first.wait_for()
    height = page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
    width = page.viewport_size["width"] if page.viewport_size else 1440
    page.set_viewport_size({"width": width, "height": min(height + 20, 6000)})
    settled(page)
    page.wait_for_timeout(400)
    file = f"{name}-{locale[:2]}-{'dark' if dark else 'light'}-{'phone' if phone else 'desktop'}.png"
    page.screenshot(path=SHOTS / file)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    background = page.evaluate("getComputedStyle(document.querySelector('[data-testid=stApp]')).backgroundColor")
    assert background == ("rgb(15, 18, 24)" if dark else "rgb(255, 255, 255)")
