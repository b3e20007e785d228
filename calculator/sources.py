"""Where a constant or a formula comes from."""

from calculator.base import Frozen


class Source(Frozen):
    """Provenance of a number: a title, an address (a URL or a repository path), and the day it was read.

    ``versions`` names the releases that the number holds for; empty means that it follows from arithmetic.
    """

    title: str
    url: str = ""
    checked_on: str = ""
    versions: str = ""
