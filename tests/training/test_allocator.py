"""The allocator's model: against recorded statistics of PyTorch's own, rule by rule, and by laws."""

import gzip
import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculator.training.allocator import AllocatorSettings, AllocatorStats, replay
from calculator.training.allocator.blocks import Block
from calculator.training.allocator.replay import make

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
RECORDED = Path(__file__).parent.parent / "data" / "allocator" / "recorded.jsonl.gz"
EXPANDABLE = AllocatorSettings(expandable_segments=True)
LIMITED = AllocatorSettings(max_split_bytes=200 * MIB)


def recorded() -> list[dict[str, Any]]:
    with gzip.open(RECORDED, "rt") as lines:
        return [json.loads(line) for line in lines]


@pytest.mark.parametrize("case", recorded(), ids=lambda case: f"{len(case['events'])}-events")
def test_it_does_what_pytorch_did(case: dict[str, Any]) -> None:
    """Allocated, reserved, both peaks, inactive split, retries and failures, to the byte, all along the sequence."""
    expected = {row[0]: row[1:] for row in case["stats"]}
    settings = AllocatorSettings(**case["settings"])
    allocator = make(case["capacity_bytes"], case["card_bytes"], settings)
    taken: dict[int, Block] = {}
    failed = 0
    for number, (ident, size) in enumerate(case["events"]):
        if size:
            block = allocator.allocate(size)
            if block:
                taken[ident] = block
            else:
                failed += 1
        elif ident in taken:
            allocator.free(taken.pop(ident))
        if number in expected:
            assert [
                allocator.allocated_bytes,
                allocator.reserved_bytes,
                allocator.allocated_peak_bytes,
                allocator.reserved_peak_bytes,
                allocator.inactive_split_bytes(),
                allocator.trims,
                failed,
            ] == expected[number], f"after event {number}"


def test_the_recording_covers_every_setting_and_a_full_card() -> None:
    cases = recorded()
    settings = Counter(str(case["settings"]) for case in cases)
    assert len(settings) == 3
    assert min(settings.values()) >= 8
    retried = {str(case["settings"]) for case in cases if case["stats"][-1][6]}
    failed = {str(case["settings"]) for case in cases if case["stats"][-1][7]}
    assert retried == failed == set(settings)


def test_the_replay_returns_the_recorded_end() -> None:
    for case in recorded():
        stats = replay(
            [(ident, size) for ident, size in case["events"]],
            capacity_bytes=case["capacity_bytes"],
            card_bytes=case["card_bytes"],
            settings=AllocatorSettings(**case["settings"]),
        )
        end = case["stats"][-1]
        assert [
            stats.allocated_bytes,
            stats.reserved_bytes,
            stats.allocated_peak_bytes,
            stats.reserved_peak_bytes,
            stats.inactive_split_bytes,
            stats.trims,
            stats.out_of_memory,
        ] == end[1:]


@pytest.mark.parametrize(
    ("size", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (19 * MIB, 20 * MIB, 20 * MIB),  # a rest of 1 MiB stays with the block
        (19 * MIB - 512, 19 * MIB - 512, 20 * MIB),  # a larger one is split off
        (4096 * 4096 * 2, 32 * MIB, 32 * MIB),
        (128257 * 4096 * 2, 1002 * MIB + 8 * KIB, 1004 * MIB),
    ],
)
def test_one_request(size: int, allocated: int, reserved: int) -> None:
    stats = replay([("a", size)])
    assert (stats.allocated_bytes, stats.reserved_bytes) == (allocated, reserved)


def test_two_projections_of_8_mib_share_a_segment_and_lose_its_end() -> None:
    stats = replay([("k", 8 * MIB), ("v", 8 * MIB), ("q", 8 * MIB)])
    assert stats.reserved_bytes == 40 * MIB
    assert stats.inactive_split_bytes == 4 * MIB + 12 * MIB


def test_growing_blocks_cannot_use_each_others_place() -> None:
    """The sum, not the maximum: why a loss that casts and shifts its logits reserves so much."""
    events = [event for size in (100, 200, 400) for event in ((size, size * MIB), (size, 0))]
    assert replay(events).reserved_bytes == 700 * MIB
    assert replay(events).allocated_peak_bytes == 400 * MIB
    assert replay(events, settings=EXPANDABLE).reserved_bytes == 400 * MIB


def test_a_full_card_gives_back_what_is_free_and_counts_it() -> None:
    events = [("a", 600 * MIB), ("b", 100 * MIB), ("a", 0), ("c", 800 * MIB), ("d", 200 * MIB)]
    stats = replay(events, capacity_bytes=GIB)
    assert stats.trims == 2
    assert stats.out_of_memory == 1
    assert stats.first_out_of_memory == 4
    assert stats.reserved_peak_bytes == stats.reserved_since_trim_bytes == 900 * MIB
    endless = replay(events)
    assert (endless.trims, endless.out_of_memory, endless.reserved_bytes) == (0, 0, 1500 * MIB)


