"""Rows of changing length: what the loss's blocks reserve."""

from __future__ import annotations

import pytest

from calculator.training import varying
from calculator.training.allocator import AllocatorSettings, replay
from calculator.training.plan import TrainingPlan
from calculator.training.varying import lengths_vary
from calculator.units import MIB


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
        ({"method": "full"}, False),
        ({"attention": "eager"}, False),
    ],
)
def test_where_lengths_vary(changes: dict[str, object], expected: bool) -> None:
    assert lengths_vary(_plan(**changes)) is expected


def test_equal_lengths_reserve_two_blocks_once() -> None:
    """Two blocks of 100 MiB alive together, each step the same: 200 MiB, however many steps."""
    block = 100 * MIB
    events = varying._events([block, block, -block, -block], 1000, [1000] * 10)
    stats = replay(events, settings=AllocatorSettings())
    assert stats.reserved_since_trim_bytes == 2 * block


def test_a_longer_step_cannot_use_the_shorter_ones_blocks() -> None:
    """50 MiB, then 100 MiB: both stay reserved. Back at 50 MiB nothing is added."""
    block = 100 * MIB
    events = varying._events([block, -block], 1000, [500, 1000, 500])
    stats = replay(events, settings=AllocatorSettings())
    assert stats.reserved_since_trim_bytes == 150 * MIB


def test_an_unfreed_block_ends_with_its_step() -> None:
    events = varying._events([10, 4, -10], 10, [10, 5])
    assert events == [(0, 10), (1, 4), (0, 0), (1, 0), (4, 5), (5, 2), (4, 0), (5, 0)]
