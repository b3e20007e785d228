"""Module-name patterns of quantisers as regular expressions, few enough to match quickly.

Checkpoints list excluded modules one by one, thousands of them, and name the same module under different wrappers
("language_model.model.layers.0", "model.language_model.layers.0"). Patterns that differ in layer and expert numbers
only become one expression, and a leading wrapper matches any wrapper.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import product

from calculator.errors import BadValueError

_WRAPPERS = r"(?:(?:model|language_model|text_model|thinker|llm|backbone|transformer)\.)"
_HEAD = re.compile(_WRAPPERS + "+")
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
_NEVER = r"(?!)"

# A pasted config may hold any expression, so those that could take long to match are refused: repeated groups, and
# more wildcards than quantisers use.
_REPEATED_GROUP = re.compile(r"\)[*+?{]")
_REPEAT = re.compile(r"(?<!\\)[*+{]")
_MOST_REPEATS = 4
_MOST_PATTERNS = 2_000
_LONGEST = 400


def module_patterns(names: Iterable[str]) -> tuple[str, ...]:
    """Expressions for whole path components: a name stands for that module and all below it, wherever it is if it
    starts inside a wrapper, under any wrapper if it starts with one. "*" stands for any text."""
    return _compressed(names, tail=r"(?:\..*)?", anywhere=r"(?:.*\.)?")


def substring_patterns(names: Iterable[str]) -> tuple[str, ...]:
    """Expressions that match wherever the text occurs in a path."""
    return _compressed(names, tail=".*", anywhere=".*")


def regex_pattern(written: str) -> str:
    """A quantiser's own expression, which has to match from the start of the path, as one for the whole path.

    Raises ``BadValueError`` ("quantization.bad_pattern") for one that is broken or could take long.
    """
    repeats = len(_REPEAT.findall(written))
    if len(written) > _LONGEST or repeats > _MOST_REPEATS or _REPEATED_GROUP.search(written):
        raise _bad(written)
    try:
        re.compile(written)
    except re.error as error:
        raise _bad(written) from error
    return f"(?:{written}).*"


def _bad(written: str) -> BadValueError:
    return BadValueError("quantization.bad_pattern", field="quantization_config", value=written[:80])


def _compressed(names: Iterable[str], tail: str, anywhere: str) -> tuple[str, ...]:
    templates: dict[tuple[str, str], set[tuple[int, ...]]] = {}
    for name in names:
        if len(name) > _LONGEST or name.count("*") > _MOST_REPEATS:
            raise _bad(name)
        wrapper = _HEAD.match(name)
        inside = name[wrapper.end() :] if wrapper and wrapper.end() < len(name) else name
        head = f"{_WRAPPERS}*" if inside != name else anywhere
        numbers = tuple(int(n) for n in _NUMBER.findall(inside))
        templates.setdefault((head, _NUMBER.sub("#", inside)), set()).add(numbers)
    if len(templates) > _MOST_PATTERNS:
        raise _bad(f"{len(templates)} names")
    return tuple(
        head + _with_numbers(re.escape(template).replace(r"\*", ".*").replace(r"\#", "#"), numbers) + tail
        for (head, template), numbers in templates.items()
    )


def _with_numbers(template: str, numbers: set[tuple[int, ...]]) -> str:
    places = [sorted(set(place)) for place in zip(*numbers, strict=True)]
    if not places:
        return template
    if len(numbers) == len(list(product(*places))):
        for place in places:
            template = template.replace("#", "(?:" + "|".join(map(str, place)) + ")", 1)
        return template
    first: dict[int, set[tuple[int, ...]]] = {}
    for head, *rest in numbers:
        first.setdefault(head, set()).add(tuple(rest))
    # Leading numbers that go with the same rest share a branch.
    by_rest: dict[frozenset[tuple[int, ...]], list[int]] = {}
    for head, rests in first.items():
        by_rest.setdefault(frozenset(rests), []).append(head)
    before, after = template.split("#", 1)
    branches = [
        "(?:" + "|".join(map(str, sorted(heads))) + ")" + _with_numbers(after, set(rests))
        for rests, heads in by_rest.items()
    ]
    return before + "(?:" + "|".join(branches) + ")"


@lru_cache(maxsize=256)
def matcher(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """One compiled expression for any of them; it matches nothing when there are none."""
    return re.compile("|".join(f"(?:{p})" for p in patterns) if patterns else _NEVER)
