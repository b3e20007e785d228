"""The longest context that a model's file allows, as each engine reads it, and what the engine does beyond it.

A request's length where nobody says one, too: the usual one, at most the model's own.
"""

from __future__ import annotations

from types import MappingProxyType

from calculator.errors import PlanError
from calculator.model.shape import ModelShape
from calculator.serving.engines.ollama import NEWEST, default_slots
from calculator.serving.plan import USUAL_CONTEXT_TOKENS, ServingPlan
from calculator.serving.versions import parse
from calculator.sources import Source
from calculator.text import Text, text

TOGETHER = ("llama_cpp", "ollama")
"""Engines whose ``max_model_len`` is the context of all slots together."""
REFUSES = ("vllm", "sglang")
"""Engines that do not start above the model's limit."""
CUTS = MappingProxyType({"tensorrt_llm": (1, 0, 0), "ollama": (0, 0, 0)})
"""Engines that start with the model's limit instead, with a warning, and the release from which they do. Earlier ones
and all other engines start as asked: positions are computed as they come."""
STATED = MappingProxyType({
    "vllm": ("su", "longrope", "llama3"),
    "sglang": ("llama3",),
    "tensorrt_llm": ("su", "longrope", "llama3", "yarn"),
})  # fmt: skip
"""Methods of scaling whose factor ``max_position_embeddings`` includes already, in each engine's reading. vLLM counts
YaRN from the original length; SGLang takes the number as final wherever an original length is stated."""
SOURCES = (
    Source(title="vLLM source, vllm/config/model.py, _get_and_verify_max_len",
           url="https://github.com/vllm-project/vllm", checked_on="2026-11-30", versions="0.4 to 0.33"),
    Source(title="SGLang source, srt/configs/model_config.py, _derive_context_length",
           url="https://github.com/sgl-project/sglang", checked_on="2026-11-30", versions="0.3.6 to 0.5.10"),
    Source(title="TensorRT-LLM source, tensorrt_llm/_torch/pyexecutor/model_engine.py, _init_max_seq_len",
           url="https://github.com/NVIDIA/TensorRT-LLM", checked_on="2026-11-30", versions="1.0 and later"),
    Source(title="Ollama source, llm/server.go: num_ctx above the file's context_length is lowered to it",
           url="https://github.com/ollama/ollama", checked_on="2026-11-30", versions="0.1.48 to 0.30"),
    Source(title="Text Generation Inference source, launcher/src/main.rs: the limit only sets defaults",
           url="https://github.com/huggingface/text-generation-inference", checked_on="2026-11-30",
           versions="2.0 to 3.3"),
)  # fmt: skip


def context_limit(shape: ModelShape, engine: str) -> int | None:
    """The longest context in tokens; None where the file states none. A table of learned positions is the end of it;
    Gemma 3's number counts its scaling already. An engine without a reading of its own goes by the stated number."""
    limit, scaling = shape.max_context, shape.rope_scaling
    if shape.positions and limit is not None:
        return min(limit, shape.positions)
    if limit is None or scaling is None or engine not in STATED or shape.model_type.startswith("gemma3"):
        return limit
    if scaling.kind in STATED[engine] or (engine == "sglang" and scaling.original is not None):
        return limit
    start = scaling.original if engine == "vllm" and scaling.kind == "yarn" and scaling.original else limit
    return int(start * scaling.factor)


def slots_of(plan: ServingPlan) -> int:
    """Slots that share the context of llama.cpp and Ollama."""
    if plan.max_num_seqs is not None:
        return plan.max_num_seqs
    if plan.engine == "ollama" and plan.max_model_len is not None:
        return default_slots(NEWEST if plan.engine_version is None else parse(plan.engine_version))
    return plan.concurrency


def usual_context(shape: ModelShape | None, plan: ServingPlan) -> int:
    """Tokens of a request where nobody says."""
    limit = None if shape is None else context_limit(shape, plan.engine)
    return min(USUAL_CONTEXT_TOKENS, limit or USUAL_CONTEXT_TOKENS)


def with_usual_context(shape: ModelShape | None, plan: ServingPlan) -> ServingPlan:
    """The plan for requests of the usual length: the engine's limit is set to it, or each slot's share."""
    each = usual_context(shape, plan)
    together = plan.engine in TOGETHER
    return plan.model_copy(
        update={"max_model_len": None if together else each, "context_tokens": each if together else None}
    )


def within_limit(shape: ModelShape, plan: ServingPlan) -> tuple[ServingPlan, tuple[Text, ...]]:
    """The plan as its engine starts it, with a note where the context goes beyond the model's limit.

    Raises ``PlanError`` ("serving.context_limit") where the engine refuses, or positions end with a table.
    """
    limit, engine = context_limit(shape, plan.engine), plan.engine
    slots = slots_of(plan) if engine in TOGETHER else 1
    whole = plan.max_model_len
    field = "max_model_len"
    if whole is None and engine in (*TOGETHER, "transformers") and plan.context_tokens is not None:
        field, whole = "context_tokens", plan.context_tokens * slots
    if limit is None or whole is None or whole // slots <= limit:
        return plan, ()
    if (engine in REFUSES and not plan.longer_context) or shape.positions:
        raise PlanError(
            "serving.context_limit", field=field, engine=engine, context_tokens=whole // slots, limit_tokens=limit,
        )  # fmt: skip
    since = CUTS.get(engine)
    if since is not None and (plan.engine_version is None or parse(plan.engine_version) >= since):
        cut = text("serving.assume.limit_cut", context_tokens=whole // slots, limit_tokens=limit)
        return plan.model_copy(update={field: limit if field == "context_tokens" else limit * slots}), (cut,)
    return plan, (text("serving.assume.beyond_limit", context_tokens=whole // slots, limit_tokens=limit),)
