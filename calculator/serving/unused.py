"""Settings of a serving plan that its engine does not have, or whose memory is not counted.

A plan that sets one is told so, instead of being billed as if it mattered."""

from __future__ import annotations

from types import MappingProxyType

from calculator.serving.plan import Engine, ServingPlan
from calculator.text import Text, text

_LLAMA_CPP = (
    "n_gpu_layers", "n_ubatch", "kv_unified", "flash_attn", "swa_full", "experts_on_cpu", "n_cpu_moe", "tensor_split",
    "fit", "fit_target_bytes", "fit_min_context", "mmproj",
)  # fmt: skip
_VLLM = ("sampler", "runner", "hybrid_kv_cache_manager", "limit_mm_per_prompt")
_FREE = ("free_memory_bytes",)
_DRAFT = ("draft_bytes", "draft_model", "speculative")
_PREFILL = ("chunked_prefill", "chunked_prefill_size")

UNUSED: MappingProxyType[Engine, tuple[str, ...]] = MappingProxyType(
    {
        "vllm": (*_LLAMA_CPP, *_FREE),
        "sglang": ("mla", *_LLAMA_CPP, *_VLLM, "chunked_prefill", "dcp"),
        "tensorrt_llm": ("mla", *_LLAMA_CPP, *_VLLM, *_PREFILL),
        "lmdeploy": ("mla", *_LLAMA_CPP, *_VLLM, *_PREFILL, *_DRAFT),
        "tgi": ("mla", *_LLAMA_CPP, *_VLLM, *_PREFILL, *_DRAFT),
        "transformers": ("mla", *_LLAMA_CPP, *_VLLM, *_PREFILL, *_DRAFT, "memory_fraction"),
        "llama_cpp": (*_VLLM, *_PREFILL, *_DRAFT, "memory_fraction", "kv_cache_memory_bytes", "block_size"),
        "ollama": (*_VLLM, *_PREFILL, *_DRAFT, "memory_fraction", "kv_cache_memory_bytes", "block_size",
                   "fit_min_context"),
    }
)  # fmt: skip
"""Fields by engine that change nothing on its bill. A test sets each and compares."""


def unused(plan: ServingPlan) -> tuple[Text, ...]:
    """What the plan sets in vain on its engine."""
    fields = type(plan).model_fields
    named = [name for name in UNUSED.get(plan.engine, ()) if getattr(plan, name) != fields[name].default]
    return (text("serving.assume.unused", names=", ".join(named)),) if named else ()
