"""The card's own arithmetic: 80 GB, a 4 GB model, 2 GB a request."""

import pytest

from calculator.errors import PlanError
from calculator.quickcards_serving import ServingCard
from calculator.units import GB


def test_the_card_says_35_and_plans_with_70_percent() -> None:
    card = ServingCard()
    assert card.total_bytes - card.weights_bytes - card.overhead_bytes == 70 * GB
    assert card.requests == 35
    assert card.practical_requests == 24


def test_a_long_request_takes_about_six_times_a_usual_one() -> None:
    assert ServingCard().request_bytes_at(100_000) / (2 * GB) == pytest.approx(6.1, abs=0.1)


def test_nothing_is_left_on_a_small_card() -> None:
    assert ServingCard(total_bytes=8 * GB).requests == 0


def test_a_request_without_cache_is_refused() -> None:
    with pytest.raises(PlanError) as caught:
        _ = ServingCard(request_bytes=0).requests
    assert caught.value.field == "request_bytes"
