"""Every matrix that a checkpoint holds is one that its layers are written with: a step makes each one's gradient."""

from __future__ import annotations

import pytest

from calculator.hardware import find
from calculator.model import read
from calculator.model.shape import ModelShape
from calculator.training import bill
from calculator.training.assumptions import UNWRITTEN
from calculator.training.plan import TrainingPlan
from calculator.training.step import step
from tests.model.corpus import configs
from tests.model.test_every_family import families

PARTLY = {
    "blt": "the patcher and the byte models are no layers",
    "deepseek_ref": "queries of low rank and the grouped output are written as plain projections",
    "deepseek_v4": "queries of low rank and the grouped output are written as plain projections",
    "ernie4_5_moe_vl": "experts of pictures get no gradient from text",
    "ernie4_5_vl_moe": "experts of pictures get no gradient from text",
    "mllama": "layers of cross attention are not written",
    "mistral": "an embedding model, whose head the loss needs",
    "qwen4_exp": "the table of n-grams is not written",
}
"""Families whose step lacks, or makes beyond the checkpoint, more than 0.3 % of the parameters, and why."""


def shapes() -> dict[str, ModelShape]:
    more = {"google/gemma-4-E2B-it": read(configs()["google/gemma-4-E2B-it"])}
    return {name: s for name, s in {**families(), **more}.items() if s.kind == "decoder" and name not in PARTLY}


@pytest.mark.parametrize("family", sorted(shapes()))
def test_a_step_makes_the_gradient_of_every_matrix(family: str) -> None:
    shape = shapes()[family]
    plan = TrainingPlan(micro_batch=1, seq_len=128, checkpointing="full", first_step=True)
    stages = step(shape, plan, find("h100-80gb-sxm"), tensors_only=True).program.stages
    made = sum(s.events.net_by_key.get("gradients", 0) for s in stages if s.phase != "optimizer")
    count = shape.parameters
    trained = count.total - count.vision - count.audio - count.projector
    assert made == pytest.approx(2 * trained, rel=3e-3)


@pytest.mark.parametrize("family", sorted(set(UNWRITTEN) & set(families())))
def test_what_a_step_leaves_out_is_said(family: str) -> None:
    found = bill(families()[family], TrainingPlan(micro_batch=1, seq_len=128), find("h100-80gb-sxm"), tensors_only=True)
    assert f"training.assumption.no_{UNWRITTEN[family]}" in {note.id for note in found.assumptions}
