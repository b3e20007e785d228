"""Goals and request lengths of the command line: speed, traffic and a verdict, in the table and in JSON."""

from collections.abc import Callable

import pytest

from calculator.cli.pace import judged
from calculator.serving.speed import Estimate
from tests.cli.conftest import Run


@pytest.mark.parametrize(
    ("goal", "verdict"), [(4.0, "met"), (3.0, "met"), (2.5, "likely"), (1.5, "unlikely"), (0.5, "missed")]
)
def test_a_goal_is_judged_by_the_range(goal: float, verdict: str) -> None:
    assert judged(Estimate(low=1.0, value=2.0, high=3.0), goal) == verdict


def test_goals_and_traffic_are_answered(run: Callable[..., Run]) -> None:
    asked = ("serve", "qwen2.5-0.5b", "--request-lengths", "chat", "--ttft-goal-s", "100", "--tpot-goal-s", "0.000001")
    found = run(*asked, "--json").json["pace"]
    assert found["goals"] == {"ttft_goal_s": "met", "tpot_goal_s": "missed"}
    assert found["outlook"]["simulated"]["waiting_p50_s"] >= 0
    assert found["speed"]["tpot_s"]["low"] <= found["speed"]["tpot_s"]["high"]
    assert "ttft_goal_s" in run(*asked).out


def test_an_engine_without_a_model_is_not_offered(run: Callable[..., Run]) -> None:
    assert "other" not in run("serve", "gpt2", "--engine", "vlm", "--json").json["error"]["remedy"]
