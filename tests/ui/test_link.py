"""The link: every setting survives it, nothing that anybody types into it breaks it, and it stays short."""

import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from calculator import hardware
from calculator.serving.plan import ServingPlan
from calculator.training.plan import Adapter, TrainingPlan
from ui import compact, link
from ui.settings import PAGES, PLAN_PAGES, ConfigChoice, HubChoice, Page, PresetChoice, Settings

LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "torch_dtype": "bfloat16", "bos_token_id": 128000,
    "tie_word_embeddings": False, "max_position_embeddings": 131072, "transformers_version": "4.43.0",
    "hidden_act": "silu", "attention_bias": False,
}  # fmt: skip

SHA = st.text("0123456789abcdef", min_size=40, max_size=40)
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,30}(/[A-Za-z0-9][A-Za-z0-9._-]{0,40})?", fullmatch=True)
VERSIONS = st.none() | st.from_regex(r"[0-9]\.[0-9]{1,2}(\.[0-9]|rc1|\+cu128)?", fullmatch=True)
WORDS = st.none() | st.from_regex(r"[a-z0-9][a-z0-9_.+-]{0,20}", fullmatch=True)


def values(field: Any) -> st.SearchStrategy[Any]:
    """Any value that a plan field allows."""
    if field.annotation in (str, str | None):
        return VERSIONS
    bounds: dict[str, Any] = {}
    for mark in field.metadata:
        for bound in ("ge", "gt", "le", "lt"):
            if hasattr(mark, bound):
                bounds[bound] = getattr(mark, bound)
    args = [a for a in get_args(field.annotation) if a is not type(None)] or [field.annotation]
    optional = type(None) in get_args(field.annotation)
    if int in args:
        found: st.SearchStrategy[Any] = st.integers(bounds.get("ge", 0), bounds.get("le", 2**40))
        found = found | st.booleans() if bool in args else found
    elif float in args:
        low = bounds.get("ge", bounds.get("gt", 0.0))
        high = bounds.get("le", bounds.get("lt", 1e4))
        found = st.floats(low, high, exclude_min="gt" in bounds, exclude_max="lt" in bounds, allow_nan=False)
    elif bool in args:
        found = st.booleans()
    elif "dict" in str(field.annotation):
        found = st.dictionaries(st.sampled_from(["image", "video", "audio"]), st.integers(0, 9))
    elif "tuple[int" in str(field.annotation):
        found = st.lists(st.integers(0, 99), max_size=8).map(tuple)
    elif "tuple[float" in str(field.annotation):
        found = st.lists(st.floats(0, 9), max_size=8).map(tuple)
    elif "tuple" in str(field.annotation):
        found = st.lists(st.sampled_from(get_args(args[0])), unique=True).map(tuple)
    else:
        literals = [v for a in args for v in (get_args(a) or (a,))]
        found = st.sampled_from(literals)
    return found | st.none() if optional else found


def plans(model: Any, leave_out: set[str]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {}, optional={name: values(info) for name, info in model.model_fields.items() if name not in leave_out}
    )


SHARED = {"gpu", "gpu_capacity_bytes", "n_gpus"}
MODELS = (
    st.builds(
        HubChoice,
        id=NAMES,
        revision=st.none() | SHA | st.sampled_from(["main", "refs/pr/1", "v1.0"]),
        file=st.none() | st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.+/-]{0,60}", fullmatch=True),
    )
    | st.builds(PresetChoice, key=NAMES)
    | st.builds(ConfigChoice, config=st.just(compact.canonical(LLAMA)))
)


