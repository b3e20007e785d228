"""Bytes and their text."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculator.errors import PlanError
from calculator.units import GB, GIB, MIB, Unit, format_bytes, from_unit, in_unit, parse_bytes

AMOUNTS = st.integers(0, 10**17)
UNITS = st.sampled_from(["GiB", "GB"])


@pytest.mark.parametrize(
    ("amount", "unit", "shown"),
    [
        (0, "GiB", "0.00 GiB"),
        (16_060_522_496, "GiB", "14.96 GiB"),
        (16_060_522_496, "GB", "16.06 GB"),
        (54_857_000, "GiB", "52.32 MiB"),
        (107_374_183, "GiB", "0.10 GiB"),
        (1, "GB", "1 B"),
        (1_120 * GB, "GB", "1,120.00 GB"),
        (-3 * GIB, "GiB", "-3.00 GiB"),
    ],
)
def test_amounts_are_written_in_one_family_of_units(amount: int, unit: Unit, shown: str) -> None:
    assert format_bytes(amount, unit) == shown


@pytest.mark.parametrize(
    ("written", "amount"),
    [
        ("24 GiB", 24 * 1024**3),
        ("80GB", 80_000_000_000),
        ("1,024 MiB", 1024**3),
        ("48g", 48 * 1024**3),
        ("25769803776", 25_769_803_776),
        ("1.5 tib", 3 * 1024**4 // 2),
        ("2e3 B", 2000),
        (" .5 KB ", 500),
    ],
)
def test_a_text_is_taken_at_its_unit(written: str, amount: int) -> None:
    assert parse_bytes(written) == amount


@pytest.mark.parametrize(
    ("written", "key"),
    [
        ("", "units.unreadable"),
        ("a lot", "units.unreadable"),
        ("12 12", "units.unreadable"),
        ("1e400", "units.unreadable"),
        ("1e99 GiB", "units.unreadable"),
        ("9" * 100, "units.unreadable"),
        ("3 parsecs", "units.unknown_unit"),
        ("-1 GiB", "units.negative"),
    ],
)
def test_what_is_no_amount_is_refused_by_name(written: str, key: str) -> None:
    with pytest.raises(PlanError) as caught:
        parse_bytes(written, field="gpu_capacity_bytes")
    assert caught.value.key == key
    assert caught.value.field == "gpu_capacity_bytes"


def test_a_bare_number_is_in_the_default_unit() -> None:
    assert parse_bytes("2", default_unit="GiB") == 2 * GIB


@given(AMOUNTS, UNITS, st.integers(0, 6))
def test_reading_back_is_within_half_of_the_last_digit(amount: int, unit: Unit, digits: int) -> None:
    shown = format_bytes(amount, unit, digits)
    size = parse_bytes("1 " + shown.split()[1])
    assert abs(parse_bytes(shown) - amount) <= Fraction(size, 2 * 10**digits) + Fraction(1, 2)
    assert format_bytes(parse_bytes(shown), unit, digits) == shown or amount * 10 < 10 * size


@given(AMOUNTS)
def test_bytes_survive_as_text(amount: int) -> None:
    assert parse_bytes(f"{amount} B") == parse_bytes(f"{amount:,}") == amount


@given(st.integers(0, 10**14), UNITS)
def test_a_number_of_units_comes_back(amount: int, unit: Unit) -> None:
    assert abs(from_unit(in_unit(amount, unit), unit) - amount) <= 1 + amount >> 50


def test_the_two_families_differ_by_their_definition() -> None:
    assert in_unit(80 * GIB, "GB") == pytest.approx(85.899, abs=1e-3)
    assert from_unit(1.5, "GiB") == 1536 * MIB
