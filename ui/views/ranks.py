"""Where the ranks of a job hold different amounts: the peak of each, with the worst named."""

from __future__ import annotations

from typing import Any

import streamlit as st

from calculator.bill import Bill
from ui.components.mount import mount
from ui.i18n import Words


def ranks(bill: Bill, words: Words) -> None:
    """Peak by rank; nothing where all ranks hold the same."""
    if len(bill.rank_spread) < 2:
        return
    st.subheader(words("explore.ranks.title"), anchor=False)
    least, most = min(bill.rank_spread.values()), max(bill.rank_spread.values())
    st.caption(words(
        "explore.ranks.about", worst=rank_name(bill.rank, words), most_bytes=most, least_bytes=least,
        gap_bytes=most - least,
    ))  # fmt: skip
    mount("rank_bars", ranks_data(bill, words), "ranks.bars")


def rank_name(rank: str, words: Words) -> str:
    """ "pp3" is the fourth stage of a pipeline."""
    stage = rank.removeprefix("pp").removeprefix("stage ")
    if stage != rank and stage.isdecimal():
        return words("explore.ranks.stage", number=int(stage) + 1)
    return words("explore.ranks.rank", rank=rank)


def ranks_data(bill: Bill, words: Words) -> dict[str, Any]:
    """A bar for each rank against the card's capacity or the largest, whichever is more."""
    end = max(bill.capacity_bytes, *bill.rank_spread.values())
    return {
        "label": words("explore.ranks.title"),
        "rows": [
            {
                "name": rank_name(rank, words), "amount": words.size(held), "share": held / end,
                "note": words("explore.ranks.worst") if rank == bill.rank else "",
            }
            for rank, held in bill.rank_spread.items()
        ],
    }  # fmt: skip
