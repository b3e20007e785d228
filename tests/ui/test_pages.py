"""Every page under Streamlit's own test runner: with and without links, and with anything at all in a link."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from calculator import lookup
from calculator.errors import GatedModelError, HubOfflineError
from calculator.lookup import LoadedModel
from calculator.presets import presets
from ui import link, models
from ui.settings import PLAN_PAGES, HubChoice, Settings

ROOT = Path(__file__).resolve().parents[2]
LLAMA = {
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": True,
}  # fmt: skip


def opened(page: str = "training", locale: str = "en-US", **query: Any) -> AppTest:
    at = AppTest.from_file(str(ROOT / "app.py"), default_timeout=60)
    at.context = {"locale": locale}
    if page != "training":
        at.run()
        at.switch_page(f"pages/{page}.py")
    for key, value in query.items():
        at.query_params[key] = value
    return checked(at.run())


def checked(at: AppTest) -> AppTest:
    assert not at.exception, [e.message for e in at.exception]
    return at


def figures(at: AppTest) -> dict[str, str]:
    return {metric.label: metric.value for metric in at.metric}


def query_of(at: AppTest) -> dict[str, Any]:
    return dict(at.query_params)


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(written: str, **_: Any) -> LoadedModel:
        raise HubOfflineError("hub.offline", field="model", id=written)

    monkeypatch.setattr(lookup, "load", offline)


@pytest.mark.parametrize("page", PLAN_PAGES)
@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
def test_a_bare_page_shows_a_bill(page: str, locale: str) -> None:
    at = opened(page, locale)
    assert len(at.metric) >= 4
    assert all(re.search(r"\d", metric.value) for metric in at.metric)
    assert at.header[0].value
    assert query_of(at) == {}
    shown = [e.label for kind in ("selectbox", "number_input", "toggle", "text_input", "metric") for e in at.get(kind)]
    shown += [e.value for kind in ("title", "header", "subheader", "caption", "markdown") for e in at.get(kind)]
    assert not [text for text in shown if re.search(r"\bui\.\w+|\{\w+\}", text)], "a text is missing"
    assert any("\u4e00" <= c <= "\u9fff" for c in "".join(shown)) is (locale == "zh-CN") or locale == "en-US"


def test_the_entry_point_always_declares_the_pages() -> None:
    assert "st.navigation(" in (ROOT / "app.py").read_text("utf-8")


def test_a_change_reaches_the_figures_and_the_address() -> None:
    at = opened()
    before = figures(at)
    checked(at.number_input(key="training.micro_batch").set_value(4).run())
    assert query_of(at) == {"v": "1", "b": "4"}
    checked(at.number_input(key="training.seq_len").set_value(8192).run())
    assert query_of(at) == {"v": "1", "b": "4", "t": "8192"}
    assert figures(at) != before
    checked(at.number_input(key="training.micro_batch").set_value(1).run())
    checked(at.number_input(key="training.seq_len").set_value(2048).run())
    assert query_of(at) == {}
    assert figures(at) == before


@pytest.mark.parametrize(
    ("page", "query"),
    [
        ("training", {"v": "1", "p": "qwen2.5-7b", "g": "h200-141gb-sxm", "n": "8", "sh": "zero3", "pr": "mixed_bf16"}),
        ("finetuning", {"v": "1", "p": "qwen2.5-0.5b", "g": "rtx-4090-24gb", "me": "qlora", "q": "nf4_dq", "rk": "64"}),
        ("serving", {"v": "1", "p": "qwen2.5-14b", "g": "a100-80gb-sxm4", "n": "2", "cc": "32", "ml": "16384"}),
    ],
)
def test_a_link_restores_its_page(page: str, query: dict[str, str]) -> None:
    first = opened(page, **query)
    assert query_of(first) == query
    assert not first.warning
    again = opened(page, **query_of(first))
    assert figures(again) == figures(first)
    assert figures(first) != figures(opened(page))


def test_pages_share_model_and_hardware() -> None:
    at = opened("training", v="1", p="qwen2.5-7b", g="h200-141gb-sxm", n="4", b="2", l="zh", u="GB")
    for page in ("finetuning", "serving", "training"):
        checked(at.switch_page(f"pages/{page}.py").run())
        assert at.text_input(key="model.id").value == presets()["qwen2.5-7b"].id
        assert at.selectbox(key="hardware.gpu").value == "h200-141gb-sxm"
        assert at.number_input(key="hardware.n_gpus").value == 4
        assert at.segmented_control(key="unit").value == "GB"
        assert at.segmented_control(key="language").value == "zh"
    assert at.number_input(key="training.micro_batch").value == 2


def test_language_and_unit_switch() -> None:
    at = opened()
    english = at.title[0].value
    checked(at.segmented_control(key="language").set_value("zh").run())
    assert at.title[0].value != english
    assert query_of(at)["l"] == "zh"
    assert all("GiB" in value for value in figures(at).values())
    checked(at.segmented_control(key="unit").set_value("GB").run())
    assert all("GB" in value and "GiB" not in value for value in figures(at).values())


JUNK = ["", "-1", "nan", "9" * 400, "<script>alert(1)</script>", "[x](javascript:alert(1))", "\x00", "完全不对", "~"]
KEYS = sorted({field.key for field in link._fields()} | set(link._SHARED_KEYS) | {"v", "nonsense"})


@pytest.mark.parametrize("page", PLAN_PAGES)
def test_junk_in_every_parameter_never_breaks_a_page(page: str, no_hub: None) -> None:
    """All keys at once for each piece of junk, then each key with another piece: the page stands, and says so."""
    at = AppTest.from_file(str(ROOT / "app.py"), default_timeout=60)
    at.run()
    at.switch_page(f"pages/{page}.py")
    for turn, junk in enumerate(JUNK):
        at.query_params.clear() if hasattr(at.query_params, "clear") else None
        for at_key, key in enumerate(KEYS):
            at.query_params[key] = JUNK[(at_key + turn) % len(JUNK)] if turn else junk
        checked(at.run())
        assert at.warning, "nothing was said about the link"
        assert "<script>" not in at.warning[0].value.replace("\\<", "")


def test_a_link_that_is_not_understood_is_named() -> None:
    at = opened("training", v="1", b="many", old="1", g="rtx-9999")
    note = at.warning[0].value
    assert "b = many" in note.replace("\\", "")
    assert "old = 1" in note.replace("\\", "")
    assert "rtx-9999" in note.replace("\\", "")
    assert query_of(at) == {}
    checked(at.button(key="link.dismiss").click().run())
    assert not at.warning


def test_a_pasted_config_is_read_and_travels() -> None:
    at = opened()
    checked(at.text_area(key="model.pasted").set_value(json.dumps(LLAMA)).run())
    query = query_of(at)
    assert set(query) == {"v", "c"}
    assert figures(opened("training", **query)) == figures(at)


@pytest.mark.parametrize(
    "written", ["{", "[]", '{"model_type": "nothing"}', "{" * 400, '{"a":' * 100 + "1" + "}" * 100]
)
def test_a_config_that_cannot_be_read_is_refused_with_a_way_on(written: str) -> None:
    at = opened()
    before = figures(at)
    checked(at.text_area(key="model.pasted").set_value(written).run())
    assert any("The bill below is still that of" in warning.value for warning in at.warning)
    assert figures(at) == before


def test_the_shape_by_hand_counts_its_parameters() -> None:
    at = opened()
    checked(at.segmented_control(key="model.way").set_value("manual").run())
    assert at.number_input(key="manual.layers").value == 32
    captions = [c.value for c in at.caption]
    assert any("8.03 B" in c for c in captions)
    checked(at.number_input(key="manual.layers").set_value(16).run())
    assert any("4.54 B" in c for c in (caption.value for caption in at.caption))
    assert set(query_of(at)) == {"v", "c"}


def test_a_shape_by_hand_that_cannot_be_is_kept_as_typed_and_refused() -> None:
    at = opened()
    before = figures(at)
    checked(at.segmented_control(key="model.way").set_value("manual").run())
    checked(at.number_input(key="manual.kv_heads").set_value(3).run())
    assert at.number_input(key="manual.kv_heads").value == 3
    assert any("num_key_value_heads" in warning.value.replace("\\", "") for warning in at.warning)
    assert figures(at) == before
    checked(at.number_input(key="manual.heads").set_value(33).run())
    assert (at.number_input(key="manual.heads").value, at.number_input(key="manual.kv_heads").value) == (33, 3)
    assert not at.warning
    assert figures(at) != before


def test_a_hub_that_is_away_keeps_the_inputs_and_offers_ways_on(no_hub: None) -> None:
    at = opened("training", v="1", b="4")
    checked(at.text_input(key="model.id").set_value("someone/something").run())
    assert at.error
    assert not at.metric
    assert at.number_input(key="training.micro_batch").value == 4
    assert at.button(key="ways.retry")
    checked(at.selectbox(key="model.preset").set_value("qwen2.5-7b").run())
    assert not at.error
    assert len(at.metric) == 4
    assert query_of(at) == {"v": "1", "b": "4", "p": "qwen2.5-7b"}


def test_a_token_is_asked_for_and_goes_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str | None] = []

    def gated(written: str, *, token: str | None = None, **_: Any) -> LoadedModel:
        seen.append(token)
        raise GatedModelError("hub.gated", field="model", id=written, host="huggingface.co")

    monkeypatch.setattr(lookup, "load", gated)
    at = opened("training", v="1", m="meta-llama/Secret")
    checked(at.text_input(key=models.TOKEN_KEY).set_value("hf_" + "a" * 30).run())
    assert seen == [None, "hf_" + "a" * 30]
    assert "hf_a" not in json.dumps(query_of(at))
    assert "hf_a" not in json.dumps(link.encode(Settings(model=HubChoice(id="meta-llama/Secret")), "training"))


def test_what_does_not_apply_is_absent() -> None:
    at = opened("finetuning")
    keys = {e.key for e in at.selectbox}
    assert "training.sharding" not in keys
    assert "training.base_quant" not in keys
    checked(at.segmented_control(key="training.method").set_value("qlora").run())
    checked(at.number_input(key="hardware.n_gpus").set_value(2).run())
    keys = {e.key for e in at.selectbox}
    assert {"training.sharding", "training.base_quant"} <= keys


def test_an_own_card_has_its_own_size() -> None:
    at = opened()
    checked(at.selectbox(key="hardware.gpu").set_value("custom").run())
    checked(at.number_input(key="hardware.capacity.GiB").set_value(48.0).run())
    assert query_of(at) == {"v": "1", "g": "custom", "gc": str(48 * 1024**3)}
    assert "48.00 GiB" in figures(at).values()


def test_every_engine_gives_a_bill_and_shows_its_own_controls() -> None:
    from ui.inputs.serving import ENGINES, WITH_FRACTION

    at = opened("serving")
    for engine in ENGINES:
        checked(at.selectbox(key="serving.engine").set_value(engine).run())
        assert not at.error, engine
        assert len(at.metric) >= 4
        shown = {e.key for e in at.number_input}
        assert ("serving.memory_fraction" in shown) is (engine in WITH_FRACTION)


@pytest.mark.parametrize(("locale", "said"), [("en-US", "Not in this command"), ("zh-CN", "此命令未包含")])
def test_what_a_command_leaves_out_is_said_beside_it(locale: str, said: str) -> None:
    def named(at: AppTest) -> list[str]:
        return [c.value for c in at.caption if c.value.startswith(said)]

    assert named(opened("serving", locale=locale)) == []
    at = opened("serving", locale=locale, v="1", en="tensorrt_llm", kv_offload_bytes=str(8 * 1024**3))
    assert len(named(at)) >= 2
    assert any("--kv-offloading-size 8" in code.value for code in at.code)


def test_a_text_that_is_no_id_stays_where_it_was_typed() -> None:
    at = opened()
    checked(at.text_input(key="model.id").set_value("llama 3 8b").run())
    assert at.text_input(key="model.id").value == "llama 3 8b"
    assert any("llama 3 8b" in warning.value for warning in at.warning)
    checked(at.selectbox(key="model.preset").set_value("qwen2.5-7b").run())
    assert at.text_input(key="model.id").value == presets()["qwen2.5-7b"].id


def test_lists_speak_the_language_that_was_chosen() -> None:
    at = opened()
    english = at.selectbox(key="training.loss").options
    checked(at.segmented_control(key="language").set_value("zh").run())
    chinese = at.selectbox(key="training.loss.zh").options
    assert len(chinese) == len(english)
    assert not set(chinese) & set(english)


def test_a_control_that_applies_no_longer_leaves_no_error_behind() -> None:
    at = opened("training", n="8")
    checked(at.selectbox(key="training.sharding").set_value("hsdp").run())
    checked(at.number_input(key="training.hsdp_shard_size").set_value(3).run())
    assert at.error
    checked(at.selectbox(key="training.sharding").set_value("zero3").run())
    assert not at.error
    assert "training.hsdp_shard_size" not in {widget.key for widget in at.number_input}
    checked(at.number_input(key="training.zero_prefetch_bucket").set_value(1_000_000).run())
    checked(at.selectbox(key="training.pp").set_value(2).run())
    assert at.error, "ZeRO-3 with a pipeline is refused"
    checked(at.selectbox(key="training.sharding").set_value("ddp").run())
    checked(at.number_input(key="training.vpp").set_value(2).run())
    checked(at.selectbox(key="training.pp").set_value(1).run())
    assert not at.error
    assert len(at.metric) == 4


def test_eight_bit_products_and_the_allocator_show_what_belongs_to_them() -> None:
    at = opened("training")
    assert "training.fp8_recipe" not in {widget.key for widget in at.selectbox}
    checked(at.toggle(key="training.fp8_compute").set_value(True).run())
    checked(at.selectbox(key="training.fp8_recipe").set_value("te_mxfp8").run())
    checked(at.toggle(key="training.fp8_param_gather").set_value(True).run())
    checked(at.toggle(key="training.fp8_compute").set_value(False).run())
    assert not at.error
    checked(at.selectbox(key="training.allocator").set_value("max_split_mb").run())
    assert at.number_input(key="training.max_split_mb").value == 512
    checked(at.selectbox(key="training.allocator").set_value("expandable").run())
    assert not at.error


def test_memory_is_entered_in_gib_and_travels_in_bytes() -> None:
    at = opened("serving")
    before = figures(at)
    checked(at.number_input(key="serving.cpu_offload_bytes").set_value(4.0).run())
    assert figures(at) != before
    query = query_of(at)
    again = opened("serving", **query)
    assert again.number_input(key="serving.cpu_offload_bytes").value == 4.0
    assert figures(again) == figures(at)


@pytest.mark.parametrize(("locale", "title"), [("en-US", "Host memory"), ("zh-CN", "主机内存")])
def test_host_memory_is_shown_where_something_stays_there(locale: str, title: str) -> None:
    plain, offloaded = opened(locale=locale), opened(locale=locale, v="1", of="optimizer")
    assert title not in [s.value for s in plain.subheader]
    assert title in [s.value for s in offloaded.subheader]
    assert any("pinned" in str(t.value) or "锁页" in str(t.value) for t in offloaded.table)


def test_a_sharding_brings_its_usual_recipe_unless_another_was_chosen() -> None:
    at = opened("training", n="8")
    assert at.selectbox(key="training.precision").value == "bf16"
    checked(at.selectbox(key="training.sharding").set_value("zero3").run())
    assert at.selectbox(key="training.precision").value == "mixed_bf16"
    checked(at.selectbox(key="training.sharding").set_value("fsdp2").run())
    assert at.selectbox(key="training.precision").value == "fsdp_mixed_bf16"
    checked(at.selectbox(key="training.precision").set_value("fp32").run())
    checked(at.selectbox(key="training.sharding").set_value("zero2").run())
    assert at.selectbox(key="training.precision").value == "fp32"


def test_ways_to_split_are_offered_where_the_engine_has_them() -> None:
    def offered(engine: str) -> set[str]:
        keys = {str(widget.key) for widget in opened("serving", n="4", en=engine).selectbox}
        return {name for name in ("tp", "pp", "dp") if f"serving.{name}" in keys}

    assert offered("vllm") == offered("sglang") == {"tp", "pp", "dp"}
    assert offered("tgi") == {"tp", "dp"}
    assert offered("llama_cpp") == offered("transformers") == set()
