"""Which releases were current when: a case often names a date where a rule of the calculator asks for a version.

Months of the first stable release, from the projects' own release pages on GitHub and PyPI.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

RELEASES: Mapping[str, tuple[tuple[str, str], ...]] = MappingProxyType(
    {
        "transformers": (
            ("2023-04", "4.28"), ("2023-05", "4.29"), ("2023-06", "4.30"), ("2023-07", "4.31"), ("2023-09", "4.33"),
            ("2023-10", "4.34"), ("2023-11", "4.35"), ("2023-12", "4.36"), ("2024-01", "4.37"), ("2024-03", "4.38"),
            ("2024-04", "4.40"), ("2024-05", "4.41"), ("2024-06", "4.42"), ("2024-07", "4.43"), ("2024-08", "4.44"),
            ("2024-09", "4.45"), ("2024-10", "4.46"), ("2024-12", "4.47"), ("2025-01", "4.48"), ("2025-02", "4.49"),
            ("2025-03", "4.50"), ("2025-04", "4.51"), ("2025-05", "4.52"), ("2025-06", "4.53"), ("2025-07", "4.54"),
            ("2025-08", "4.55"), ("2025-09", "4.56"), ("2025-10", "4.57"), ("2026-01", "5.0"),
        ),
        "torch": (
            ("2023-03", "2.0"), ("2023-10", "2.1"), ("2024-01", "2.2"), ("2024-04", "2.3"), ("2024-07", "2.4"),
            ("2024-10", "2.5"), ("2025-01", "2.6"), ("2025-04", "2.7"), ("2025-08", "2.8"), ("2025-10", "2.9"),
        ),
        "peft": (
            ("2023-05", "0.3"), ("2023-07", "0.4"), ("2023-08", "0.5"), ("2023-11", "0.6"), ("2023-12", "0.7"),
            ("2024-01", "0.8"), ("2024-02", "0.9"), ("2024-03", "0.10"), ("2024-05", "0.11"), ("2024-07", "0.12"),
            ("2024-09", "0.13"), ("2024-12", "0.14"), ("2025-03", "0.15"), ("2025-07", "0.16"), ("2025-08", "0.17"),
            ("2025-11", "0.18"),
        ),
        "llama_cpp": (
            ("2024-01", "b2000"), ("2024-08", "b3500"), ("2025-01", "b4500"), ("2025-05", "b5430"),
            ("2025-08", "b6300"), ("2025-11", "b6900"), ("2025-12", "b7410"),
        ),
        "vllm": (
            ("2023-06", "0.1.0"), ("2023-09", "0.2.0"), ("2024-01", "0.3.0"), ("2024-03", "0.4.0"),
            ("2024-06", "0.5.0"), ("2024-07", "0.5.3"), ("2024-09", "0.6.0"), ("2024-11", "0.6.4"),
            ("2024-12", "0.6.5"), ("2025-01", "0.7.0"), ("2025-02", "0.7.3"), ("2025-03", "0.8.0"),
            ("2025-04", "0.8.4"), ("2025-05", "0.8.5"), ("2025-06", "0.9.0"), ("2025-07", "0.9.2"),
            ("2025-08", "0.10.0"), ("2025-09", "0.10.1"), ("2025-10", "0.11.0"), ("2025-11", "0.11.1"),
            ("2025-12", "0.12.0"), ("2026-01", "0.13.0"),
        ),
    }
)  # fmt: skip

_SEASONS = {"early": "02", "spring": "04", "mid": "06", "summer": "07", "autumn": "10", "late": "11"}


def month_of(written: str) -> str | None:
    """The month that a free text names, "2024-04" for "0.1 (spring 2024)"; a bare year counts as its June.

    The last date of a span is taken, since a page is corrected until then. None where no date is named.
    """
    exact = re.findall(r"\b(20\d\d)-(0[1-9]|1[0-2])\b", written)
    if exact:
        return "-".join(exact[-1])
    season = re.search(rf"\b({'|'.join(_SEASONS)})\s+(20\d\d)\b", written)
    if season:
        return f"{season[2]}-{_SEASONS[season[1]]}"
    years = re.findall(r"\b(20[12]\d)\b", written)
    return f"{years[-1]}-06" if years else None


def current(project: str, month: str) -> str | None:
    """The newest release of a project in a month; None before its first release here and after the last year covered,
    where the calculator's own default, the newest release it knows, is the better guess."""
    table = RELEASES[project]
    if month < table[0][0] or month > "2026-03":
        return None
    return [version for since, version in table if since <= month][-1]


def named(project: str, written: str) -> str | None:
    """The version that a free text states outright: "2.4.1" for torch in "transformers 4.45.2, torch 2.4.1"."""
    match = re.search(rf"\b{re.escape(project)}[ =v]+(\d+(?:\.\d+)+)", written)
    return match[1] if match else None


def version_of(project: str, written: str | None) -> str | None:
    """Stated outright, else by date, else None."""
    if not written:
        return None
    stated = named(project, written)
    if stated:
        return stated
    month = month_of(written)
    return current(project, month) if month else None
