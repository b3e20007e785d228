"""A shape by hand is the shape that it says, whatever family stands in for it."""

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from calculator.lookup import load_preset
from calculator.model import read
from calculator.model.shape import LatentAttention, MoeMlp
from ui.manual import ManualShape, like

KINDS = st.sampled_from(["full", "window", "mla"])


@st.composite
def shapes(draw: st.DrawFn) -> ManualShape:
    heads = draw(st.sampled_from([4, 8, 16]))
    experts = draw(st.sampled_from([0, 0, 8, 64]))
    kind = draw(KINDS)
    return ManualShape(
        hidden=draw(st.sampled_from([256, 512, 1024])), layers=draw(st.integers(1, 40)), heads=heads,
        kv_heads=heads if kind == "mla" else draw(st.sampled_from([1, 2, 4])), head_dim=draw(st.sampled_from([32, 64])),
        intermediate=draw(st.sampled_from([128, 1536])), vocab=draw(st.integers(100, 50_000)), attention=kind,
        window=draw(st.sampled_from([128, 4096])), experts=experts, top_k=draw(st.integers(1, 4)),
        kv_lora_rank=draw(st.sampled_from([64, 128])), q_lora_rank=draw(st.sampled_from([0, 96])), rope_dim=16,
        shared_experts=draw(st.integers(0, 2)) if experts and kind != "window" else 0, tied=draw(st.booleans()),
    )  # fmt: skip


@examples(max_examples=60)
@given(shapes())
def test_it_is_read_back_as_it_was_entered(entered: ManualShape) -> None:
    shape = read(entered.config())
    again = like(shape)
    fields = {"hidden", "layers", "heads", "head_dim", "vocab", "attention", "tied", "experts", "intermediate"}
    if entered.attention == "window":
        fields |= {"window"}
    if entered.attention == "mla":
        fields |= {"kv_lora_rank", "q_lora_rank", "rope_dim"}
    else:
        fields |= {"kv_heads"}
    if entered.experts:
        fields |= {"top_k", "shared_experts"}
    assert again.model_dump(include=fields) == entered.model_dump(include=fields)


@examples(max_examples=30)
@given(shapes())
def test_its_parameters_are_those_of_its_numbers(entered: ManualShape) -> None:
    """Counted again from the matrices of a decoder layer."""
    shape = read(entered.config())
    h, d, m = entered.hidden, entered.head_dim, entered.intermediate
    mixer = shape.blocks[0].mixer
    if isinstance(mixer, LatentAttention):
        wide = d + entered.rope_dim
        query = entered.q_lora_rank
        attention = (h * query + query * entered.heads * wide) if query else h * entered.heads * wide
        attention += h * (entered.kv_lora_rank + entered.rope_dim)
        attention += entered.kv_lora_rank * entered.heads * 2 * d + entered.heads * d * h
    else:
        attention = h * d * (2 * entered.heads + 2 * entered.kv_heads)
    if isinstance(shape.blocks[0].mlp, MoeMlp):
        mlp = 3 * h * m * (entered.experts + entered.shared_experts)
    else:
        mlp = 3 * h * m
    matrices = entered.layers * (attention + mlp) + entered.vocab * h * (1 if entered.tied else 2)
    small = shape.parameters.norm + shape.parameters.router
    biases = shape.parameters.total - matrices - small
    assert 0 <= biases <= 0.01 * matrices


def test_the_editor_starts_from_the_model_that_is_shown() -> None:
    shown = like(load_preset("llama-3.1-8b").shape)
    assert read(shown.config()).parameters.total == load_preset("llama-3.1-8b").shape.parameters.total


@pytest.mark.parametrize("experts", [0, 64])
def test_a_hybrid_keeps_a_cache_in_every_nth_layer_only(experts: int) -> None:
    entered = ManualShape(
        attention="linear", layers=24, full_every=4, linear_heads=16, linear_dim=128, kv_heads=2, head_dim=256,
        experts=experts, shared_experts=1 if experts else 0,
    )  # fmt: skip
    shape = read(entered.config())
    assert shape.cache.full_layers == 6
    assert shape.cache.bytes_per_token_full_layers == 6 * 2 * 2 * 256 * 2
    # 18 layers: 16 heads of 128 x 128, and 3 x 2,048 channels of a kernel of 4, at 16 bit
    assert shape.cache.state_bytes_per_sequence == 18 * (16 * 128 * 128 + 3 * 2048 * 4) * 2
    fields = {"attention", "full_every", "linear_heads", "linear_dim", "layers", "kv_heads", "head_dim", "experts"}
    assert like(shape).model_dump(include=fields) == entered.model_dump(include=fields)
