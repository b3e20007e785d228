"""What of a step is worked out for every plan: each sequence of changes once, each place of repeated layers twice.

Along equal layers a level rises or falls steadily, so it is highest at the first or the last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from calculator.training.forms import Form, Picker, picker
from calculator.training.template import Stretch

Place = tuple[str, Stretch]
"""A phase and what happens at one place of it."""

LONGEST_GROUP = 32
"""Places that may repeat together: gather, layer, reduction and release of the six layers of Gemma 3's pattern."""


class Visit(NamedTuple):
    """A place, by phase and number of its stretch. Where ``times`` is above 1, so many repetitions are passed over."""

    phase: str
    stretch: int
    times: int


@dataclass(frozen=True, eq=False)
class Outline:
    """``stretches``: each once, with its number. ``forms``: those of all changes; ``tracks`` read the bytes of the
    changes of one sequence from the bytes of the forms. ``keys``: the items that change, as they first do. ``whole``
    and ``by_key``: by stretch, the track of all its changes, and numbers of an item and the track of its changes."""

    stretches: Mapping[Stretch, int]
    visits: Sequence[Visit]
    forms: Sequence[Form]
    tracks: Sequence[Picker]
    keys: Sequence[str]
    whole: Sequence[int]
    by_key: Sequence[Sequence[tuple[int, int]]]


def outline(places: Sequence[Place]) -> Outline:
    """The outline of a step that goes through ``places`` in order."""
    stretches = {stretch: number for number, stretch in enumerate(dict.fromkeys(stretch for _, stretch in places))}
    keys = {key: n for n, key in enumerate(dict.fromkeys(key for stretch in stretches for key in stretch.places))}
    tracks: dict[tuple[int, ...], int] = {}
    whole = [tracks.setdefault(stretch.idents, len(tracks)) for stretch in stretches]
    by_key = [
        [(keys[key], tracks.setdefault(own, len(tracks))) for key, own in stretch.idents_by_key.items()]
        for stretch in stretches
    ]
    forms: dict[int, Form] = {}
    for stretch in stretches:
        forms |= stretch.forms
    numbers = {ident: number for number, ident in enumerate(forms)}
    reads = [picker(list(map(numbers.__getitem__, idents))) for idents in tracks]
    return Outline(
        stretches, tuple(visits(places, stretches)), tuple(forms.values()), reads, tuple(keys), whole, by_key
    )


def visits(places: Sequence[Place], numbers: Mapping[Stretch, int]) -> Iterator[Visit]:
    """The places in order, folded. ``numbers``: those of the stretches."""
    known: dict[Place, int] = {}
    row = [known.setdefault(place, len(known)) for place in places]
    made = [(phase, numbers[stretch]) for phase, stretch in known]
    for group, times in groups(row, [phase for phase, _ in made]):
        for repetitions in (1,) if times == 1 else (1, 1) if times == 2 else (1, times - 2, 1):
            for place in group:
                yield Visit(*made[place], repetitions)


def groups(row: Sequence[int], phases: Sequence[str]) -> Iterator[tuple[Sequence[int], int]]:
    """Places that follow each other, and how many times in a row: of several ways to fold them the one that folds most,
    within one phase. ``phases``: by place."""
    at = 0
    while at < len(row):
        length, times = 1, 1
        for period in range(1, LONGEST_GROUP + 1):
            unit, count = row[at : at + period], 1
            if phases[unit[-1]] != phases[unit[0]]:
                break
            while row[at + count * period : at + (count + 1) * period] == unit:
                count += 1
            if count > 1 and count * period > length * times:
                length, times = period, count
        yield row[at : at + length], times
        at += length * times
