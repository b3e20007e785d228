"""Settings of a serving plan that its engine does not have, or whose memory is not counted.

A plan that sets one is told so, instead of being billed as if it mattered."""

from __future__ import annotations

from types import MappingProxyType

from calculator.serving.plan import Engine, ServingPlan
from calculator.serving.split import BY_CARD, attention_apart
from calculator.text import Text, text

_LLAMA_CPP = (
    "n_gpu_layers", "n_ubatch", "kv_unified", "flash_attn", "swa_full", "experts_on_cpu", "n_cpu_moe", "tensor_split",
    "fit", "fit_target_bytes", "fit_min_context", "mmproj", "v_cache_dtype",
)  # fmt: skip
_VLLM = ("sampler", "runner", "hybrid_kv_cache_manager", "limit_mm_per_prompt")
_FREE = ("free_memory_bytes",)
_DRAFT_DETAILS = ("draft_bytes", "draft_model", "draft_tokens")
_DRAFT = (*_DRAFT_DETAILS, "speculative")
_REPLICAS = ("dp", "ep", "dcp", "dp_attention")
_HOST = ("cpu_offload_bytes", "kv_offload_bytes")
_PREFILL = ("chunked_prefill", "chunked_prefill_size")

UNUSED: MappingProxyType[Engine, tuple[str, ...]] = MappingProxyType(
    {
        "vllm": (*_LLAMA_CPP, *_FREE, "dp_attention"),
        "sglang": ("mla", *_LLAMA_CPP, *_VLLM, "chunked_prefill", "dcp"),
        "tensorrt_llm": ("mla", *_LLAMA_CPP, *_VLLM, *_PREFILL, "dcp", "cpu_offload_bytes"),
        "lmdeploy": ("mla", *_LLAMA_CPP, *_VLLM, *_PREFILL, *_DRAFT, *_HOST, "dcp", "dp_attention"),
        "tgi": ("mla", *_LLAMA_CPP, *_VLLM, *_PREFILL, *_DRAFT, *_HOST, "dcp", "dp_attention", "ep"),
        "transformers": ("mla", *_LLAMA_CPP, *_VLLM, *_PREFILL, *_DRAFT, *_REPLICAS, *_HOST, "memory_fraction"),
        "llama_cpp": (*_VLLM, *_PREFILL, *_DRAFT, *_REPLICAS, *_HOST, "memory_fraction", "kv_cache_memory_bytes",
                      "block_size"),
        "ollama": (*_VLLM, *_PREFILL, *_DRAFT, *_REPLICAS, *_HOST, "memory_fraction", "kv_cache_memory_bytes",
                   "block_size",
                   "fit_min_context"),
    }
)  # fmt: skip
"""Fields by engine that change nothing on its bill. A test sets each and compares."""


_SERVERS = ("tensorrt_llm", "tgi")
"""Engines without replicas of their own: several are several servers."""


def unused(plan: ServingPlan) -> tuple[Text, ...]:
    """What the plan sets in vain on its engine, and what it takes another start for."""
    fields = type(plan).model_fields
    named = [name for name in UNUSED.get(plan.engine, ()) if getattr(plan, name) != fields[name].default]
    if plan.speculative is None:
        named += [name for name in _DRAFT_DETAILS if name not in named and getattr(plan, name) != fields[name].default]
    if plan.engine in BY_CARD:
        named += [name for name in ("tp", "pp") if getattr(plan, name) not in (1, plan.n_gpus)]
    said = (text("serving.assume.unused", names=", ".join(named)),) if named else ()
    if plan.engine in _SERVERS and plan.dp > 1 and not attention_apart(plan):
        said = (*said, text("serving.assume.servers", replicas_count=plan.dp))
    return said
