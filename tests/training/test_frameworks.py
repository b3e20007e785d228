"""Framework presets: each is a plan that the calculator can bill, and says what it sets."""

import pytest

from calculator import hardware, lookup
from calculator.training import bill
from calculator.training.frameworks import presets
from calculator.training.plan import Adapter, TrainingPlan

ADAPTED = [key for key, preset in presets().items() if preset.adapter is not None]
NAMES = {"HF Trainer", "DeepSpeed", "torchtune", "torchtitan", "Megatron-LM", "Unsloth", "Axolotl", "LLaMA-Factory",
         "ms-swift", "LitGPT"}  # fmt: skip


def test_the_usual_frameworks_are_there_with_their_source() -> None:
    assert {preset.name for preset in presets().values()} == NAMES
    for key, preset in presets().items():
        assert preset.framework == key
        assert preset.source.url.startswith("https://github.com/")
        assert preset.source.checked_on
        assert preset.versions


@pytest.mark.parametrize("key", list(presets()))
@pytest.mark.parametrize("n_gpus", [1, 8])
def test_full_training_can_be_billed(key: str, n_gpus: int) -> None:
    _billed(key, TrainingPlan(n_gpus=n_gpus), adapted=False)


@pytest.mark.parametrize("key", ADAPTED)
@pytest.mark.parametrize("n_gpus", [1, 8])
def test_adapters_can_be_billed(key: str, n_gpus: int) -> None:
    _billed(key, TrainingPlan(method="lora", adapter=Adapter(rank=64), n_gpus=n_gpus), adapted=True)


def _billed(key: str, plan: TrainingPlan, *, adapted: bool) -> None:
    preset = presets()[key]
    applied = preset.apply(plan, adapted=adapted)
    # What a preset writes is what the plan's own types allow.
    assert TrainingPlan.model_validate(applied.model_dump()) == applied
    assert preset.changed(applied, adapted=adapted) == ()
    assert applied.micro_batch == plan.micro_batch
    shape = lookup.load_preset("qwen2.5-0.5b").shape
    assert bill(shape, applied, hardware.resolve("h100-80gb-sxm")).need.value > 0


def test_what_was_changed_since_is_named() -> None:
    preset = presets()["hf_trainer"]
    plan = preset.apply(TrainingPlan(n_gpus=2), adapted=False)
    other = plan.model_copy(update={"checkpointing": "full", "sharding": "fsdp2"})
    assert preset.changed(other, adapted=False) == ("checkpointing", "sharding")


def test_bytes_per_parameter_follow_the_recipe() -> None:
    """Weights and AdamW states: 2 + 4 for all-bf16, 4 + 8 for fp32 under autocast, 2 + 12 with a master in fp32."""
    shape, gpu = lookup.load_preset("qwen2.5-1.5b").shape, hardware.resolve("h200-141gb-sxm")
    held = {}
    for key in ("hf_trainer", "llamafactory", "deepspeed"):
        found = bill(shape, presets()[key].apply(TrainingPlan(), adapted=False), gpu)
        kept = {item.key: item.max_bytes for item in found.items}
        held[key] = (kept["parameters"] + kept["optimizer_states"]) / shape.parameters.total
    assert held == pytest.approx({"hf_trainer": 6, "llamafactory": 12, "deepspeed": 14}, rel=0.01)
