"""The cards: what a program really sees of their memory, how fast they are, how they are joined.

Data: ``data/gpus.toml``.
"""

from __future__ import annotations

from typing import Literal

from calculator.base import Frozen

Vendor = Literal["NVIDIA", "AMD", "Intel", "Apple", "Google", "AWS", "Huawei", "other"]


class Gpu(Frozen):
    """One device as the operating system lists it.

    ``total_bytes`` is what ``cudaMemGetInfo`` (or its counterpart) reports as the card's total: the number to budget
    against. ``marketed_bytes`` is the number on the box. ``total_estimated`` is True where no log was found and the
    total follows from a rule.
    """

    key: str
    name: str
    vendor: str
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
