"""A Hugging Face hub on loopback, for tests and for trying the app without a network."""

from tests.fakehub.files import File
from tests.fakehub.models import good_repos, troubled_repos
from tests.fakehub.server import GOOD_TOKEN, UNLISTED_TOKEN, FakeHub, Repo

__all__ = ["GOOD_TOKEN", "UNLISTED_TOKEN", "FakeHub", "File", "Repo", "good_repos", "troubled_repos"]
