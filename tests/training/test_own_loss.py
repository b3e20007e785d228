"""A model that brings its own loss: the first Qwen shifts its 16-bit logits and leaves the cast to autocast."""

from __future__ import annotations

import pytest

from calculator.hardware import resolve
from calculator.model import read
from calculator.training import bill
from calculator.training.plan import TrainingPlan

CONFIG = {
    "model_type": "qwen", "architectures": ["QWenLMHeadModel"], "vocab_size": 151_936, "hidden_size": 1024,
    "intermediate_size": 5632, "num_hidden_layers": 2, "num_attention_heads": 8, "kv_channels": 128,
}  # fmt: skip
TOKENS = 4096


def loss_bytes_a_logit(**changes) -> float:
    plan = TrainingPlan.model_validate(
        {"seq_len": TOKENS // 2, "micro_batch": 2, "transformers_version": "4.34"} | changes
    )
    found = {p.name: p.items.get("logits_loss", 0) for p in bill(read(CONFIG), plan, resolve("a100-80gb-sxm4")).phases}
    return found["loss"] / (151_936 * TOKENS)


def test_the_forward_moment_under_autocast() -> None:
    """Logits 2, shifted copy 2, log-softmax 2, and the fp32 copy that the picked log-probabilities are read from 4."""
    assert loss_bytes_a_logit() == pytest.approx(10, rel=2e-3)


def test_without_autocast_the_library_form_stays() -> None:
    """fp32 logits 4, shifted copy 4, log-softmax 4 (transformers up to 4.45)."""
    assert loss_bytes_a_logit(precision="mixed_bf16") == pytest.approx(12, rel=2e-3)
