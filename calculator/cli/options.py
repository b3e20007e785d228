"""The command line's options, made from the plans' own fields, and their values turned into plans.

A field ``micro_batch`` is the option ``--micro-batch``; the adapter's fields stand beside the plan's. The plan itself
checks the values; what it refuses comes back as a ``PlanError`` that names the field and the way on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from calculator.errors import PlanError
from calculator.training.plan import Adapter
from calculator.units import parse_bytes

P = TypeVar("P", bound=BaseModel)

ALIASES: Mapping[str, str] = {"count": "n_gpus"}
"""Further names of fields on the command line."""
NOT_OFFERED = ("other",)
"""Values that measured rows may have and no calculation takes."""


def option_fields(plan: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields that options can set: the plan's, and those of its adapter if it has one."""
    fields = dict(plan.model_fields)
    if "adapter" in fields:
        fields |= Adapter.model_fields
    return fields


def choices(field: FieldInfo) -> tuple[str, ...]:
    """The values that a field allows, () where they are not listed."""
    return tuple(str(value) for value in _literals(field.annotation) if value not in NOT_OFFERED)


def is_flag(field: FieldInfo) -> bool:
    return bool in _parts(field.annotation)


def is_list(field: FieldInfo) -> bool:
    return any(get_origin(part) is tuple for part in _parts(field.annotation))


def is_mapping(field: FieldInfo) -> bool:
    return any(get_origin(part) is dict for part in _parts(field.annotation))


def make_plan(plan: type[P], given: Mapping[str, Any]) -> P:
    """The plan of these values: field names to texts as typed, or to values as a JSON file holds them.

    Raises ``PlanError``: "plan.unknown_field", "plan.choice", "plan.number", "plan.range", "plan.flag" or "plan.value".
    """
    values: dict[str, Any] = {}
    adapter: dict[str, Any] = {}
    fields = option_fields(plan)
    for name, value in given.items():
        name = ALIASES.get(name, name)
        if name not in fields:
            near = get_close_matches(name, list(fields), n=3, cutoff=0.5)
            raise PlanError("plan.unknown_field", field=name[:60], near=", ".join(near) or ", ".join(list(fields)[:6]))
        target = values if name in plan.model_fields else adapter
        target[name] = _typed(name, value, fields[name])
    if adapter:
        base = values.get("adapter")
        if isinstance(base, BaseModel):
            base = base.model_dump()
        if base is None or isinstance(base, dict):
            values["adapter"] = {**(base or {}), **adapter}
    try:
        return plan(**values)
    except ValidationError as error:
        raise _plan_error(error, fields) from None


def _typed(name: str, value: Any, field: FieldInfo) -> Any:
    """A text as what the field holds; anything else as it is."""
    if isinstance(value, str) and (name == "adapter" or is_mapping(field)):
        try:
            return json.loads(value)
        except ValueError:
            raise PlanError("plan.value", field=name, value=value[:60], reason="JSON") from None
    if not isinstance(value, str):
        return tuple(value) if isinstance(value, list) else value
    if name.endswith("_bytes"):
        return parse_bytes(value, field=name)
    if is_list(field):
        return tuple(part.strip() for part in value.split(",") if part.strip() and part.strip() != "none")
    if is_flag(field):
        lowered = value.lower()
        if lowered not in ("true", "false", "yes", "no", "on", "off", "1", "0"):
            raise PlanError("plan.flag", field=name, value=value[:60])
        return lowered in ("true", "yes", "on", "1")
    if value.lower() in ("none", "default", "auto") and value.lower() not in choices(field) and _optional(field):
        return None
    return value.replace("_", "").replace(",", "") if _numeric(field) else value


def _plan_error(error: ValidationError, fields: Mapping[str, FieldInfo]) -> PlanError:
    """The first complaint of the plan, in the calculator's own terms."""
    first = error.errors(include_url=False, include_context=True)[0]
    names = [str(part) for part in first["loc"] if isinstance(part, str)]
    name = next((n for n in reversed(names) if n in fields), names[0] if names else "")
    value, context = str(first.get("input", ""))[:60], first.get("ctx", {})
    match first["type"]:
        case "literal_error":
            allowed = choices(fields[name])
            near = get_close_matches(value.lower(), allowed, n=1, cutoff=0.5)
            if near:
                return PlanError("plan.choice_near", field=name, value=value, near=near[0], allowed=", ".join(allowed))
            return PlanError("plan.choice", field=name, value=value, allowed=", ".join(allowed))
        case "int_parsing" | "float_parsing" | "int_from_float" | "int_type" | "float_type" | "int_parsing_size":
            return PlanError("plan.number", field=name, value=value)
        case "greater_than_equal" | "less_than_equal" | "greater_than" | "less_than":
            relation = {"ge": "≥", "le": "≤", "gt": ">", "lt": "<"}
            limit = next(f"{sign} {context[key]}" for key, sign in relation.items() if key in context)
            return PlanError("plan.range", field=name, value=value, limit=limit)
        case "extra_forbidden":
            wanted, known = names[-1][:60], _beside(names, fields)
            near = get_close_matches(wanted, known, n=3, cutoff=0.5)
            return PlanError("plan.unknown_field", field=wanted, near=", ".join(near or known[:6]))
        case _:
            return PlanError("plan.value", field=name, value=value, reason=first["msg"])


def _beside(names: Sequence[str], fields: Mapping[str, FieldInfo]) -> list[str]:
    """The fields that stand where a name was not known: those of the part that it is in, else the plan's."""
    inside = _parts(fields[names[0]].annotation) if len(names) > 1 and names[0] in fields else ()
    found = [name for part in inside if hasattr(part, "model_fields") for name in part.model_fields]
    return found or list(fields)


def _parts(annotation: Any) -> tuple[Any, ...]:
    """The members of a union, or the annotation alone."""
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _optional(field: FieldInfo) -> bool:
    return type(None) in _parts(field.annotation)


def _numeric(field: FieldInfo) -> bool:
    return any(part in (int, float) for part in _parts(field.annotation))


def _literals(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return tuple(value for part in get_args(annotation) for value in _literals(part))
