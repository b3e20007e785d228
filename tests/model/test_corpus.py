"""Every published configuration of the corpus: parameters and caches equal the index, or differ for a named cause."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from calculator.errors import UnknownFamilyError
from calculator.model import read
from calculator.model.describe import shape_json
from calculator.model.shape import ModelShape
from tests.model import known
from tests.model.corpus import class_defaults, configs, index, resaved

READABLE = sorted(configs())
COUNTED = [i for i in READABLE if "meta_total" in index()[i] or "analytic_total" in index()[i]]


@cache
def shape_of(model: str) -> ModelShape:
    return read(configs()[model])


def counted_total(model: str) -> int:
    row = index()[model]
    total: int = row.get("meta_total") or row["analytic_total"]
    return total


def head_elements(shape: ModelShape) -> int:
    return sum(t.elements for t in shape.head if t.kind != "bias")


def test_the_corpus_is_all_there() -> None:
    assert len(configs()) == len(index()) == 487
    assert sum(row.get("difference") == "equal" for row in index().values()) == 206


@pytest.mark.parametrize("model", COUNTED)
def test_total_parameters(model: str) -> None:
    shape, expected = shape_of(model), counted_total(model)
    total = shape.parameters.total
    if model in known.UNTIED_HEAD:
        assert total == expected + head_elements(shape)
        assert index()[model].get("published_total") in (None, total)
    elif model in known.TIED_HEAD:
        assert total == expected - head_elements(shape)
    elif model in known.TOWER_LEFT_OUT:
        assert total == expected + shape.parameters.vision
    elif model in known.OTHER_VOCABULARY:
        assert total == pytest.approx(expected, rel=1e-5)
    else:
        assert total == expected


@pytest.mark.parametrize("model", [i for i in COUNTED if index()[i].get("difference") == "equal"])
def test_equal_to_the_published_total(model: str) -> None:
    assert shape_of(model).parameters.total == index()[model]["published_total"]


@pytest.mark.parametrize("model", sorted(known.EQUAL_TO_PUBLISHED))
def test_families_without_a_class_equal_the_published_total(model: str) -> None:
    assert "meta_total" not in index()[model]
    assert shape_of(model).parameters.total == index()[model]["published_total"]


def test_the_text_part_of_minimax_m3_lacks_what_the_whole_file_adds() -> None:
    whole = shape_of("nvidia/MiniMax-M3-NVFP4").parameters
    text, published = shape_of("MiniMaxAI/MiniMax-M3").parameters, index()["MiniMaxAI/MiniMax-M3"]["published_total"]
    router_biases = 57 * 128
    assert text.total + whole.vision + whole.projector + router_biases == published


@pytest.mark.parametrize("model", sorted(known.PUBLISHED_BEYOND))
def test_prediction_layers_explain_the_published_total(model: str) -> None:
    parameters = shape_of(model).parameters
    beyond = index()[model]["published_total"] - parameters.total - parameters.mtp
    assert beyond == known.PUBLISHED_BEYOND[model]


@pytest.mark.parametrize("model", [i for i in COUNTED if "active_per_token" in index()[i]])
def test_active_parameters(model: str) -> None:
    row, parameters = index()[model], shape_of(model).parameters
    if model not in known.OTHER_VOCABULARY:
        assert parameters.active == row["active_per_token"]
    assert parameters.experts == row["groups"]["routed_experts"]


@pytest.mark.parametrize("model", READABLE)
def test_components_add_up(model: str) -> None:
    parameters = shape_of(model).parameters.model_dump()
    total, active, mtp = (parameters.pop(key) for key in ("total", "active", "mtp"))
    assert sum(parameters.values()) == total
    assert 0 < active <= total
    assert mtp >= 0
    assert all(value >= 0 for value in parameters.values())


@pytest.mark.parametrize(
    "model", [i for i in READABLE if i not in {*known.CACHE_REFUSED, *known.COMPRESSED} and index()[i]["kv"]]
)
def test_cache(model: str) -> None:
    expected: dict[str, Any] = dict(index()[model]["kv"])
    got = shape_of(model).cache
    if model in known.DECODER_SHORTER:
        layers = known.DECODER_SHORTER[model]
        per_layer, rest = divmod(expected["bytes_per_token_full_layers"], expected["full_layers"])
        assert rest == 0
        expected |= {"bytes_per_token_full_layers": layers * per_layer, "full_layers": layers}
    assert {key: getattr(got, key) for key in expected} == expected
    assert got.window_layers == expected.get("window_layers", 0)


@pytest.mark.parametrize(("model", "key"), sorted(known.CACHE_REFUSED.items()))
def test_cache_is_refused_with_the_key_named(model: str, key: str) -> None:
    shape = shape_of(model)
    with pytest.raises(UnknownFamilyError) as refusal:
        _ = shape.cache
    assert refusal.value.field == key
    printed = shape_json(shape)
    assert printed["cache"] is None
    assert {"id": "shape.cache_refused", "values": {"field": key}} in printed["assumptions"]


@pytest.mark.parametrize("row", resaved(), ids=lambda row: row["id"])
def test_a_fine_tune_saved_by_transformers_5_is_the_same_model(row: dict[str, Any]) -> None:
    before, after = shape_of(row["id"]), read(row["config"])
    assert after.parameters == before.parameters
    if row["id"] not in known.CACHE_REFUSED:
        assert after.cache == before.cache


@pytest.mark.parametrize("row", class_defaults(), ids=lambda row: row["id"])
def test_families_of_which_only_the_class_is_at_hand(row: dict[str, Any]) -> None:
    shape = read(row["config"])
    assert shape.parameters.total == row["total"]
    assert {key: getattr(shape.cache, key) for key in row["kv"]} == row["kv"]


def test_sparse_layers_of_phi_3_small_cache_beside_the_full_ones() -> None:
    got = shape_of("microsoft/Phi-3-small-8k-instruct").cache
    assert (got.full_layers, got.sparse_bytes_per_token) == (16, 16 * 2 * 8 * 128 * 2)


def test_indexer_keys_stand_apart() -> None:
    assert shape_of("deepseek-ai/DeepSeek-V3.2").cache.indexer_bytes_per_token == 61 * 128 * 2
    # the layers that take another one's choice keep no keys of their own
    own = sum(kind == "full" for kind in configs()["zai-org/GLM-5.2"]["indexer_types"][:78])
    assert shape_of("zai-org/GLM-5.2").cache.indexer_bytes_per_token == own * 128 * 2
    # 57 of MiniMax-M3's 60 layers choose blocks by one key of 128
    assert shape_of("MiniMaxAI/MiniMax-M3").cache.indexer_bytes_per_token == 57 * 128 * 2
    # keys that are pooled are cached with their gates and a mark of validity
    kinds = configs()["zai-org/GLM-5.3-Flash"]
    text = kinds.get("text_config", kinds)
    full = sum(kind != "linear_attention" for kind in text["layer_types"][: text["num_hidden_layers"]])
    assert shape_of("zai-org/GLM-5.3-Flash").cache.indexer_bytes_per_token == full * (2 * 128 + 1) * 2


@pytest.mark.parametrize("model", ["deepseek-ai/DeepSeek-V4-Flash", "deepseek-ai/DeepSeek-V4-Pro"])
def test_deepseek_v4_caches_one_row_for_several_tokens(model: str) -> None:
    config = configs()[model]
    ratios = config["compress_ratios"][: config["num_hidden_layers"]]
    quarter, far = ratios.count(4), ratios.count(128)
    got = shape_of(model).cache
    assert (got.full_layers, got.window_layers, got.window) == (quarter + far, len(ratios), 128)
    # after 128 tokens: a row of 512 elements for four of them in some layers, one for all in others, 16 bit
    assert 128 * got.bytes_per_token_full_layers == (32 * quarter + far) * 512 * 2
    assert 128 * got.indexer_bytes_per_token == 32 * quarter * 128 * 2
    # values and gates of an open block; where blocks overlap two rows a token, and one of the block before
    assert got.state_bytes_per_sequence == 2 * 2 * (quarter * 4 * 3 * (512 + 128) + far * 128 * 512)


def test_longcat_flash_with_its_prediction_layer_is_the_published_total() -> None:
    row = next(r for r in class_defaults() if r["id"].startswith("class defaults of longcat_flash"))
    parameters = read({**row["config"], "num_nextn_predict_layers": 1}).parameters
    router_biases = 28 * (512 + 256)
    assert parameters.total + parameters.mtp + router_biases == 561_862_880_256
    # 18.6 to 31.3 billion parameters are used for a token, 27 on average (arXiv 2509.01322)
    assert 27e9 < parameters.active < 28e9
