"""What is copied on the way from the head's weight to the loss, in bytes a logit and bytes a weight."""

from __future__ import annotations

import pytest

from calculator import hardware
from calculator.lookup import load_preset
from calculator.model.shape import ModelShape
from calculator.training.plan import TrainingPlan
from calculator.training.program import Program
from calculator.training.settings import head_form
from calculator.training.step import step
from validation.models import shape_of

GPU = hardware.resolve("a100-80gb-sxm4")
LORA = {"method": "lora", "adapter": {"rank": 8}, "framework": "ms_swift", "torch_version": "2.1.1"}


def program(shape: ModelShape, **fields: object) -> Program:
    return step(shape, TrainingPlan.model_validate(LORA | fields), GPU).program


@pytest.mark.parametrize(("rows", "each"), [(1, 8), (2, 12)])
def test_one_sequence_needs_no_copy_of_its_shifted_logits(rows: int, each: int) -> None:
    """All rows but the last of one sequence lie in a row already: at the loss there are fp32 logits and their
    log-softmax; of two sequences also the copy that makes them contiguous."""
    shape = load_preset("llama-3.1-8b").shape
    found = program(shape, micro_batch=rows, seq_len=1024).items["loss"]["logits_loss"]
    assert found / (1024 * rows * shape.vocab) == pytest.approx(each, rel=0.01)


def test_a_head_with_normalised_rows_makes_an_fp32_copy_of_its_weight() -> None:
    """Baichuan 2: the quotient in fp32 and its 16-bit cast, of which the cast stays to backward."""
    shape = shape_of("baichuan-inc/Baichuan2-7B-Chat")
    plain = shape.model_copy(update={"vocab": shape.vocab - 64})  # an ordinary head, all but as long
    weight = shape.vocab * shape.hidden
    with_norm, without = (program(one, seq_len=16) for one in (shape, plain))
    more = with_norm.highest_by_key["logits_loss"] - without.highest_by_key["logits_loss"]
    assert more == pytest.approx(6 * weight, rel=0.05)
    kept = with_norm.items["loss"]["logits_loss"] - without.items["loss"]["logits_loss"]
    assert kept == pytest.approx(2 * weight, rel=0.05)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, True),
        ({"framework": "hf_trainer", "precision": "bf16"}, True),
        ({"framework": "hf_trainer", "precision": "fp32"}, False),
        ({"framework": "hf_trainer", "n_gpus": 2, "sharding": "zero2", "precision": "mixed_bf16"}, False),
        ({"framework": "plain_torch"}, False),
        ({"convert_outputs_fp32": False}, False),
    ],
)
def test_where_accelerate_casts_the_outputs(fields: dict[str, object], expected: bool) -> None:
    plan = TrainingPlan.model_validate(LORA | fields)
    assert head_form(load_preset("llama-3.1-8b").shape, plan).outputs_fp32 is expected
