"""Inputs of the hardware: which card, of which size where it is not in the catalogue, and how many."""

from __future__ import annotations

from functools import cache
from typing import Any

import streamlit as st

from calculator import hardware
from calculator.hardware import CUSTOM
from calculator.units import from_unit, in_unit
from ui import state
from ui.i18n import Words
from ui.settings import MAX_GPUS

_KINDS = ("datacenter", "consumer", "workstation", "laptop", "unified", "edge", "tpu")
_NAMES = {
    "ti": "Ti", "super": "SUPER", "laptop": "Laptop", "ada": "Ada", "maxq": "Max-Q", "gcd": "GCD", "quadro": "Quadro",
    "titan": "Titan", "radeon": "Radeon", "arc": "Arc", "jetson": "Jetson", "orin": "Orin", "nano": "Nano",
    "thor": "Thor", "strix": "Strix", "halo": "Halo", "apple": "Apple", "max": "Max", "ultra": "Ultra",
    "ascend": "Ascend", "inferentia2": "Inferentia2", "trainium1": "Trainium1", "trainium2": "Trainium2",
    "trainium3": "Trainium3", "gaudi2": "Gaudi 2", "gaudi3": "Gaudi 3", "pcie": "PCIe", "die": "die", "tile": "tile",
    "device": "device", "v5e": "v5e", "v5p": "v5p", "v6e": "v6e", "v7x": "v7x", "v4": "v4",
}  # fmt: skip
_SMALL_PRO = ("apple", "radeon", "arc")
_CUSTOM_DEFAULT = 24


def card_name(key: str, words: Words) -> str:
    """The card as people write it: "H100 80GB SXM", "RTX 4070 Ti SUPER 16GB"."""
    if key == CUSTOM:
        return words("ui.custom_card")
    small = key.startswith(_SMALL_PRO)
    return " ".join(_NAMES.get(w, "Pro" if w == "pro" and small else w.upper()) for w in key.split("-"))


@cache
def card_keys() -> tuple[str, ...]:
    """All cards, data centre first and newest first, with the person's own at the end."""
    newest_first = list(reversed(hardware.catalogue().values()))
    return (*(card.key for kind in _KINDS for card in newest_first if card.kind == kind), CUSTOM)


def _put(**changes: Any) -> None:
    state.put(state.current().model_copy(update=changes))


def _put_card(key: str, words: Words) -> None:
    own = from_unit(_CUSTOM_DEFAULT, words.unit) if key == CUSTOM else None
    _put(gpu=key, gpu_capacity_bytes=own)


def hardware_inputs(words: Words) -> None:
    settings = state.current()
    st.subheader(words("ui.group.hardware"))
    left, right = st.columns([5, 3])
    with left:
        st.selectbox(
            words("ui.field.gpu"), card_keys(), format_func=lambda key: card_name(key, words),
            **state.bound("hardware.gpu", settings.gpu, lambda key: _put_card(key, words)),
        )  # fmt: skip
    with right:
        st.number_input(
            words("ui.field.n_gpus"), min_value=1, max_value=MAX_GPUS, step=1,
            **state.bound("hardware.n_gpus", settings.n_gpus, lambda count: _put(n_gpus=count)),
        )  # fmt: skip
    if settings.gpu_capacity_bytes is not None:
        capacity = in_unit(settings.gpu_capacity_bytes, words.unit)
        st.number_input(
            words("ui.field.gpu_capacity_bytes", unit=words.unit), min_value=0.25, max_value=65_536.0, step=1.0,
            format="%.2f", help=words("ui.help.gpu_capacity_bytes"),
            **state.bound(
                f"hardware.capacity.{words.unit}", capacity, lambda v: _put(gpu_capacity_bytes=from_unit(v, words.unit))
            ),
        )  # fmt: skip
