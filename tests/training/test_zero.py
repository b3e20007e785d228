"""DeepSpeed's buffers: what stage 3 has gathered at each place of the step, and the buckets of stages 1 and 2."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculator.hardware import resolve
from calculator.lookup import load_preset
from calculator.model import read
from calculator.training import bill
from calculator.training.plan import TrainingPlan
from calculator.training.sharding import LiveWeights, UnitBytes
from calculator.training.step import step
from calculator.training.template import Stretch

GPU = resolve("a100-80gb-sxm4")
LLAMA_7B = read(
    {
        "model_type": "llama", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "tie_word_embeddings": False,
    }
)  # fmt: skip
HEAD = 2 * 32000 * 4096
LAYER = 2 * (4 * 4096**2 + 3 * 4096 * 11008)
GATE = 2 * 4096 * 11008


def plan(**changes: Any) -> TrainingPlan:
    base = {
        "framework": "deepspeed", "precision": "mixed_bf16", "sharding": "zero3", "n_gpus": 8, "seq_len": 4096,
        "optimizer": "adamw_fused", "checkpointing": "full",
    }  # fmt: skip
    return TrainingPlan.model_validate(base | changes)


def gathered(phase: str, **changes: Any) -> int:
    found = bill(LLAMA_7B, plan(**changes), GPU).phases
    return next(p.items for p in found if p.name == phase).get("gathered_parameters", 0)


def test_the_head_and_the_last_layer_stay_through_the_loss() -> None:
    """Backward needs them again within 10^9 elements; the layer before, counting its own other weights, does not."""
    assert gathered("loss", zero_prefetch_bucket=0) == pytest.approx(HEAD + LAYER, rel=1e-3)


def test_a_prefetch_goes_on_until_its_elements_are_under_way() -> None:
    alone = gathered("loss", zero_prefetch_bucket=0)
    for bucket in (1, 10**7, 6 * 10**7):
        more = gathered("loss", zero_prefetch_bucket=bucket) - alone
        assert 2 * bucket <= more <= 2 * bucket + GATE


def test_live_parameters_bound_the_prefetch_alone() -> None:
    alone = gathered("loss", zero_prefetch_bucket=0)
    assert gathered("loss", zero_prefetch_bucket=5 * 10**8, zero_max_live_parameters=0) == alone
    assert gathered("loss", zero_prefetch_bucket=5 * 10**8, zero_max_live_parameters=5 * 10**8) <= 10**9 + GATE


def test_small_models_stay_gathered_from_forward_to_backward() -> None:
    shape = load_preset("llama-3.2-1b").shape.model_copy(update={"order": (0,) * 2})
    items = next(p.items for p in bill(shape, plan(zero_prefetch_bucket=0), GPU).phases if p.name == "loss")
    assert items["gathered_parameters"] > 2 * 2 * 60_000_000


@given(
    sizes=st.lists(st.lists(st.integers(1, 10**9), min_size=1, max_size=4), min_size=2, max_size=6),
    ahead=st.integers(0, 10**9),
    live=st.integers(0, 2 * 10**9),
)
def test_all_that_is_gathered_is_released(sizes: list[list[int]], ahead: int, live: int) -> None:
    units = [UnitBytes(sum(s), 0, frozen=True, tensors=tuple(s)) for s in sizes]
    weights = LiveWeights(units, plan(zero_prefetch_bucket=ahead, zero_max_live_parameters=live))
    total, count = 0, len(units)
    for forward, order in ((True, range(count)), (False, range(count - 1, -1, -1))):
        for unit in order:
            for stretch in (weights.fetch(unit, forward=forward), None):
                total += net(stretch)
            assert total == weights.live
            assert sum(units[unit].tensors) <= total <= sum(sum(s) for s in sizes)
            stretch = weights.release(unit, forward=forward)
            total += net(stretch)
    assert total == 0


def net(stretch: Stretch | None) -> int:
    """Bytes that an edit of fixed sizes leaves."""
    return sum(form.at(()) for form in stretch.net_by_key.values()) if stretch else 0


def test_the_program_ends_with_nothing_gathered() -> None:
    program = step(LLAMA_7B, plan(grad_accum=2), GPU).program
    assert sum(stage.events.net_by_key.get("gathered_parameters", 0) for stage in program.stages) == 0


# Published readings of an ablation of LLaMA-7B on 8 A800 (micro-batch 2 and 8 of 4096 tokens, ZeRO-3, checkpointing),
# https://gist.github.com/d4cd6a20ab4b95cb3a49491747e2139a: 20.4 and 39.1 GiB, 9.4 with the optimizer on the host.
@pytest.mark.parametrize(
    ("micro_batch", "accumulated", "offload", "measured"),
    [(2, 4, (), 20.4), (8, 1, (), 39.1), (2, 4, ("optimizer",), 9.4)],
)
def test_published_peaks_of_stage_3(micro_batch: int, accumulated: int, offload: tuple[str, ...], measured: float):
    made = bill(
        LLAMA_7B,
        plan(
            micro_batch=micro_batch, grad_accum=accumulated, offload=offload, attention="flash", torch_version="2.2.0",
            optimizer_state_dtype="fp32",
        ),
        GPU,
    )  # fmt: skip
    assert made.allocated.value / 2**30 == pytest.approx(measured, rel=0.015)


def test_overlapped_communication_takes_a_second_bucket() -> None:
    def bucket(**changes: Any) -> int:
        items = bill(LLAMA_7B, plan(sharding="zero2", **changes), GPU).items
        return next(item.max_bytes for item in items if item.key == "comm_buffers")

    assert bucket(zero_reduce_bucket=2 * 10**8) == pytest.approx(4 * 10**8, rel=1e-3)
    assert bucket(zero_reduce_bucket=2 * 10**8, zero_overlap_comm=True) == pytest.approx(8 * 10**8, rel=1e-3)


def test_the_allgather_bucket_takes_nothing_and_is_said() -> None:
    with_it, without = (
        bill(LLAMA_7B, plan(sharding="zero2", **extra), GPU) for extra in ({"zero_allgather_bucket": 10**8}, {})
    )
    assert with_it.allocated == without.allocated
    assert "training.assumption.allgather" in {text.id for text in with_it.assumptions}
