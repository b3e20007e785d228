"""A rank's step for every micro-batch and length.

A pattern is a list of stages. A stage is a stretch's forward, exit or backward, or an edit that a framework makes
between them (a gather, a reduction). ``program`` fills in a plan's rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from calculator.training.forms import Form
from calculator.training.outline import Outline, outline
from calculator.training.template import Stretch


class Stage(NamedTuple):
    """A place in the step: its phase, a name, the unit of the model whose tensors it touches, and its events."""

    phase: str
    name: str
    unit: int
    events: Stretch
    marks: Mapping[str, int] = {}


@dataclass(frozen=True, eq=False)
class Pattern:
    """``start``: bytes by item key that are there before the first stage; ``waiting``: what each further micro-batch in
    flight keeps."""

    start: dict[str, Form]
    stages: Sequence[Stage]
    waiting: dict[str, Form]

    @cached_property
    def outline(self) -> Outline:
        return outline([(stage.phase, stage.events) for stage in self.stages])
