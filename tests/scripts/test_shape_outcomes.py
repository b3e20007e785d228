"""The table of outcomes by family."""

import pytest

from scripts import shape_outcomes


def test_every_published_configuration_is_accounted_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert shape_outcomes.main(show_all=True) == 0
    printed = capsys.readouterr().out
    assert "0 wrong" in printed
    assert "google/byt5-small: total named, cache named" in printed
    assert "community/blt-1b-hf: total equal, cache refused" in printed
