"""The report's tables of what is out of sample: speeds against their ranges, and constants fitted once more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from validation.throughput import KEYS

Say = Callable[..., str]
MIB = 2**20


def range_rows(entries: Mapping[str, Mapping[str, Any]], say: Say) -> list[dict[str, str]]:
    """The table of speeds against their ranges: a row for all, for either sample, quantity and publication."""
    named = {"all": "validation.speed.all", "tuned": "validation.tag.sample.tuned",
             "held_out": "validation.tag.sample.held_out"}  # fmt: skip
    named |= {key: f"validation.key.{key}" for key in KEYS.values()}
    order = [*(name for name in named if name in entries), *(name for name in entries if name not in named)]
    return [
        {
            say("validation.speed.group"): say(named[name]) if name in named else name,
            say("validation.column.n"): str(entries[name]["n"]),
            say("validation.speed.setups"): str(entries[name]["setups"]),
            say("validation.column.in_range"): f"{entries[name]['in_range']:.0%}",
            say("validation.speed.setups_in_range"): f"{entries[name]['setups_in_range']:.0%}",
            say("validation.speed.widest"): f"{entries[name]['widest']:.2f}",
            say("validation.column.median_ape"): f"{entries[name]['median_error']:.1%}",
        }
        for name in order
    ]


def source_rows(entries: Sequence[Mapping[str, Any]], say: Say) -> list[dict[str, str]]:
    """The table of publications, each with the shares stated and with those fitted on all others."""
    return [
        {
            say("validation.column.left_out"): entry["value"],
            say("validation.column.n"): str(entry["n"]),
            say("validation.speed.shares"): f"{entry['bandwidth']:.2f} / {entry['compute']:.2f}",
            say("validation.leave.shipped"): f"{entry['shipped_ape']:.1%}",
            say("validation.leave.refit"): f"{entry['refit_ape']:.1%}",
            say("validation.leave.shipped_range"): f"{entry['shipped_in_range']:.0%}",
            say("validation.leave.refit_range"): f"{entry['refit_in_range']:.0%}",
        }
        for entry in entries
    ]


def version_rows(entries: Sequence[Mapping[str, Any]], say: Say) -> list[dict[str, str]]:
    """The table of vLLM's releases, each with the terms as shipped and fitted without it."""
    return [
        {
            say("validation.column.left_out"): _release(entry["value"], say),
            say("validation.column.key"): say(f"validation.key.{entry['quantity']}"),
            say("validation.column.n"): str(entry["n"]),
            say("validation.leave.shipped_bytes"): _mib(entry["shipped_bytes"]),
            say("validation.leave.refit_bytes"): _mib(entry["refit_bytes"]),
            say("validation.leave.pools"): str(entry["pools"]),
            say("validation.leave.shipped_pool"): _share(entry["shipped_ape"]),
            say("validation.leave.refit_pool"): _share(entry["refit_ape"]),
        }
        for entry in entries
    ]


def _release(value: str, say: Say) -> str:
    return say("validation.leave.each") if value == "all" else f"vLLM {value}"


def _mib(value: int | None) -> str:
    return "–" if value is None else f"{value / MIB:,.0f} MiB"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.2%}"


def print_checks(found: Mapping[str, Any], console: Console, say: Say) -> None:
    """Those of the three tables that a kind of case has, each with the sentence that says how it was made."""
    tables = (
        ("ranges", range_rows, "validation.speed.ranges", None),
        ("leave_one_source_out", source_rows, "validation.speed.leave", "validation.speed.leave.text"),
        ("leave_one_version_out", version_rows, "validation.leave.versions", "validation.leave.versions.text"),
    )
    for name, rows, title, note in tables:
        made = rows(found[name], say) if found.get(name) else []
        if not made:
            continue
        table = Table(title=say(title), title_justify="left", show_edge=False, pad_edge=False)
        for column, head in enumerate(made[0]):
            table.add_column(head, justify="right" if column else "left", overflow="fold")
        for row in made:
            table.add_row(*row.values())
        console.print(table)
        if note:
            console.print(say(note), soft_wrap=True, highlight=False)
