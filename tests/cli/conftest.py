import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from calculator.cli import main


class Run(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
        return value


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Run]:
    """Run the command line without a hub."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    for name in ("LANG", "LC_ALL", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: str) -> Run:
        code = main(arguments)
        out, err = capsys.readouterr()
        return Run(code, out, err)

    return call
