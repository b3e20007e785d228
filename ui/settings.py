"""Everything that a person can set, as one value: the model, the hardware, both plans, language and unit.

The pages share it, the link carries it, and nothing else is remembered between two runs of a page.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from calculator.base import Frozen
from calculator.model.shape import ModelShape
from calculator.serving.context import with_usual_context
from calculator.serving.plan import USUAL_CONTEXT_TOKENS, ServingPlan
from calculator.training.applies import APPLIES
from calculator.training.plan import Adapter, TrainingPlan

Page = Literal["training", "finetuning", "serving", "accuracy"]
PLAN_PAGES: tuple[Page, ...] = ("training", "finetuning", "serving")
PAGES: tuple[Page, ...] = (*PLAN_PAGES, "accuracy")

Language = Literal["en", "zh"]
MAX_GPUS = 65_536
_NAME = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_FILE_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.+/-]*$"
_LONGEST_FILE_NAME = 200
ModelId = Annotated[str, StringConstraints(pattern=rf"^{_NAME}(/{_NAME})?$", max_length=96)]
FileName = Annotated[str, StringConstraints(pattern=_FILE_NAME, max_length=_LONGEST_FILE_NAME)]
Revision = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._/+-]*$", max_length=128)]


def is_file_name(name: str) -> bool:
    """Whether a link can carry the file's name."""
    return len(name) <= _LONGEST_FILE_NAME and re.match(_FILE_NAME, name) is not None


class PresetChoice(Frozen):
    """A model whose configuration ships with the app."""

    kind: Literal["preset"] = "preset"
    key: ModelId


class HubChoice(Frozen):
    """A model of the hub. ``revision`` is the commit once it has been read, so that a link means the same for ever;
    ``file`` is a GGUF mix or (part of a) file name where one was chosen."""

    kind: Literal["hub"] = "hub"
    id: ModelId
    revision: Revision | None = None
    file: FileName | None = None


class ConfigChoice(Frozen):
    """A pasted, uploaded or hand-made configuration: the smallest JSON text that still reads to the same shape."""

    kind: Literal["config"] = "config"
    config: str


ModelChoice = Annotated[PresetChoice | HubChoice | ConfigChoice, Field(discriminator="kind")]

RESTING = (
    "base_quant_group", "fp8_recipe", "fp8_param_gather", "max_split_mb", "hsdp_shard_size", "pp_schedule", "vpp",
    "micro_batches", "expert_tp", "sequence_parallel", "optimizer_in_backward", "zero_reduce_bucket",
    "zero_overlap_comm", "zero_prefetch_bucket", "zero_max_live_parameters",
)  # fmt: skip
"""Fields whose control is absent where they do not apply; what they hold rests meanwhile."""
_REST = {name: TrainingPlan.model_fields[name].default for name in RESTING}

CONTEXT_FIELDS = frozenset({"max_model_len", "context_tokens"})

DEFAULT_MODEL = PresetChoice(key="llama-3.1-8b")


class Settings(Frozen):
    """``training`` holds what the training and the fine-tuning page share and, besides, the adapter method of the
    latter; ``plan`` gives each page its own view of it. ``usual_context``: nobody has set how long requests are, so the
    default in ``serving`` gives way to what suits model and engine. ``language`` None follows the browser."""

    model: ModelChoice = DEFAULT_MODEL
    gpu: str = "h100-80gb-sxm"
    gpu_capacity_bytes: int | None = None
    n_gpus: int = Field(1, ge=1, le=MAX_GPUS)
    training: TrainingPlan = TrainingPlan(method="lora", adapter=Adapter())
    serving: ServingPlan = ServingPlan(max_model_len=USUAL_CONTEXT_TOKENS)
    usual_context: bool = True
    language: Language | None = None
    unit: Literal["GiB", "GB"] = "GiB"

    def training_plan(self, page: Page) -> TrainingPlan:
        """The plan of the training or the fine-tuning page: what the page does not offer is left at rest."""
        plan = self.training
        changes: dict[str, Any] = {
            "gpu": self.gpu, "gpu_capacity_bytes": self.gpu_capacity_bytes, "n_gpus": self.n_gpus,
        }  # fmt: skip
        if page == "training":
            changes |= {"method": "full", "adapter": None, "base_quant": "none", "kbit_prepared": None}
            changes |= {"lora_dropout": None, "adapter_dtype": None}
        elif plan.method == "qlora":
            changes["base_quant"] = "nf4" if plan.base_quant == "none" else plan.base_quant
        else:
            changes["base_quant"] = "none"
        if self.n_gpus == 1:
            changes["sharding"] = "none"
        elif plan.sharding == "none":
            changes["sharding"] = "ddp"
        plan = plan.model_copy(update=changes)
        idle = {name: rest for name, rest in _REST.items() if not APPLIES[name](plan)}
        return plan.model_copy(update=idle)

    def serving_plan(self, shape: ModelShape | None = None) -> ServingPlan:
        """The serving plan. A split that nobody has chosen spreads the model over all cards by tensor parallelism; a
        length of requests that nobody has chosen is the usual one, no longer than ``shape`` allows."""
        changes: dict[str, Any] = {
            "gpu": self.gpu, "gpu_capacity_bytes": self.gpu_capacity_bytes, "n_gpus": self.n_gpus,
        }  # fmt: skip
        if self.serving.tp * self.serving.pp * self.serving.dp == 1:
            changes["tp"] = self.n_gpus
        plan = self.serving.model_copy(update=changes)
        unset = plan.max_model_len == USUAL_CONTEXT_TOKENS and plan.context_tokens is None
        return with_usual_context(shape, plan) if self.usual_context and unset else plan

    def with_training(self, **changes: Any) -> Settings:
        return self.model_copy(update={"training": self.training.model_copy(update=changes)})

    def with_serving(self, **changes: Any) -> Settings:
        return self.model_copy(update={
            "serving": self.serving.model_copy(update=changes),
            "usual_context": self.usual_context and not CONTEXT_FIELDS & changes.keys(),
        })  # fmt: skip
