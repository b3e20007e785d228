"""Release numbers and the rules that hold for ranges of them."""

import pytest

from calculator.errors import PlanError
from calculator.serving.versions import Rule, at, parse
from calculator.sources import Source

SOURCE = Source(title="test")


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("0.6.3.post1", (0, 6, 3)), ("0.10.1.dev101", (0, 10, 1)), ("0.15.2rc1", (0, 15, 2)), ("0.7", (0, 7, 0)),
        ("v1.2.1", (1, 2, 1)), ("0.12.0.dev2024073000", (0, 12, 0)), ("5", (5, 0, 0)),
    ],
)  # fmt: skip
def test_release_numbers(written: str, expected: tuple[int, int, int]) -> None:
    assert parse(written) == expected


@pytest.mark.parametrize("written", ["", "latest", "x.y", "0..1", "1" * 80])
def test_unreadable_release_names_the_field(written: str) -> None:
    with pytest.raises(PlanError) as caught:
        parse(written)
    assert caught.value.field == "engine_version"


def test_a_rule_holds_from_its_first_release_until_the_next() -> None:
    rules = [Rule((0, 1, 0), "a", SOURCE), Rule((0, 9, 0), "b", SOURCE), Rule((0, 20, 0), "c", SOURCE)]
    asked = [(0, 0, 1), (0, 1, 0), (0, 8, 5), (0, 9, 0), (0, 19, 9), (0, 20, 0), (9, 0, 0)]
    assert [at(rules, version).value for version in asked] == ["a", "a", "a", "b", "b", "c", "c"]
