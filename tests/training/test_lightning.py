"""litgpt under Fabric: what its own code keeps beyond the textbook."""

import pytest

from calculator.training import bill
from calculator.training.plan import Adapter, TrainingPlan
from tests.training.shapes import A100, shape

TOKENS, HIDDEN, INNER, LAYERS, VOCAB = 512, 512, 1408, 4, 32000
TWO = Adapter(rank=8, targets=("q", "v"))


def made(**changes: object) -> dict[str, dict[str, int]]:
    values = {
        "framework": "litgpt",
        "method": "lora",
        "adapter": TWO,
        "loss": "chunked",
        "attention": "flash",
        "micro_batch": 1,
        "seq_len": TOKENS,
        "optimizer": "adamw_foreach",
        "checkpointing": "none",
    }
    found = bill(shape("llama"), TrainingPlan.model_validate(values | changes), A100)
    return {phase.name: phase.items for phase in found.phases}


def test_logits_and_log_probabilities_are_there_in_fp32() -> None:
    assert made()["loss"]["logits_loss"] >= 2 * 4 * TOKENS * VOCAB


def test_an_adapter_on_part_of_a_fused_projection_keeps_its_columns() -> None:
    heads, shared = 512, 256
    part = made()["backward"]["activations"]
    all_three = made(adapter=Adapter(rank=8, targets=("q", "k", "v")))["backward"]["activations"]
    kept = LAYERS * TOKENS * 2 * (heads + shared)
    grown = LAYERS * TOKENS * 2 * 8  # one more adapter's narrow product
    assert part - all_three == pytest.approx(kept - grown, rel=0.02)


def test_inputs_of_packed_products_outlive_backward_while_the_loop_holds_the_logits() -> None:
    steady = made(method="qlora", base_quant="nf4")["load"]
    first = made(method="qlora", base_quant="nf4", first_step=True)["load"]
    left = steady["activations"] - first.get("activations", 0)
    whole = 2 * TOKENS * (LAYERS * (3 * HIDDEN + INNER) + HIDDEN)
    assert whole - 2 * TOKENS * HIDDEN <= left <= whole
    assert made(method="qlora", base_quant="nf4", framework_version="2023")["load"].get("activations", 0) == 0
