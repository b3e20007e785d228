"""The cards: what a program really sees of their memory, how fast they are, how they are joined.

Data: ``data/gpus.toml``, one table a device with the sources and the day of each; its head explains the rules by which
a total follows where no log was found.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Literal

from calculator.base import Frozen
from calculator.errors import PlanError, UnknownGpuError
from calculator.text import Text, text
from calculator.units import GIB

Vendor = Literal["NVIDIA", "AMD", "Intel", "Apple", "Google", "AWS", "Huawei", "other"]

CUSTOM = "custom"
"""The key of a card that the person describes by its capacity alone."""

_PCIE_LANE_BYTES_PER_S = {3: 984_615_384, 4: 1_969_230_769, 5: 3_938_461_538, 6: 7_563_000_000}
"""One lane, one direction: 8, 16 and 32 GT/s with 128b/130b coding; 64 GT/s with 1b/1b flits (PCI-SIG)."""


class Gpu(Frozen):
    """One device as the operating system lists it.

    ``total_bytes`` is what ``cudaMemGetInfo`` (or its counterpart) reports as the card's total: the number to budget
    against. ``marketed_bytes`` is the number on the box. ``total_estimated`` is True where no log was found and the
    total follows from a rule, ``total_rule`` (R1 to R9, explained in the data file), taken over from the card
    ``total_as`` under R3.

    ``nvidia_smi_bytes`` is the total that nvidia-smi prints, ``windows_total_bytes`` the driver's total under Windows.
    ``link_bytes_per_s`` is the scale-up link in one direction (data sheets print both directions added up),
    ``pcie_bytes_per_s`` likewise. ``peak_dense_flops`` are without sparsity, for 16 bit with fp32 accumulation.
    ``working_set_bytes``: on unified memory, the total by installed memory in GiB.
    """

    key: str
    name: str
    vendor: Vendor
    kind: str
    marketed_bytes: int
    total_bytes: int
    total_estimated: bool
    compute_capability: str | None = None
    memory_bandwidth_bytes_per_s: int | None = None
    peak_dense_flops: dict[str, int] = {}
    link_bytes_per_s: int | None = None
    unified: bool = False
    source: str = ""
    checked_on: str = ""
    names: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    total_rule: str | None = None
    total_as: str | None = None
    total_sources: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    nvidia_smi_bytes: int | None = None
    windows_total_bytes: int | None = None
    flops_basis: str = "published"
    link: str | None = None
    pcie: str | None = None
    working_set_bytes: dict[str, int] = {}

    @property
    def pcie_bytes_per_s(self) -> int | None:
        """One direction of the card's own slot, after line coding."""
        if self.pcie is None:
            return None
        generation, lanes = self.pcie.split("x")
        return _PCIE_LANE_BYTES_PER_S[int(generation)] * int(lanes)

    @property
    def assumption(self) -> Text | None:
        """What the bill has to say about this card's total, or None where it was read from a log."""
        if not self.total_estimated:
            return None
        return text(
            f"gpu.rule.{self.total_rule}", gpu=self.name, total_bytes=self.total_bytes, other=self.total_as or ""
        )


@cache
def catalogue() -> Mapping[str, Gpu]:
    """All cards that can be bought or rented, by key. Read once."""
    data = tomllib.loads(files("calculator").joinpath("data/gpus.toml").read_text("utf-8"))
    defaults = data.pop("defaults")
    return MappingProxyType({key: _gpu(key, defaults | row) for key, row in data.items()})


def _gpu(key: str, row: dict[str, Any]) -> Gpu:
    row["checked_on"] = row["checked_on"].isoformat()
    source = (row.get("total_sources") or row["sources"] or [""])[0]
    return Gpu(key=key, name=row["names"][0], total_estimated="total_rule" in row, source=source, **row)


