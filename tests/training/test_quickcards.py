"""The cards' own arithmetic, and the bill beside them."""

import pytest

from calculator import quickcards
from calculator.render import render
from calculator.training import bill
from calculator.training.plan import TrainingPlan
from calculator.units import GB
from tests.training.shapes import A100, shape

LLAMA_7B = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 32,
}  # fmt: skip


def test_seven_billion_in_full():
    card = quickcards.full(7_000_000_000)
    assert (card.weights_bytes, card.gradients_bytes, card.optimizer_bytes) == (14 * GB, 14 * GB, 84 * GB)
    assert card.total_bytes == 112 * GB


def test_seventy_billion_in_full():
    assert quickcards.full(70_000_000_000).total_bytes == 1_120 * GB


def test_lora_of_seven_billion_is_about_twenty():
    assert quickcards.lora(7_000_000_000).total_bytes == pytest.approx(20 * GB, rel=0.05)


@pytest.mark.parametrize(("parameters", "low", "high"), [(7_000_000_000, 10, 14), (14_000_000_000, 14, 20)])
def test_qlora(parameters: int, low: int, high: int):
    found = quickcards.qlora(parameters).range_bytes
    assert low * GB <= found[0] < found[1] <= high * GB


def test_a_real_lora_step_of_seven_billion_takes_less_than_the_card():
    plan = TrainingPlan(method="lora", micro_batch=1, seq_len=2048, checkpointing="full")
    real = bill(shape("llama", **LLAMA_7B), plan, A100).allocated.value
    assert 14 * GB < real < 17 * GB < quickcards.lora(7_000_000_000).total_bytes


def test_a_real_full_step_in_pure_16_bit_takes_less_and_with_a_master_copy_more():
    model = shape("llama", **LLAMA_7B)
    card = quickcards.full(model.parameters.total).total_bytes
    pure = bill(model, TrainingPlan(optimizer="adamw_fused", micro_batch=1, seq_len=2048), A100)
    master = bill(
        model, TrainingPlan(precision="mixed_bf16", optimizer="adamw_foreach", micro_batch=1, seq_len=2048), A100
    )
    assert pure.allocated.value < card < master.allocated.value


@pytest.mark.parametrize("card", ["full", "lora", "qlora"])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_reason_has_a_sentence(card: quickcards.Card, language: str):
    for reason in quickcards.why(card):
        assert render(reason, language) != reason.id
