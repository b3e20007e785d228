"""Reading one configuration: what is no model, what is unknown, what is assumed."""

from __future__ import annotations

from typing import Any

import pytest

from calculator.errors import (
    BadValueError,
    MissingKeyError,
    NotAConfigError,
    NotALanguageModelError,
    ShapeError,
    UnknownFamilyError,
)
from calculator.model import read
from tests.model.corpus import configs

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 100,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "rms_norm_eps": 1e-5,
}


def ids(config: dict[str, Any]) -> set[str]:
    return {note.id for note in read(config).assumptions}


@pytest.mark.parametrize("value", [None, [], "text", 3, {1: 2}])
def test_not_a_configuration(value: Any) -> None:
    with pytest.raises(NotAConfigError):
        read(value)


def test_deep_nesting_is_refused_without_recursion() -> None:
    config: dict[str, Any] = dict(LLAMA)
    inner = config
    for _ in range(100_000):
        inner["text_config"] = {}
        inner = inner["text_config"]
    with pytest.raises(NotAConfigError):
        read(config)


def test_a_file_of_a_million_values_is_refused() -> None:
    with pytest.raises(NotAConfigError):
        read({**LLAMA, "extra": list(range(1_000_000))})


def test_parameters_of_a_small_llama_by_hand() -> None:
    p = read(LLAMA).parameters
    attention = 2 * (64 * 64 * 2 + 2 * 32 * 64)
    mlp = 2 * 3 * 64 * 128
    assert (p.embedding, p.head, p.attention, p.mlp, p.norm) == (6400, 6400, attention, mlp, 5 * 64)
    assert p.total == p.active == 2 * 6400 + attention + mlp + 5 * 64


def test_an_embedding_model_has_no_head() -> None:
    assert read({**LLAMA, "architectures": ["LlamaModel"]}).parameters.head == 0


def test_a_reward_model_has_a_classifier() -> None:
    config = {
        **LLAMA,
        "architectures": ["LlamaForSequenceClassification"],
        "num_labels": 3,
        "tie_word_embeddings": True,
    }
    assert read(config).parameters.head == 3 * 64


def test_defaults_are_listed() -> None:
    without = {k: v for k, v in LLAMA.items() if k not in ("num_key_value_heads", "tie_word_embeddings", "torch_dtype")}
    assert ids(without) == {
        "assumption.default",
        "assumption.kv_heads", "assumption.untied", "assumption.dtype", "assumption.head_dim"}  # fmt: skip
    assert ids({**LLAMA, "head_dim": 16, "attention_bias": False, "mlp_bias": False}) == set()


def test_an_unknown_family_with_only_llamas_keys_is_read_as_one() -> None:
    new = {**LLAMA, "model_type": "newfamily", "architectures": ["NewFamilyForCausalLM"]}
    assert read(new).parameters == read(LLAMA).parameters
    assert "assumption.generic" in ids(new)


@pytest.mark.parametrize(
    "extra",
    [
        {"num_experts": 8},
        {"kv_lora_rank": 512},
        {"layer_pattern": "LLG"},
        {"value_residual_width": 12},
        {"altup_num_inputs": 4},
        {"memory_config": {"slots": 4}},
        {"use_qkv_bias": True},
        {"parallel_attn": True},
    ],
)
def test_an_unknown_family_with_a_key_that_matters_is_refused(extra: dict[str, Any]) -> None:
    new = {**LLAMA, "model_type": "newfamily", "architectures": ["NewFamilyForCausalLM"], **extra}
    with pytest.raises(UnknownFamilyError) as refusal:
        read(new)
    assert refusal.value.field == next(iter(extra))


@pytest.mark.parametrize("key", ["num_key_value_heads", "tie_word_embeddings", "hidden_act", "rms_norm_eps"])
def test_an_unknown_family_must_say_what_families_differ_in(key: str) -> None:
    new = {k: v for k, v in LLAMA.items() if k != key} | {
        "model_type": "newfamily",
        "architectures": ["NewForCausalLM"],
    }
    with pytest.raises(UnknownFamilyError):
        read(new)


def test_a_known_class_under_a_foreign_name_is_refused() -> None:
    with pytest.raises(UnknownFamilyError) as refusal:
        read({**LLAMA, "model_type": "many", "architectures": ["Olmo2ForCausalLM"]})
    assert refusal.value.field == "model_type"


@pytest.mark.parametrize(
    "extra",
    [{"kv_lora_rank": 512}, {"num_local_experts": 8}, {"num_kv_shared_layers": 2}, {"linear_num_key_heads": 4}],
)
def test_a_known_family_with_a_key_of_another_is_refused(extra: dict[str, Any]) -> None:
    with pytest.raises(UnknownFamilyError) as refusal:
        read({**LLAMA, **extra})
    assert refusal.value.field == next(iter(extra))


@pytest.mark.parametrize(
    ("key", "name"),
    [("num_key_value_heads", "num_kv_heads"), ("num_key_value_heads", "n_key_value_heads"), ("head_dim", "head_dim_k")],
)
def test_a_misspelt_key_is_refused_instead_of_its_default_taken(key: str, name: str) -> None:
    config = {k: v for k, v in LLAMA.items() if k != key} | {name: 2}
    with pytest.raises(UnknownFamilyError) as refusal:
        read(config)
    assert refusal.value.field == name


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "vit", "hidden_size": 768, "image_size": 224, "patch_size": 16, "num_hidden_layers": 12},
        {"model_type": "wav2vec3", "hidden_size": 768, "num_mel_bins": 80},
        {"_class_name": "UNet2DConditionModel", "sample_size": 64},
    ],
)
def test_models_without_words(config: dict[str, Any]) -> None:
    with pytest.raises(NotALanguageModelError):
        read(config)


def test_no_model_type() -> None:
    with pytest.raises(MissingKeyError) as refusal:
        read({k: v for k, v in LLAMA.items() if k != "model_type"})
    assert refusal.value.field == "model_type"


def test_a_total_beyond_reason_is_refused() -> None:
    with pytest.raises(BadValueError) as refusal:
        read({**LLAMA, "hidden_size": 2**20, "intermediate_size": 10**8, "num_hidden_layers": 2_000})
    assert refusal.value.key == "shape.too_large"


def test_layer_lists_may_name_prediction_layers_but_nothing_more() -> None:
    config = configs()["LGAI-EXAONE/EXAONE-4.5-33B-FP8"]
    text = config["text_config"]
    assert len(text["layer_types"]) == text["num_hidden_layers"] + 1
    assert read(config).layers == text["num_hidden_layers"]
    broken = {**config, "text_config": {**text, "layer_types": [*text["layer_types"], "full_attention"]}}
    with pytest.raises(ShapeError) as refusal:
        read(broken)
    assert refusal.value.field == "text_config.layer_types"