def find(key_or_name: str) -> Gpu:
    """The card of a key ("h100-80gb-sxm"), a short key ("h100-80gb") or a name as nvidia-smi, torch, rocm-smi or a
    cloud catalogue prints it ("NVIDIA H100 80GB HBM3", "RTX 4090").

    Raises ``UnknownGpuError``: "gpu.unknown" with the nearest keys, or "gpu.ambiguous" where cards of different
    memory carry one name.
    """
    cards = catalogue()
    wanted = key_or_name.strip()
    if wanted in cards:
        return cards[wanted]
    found = _index().get(_normalised(wanted), ())
    if len(found) == 1:
        return cards[found[0]]
    if found:
        raise UnknownGpuError("gpu.ambiguous", field="gpu", text=wanted[:80], candidates=", ".join(found))
    raise UnknownGpuError("gpu.unknown", field="gpu", text=wanted[:80], candidates=", ".join(near(wanted)))


def near(key_or_name: str, count: int = 4) -> tuple[str, ...]:
    """Keys that resemble what was typed, best first."""
    index = _index()
    wanted = _normalised(key_or_name[:80])
    starts = [w for w in index if wanted and (w.startswith(wanted) or wanted in w)]
    close = get_close_matches(wanted, list(index), n=4 * count, cutoff=0.5)
    keys = [key for w in [*sorted(starts, key=len), *close] for key in index[w]]
    return tuple(dict.fromkeys(keys))[:count] or ("h100-80gb-sxm", "rtx-4090-24gb", CUSTOM)


def resolve(key: str, capacity_bytes: int | None = None) -> Gpu:
    """The card that a plan names, with its total replaced by ``capacity_bytes`` where that is given (a smaller
    partition, another driver, a machine of different memory). The key "custom" stands for a card of which only the
    capacity is known.

    Raises ``UnknownGpuError``, and ``PlanError`` ("gpu.capacity_missing", "gpu.capacity_range") for a custom card
    without capacity or one outside 256 MiB to 64 TiB.
    """
    if capacity_bytes is not None and not GIB // 4 <= capacity_bytes <= 65_536 * GIB:
        raise PlanError("gpu.capacity_range", field="gpu_capacity_bytes", capacity_bytes=capacity_bytes)
    if key == CUSTOM:
        if capacity_bytes is None:
            raise PlanError("gpu.capacity_missing", field="gpu_capacity_bytes")
        return Gpu(
            key=CUSTOM, name=CUSTOM, vendor="other", kind="custom", marketed_bytes=capacity_bytes,
            total_bytes=capacity_bytes, total_estimated=False,
        )  # fmt: skip
    card = find(key)
    if capacity_bytes is None or capacity_bytes == card.total_bytes:
        return card
    return card.model_copy(update={"total_bytes": capacity_bytes, "total_estimated": False})


_NOISE = re.compile(r"nvidia|geforce|tesla|quadro (?=rtx)|amd|radeon|intel|graphics|\(r\)|\(tm\)|generation")


def _normalised(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", _NOISE.sub("", name.lower()))


@cache
def _index() -> Mapping[str, tuple[str, ...]]:
    """Normalised names to the keys that carry them."""
    index: dict[str, dict[str, None]] = {}
    for key, card in catalogue().items():
        for name in (key, *card.aliases, *card.names):
            index.setdefault(_normalised(name), {})[key] = None
    # A short key says which of several same-named cards is meant.
    for key, card in catalogue().items():
        for name in (key, *card.aliases):
            index[_normalised(name)] = {key: None}
    # Last, what people call a card: "Strix Halo", "1080 Ti".
    bare: dict[str, dict[str, None]] = {}
    for key in catalogue():
        model = re.sub(r"-\d+gb.*", "", key)
        for name in {model, re.sub(r"^(rtx|gtx|rx|arc)-", "", model)}:
            bare.setdefault(_normalised(name), {})[key] = None
    for name, keys in bare.items():
        if len(index.get(name, keys)) > 1 or name not in index:
            index.setdefault(name, {}).update(keys)
    return MappingProxyType({name: tuple(keys) for name, keys in index.items() if name})
