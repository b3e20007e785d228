"""The report as tables for a terminal or a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from calculator.render import render
from calculator.text import text
from validation.checks import print_checks

_COLUMNS = ("n", "median_ape", "p90_ape", "bias", "within_5", "within_10", "within_20", "in_range", "half_width")


def print_report(summary: Mapping[str, Any], console: Console, *, language: str = "en") -> None:
    """Every kind of case in turn: rows, quantities, groups, verdicts, and what was not predicted."""
    for kind, found in summary["kinds"].items():
        _print_kind(kind, found, console, language)


def _print_kind(kind: str, found: Mapping[str, Any], console: Console, language: str) -> None:
    def say(key: str, **values: int | float | str) -> str:
        return render(text(key, **values), language)

    rows = found["rows"]
    console.rule(say(f"validation.kind.{kind}"))
    console.print(
        say("validation.rows", **{f"{name}_count": n for name, n in rows.items()}), soft_wrap=True, highlight=False
    )
    if found["quantities"]:
        entries = [(key, figure) for key, figure in found["quantities"].items()]
        console.print(_table(say("validation.table.quantities"), (say("validation.column.key"),), entries, say))
        once = ", ".join(
            f"{key} {percent(cluster['median_ape'])} ({cluster['n']})" for key, cluster in found["clusters"].items()
        )
        console.print(say("validation.clusters", clusters=once), soft_wrap=True, highlight=False)
    if found["facts"]["checked"]:
        met = found["facts"]
        console.print(say("validation.facts", checked_count=met["checked"], met_count=met["within_tolerance"]))
        if met["outside"]:
            console.print(say("validation.facts.outside", ids=", ".join(met["outside"])), soft_wrap=True)
    if found["fits"]["n"]:
        fits = found["fits"]
        console.print(
            say(
                "validation.fits", n_count=fits["n"], right_count=fits["right"], ran_count=fits["ran"]["n"],
                ran_right_count=fits["ran"]["said_fits_or_tight"], out_count=fits["ran_out"]["n"],
                out_right_count=fits["ran_out"]["said_does_not_fit_or_tight"], tight_count=fits["tight"],
            ),
            soft_wrap=True, highlight=False,
        )  # fmt: skip
    for by in dict.fromkeys(group["by"] for group in found["groups"]):
        members = [group for group in found["groups"] if group["by"] == by]
        entries = [((group["value"], group["quantity"]), group) for group in members]
        heads = (say(f"validation.by.{by}"), say("validation.column.key"))
        console.print(_table(say("validation.table.by", by=heads[0]), heads, entries, say))
    _print_leave_one_out(found["leave_one_out"], console, say)
    print_checks(found, console, say)
    if found["incomplete"]["quantities"]:
        entries = [(key, figure) for key, figure in found["incomplete"]["quantities"].items()]
        console.print(_table(say("validation.table.incomplete"), (say("validation.column.key"),), entries, say))
    _print_missed(found["unpredicted"], console, say)


def _table(title: str, heads: Sequence[str], entries: Sequence[tuple[Any, Mapping[str, Any]]], say: Any) -> Table:
    table = Table(title=title, title_justify="left", show_edge=False, pad_edge=False)
    for head in heads:
        table.add_column(head, overflow="fold")
    for column in _COLUMNS:
        table.add_column(say(f"validation.column.{column}"), justify="right", no_wrap=True)
    for names, figure in entries:
        cells = names if isinstance(names, tuple) else (names,)
        table.add_row(*cells, str(figure["n"]), *(percent(figure[column]) for column in _COLUMNS[1:]))
    return table


def _print_leave_one_out(entries: Sequence[Mapping[str, Any]], console: Console, say: Any) -> None:
    """Sources and versions of at least four values beside everything else."""
    shown = [entry for entry in entries if entry["n"] >= 4 and entry["others_n"] >= 4]
    if not shown:
        return
    table = Table(title=say("validation.table.leave_one_out"), title_justify="left", show_edge=False, pad_edge=False)
    for head in ("left_out", "key", "n", "median_ape", "others_n", "others_median_ape"):
        table.add_column(say(f"validation.column.{head}"), justify="left" if head in ("left_out", "key") else "right")
    for entry in shown:
        table.add_row(
            entry["value"], entry["quantity"], str(entry["n"]), percent(entry["median_ape"]), str(entry["others_n"]),
            percent(entry["others_median_ape"]),
        )  # fmt: skip
    console.print(table)


def percent(share: float) -> str:
    """0.0345 as "3.5 %"; shares below one tenth with two digits."""
    return f"{100 * share:.1f} %" if abs(share) >= 0.1 or share == 0 else f"{100 * share:.2f} %"


def _print_missed(missed: Sequence[Mapping[str, Any]], console: Console, say: Any) -> None:
    if not missed:
        console.print(say("validation.missed.none"))
        return
    table = Table(title=say("validation.table.missed", n_count=len(missed)), title_justify="left", show_edge=False)
    for head in ("id", "key", "reason"):
        table.add_column(say(f"validation.column.{head}"), overflow="fold")
    for miss in missed:
        mark = "" if miss["complete"] else say("validation.missed.incomplete")
        table.add_row(miss["id"], miss["key"] or "", f"{miss['reason']} {mark}".strip())
    console.print(table)
    reasons = Counter(miss["reason"] for miss in missed)
    for reason, count in reasons.most_common(10):
        console.print(f"  {count} × {reason}", highlight=False, soft_wrap=True)
