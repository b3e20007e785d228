"""What each command computes: a model and a plan to a bill, or one of the lists."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import get_token

from calculator import hardware, lookup
from calculator.bill import Bill
from calculator.cli.options import ALIASES, make_plan
from calculator.cli.pace import Pace, pace
from calculator.errors import NotAConfigError, PlanError, TooLargeError
from calculator.hardware import Gpu
from calculator.jsonin import LIMIT_BYTES, parse_object
from calculator.lookup import LoadedModel
from calculator.serving.context import usual_context, with_usual_context
from calculator.serving.drafts import with_draft
from calculator.serving.plan import ServingPlan
from calculator.text import Text, text
from calculator.training.plan import Adapter, TrainingPlan
from calculator.training.recipe import usual_precision

Plan = TrainingPlan | ServingPlan
CONTEXT = {"max_model_len", "context_tokens"}
PLANS: Mapping[str, type[Plan]] = {"train": TrainingPlan, "finetune": TrainingPlan, "serve": ServingPlan}


class Result(NamedTuple):
    """A bill and all that it was made from. ``assumptions`` are those of the command and of the card."""

    model: LoadedModel
    plan: Plan
    gpu: Gpu
    bill: Bill
    assumptions: tuple[Text, ...]
    pace: Pace | None = None


def load_model(written: str, revision: str | None = None) -> LoadedModel:
    """The model of an argument; files of this machine and the token of its own login are the person's to use."""
    return lookup.load(written, revision=revision, token=get_token(), allow_local=True)


def compute(
    command: str, model: str, given: Mapping[str, Any], plan_file: Path | None, *, revision: str | None, replay: bool
) -> Result:
    """The bill of ``train``, ``finetune`` or ``serve``. ``given`` are options as typed, which win over the file's."""
    values = _plan_values(plan_file) if plan_file is not None else {}
    for name, value in given.items():
        values[ALIASES.get(name, name)] = value
    plan, assumptions = _with_defaults(command, values)
    gpu = hardware.resolve(plan.gpu, plan.gpu_capacity_bytes)
    if gpu.assumption is not None:
        assumptions = (*assumptions, gpu.assumption)
    loaded = load_model(model, revision)
    if isinstance(plan, ServingPlan) and not CONTEXT & values.keys():
        each = usual_context(loaded.shape, plan)
        plan = with_usual_context(loaded.shape, plan)
        assumptions = (text("cli.assume.context", context_tokens=each), *assumptions)
    if isinstance(plan, ServingPlan) and plan.draft_model is not None:
        drafted = with_draft(loaded.shape, load_model(plan.draft_model).shape)
        loaded = loaded.model_copy(update={"shape": drafted})
    bill = _bill(loaded, plan, gpu, replay)
    figures = bill.serving
    timed = pace(loaded, plan, gpu, figures) if isinstance(plan, ServingPlan) and figures is not None else None
    return Result(loaded, plan, gpu, bill, assumptions, timed)


def _bill(model: LoadedModel, plan: Plan, gpu: Gpu, replay: bool) -> Bill:
    if isinstance(plan, ServingPlan):
        from calculator import serving

        return serving.bill(model.shape, plan, gpu, model.stored)
    from calculator import training

    model.check_trainable()
    return training.bill(model.shape, plan, gpu, replay=replay)


def _plan_values(path: Path) -> dict[str, Any]:
    """The fields of a plan file: a plan alone, or any JSON that holds one under "plan", such as a bill."""
    try:
        with path.open("rb") as file:
            raw = file.read(LIMIT_BYTES + 1)
    except OSError:
        raise PlanError("plan.file", field="plan", path=str(path)[:200]) from None
    try:
        values = parse_object(raw, field="plan", unique_keys=True)
    except (NotAConfigError, TooLargeError) as error:
        raise PlanError("plan.file_json", field="plan", path=str(path)[:200], reason=error.message) from None
    inner = values.get("plan")
    return dict(inner) if isinstance(inner, dict) else values


def _with_defaults(command: str, values: Mapping[str, Any]) -> tuple[Plan, tuple[Text, ...]]:
    """The plan, with what the command stands for filled in and what it takes for granted said."""
    filled = dict(values)
    said: tuple[Text, ...] = ()
    if command == "serve":
        serving_plan = make_plan(ServingPlan, filled)
        if serving_plan.n_gpus > 1 and not {"tp", "pp", "dp"} & filled.keys():
            serving_plan = serving_plan.model_copy(update={"tp": serving_plan.n_gpus})
            said = (*said, text("cli.assume.tp", gpus_count=serving_plan.n_gpus))
        return serving_plan, said
    if command == "finetune":
        filled.setdefault("method", "lora")
        if filled["method"] == "qlora" and "base_quant" not in filled:
            filled["base_quant"] = "nf4"
            said = (text("cli.assume.nf4"),)
    plan = make_plan(TrainingPlan, filled)
    if plan.method in ("lora", "qlora", "dora") and plan.adapter is None:
        adapter = make_plan(Adapter, {})
        plan = plan.model_copy(update={"adapter": adapter})
        said = (*said, text("cli.assume.adapter", rank=adapter.rank))
    if plan.n_gpus > plan.tp * plan.pp * plan.cp and "sharding" not in filled:
        plan = plan.model_copy(update={"sharding": "ddp"})
        said = (*said, text("cli.assume.ddp"))
    if "precision" not in filled and usual_precision(plan) != plan.precision:
        plan = plan.model_copy(update={"precision": usual_precision(plan)})
        said = (*said, text("cli.assume.precision", precision=plan.precision))
    return plan, said
