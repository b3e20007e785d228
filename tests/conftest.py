"""What all tests share: how hypothesis behaves, and which tests need the browser."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Laws are checked on the same examples in every CI run, so that a red run can be repeated; at a desk they vary.
# No deadline: two workers on two busy cores make single examples slow now and then.
settings.register_profile("desk", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("desk"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "desk")

BROWSER_TESTS = Path(__file__).parent / "browser"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what drives a browser: those tests run by themselves."""
    for item in items:
        if item.path.is_relative_to(BROWSER_TESTS):
            item.add_marker(pytest.mark.browser)
