"""The README's examples are run: its commands from the repository's root, its library lines as a doctest."""

import doctest
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.source_files import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHON = ".venv/bin/python "
ANSWERED = {0, 1, 4}
"""It fits, does not fit, is tight: the exit codes of a bill that was made."""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    lines = [line.strip() for block in blocks("sh") for line in block.splitlines()]
    inline = re.findall(rf"`({re.escape(PYTHON)}[^`]+)`", README)
    return [line for line in lines + inline if line.startswith(PYTHON)]


def test_there_is_something_to_run() -> None:
    assert len(commands()) >= 4
    assert blocks("python")


@pytest.mark.parametrize("command", commands())
def test_commands_answer_without_the_hub(command: str) -> None:
    """An example must not depend on the network of who reads it."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "COLUMNS": "120"}
    words = [sys.executable, *shlex.split(command.removeprefix(PYTHON))]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode in ANSWERED, done.stderr
    if "--json" in words:
        assert json.loads(done.stdout)
    else:
        assert "GiB" in done.stdout or "usage:" in done.stdout, done.stdout


@pytest.mark.parametrize("example", blocks("python"))
def test_library_lines_do_as_they_say(example: str) -> None:
    test = doctest.DocTestParser().get_doctest(example, {}, "README", "README.md", 0)
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test)
    assert result.attempted > 0
    assert result.failed == 0


def test_what_it_points_to_exists() -> None:
    targets = [target for target in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in target]
    assert targets
    assert not [target for target in targets if not (ROOT / Path(target)).exists()]


def test_the_two_commands_are_targets_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = re.findall(r"^make (\w+)", "\n".join(blocks("sh")), re.MULTILINE)
    assert named == ["run", "test"]
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in named)
