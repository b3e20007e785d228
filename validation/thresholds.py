"""What is reached on the packaged cases, as bounds that the tests hold.

``python -m validation.thresholds`` rewrites ``thresholds.toml`` after a change that moved a figure. A bound is the
figure itself with a small allowance, so that a change of rounding does not fail and a worse figure does.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from validation.outcome import Outcome
from validation.rows import PACKAGED, Kind, Row, packaged
from validation.run import predict, summary
from validation.training import REPLAYED

FILE = Path(__file__).with_name("thresholds.toml")
REPLAY_EVERY = 4
"""Every so many training runs is replayed: a replay takes longer than everything else together. The others count for
all figures but those that the replay gives."""

_FEWEST = 5
_BOUNDED = ("median_ape", "p90_ape", "bias")


@cache
def reached(kind: Kind) -> dict[str, Any]:
    """The report over the packaged cases of a kind, with a sample of the training runs replayed."""
    if kind != "training":
        return summary([predict(row) for row in packaged(kind)])
    return summary([_training(row, replay=index % REPLAY_EVERY == 0) for index, row in enumerate(packaged(kind))])


def _training(row: Row, *, replay: bool) -> Outcome:
    outcome = predict(row, replay=replay)
    if replay:
        return outcome
    return outcome.model_copy(update={"scored": tuple(v for v in outcome.scored if v.key not in REPLAYED)})


def bounds(found: Mapping[str, Any]) -> dict[str, Any]:
    """The bounds of one kind's report: at most 5 % above an error, one case below a share."""
    rows = found["rows"]
    made: dict[str, Any] = {"predicted_share": _down(rows["predicted"] / max(rows["complete_scored"], 1))}
    if found["fits"]["n"]:
        fits = found["fits"]
        ran, out = fits["ran"], fits["ran_out"]
        made["fits"] = {
            "ran": _down(ran["said_fits_or_tight"] / max(ran["n"], 1)),
            "ran_out": _down(out["said_does_not_fit_or_tight"] / max(out["n"], 1)),
            "tight": _up(fits["tight"] / fits["n"]),
        }
    if found["facts"]["checked"]:
        made["outside"] = found["facts"]["outside"]
    made["quantities"] = {
        key: _quantity(figure) for key, figure in found["quantities"].items() if figure["n"] >= _FEWEST
    }
    return made


def _quantity(figure: Mapping[str, Any]) -> dict[str, Any]:
    """The bounds of one key. The share inside the range says something only of a prediction that has a range, and the
    worst case only where nearly all are met."""
    made = {name: _up(figure[name]) for name in _BOUNDED} | {"n": figure["n"]}
    if figure["half_width"] > 0:
        made |= {"half_width": _up(figure["half_width"]), "in_range": _down(figure["in_range"])}
    if figure["p90_ape"] < 0.01:
        made["worst_ape"] = _up(figure["worst_ape"])
    return made


def _up(value: float) -> float:
    return round(abs(value) * 1.05 + 0.0002, 5)


def _down(share: float) -> float:
    return round(max(share - 0.01, 0.0), 4)


def as_toml(kinds: Mapping[str, Mapping[str, Any]]) -> str:
    """The bounds as the text of a TOML file."""
    lines = [
        "# What the calculator reaches on the cases of validation/data, as bounds for the tests: errors may not rise",
        "# above, n and in_range not fall below. Written by `python -m validation.thresholds`; 0.03 is 3 %.",
    ]
    for kind, made in kinds.items():
        lines += ["", f"[{kind}]"]
        lines += [f"{name} = {_value(value)}" for name, value in made.items() if not isinstance(value, dict)]
        if "fits" in made:
            lines += [f"fits = {_value(made['fits'])}"]
        lines += ["", f"[{kind}.quantities]"]
        lines += [f"{key} = {_value(bound)}" for key, bound in made["quantities"].items()]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(f'"{item}"' for item in value) + "]"
    return str(value)


def load() -> dict[str, Any]:
    """The bounds as they stand in the file, by kind."""
    return tomllib.loads(FILE.read_text("utf-8"))


def main() -> int:
    """Rewrite the file from what is reached now."""
    FILE.write_text(as_toml({kind: bounds(reached(kind)) for kind in PACKAGED}), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