@st.composite
def settings(draw: Any) -> Settings:
    training = TrainingPlan(method="lora").model_copy(update=draw(plans(TrainingPlan, SHARED | {"adapter"})))
    adapter = Adapter().model_copy(update=draw(plans(Adapter, set())))
    return Settings(
        model=draw(MODELS),
        gpu=draw(st.sampled_from(sorted(hardware.catalogue()))),
        gpu_capacity_bytes=draw(st.none() | st.integers(2**28, 2**40)),
        n_gpus=draw(st.integers(1, 65_536)),
        training=training.model_copy(update={"adapter": adapter}),
        serving=ServingPlan().model_copy(update=draw(plans(ServingPlan, SHARED))),
        language=draw(st.sampled_from([None, "en", "zh"])),
        unit=draw(st.sampled_from(["GiB", "GB"])),
    )


@examples(max_examples=60)
@given(settings(), st.sampled_from(PLAN_PAGES))
def test_what_a_page_shows_survives_its_link(before: Settings, page: Page) -> None:
    after, problems = link.decode(link.encode(before, page), page)
    assert problems == ()
    assert link.encode(after, page) == link.encode(before, page)
    assert (after.model, after.gpu, after.gpu_capacity_bytes) == (before.model, before.gpu, before.gpu_capacity_bytes)
    assert (after.n_gpus, after.language, after.unit) == (before.n_gpus, before.language, before.unit)
    if page == "serving":
        assert after.serving_plan() == before.serving_plan()
    else:
        assert after.training_plan(page) == before.training_plan(page)


@examples(max_examples=30)
@given(settings(), st.sampled_from(PAGES))
def test_other_pages_keep_what_a_link_does_not_carry(base: Settings, page: Page) -> None:
    after, _ = link.decode({}, page, base)
    if page in ("serving", "accuracy"):
        assert after.training == base.training
    if page != "serving":
        assert after.serving == base.serving


def test_defaults_leave_the_address_bare() -> None:
    assert all(link.encode(Settings(), page) == {} for page in PAGES)


def test_keys_are_unique_and_short() -> None:
    keys = [field.key for field in link._fields()] + list(link._SHARED_KEYS) + ["v"]
    assert len(keys) == len(set(keys))


def test_a_link_of_this_version_keeps_its_meaning() -> None:
    """The format is a promise: links in other people's documents must restore what they were made from."""
    query = {"v": "1", "m": "Qwen/Qwen2.5-7B", "r": "0Uqno1JQ-CnCgqABrmCRBqFRsXU", "g": "rtx-4090-24gb", "me": "qlora",
             "rk": "64", "b": "4", "t": "4096", "ck": "none", "tg": "q,v", "u": "GB"}  # fmt: skip
    settings, problems = link.decode(query, "finetuning")
    assert problems == ()
    assert settings.model == HubChoice(id="Qwen/Qwen2.5-7B", revision="d14aa7a35250f829c282a001ae609106a151b175")
    plan = settings.training_plan("finetuning")
    assert (plan.gpu, plan.method, plan.base_quant, plan.micro_batch, plan.seq_len) == (
        "rtx-4090-24gb", "qlora", "nf4", 4, 4096
    )  # fmt: skip
    assert plan.adapter == Adapter(rank=64, targets=("q", "v"))
    assert (plan.checkpointing, settings.unit) == ("none", "GB")
    assert link.encode(settings, "finetuning") == query


def test_ten_changes_stay_under_300_characters() -> None:
    """The longest values there are, on a model with a long name, at a long address."""
    longest: dict[str, Any] = {}
    for name, info in TrainingPlan.model_fields.items():
        found = [v for a in get_args(info.annotation) for v in (get_args(a) or (a,)) if isinstance(v, str)]
        if found and name not in SHARED:
            longest[name] = max(found, key=len)
    ten = dict(sorted(longest.items(), key=lambda kv: -len(f"&{link.TRAINING_KEYS[kv[0]]}={kv[1]}"))[:10])
    model = HubChoice(id="deepseek-ai/DeepSeek-R1-Distill-Qwen-14B", revision="0123456789" * 4)
    query = link.encode(Settings(model=model).with_training(**ten), "finetuning")
    assert len(query) == 13
    address = "https://vram-bill.streamlit.app/finetuning?" + link.to_query_string(query)
    assert len(address) < 300, address


