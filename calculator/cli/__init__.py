"""The command line: the second front end over the same core."""

from calculator.cli.main import main

__all__ = ["main"]
