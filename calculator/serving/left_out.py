"""Settings of a plan that its engine's command does not say."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from calculator.serving.command import emit_command, parse_command
from calculator.serving.plan import ServingPlan
from calculator.serving.split import BY_CARD

NO_SETTINGS = frozenset((
    "engine", "concurrency", "context_tokens", "practical_share", "gpu", "gpu_capacity_bytes", "free_memory_bytes",
    "pp_rank", "draft_bytes", "shared_prefix_tokens", "request_lengths", "prompt_median_tokens", "prompt_spread",
    "output_median_tokens", "output_spread", "draft_acceptance", "gpus_per_node", "peak_reserve",
    "ttft_goal_s", "tpot_goal_s",
))  # fmt: skip
"""Fields that describe the wish, the card or what is asked of the bill: no engine is started with them."""
ALREADY: Mapping[tuple[str, str], Any] = MappingProxyType({
    ("sglang", "prefix_caching"): True, ("tensorrt_llm", "prefix_caching"): True, ("lmdeploy", "prefix_caching"): False,
    ("ollama", "mmproj"): "gpu",
})  # fmt: skip
"""Values that an engine has without being told, and no flag for."""
_DEFAULT = ServingPlan.model_validate({})


def left_out(model: str, plan: ServingPlan, kept: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The plan's fields that are lost on the way through ``emit_command``: what comes back from the command is compared
    with the plan, so that nothing is lost without being named.

    Raises ``PlanError`` ("command.no_command") for engines that are not started by one.
    """
    back = parse_command(emit_command(model, plan, kept)).plan()
    return tuple(
        name for name in ServingPlan.model_fields
        if name not in NO_SETTINGS and getattr(plan, name) != getattr(_DEFAULT, name)
        and getattr(plan, name) != getattr(back, name) and not _said_otherwise(name, model, plan, back)
    )  # fmt: skip


def _said_otherwise(name: str, model: str, plan: ServingPlan, back: ServingPlan) -> bool:
    value = getattr(plan, name)
    if ALREADY.get((plan.engine, name), None) == value:
        return True
    if name == "weights" and plan.engine in ("llama_cpp", "ollama"):
        return str(value).lower() in model.lower()  # the file's name says its type
    if name in ("kv_cache_dtype", "v_cache_dtype") and plan.engine == "llama_cpp":
        return _types(plan) == _types(back)
    if name in ("tp", "pp") and plan.engine in BY_CARD:
        return bool(value == plan.n_gpus)  # these put whole layers on the cards that they see
    if name == "n_gpus":
        return plan.dp != back.dp or plan.pp != back.pp  # the ranks that are lost are named themselves
    if name == "max_num_batched_tokens" and plan.engine == "sglang":
        return plan.chunked_prefill_size is not None or back.chunked_prefill_size == value
    if name == "max_lora_rank":
        return not plan.max_loras
    return name == "draft_tokens" and plan.speculative is None


def _types(plan: ServingPlan) -> tuple[str, str]:
    """The cache's types of keys and values with llama.cpp's default."""
    keys = "fp16" if plan.kv_cache_dtype == "auto" else plan.kv_cache_dtype
    return keys, plan.v_cache_dtype or keys
