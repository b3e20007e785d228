"""Rows of changing length: what the loss's blocks reserve."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculator import hardware
from calculator.bill import Range
from calculator.lookup import load_preset
from calculator.training.allocator import AllocatorSettings, AllocatorStats, replay
from calculator.training.plan import TrainingPlan
from calculator.training.reserved import reserved
from calculator.training.sequence import Event
from calculator.training.varying import BATCHES, REPLAYED, Size, drawn, fitted, lengths_vary, many
from calculator.units import GIB, MIB
from validation.models import shape_of
from validation.plans import training_plan
from validation.rows import packaged


def _plan(**changes: object) -> TrainingPlan:
    return TrainingPlan.model_validate({"method": "lora", "framework": "ms_swift", **changes})


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"packed": True}, False),
        ({"packed": True, "framework_version": "2.4.0"}, True),
        ({"framework": "axolotl"}, False),
        ({"framework": "axolotl", "packed": False}, True),
        ({"method": "full"}, True),
        ({"attention": "eager"}, True),
    ],
)
def test_where_lengths_vary(changes: dict[str, object], expected: bool) -> None:
    assert lengths_vary(_plan(**changes)) is expected


BLOCK = 100 * MIB


def stepped(lengths: list[int], size: Size = (0.0, BLOCK / 1000, 0.0)) -> AllocatorStats:
    """Two tensors that are alive together, in every step anew."""
    both = [(0, size), (1, size), (0, None), (1, None)]
    return replay(many([both, both], lengths), settings=AllocatorSettings())


def test_equal_lengths_reserve_two_blocks_once() -> None:
    """Two blocks of 100 MiB alive together, each step the same: 200 MiB, however many steps."""
    assert stepped([1000] * 10).reserved_since_trim_bytes == 2 * BLOCK


def test_a_longer_step_cannot_use_the_shorter_ones_blocks() -> None:
    """50 MiB, then 100 MiB, two of each: all stay reserved. Back at 50 MiB nothing is added."""
    assert stepped([500, 1000, 500]).reserved_since_trim_bytes == 3 * BLOCK


def test_a_shorter_step_cuts_the_longer_ones_blocks() -> None:
    assert stepped([1000, 500]).reserved_since_trim_bytes == 2 * BLOCK


def test_what_a_later_step_leaves_ends_with_it_and_what_the_first_leaves_stays() -> None:
    made: list[tuple[int, Size | None]] = [(0, (0.0, 1024.0, 0.0))]
    assert many([made, made], [1, 2, 3]) == [(0, 1024), (0, 2048), (0, 0), (0, 3072), (0, 0)]


def test_three_lengths_say_every_other() -> None:
    """A constant, a multiple of the length and scores of attention; a release, and a small tensor that is left out."""

    def events(length: int) -> list[Event]:
        return [(0, 7 * MIB), (1, length * MIB), (2, length * length * MIB), (3, 512), (1, 0), (3, 0)]

    found = many([fitted([events(64), events(32), events(16)], (64, 32, 16))] * 2, [10])
    assert found == [event for event in events(10) if event[0] != 3]


def test_steps_that_differ_in_more_than_their_sizes_say_nothing_of_others() -> None:
    assert fitted([[(0, 5 * MIB)], [(0, 5 * MIB), (1, MIB)], [(0, MIB)]], (64, 32, 16)) == []


@given(st.integers(8, 100_000), st.integers(1, 16), st.integers(0, 50))
def test_drawn_lengths_end_with_the_longest(longest: int, rows: int, seed: int) -> None:
    found = drawn(longest, rows, seed)
    assert found[-1] == longest == max(found)
    assert min(found) >= longest // 10
    assert BATCHES // REPLAYED < len(found) < BATCHES // 2


def test_full_batches_are_longer() -> None:
    """Padded to the longest of their rows."""
    assert drawn(1000, 8, 0)[0] > drawn(1000, 1, 0)[0]


def held(**changes: object) -> Range:
    plan = _plan(adapter={"rank": 8}, seq_len=1024, attention="flash", gpu="a100-80gb-sxm4", **changes)
    return reserved(load_preset("qwen2.5-1.5b").shape, plan, hardware.resolve(plan.gpu))


def test_varying_lengths_reserve_more_and_say_how_uncertain_that_is() -> None:
    """Between the lowest and the highest of several orders of the rows."""
    packed, loose = held(packed=True), held()
    assert loose.value > 1.1 * packed.value
    assert loose.low < loose.value < loose.high


def test_published_readings_of_unpacked_full_training() -> None:
    """ms-swift 2.x's benchmark page, Qwen-7B in full on one A100: 73.37, 73.64 and 74.26 GiB at 512, 1024 and 2048
    tokens, where equal lengths would reserve 72.4."""
    rows = {row.id: row.data for row in packaged("training")}
    for length, measured in ((512, 73.37), (1024, 73.64), (2048, 74.26)):
        case = rows[f"swift-full-qwen-7b-{length}"]
        plan = training_plan(case)
        found = reserved(shape_of(case["model"]), plan, hardware.resolve(plan.gpu, plan.gpu_capacity_bytes))
        assert found.value / GIB == pytest.approx(measured, rel=0.015)
