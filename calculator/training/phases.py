"""What a bill tells of a run: the items at the highest instant of each phase, and when each item is there."""

from __future__ import annotations

from dataclasses import dataclass

from calculator.training.program import Program


@dataclass(frozen=True)
class Phases:
    """``levels``: bytes by item at each phase's highest instant; ``highest``: each item's own maximum; ``alive``: the
    phases in which each item is there."""

    levels: dict[str, dict[str, int]]
    highest: dict[str, int]
    alive: dict[str, tuple[str, ...]]

    @staticmethod
    def of(program: Program) -> Phases:
        return Phases(program.items, program.highest_by_key, program.phases_by_key)

    @staticmethod
    def during(phase: str, items: dict[str, int]) -> Phases:
        """A phase of one instant."""
        return Phases({phase: items}, items, dict.fromkeys(items, (phase,)))

    def beside(self, other: Phases) -> Phases:
        """Both, this one's phases first."""
        keys = [*self.highest, *(key for key in other.highest if key not in self.highest)]
        return Phases(
            self.levels | other.levels,
            {key: max(self.highest.get(key, 0), other.highest.get(key, 0)) for key in keys},
            {key: (*self.alive.get(key, ()), *other.alive.get(key, ())) for key in keys},
        )

    def bytes(self, phase: str) -> int:
        return sum(self.levels[phase].values())

    @property
    def peak(self) -> str:
        """The phase with the highest instant, the first where several are."""
        return max(self.levels, key=self.bytes)