def test_after_a_trim_the_monitor_shows_less() -> None:
    events = [("a", 900 * MIB), ("a", 0), ("b", 950 * MIB), ("b", 0), ("c", 100 * MIB)]
    assert replay(events, capacity_bytes=GIB).reserved_since_trim_bytes == 950 * MIB
    events = [("a", 900 * MIB), ("a", 0), ("b", 300 * MIB), ("c", 700 * MIB)]
    stats = replay(events, capacity_bytes=GIB)
    assert stats.trims == 1  # b splits a's block, so nothing is wholly free, and c fails
    assert stats.out_of_memory == 1
    assert stats.reserved_peak_bytes == 900 * MIB


def test_a_split_limit_keeps_large_blocks_whole() -> None:
    events = [("a", 400 * MIB), ("a", 0), ("b", 30 * MIB)]
    assert replay(events).reserved_bytes == 400 * MIB
    assert replay(events, settings=LIMITED).reserved_bytes == 430 * MIB


sizes = st.one_of(
    st.integers(1, 4 * KIB), st.integers(1, 3 * MIB), st.integers(MIB, 40 * MIB), st.integers(40 * MIB, 600 * MIB)
)
steps = st.lists(st.tuples(st.booleans(), sizes, st.integers(0, 1 << 16)), min_size=1, max_size=120)
any_settings = st.sampled_from([AllocatorSettings(), LIMITED, EXPANDABLE])
capacities = st.sampled_from([None, GIB, 300 * MIB])


def sequence(steps: list[tuple[bool, int, int]]) -> list[tuple[int, int]]:
    """Allocations, and releases of what is alive."""
    events: list[tuple[int, int]] = []
    alive: list[int] = []
    for number, (release, size, pick) in enumerate(steps):
        if release and alive:
            events.append((alive.pop(pick % len(alive)), 0))
        else:
            alive.append(number)
            events.append((number, size))
    return events


@given(steps, any_settings, capacities)
def test_laws(steps: list[tuple[bool, int, int]], settings: AllocatorSettings, capacity: int | None) -> None:
    """Blocks tile their segments, lists hold exactly what is not taken, and counters are what the blocks add up to."""
    allocator = make(capacity, None, settings)
    taken: dict[int, Block] = {}
    asked: dict[int, int] = {}
    for ident, size in sequence(steps):
        if size:
            block = allocator.allocate(size)
            if block:
                taken[ident], asked[ident] = block, size
        elif ident in taken:
            allocator.free(taken.pop(ident))
            del asked[ident]
    assert allocator.allocated_bytes == sum(block.size for block in taken.values()) <= allocator.reserved_bytes
    assert all(block.size >= asked[ident] for ident, block in taken.items())
    assert allocator.reserved_bytes <= allocator.reserved_peak_bytes <= (capacity or 1 << 50)
    free = 0
    spans = [(block.address, block.size) for block in taken.values()]
    for pool in (allocator.small, allocator.large):
        assert sorted(pool.at) == sorted([block.address for block in pool.free_blocks()] + pool.unmapped)
        assert pool.order == sorted(pool.order)
        free += sum(block.size for block in pool.free_blocks())
        spans += [(block.address, block.size) for block in pool.at.values()]
        for block in pool.at.values():
            assert block.after is None or block.after.before is block
            assert block.after is None or block.after.address == block.address + block.size
            assert block.after is None or block.after.state != block.state  # neighbours of a kind have merged
    assert allocator.reserved_bytes == allocator.allocated_bytes + free
    spans.sort()
    assert all(start + size <= following for (start, size), (following, _) in pairwise(spans))

    for block in taken.values():
        allocator.free(block)
    allocator.empty_cache()
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (0, 0)


@given(steps, any_settings)
def test_a_card_as_large_as_the_endless_need_changes_nothing(
    steps: list[tuple[bool, int, int]], settings: AllocatorSettings
) -> None:
    events = sequence(steps)
    endless = replay(events, settings=settings)
    assert replay(events, capacity_bytes=endless.reserved_peak_bytes, settings=settings) == endless
    assert endless.reserved_since_trim_bytes == endless.reserved_peak_bytes


def test_what_is_not_there_is_not_released() -> None:
    assert replay([("a", 0), ("b", -5)]) == AllocatorStats(
        allocated_bytes=0,
        reserved_bytes=0,
        allocated_peak_bytes=0,
        reserved_peak_bytes=0,
        inactive_split_bytes=0,
        reserved_since_trim_bytes=0,
        trims=0,
        out_of_memory=0,
        first_out_of_memory=None,
    )
