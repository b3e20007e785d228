"""How far predictions are from measurements, as figures over groups of scored values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from calculator.base import Frozen
from validation.outcome import Judged, Outcome, Scored

GROUP_BY = ("method", "framework", "engine", "engine_version", "arch_class", "source", "trust", "quantity")
"""The tags by which figures are grouped, besides the key itself. A row counts where it has the tag."""


class Figures(Frozen):
    """Figures over ``n`` values, as fractions (0.03 is 3 %).

    With e = (predicted - measured) / measured: ``median_ape`` is the median of abs(e), ``p90_ape`` its 90th percentile
    (linear between the two nearest values), ``bias`` the median of e, ``within_x`` the share with abs(e) <= x %,
    ``in_range`` the share of measurements inside the predicted range, ``half_width`` the median half of that range
    over the prediction. ``worst_ape`` is the largest abs(e).
    """

    n: int
    median_ape: float
    p90_ape: float
    bias: float
    within_5: float
    within_10: float
    within_20: float
    in_range: float
    half_width: float
    worst_ape: float


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` (0 to 1) of ``values`` lie, linear between neighbours: 0.5 is the median."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def figures(values: Sequence[Scored]) -> Figures:
    """The figures of a group with at least one value."""
    errors = [value.error for value in values]
    sizes = [abs(e) for e in errors]
    return Figures(
        n=len(values),
        median_ape=median(sizes),
        p90_ape=percentile(sizes, 0.9),
        bias=median(errors),
        within_5=_share(size <= 0.05 for size in sizes),
        within_10=_share(size <= 0.10 for size in sizes),
        within_20=_share(size <= 0.20 for size in sizes),
        in_range=_share(value.in_range for value in values),
        half_width=median(value.half_width for value in values),
        worst_ape=max(sizes),
    )


def _share(flags: Iterable[bool]) -> float:
    found = list(flags)
    return sum(found) / len(found)


def by_key(values: Iterable[Scored]) -> dict[str, Figures]:
    """Figures of each measured key, in the order in which the keys first occur."""
    grouped: dict[str, list[Scored]] = defaultdict(list)
    for value in values:
        grouped[value.key].append(value)
    return {key: figures(members) for key, members in grouped.items()}


def groups(values: Sequence[Scored], by: Sequence[str] = GROUP_BY) -> list[dict[str, Any]]:
    """One entry per tag, tag value and key: ``{"by", "value", "quantity", "n", ...}``, largest groups first."""
    grouped: dict[tuple[str, str, str], list[Scored]] = defaultdict(list)
    for value in values:
        for name in by:
            if name in value.tags:
                grouped[name, value.tags[name], value.key].append(value)
    ordered = sorted(grouped.items(), key=lambda item: (by.index(item[0][0]), item[0][2], -len(item[1]), item[0][1]))
    return [
        {"by": name, "value": tag, "quantity": key, **figures(members).model_dump()}
        for (name, tag, key), members in ordered
    ]


def clusters(values: Sequence[Scored]) -> dict[str, dict[str, float]]:
    """By key: how many groups of runs there are that differ only in batch and length, and the median over the groups
    of each one's own median error, so that a long sweep counts once."""
    grouped: dict[tuple[str, str], list[float]] = defaultdict(list)
    for value in values:
        grouped[value.key, value.tags.get("group", value.id)].append(abs(value.error))
    keys = dict.fromkeys(key for key, _ in grouped)
    found = {key: [median(errors) for (k, _), errors in grouped.items() if k == key] for key in keys}
    return {key: {"n": len(medians), "median_ape": median(medians)} for key, medians in found.items()}


def leave_one_out(values: Sequence[Scored], tag: str) -> list[dict[str, Any]]:
    """For each value of a tag (a source, a version): the figures of each key on it, and on everything else.

    The engines' constants are fixed, so this is not a refit: it shows where a source's error stands against that of
    the sources together, for the constants that were fitted on some of them.
    """
    table = []
    for left_out in sorted({value.tags[tag] for value in values if tag in value.tags}):
        inside = by_key(v for v in values if v.tags.get(tag) == left_out)
        outside = by_key(v for v in values if tag in v.tags and v.tags[tag] != left_out)
        for key, figure in inside.items():
            rest = outside.get(key)
            table.append(
                {"by": tag, "value": left_out, "quantity": key, "n": figure.n, "median_ape": figure.median_ape,
                 "others_n": rest.n if rest else 0, "others_median_ape": rest.median_ape if rest else None}
            )  # fmt: skip
    return table


def fits(judged: Sequence[Judged]) -> dict[str, Any]:
    """How often the verdict was right. ``right``: a run that ran was said to fit or to be tight, one that ran out was
    said not to fit or to be tight. ``wrong_fits`` ran out though "fits" was said, and so on."""
    ran = [j for j in judged if j.ran]
    out = [j for j in judged if not j.ran]
    ran_right = sum(j.verdict in ("fits", "tight") for j in ran)
    out_right = sum(j.verdict in ("does_not_fit", "tight") for j in out)
    return {
        "n": len(judged),
        "right": ran_right + out_right,
        "tight": sum(j.verdict == "tight" for j in judged),
        "wrong_fits": len(out) - out_right,
        "wrong_does_not_fit": len(ran) - ran_right,
        "ran": {"n": len(ran), "said_fits_or_tight": ran_right},
        "ran_out": {"n": len(out), "said_does_not_fit_or_tight": out_right},
    }


def facts(values: Sequence[Scored]) -> dict[str, Any]:
    """Of the facts that were recomputed from the model's shape, how many are met within their own tolerance."""
    checked = [v for v in values if v.checked and v.tolerance is not None]
    outside = [v.id for v in checked if abs(v.error) > (v.tolerance or 0.0) + 1e-12]
    return {"checked": len(checked), "within_tolerance": len(checked) - len(outside), "outside": outside}


def row_counts(outcomes: Sequence[Outcome]) -> Mapping[str, int]:
    """Rows by what became of them. ``predicted`` of the complete rows with something to score are those of which every
    key was predicted; ``partly`` lack some keys."""
    wanted = [o for o in outcomes if o.complete and o.wanted]
    return {
        "total": len(outcomes),
        "complete": sum(o.complete for o in outcomes),
        "complete_scored": len(wanted),
        "predicted": sum(not o.missed for o in wanted),
        "partly": sum(bool(o.missed and o.scored) for o in wanted),
        "unpredicted": sum(bool(o.missed and not o.scored) for o in wanted),
        "incomplete": sum(not o.complete for o in outcomes),
        "incomplete_predicted": sum(bool(not o.complete and o.wanted and o.scored) for o in outcomes),
    }
