"""What a visitor does, in a real browser against the started app and a hub on loopback."""

import re

import pytest
from playwright.sync_api import Page, expect
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from tests.browser.conftest import PATIENCE_MS, OpenPage, assert_no_crash, settled

LIST_PATIENCE_MS = 10_000
LINK = "Link to this page with all its settings"


def figures(page: Page) -> list[str]:
    return [text.strip() for text in page.locator("[data-testid=stMetricValue]").all_inner_texts()]


def link_of(page: Page) -> str:
    return page.locator(f"input[aria-label='{LINK}'], input[aria-label='带有全部设置的本页链接']").input_value()


def table_rows(page: Page) -> list[str]:
    return page.locator("table[aria-label] tbody tr").all_inner_texts()


def type_model(page: Page, written: str) -> None:
    field = page.get_by_label("Hugging Face id or address")
    field.fill(written)
    field.press("Enter")


def set_number(page: Page, label: str, value: int) -> None:
    field = page.get_by_label(label, exact=True)
    field.fill(str(value))
    field.press("Enter")
    settled(page)


def choose(page: Page, label: str, option: str) -> None:
    """Opens the list and takes the option; opens it again where a part of the page that was drawn late closed it."""
    wanted = page.get_by_role("option", name=option, exact=True)
    for _ in range(PATIENCE_MS // LIST_PATIENCE_MS):
        page.get_by_label(label, exact=True).click()
        try:
            wanted.click(timeout=LIST_PATIENCE_MS)
            break
        except PlaywrightTimeout:
            continue
    else:
        raise AssertionError(f"{label} never offered {option}")
    settled(page)


def exact_bytes(page: Page) -> str:
    """The whole bill to the byte: the file behind the CSV button."""
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV").click()
    return download.value.path().read_text("utf-8")


def test_from_a_model_id_to_a_link_that_gives_the_same_bytes(open_page: OpenPage) -> None:
    page = open_page("/finetuning")
    type_model(page, "Qwen/Qwen2.5-7B")
    expect(page.get_by_text("read from the safetensors headers at revision")).to_be_visible()
    settled(page)
    assert len(table_rows(page)) > 6
    before = figures(page)
    set_number(page, "Micro-batch", 4)
    set_number(page, "Rank", 64)
    choose(page, "Loss", "Fused linear cross-entropy (Liger)")
    assert figures(page) != before
    page.get_by_role("button", name="Copy link").click()
    expect(page.get_by_text("It opens exactly this page")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == link_of(page)
    assert len(copied) < 300
    assert re.search(r"[?&]m=Qwen/Qwen2.5-7B&r=[\w-]{27}&", copied)

    elsewhere = open_page(copied, fresh=True)
    assert figures(elsewhere) == figures(page)
    assert exact_bytes(elsewhere) == exact_bytes(page)
    assert elsewhere.get_by_label("Micro-batch", exact=True).input_value() == "4"

    elsewhere.get_by_text("中文", exact=True).click()
    expect(elsewhere.get_by_role("heading", name="LoRA / QLoRA 微调显存账单")).to_be_visible()
    settled(elsewhere)
    assert figures(elsewhere) == figures(page)
    elsewhere.get_by_role("link", name="推理服务").click()
    expect(elsewhere.get_by_role("heading", name="推理服务显存账单")).to_be_visible()
    settled(elsewhere)
    expect(elsewhere.get_by_label("Hugging Face 模型 ID 或网址")).to_have_value("Qwen/Qwen2.5-7B")
    elsewhere.get_by_role("link", name="LoRA / QLoRA").click()
    expect(elsewhere.get_by_role("heading", name="LoRA / QLoRA 微调显存账单")).to_be_visible()
    settled(elsewhere)
    assert figures(elsewhere) == figures(page)
    assert_no_crash(elsewhere)


def test_back_and_forward(open_page: OpenPage) -> None:
    page = open_page("/")
    bare = figures(page)
    set_number(page, "Micro-batch", 8)
    eight = figures(page)
    page.get_by_role("link", name="Serving").click()
    expect(page.get_by_role("heading", name="Memory of serving")).to_be_visible()
    settled(page)
    page.go_back()
    expect(page.get_by_role("heading", name="Memory of full training")).to_be_visible()
    settled(page)
    assert figures(page) == eight
    page.go_back()
    expect(page.get_by_label("Micro-batch", exact=True)).to_have_value("1")
    settled(page)
    assert figures(page) == bare
    page.go_forward()
    expect(page.get_by_label("Micro-batch", exact=True)).to_have_value("8")
    settled(page)
    assert figures(page) == eight


def test_a_link_with_junk_opens_and_says_what_it_left_out(open_page: OpenPage) -> None:
    page = open_page("/serving?v=1&cc=lots&<img src=x onerror=alert(1)>=1&p=qwen2.5-7b&kv=%00")
    note = page.get_by_text("Parts of the link could not be used")
    expect(note).to_be_visible()
    expect(page.get_by_text("cc = lots")).to_be_visible()
    assert page.locator("img[src=x]").count() == 0
    assert len(figures(page)) >= 4
    page.get_by_role("button", name="Got it").click()
    expect(note).to_have_count(0)
    assert_no_crash(page)


@pytest.mark.parametrize("name", ["Training", "LoRA / QLoRA", "Serving"])
def test_each_page_answers_at_its_own_address(open_page: OpenPage, name: str) -> None:
    path = {"Training": "/training", "LoRA / QLoRA": "/finetuning", "Serving": "/serving"}[name]
    page = open_page(path)
    assert page.locator("[role=dialog]").count() == 0
    assert len(figures(page)) >= 4


@pytest.mark.parametrize(
    ("model", "said"),
    [("fake/gated", "fake/gated"), ("no/such-model", "no/such-model"), ("fake/truncated", "fake/truncated")],
)
def test_a_model_that_cannot_be_had_leaves_the_inputs_and_a_way_on(open_page: OpenPage, model: str, said: str) -> None:
    page = open_page("/?v=1&b=3")
    type_model(page, model)
    alert = page.get_by_role("alert").filter(has_text=said)
    expect(alert).to_be_visible()
    settled(page)
    expect(page.get_by_label("Micro-batch", exact=True)).to_have_value("3")
    choose(page, "Built-in models, no network needed", "Qwen2.5-14B")
    expect(alert).to_have_count(0)
    assert len(figures(page)) >= 4
    assert_no_crash(page)


def test_progress_is_shown_while_the_hub_answers(open_page: OpenPage) -> None:
    page = open_page("/")
    type_model(page, "fake/slow")
    expect(page.get_by_text("Asking the hub for fake/slow")).to_be_visible()
    expect(page.get_by_text("revision").first).to_be_visible()
    settled(page)
    assert len(figures(page)) >= 4


def test_a_phone_reaches_the_inputs_and_comes_back(open_page: OpenPage) -> None:
    page = open_page("/", phone=True)
    before = figures(page)
    field = page.get_by_label("Micro-batch", exact=True)
    expect(field).not_to_be_in_viewport()
    page.get_by_role("button", name="Change model, GPU and plan").click()
    field.scroll_into_view_if_needed()
    expect(field).to_be_in_viewport()
    set_number(page, "Micro-batch", 16)
    page.get_by_role("button", name="Show the bill").click()
    expect(field).not_to_be_in_viewport()
    assert figures(page) != before
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= 390, "the page scrolls sideways"


def test_charts_and_table_have_names_for_screen_readers(open_page: OpenPage) -> None:
    page = open_page("/")
    expect(page.get_by_role("table", name="The bill")).to_be_visible()
    for said in ("Memory per GPU", "Highest allocation by phase", "32 layers from first to last"):
        expect(page.locator(f"[aria-label*='{said}']").first).to_be_attached()


def test_nothing_outside_the_app_is_asked_for(open_page: OpenPage, app: str) -> None:
    """No font, script or count goes to anybody else."""
    page = open_page("/", fresh=True)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.reload()
    settled(page)
    foreign = [url for url in asked if not url.startswith((app, app.replace("http", "ws"), "data:", "blob:"))]
    assert foreign == []
