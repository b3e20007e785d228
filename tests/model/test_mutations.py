"""Broken configurations give the right answer or a typed error naming the key; nothing crashes, hangs or is zero."""

from __future__ import annotations

import time

import pytest

from calculator.errors import ShapeError, UnknownFamilyError
from calculator.model import read
from calculator.model.shape import CacheShape, ModelShape
from tests.model.corpus import configs
from tests.model.mutations import Mutation, generate, generate_pairs
from tests.model.test_corpus import shape_of

COUNT = 2_000
BATCHES = 20


def cache_of(shape: ModelShape) -> CacheShape | None:
    try:
        return shape.cache
    except UnknownFamilyError:
        return None


def readable() -> dict[str, dict[str, object]]:
    return configs()


def says_default(mutation: Mutation, shape: ModelShape) -> bool:
    """Whether the assumptions say that the key's default was taken."""
    leaf = mutation.key.split(".")[-1]
    return any(leaf in str(note.values) for note in shape.assumptions)


NULL_MEANS_NONE = {
    "n_shared_experts",
    "num_shared_experts",
    "sliding_window",
    "q_lora_rank",
    "vision_config",
    "visual",
}
"""Keys for which null is an answer: no shared experts, no window, one plain query projection, no tower."""

LISTS_THAT_MAY_CHANGE = {
    "mlp_only_layers",
    "vision_feature_layer",
    "vision_config",
    "ple_layer_ids",
    "ssm_cfg",
    "mlp_ratio",
}
"""A mutated value of these can be a valid one, which changes the total rightly."""


@pytest.mark.parametrize("batch", range(BATCHES))
def test_mutations(batch: int) -> None:
    for mutation in generate(readable(), COUNT // BATCHES, seed=1_000 + batch):
        check(mutation)


@pytest.mark.parametrize("batch", range(4))
def test_two_broken_keys_at_once_still_give_a_shape_or_a_typed_error(batch: int) -> None:
    for mutation in generate_pairs(readable(), 400, seed=2_000 + batch):
        shape = outcome(mutation)
        assert isinstance(shape, ShapeError) or 0 < shape.parameters.total <= 10**14, mutation


@pytest.mark.parametrize("value", [["llama"], {"name": "llama"}, 3, True, ""])
def test_a_language_model_must_be_named_by_a_word(value: object) -> None:
    config = configs()["llava-hf/llava-1.5-7b-hf"]
    with pytest.raises(ShapeError) as refusal:
        read({**config, "text_config": {**config["text_config"], "model_type": value}})
    assert refusal.value.field == "text_config.model_type"


def outcome(mutation: Mutation) -> ModelShape | ShapeError:
    started = time.perf_counter()
    try:
        return read(mutation.config)
    except ShapeError as error:
        return error
    finally:
        assert time.perf_counter() - started < 5, mutation


def check(mutation: Mutation) -> None:
    shape = outcome(mutation)
    if isinstance(shape, ShapeError):
        assert shape.field, mutation
        return
    before = shape_of(mutation.model)
    assert 0 < shape.parameters.total <= 10**14, mutation
    if shape.parameters == before.parameters and cache_of(shape) == cache_of(before):
        return
    leaf = mutation.key.split(".")[-1]
    if mutation.kind in ("removed", "renamed"):
        # a key that is gone, or now called otherwise, is never missed in silence
        assert says_default(mutation, shape), mutation
    elif mutation.kind == "null":
        assert says_default(mutation, shape) or leaf in NULL_MEANS_NONE, mutation
    elif mutation.kind in ("text", "negative", "list", "fraction", "object", "huge"):
        assert leaf in LISTS_THAT_MAY_CHANGE, mutation


SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")


@pytest.mark.parametrize("key", SIZES)
@pytest.mark.parametrize("value", [None, -1, 0, "4096", 10**18, 1.5, True, [1], {"a": 1}, float("nan"), float("inf")])
def test_sizes_of_llama_must_be_sizes(key: str, value: object) -> None:
    config = {**configs()["NousResearch/Llama-2-7b-hf"], key: value}
    with pytest.raises(ShapeError) as refusal:
        read(config)
    assert refusal.value.field == key


@pytest.mark.parametrize("key", SIZES)
def test_a_missing_size_of_llama_is_named(key: str) -> None:
    config = {k: v for k, v in configs()["NousResearch/Llama-2-7b-hf"].items() if k != key}
    with pytest.raises(ShapeError) as refusal:
        read(config)
    assert refusal.value.field == key
