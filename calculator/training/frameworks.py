"""Frameworks as recipes: the fields of a plan that each sets when nobody says otherwise.

Data: ``data/frameworks.toml``, one table a framework with the versions and the source that were read.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from calculator.base import Frozen
from calculator.sources import Source
from calculator.training.plan import Adapter, Framework, TrainingPlan

_ADAPTER = "adapter_"
_PLAIN = Adapter.model_validate({})


class Preset(Frozen):
    """One framework. ``full`` and ``adapter`` are a plan's fields by method (those of the adapter as ``adapter_rank``,
    ``adapter_targets``; ``adapter`` None: it trains no adapters), ``many`` what more than one GPU changes."""

    name: str
    framework: Framework
    versions: str
    source: Source
    full: dict[str, Any]
    adapter: dict[str, Any] | None
    many: dict[str, Any]

    def fields(self, *, adapted: bool, n_gpus: int) -> dict[str, Any]:
        """What it sets, by field."""
        chosen = dict((self.adapter or {}) if adapted else self.full)
        if n_gpus > 1:
            chosen |= self.many
        return {"framework": self.framework, **chosen}

    def apply(self, plan: TrainingPlan, *, adapted: bool) -> TrainingPlan:
        """The plan under this framework; what it does not set stays."""
        fields = self.fields(adapted=adapted, n_gpus=plan.n_gpus)
        of_adapter = {k.removeprefix(_ADAPTER): fields.pop(k) for k in list(fields) if k in ADAPTER_FIELDS}
        if of_adapter:
            fields["adapter"] = (plan.adapter or _PLAIN).model_copy(update=of_adapter)
        return plan.model_copy(update=fields)

    def changed(self, plan: TrainingPlan, *, adapted: bool) -> tuple[str, ...]:
        """The fields in which the plan differs from what this framework would set."""
        wanted = self.fields(adapted=adapted, n_gpus=plan.n_gpus)
        return tuple(name for name, value in wanted.items() if value_of(plan, name) != value and _matters(plan, name))


ADAPTER_FIELDS = ("adapter_rank", "adapter_targets")


def value_of(plan: TrainingPlan, name: str) -> Any:
    """The plan's value of a field that a preset names."""
    if name in ADAPTER_FIELDS:
        return getattr(plan.adapter or _PLAIN, name.removeprefix(_ADAPTER))
    return getattr(plan, name)


def _matters(plan: TrainingPlan, name: str) -> bool:
    return name != "base_quant" or plan.method == "qlora"


@cache
def presets() -> Mapping[str, Preset]:
    """All frameworks by key, in the order in which they are shown."""
    written = tomllib.loads(files("calculator").joinpath("data/frameworks.toml").read_text("utf-8"))
    return MappingProxyType({key: _preset(row) for key, row in written.items()})


def _preset(row: dict[str, Any]) -> Preset:
    def plain(name: str) -> dict[str, Any] | None:
        table = row.get(name)
        return table and {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}

    source = Source(versions=row["versions"], **row["source"])
    return Preset(
        name=row["name"], framework=row["framework"], versions=row["versions"], source=source,
        full=plain("full") or {}, adapter=plain("adapter"), many=plain("many") or {},
    )  # fmt: skip
