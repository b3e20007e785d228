"""Bills and shapes as JSON: the form that scripts read, stable under its ``schema`` number.

Sentences come rendered in the asked language; every number is there as a number. Bytes are whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from calculator.bill import Bill, HostBill, HostItem, Item, Range
from calculator.errors import CalculatorError, UnknownFamilyError
from calculator.hardware import Gpu
from calculator.lookup import LoadedModel
from calculator.render import render
from calculator.serving.plan import ServingPlan
from calculator.text import Text, Value
from calculator.training.plan import TrainingPlan
from calculator.units import Unit

SCHEMA = 1


def bill_json(
    bill: Bill,
    model: LoadedModel,
    plan: TrainingPlan | ServingPlan,
    gpu: Gpu,
    language: str = "en",
    unit: Unit = "GiB",
    assumptions: Sequence[Text] = (),
) -> dict[str, Any]:
    """A whole bill. ``assumptions`` are further ones that belong to neither model nor bill."""

    def say(message: Text) -> str:
        return render(message, language, unit)

    serving = None if bill.serving is None else bill.serving.model_dump(mode="json", exclude={"refusal", "moved"})
    if serving is not None and bill.serving is not None:
        for name, said in (("refusal", bill.serving.refusal), ("moved", bill.serving.moved)):
            serving[name] = None if said is None else say(said)
    out: dict[str, Any] = _finite(
        {
            "schema": SCHEMA,
            "model": model_json(model),
            "plan": plan.model_dump(mode="json"),
            "gpu": gpu.model_dump(mode="json"),
            "verdict": bill.verdict,
            "capacity_bytes": bill.capacity_bytes,
            "need_bytes": _range(bill.need),
            "allocated_bytes": _range(bill.allocated),
            "reserved_bytes": _range(bill.reserved),
            "process_bytes": _range(bill.process),
            "peak_phase": bill.peak_phase,
            "rank": bill.rank,
            "rank_spread": dict(bill.rank_spread),
            "items": [_item(item, language, unit) for item in bill.items],
            "phases": [phase.model_dump(mode="json") for phase in bill.phases],
            "assumptions": [say(m) for m in once((*model.assumptions, *assumptions, *bill.assumptions))],
            "serving": serving,
            "host": None if bill.host is None else _host(bill.host, language, unit),
        }
    )
    return out


def shape_json(model: LoadedModel, language: str = "en", unit: Unit = "GiB") -> dict[str, Any]:
    """Parameters by component, layers, cache geometry at 16 bit and what was assumed.

    ``cache`` is None, with the reason in ``cache_refusal``, where no formula covers the family's cache.
    """
    shape = model.shape
    refusal = None
    try:
        cache: dict[str, Any] | None = shape.cache.model_dump(mode="json")
    except UnknownFamilyError as error:
        cache, refusal = None, render(error.message, language, unit)
    return {
        "schema": SCHEMA,
        "model": model_json(model),
        "parameters": shape.parameters.model_dump(mode="json"),
        "layers": shape.layers,
        "cache": cache,
        "cache_refusal": refusal,
        "assumptions": [render(message, language, unit) for message in once(model.assumptions)],
    }


def model_json(model: LoadedModel) -> dict[str, Any]:
    """What the model is and where it came from."""
    shape, stored, facts = model.shape, model.stored, model.facts
    return {
        "name": model.name,
        "origin": model.origin,
        "id": model.id,
        "revision": model.revision,
        "commit": model.commit,
        "preset": model.preset,
        "model_type": shape.model_type,
        "architecture": shape.architecture,
        "kind": shape.kind,
        "dtype": shape.dtype,
        "quantization": None if shape.quantization is None else shape.quantization.format,
        "parameters": shape.parameters.total,
        "active_parameters": shape.parameters.active,
        "layers": shape.layers,
        "hidden": shape.hidden,
        "vocab": shape.vocab,
        "max_context": shape.max_context,
        "stored_bytes": None if stored is None else stored.total_bytes,
        "stored_bytes_by_format": None if stored is None else dict(stored.by_format),
        "gguf_file": model.gguf_file,
        "hub": None if facts is None else facts.model_dump(mode="json", exclude={"notes", "repo", "commit"}),
    }


def error_json(error: CalculatorError, language: str = "en", unit: Unit = "GiB") -> dict[str, Any]:
    """A refusal, in place of the bill."""
    told = {
        "key": error.key,
        "kind": type(error).__name__,
        "field": error.field,
        "message": render(error.message, language, unit),
        "remedy": render(error.remedy, language, unit),
    }
    return {"schema": SCHEMA, "error": told}


def once(texts: Iterable[Text]) -> tuple[Text, ...]:
    """The same in order, each a single time."""
    kept: list[Text] = []
    for said in texts:
        if said not in kept:
            kept.append(said)
    return tuple(kept)


def _host(host: HostBill, language: str, unit: Unit) -> dict[str, Any]:
    """Host memory in bytes: of the fullest process, and of a node's ``processes`` together."""
    return {
        "processes": host.processes,
        "peak_phase": host.peak_phase,
        "process_bytes": _range(host.process),
        "node_bytes": _range(host.node),
        "items": [
            {
                "key": item.key,
                "process_bytes": _range(item.process),
                "node_bytes": _range(item.node),
                "residence": item.residence,
                "phase": item.phase,
                **_origin(item, language, unit),
            }
            for item in host.items
        ],
    }


def _origin(item: Item | HostItem, language: str, unit: Unit) -> dict[str, Any]:
    """How an item's bytes come about and how well that is known."""

    def plain(value: Value | Text) -> Value:
        return render(value, language, unit) if isinstance(value, Text) else value

    return {
        "formula": render(item.formula, language, unit),
        "formula_values": {name: plain(value) for name, value in item.formula.values.items()},
        "basis": item.basis,
        "source": item.source.model_dump(mode="json"),
    }


def _item(item: Item, language: str, unit: Unit) -> dict[str, Any]:
    return {
        "key": item.key,
        "bytes": item.bytes,
        "max_bytes": item.max_bytes,
        "low": item.low,
        "high": item.high,
        "layer": item.layer,
        "phases": list(item.phases),
        "divided_by": item.divided_by,
        **_origin(item, language, unit),
    }


def _range(value: Range) -> dict[str, int]:
    return {"value": value.value, "low": value.low, "high": value.high}


def _finite(value: Any) -> Any:
    """JSON has no infinity: an unbounded figure is null."""
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
