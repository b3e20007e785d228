"""Print how the corpus of published configurations is read, by family: equal, within reach, or refused, and why.

usage: python scripts/shape_outcomes.py [--all]

--all lists the models of every row that is not simply equal.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from calculator.errors import ShapeError, UnknownFamilyError
from calculator.model import read
from calculator.model.shape import ModelShape
from tests.model import known
from tests.model.corpus import configs, index

COLUMNS = ("family", "models", "equal", "named", "uncounted", "refused", "cache =", "named", "silent", "refused")


def total_outcome(model: str, shape: ModelShape) -> str:
    """How the total compares with the index: equal, another for a named reason, or nothing to compare with."""
    row = index()[model]
    expected = row.get("meta_total") or row.get("analytic_total")
    if model in known.EQUAL_TO_PUBLISHED:
        expected = row["published_total"]
    if expected is None:
        return "uncounted"
    if shape.parameters.total == expected:
        return "equal"
    named = known.UNTIED_HEAD | known.TIED_HEAD | known.TOWER_LEFT_OUT | known.OTHER_VOCABULARY
    return "named" if model in named else "WRONG"


def cache_outcome(model: str, shape: ModelShape) -> str:
    """How the cache compares with the index."""
    expected = index()[model]["kv"]
    try:
        got = shape.cache
    except UnknownFamilyError:
        return "refused"
    if not expected:
        return "silent"
    if all(getattr(got, key) == value for key, value in expected.items()):
        return "equal"
    return "named" if model in known.DECODER_SHORTER or model in known.COMPRESSED else "WRONG"


def main(show_all: bool) -> int:
    totals: dict[str, Counter[str]] = defaultdict(Counter)
    caches: dict[str, Counter[str]] = defaultdict(Counter)
    lines: list[str] = []
    for model, config in configs().items():
        family = str(index()[model]["model_type"] or "(none)")
        try:
            shape = read(config)
        except ShapeError as error:
            totals[family]["refused"] += 1
            lines.append(f"{model}: refused, {error.field}")
            continue
        total, cache = total_outcome(model, shape), cache_outcome(model, shape)
        totals[family][total] += 1
        caches[family][cache] += 1
        if total != "equal" or cache != "equal":
            lines.append(f"{model}: total {total}, cache {cache}")
    width = max(map(len, totals)) + 2
    print(COLUMNS[0].ljust(width) + "".join(c.rjust(11) for c in COLUMNS[1:]))
    for family in sorted(totals, key=lambda f: (-sum(totals[f].values()), f)):
        row(family, totals[family], caches[family], width)
    row("all", sum(totals.values(), Counter()), sum(caches.values(), Counter()), width)
    if show_all:
        print(*lines, sep="\n")
    wrong = sum(c["WRONG"] for c in (*totals.values(), *caches.values()))
    print(f"{wrong} wrong")
    return 1 if wrong else 0


def row(name: str, total: Counter[str], cache: Counter[str], width: int) -> None:
    cells = [
        sum(total.values()),
        *(total[key] for key in ("equal", "named", "uncounted", "refused")),
        *(cache[key] for key in ("equal", "named", "silent", "refused")),
    ]
    print(name.ljust(width) + "".join(str(cell or "").rjust(11) for cell in cells))


if __name__ == "__main__":
    sys.exit(main("--all" in sys.argv[1:]))
