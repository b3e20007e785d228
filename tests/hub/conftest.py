from collections.abc import Iterator

import pytest

from calculator.hub import Limits, clear_cache
from tests.fakehub import FakeHub, good_repos, troubled_repos

QUICK = Limits(request_s=0.6, overall_s=4.0, attempts=3, first_wait_s=0.01, longest_wait_s=0.5)


@pytest.fixture(scope="session")
def served() -> Iterator[FakeHub]:
    with FakeHub([*good_repos(), *troubled_repos()]) as hub:
        yield hub


@pytest.fixture
def hub(served: FakeHub, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """The fake hub as the configured endpoint, without token, memory of earlier tests or record of their requests."""
    monkeypatch.setenv("HF_ENDPOINT", served.endpoint)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    clear_cache()
    served.requests.clear()
    served.seen.clear()
    yield served
    clear_cache()