def test_a_gguf_file_travels_in_a_short_link() -> None:
    """The longest usual names: a long repository, a vendor's mix, and ten settings of a llama.cpp plan."""
    model = HubChoice(id="unsloth/Qwen3-235B-A22B-Instruct-2507-GGUF", revision="0123456789" * 4, file="UD-Q4_K_XL")
    settings = Settings(model=model, gpu="rtx-pro-6000-maxq-96gb", n_gpus=2).with_serving(
        engine="llama_cpp", engine_version="b9000", kv_cache_dtype="q8_0", max_model_len=131_072, max_num_seqs=4,
        concurrency=4, n_gpu_layers=95, n_ubatch=2048, experts_on_cpu=True, swa_full=True,
    )  # fmt: skip
    query = link.encode(settings, "serving")
    address = "https://vram-bill.streamlit.app/serving?" + link.to_query_string(query)
    assert len(address) < 300, address
    after, problems = link.decode(query, "serving")
    assert problems == ()
    assert after.model == model


def test_a_file_without_a_model_or_with_a_bad_name_is_named() -> None:
    for query in ({"v": "1", "f": "Q4_K_M"}, {"v": "1", "m": "a/b", "f": "../../etc"}, {"v": "1", "m": "a/b", "f": ""}):
        settings, problems = link.decode(query, "serving")
        assert [p.key for p in problems] == ["f"]
        assert getattr(settings.model, "file", None) is None


def test_a_pasted_config_travels_compact() -> None:
    kept, shape = compact.smallest(LLAMA)
    assert json.loads(kept).keys() < LLAMA.keys()
    assert "bos_token_id" not in json.loads(kept)
    query = link.encode(Settings(model=ConfigChoice(config=kept)), "training")
    assert len(link.to_query_string(query)) < 250
    settings, problems = link.decode(query, "training")
    assert problems == ()
    assert isinstance(settings.model, ConfigChoice)
    assert compact.smallest(json.loads(settings.model.config))[1] == shape


JUNK = ["", " ", "-1", "0", "1e999", "nan", "99999999999999999999999999", "9" * 5000, "../../etc", "<script>x</script>",
        "'; drop table", "\x00", "完全不对",
        "None", "null", "[]", "{}", "%00", "a" * 20_000, "true", "lora", "\ud800"]  # fmt: skip
KEYS = sorted({field.key for field in link._fields()} | set(link._SHARED_KEYS) | {"v"})


@pytest.mark.parametrize("key", KEYS)
def test_junk_in_a_parameter_is_named_or_harmless(key: str) -> None:
    for junk in JUNK:
        for page in PAGES:
            settings, problems = link.decode({"v": "1", key: junk}, page)
            Settings.model_validate(settings.model_dump())
            assert all(problem.key == key for problem in problems)
            if not problems and key != "v":
                again, _ = link.decode(link.encode(settings, page), page)
                assert link.encode(again, page) == link.encode(settings, page)


@given(
    st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=8), st.text() | st.lists(st.text(), max_size=3)),
    st.sampled_from(PAGES),
)
def test_any_query_decodes(query: dict[str, Any], page: Page) -> None:
    settings, _ = link.decode(query, page)
    link.encode(settings, page)


def test_what_is_not_understood_is_named() -> None:
    query = {"v": "7", "b": "many", "xyz": "1", "utm_source": "mail", "m": "not a model!", "g": "rtx-9999"}
    settings, problems = link.decode(query, "training")
    assert {(p.key, p.reason) for p in problems} == {
        ("v", "version"), ("b", "value"), ("xyz", "unknown"), ("m", "model"), ("g", "value")
    }  # fmt: skip
    assert settings == Settings()


def test_a_bomb_stays_folded() -> None:
    bomb = compact.pack('{"a":"' + "0" * 3_000_000 + '"}')
    assert len(bomb) < compact.LONGEST_PACKED
    with pytest.raises(ValueError, match="more than a configuration"):
        compact.unpack(bomb)
