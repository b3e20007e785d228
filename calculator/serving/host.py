"""Cache in host memory: blocks that leave the card are kept there, and come back when their tokens are asked for again.

It holds no running request, so it adds nothing to the concurrency: what it holds need not be computed anew.
"""

from __future__ import annotations

from dataclasses import dataclass

from calculator.serving.plan import ServingPlan
from calculator.serving.split import ranks_of
from calculator.serving.start import Start
from calculator.serving.versions import parse
from calculator.sources import Source
from calculator.text import Text, text

ENGINES = ("vllm", "sglang", "tensorrt_llm")
VLLM_SINCE = (0, 11, 1)
"""``--kv-offloading-size``."""
SHARED_BY_RANKS = ("vllm",)
"""Engines whose size is that of all ranks of a replica; the others' is that of each rank."""
SOURCES = (
    Source(title="vLLM source, vllm/config/cache.py, kv_offloading_size; vllm/config/vllm.py: bytes per rank",
           url="https://github.com/vllm-project/vllm", checked_on="2026-11-30", versions="0.11.1 and later"),
    Source(title="SGLang source, srt/mem_cache/memory_pool_host.py, HostKVCache",
           url="https://github.com/sgl-project/sglang", checked_on="2026-11-30", versions="0.5.10"),
    Source(title="TensorRT-LLM documentation, KV cache system, host_cache_size",
           url="https://nvidia.github.io/TensorRT-LLM/features/kvcache.html", checked_on="2026-11-30"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class HostCache:
    """Bytes of all replicas' ranks together, and the tokens that one replica keeps there."""

    total_bytes: int = 0
    tokens: int = 0
    notes: tuple[Text, ...] = ()


def host_cache(plan: ServingPlan, begun: Start) -> HostCache:
    """What the plan's ``kv_offload_bytes`` come to; nothing for engines without it."""
    if not plan.kv_offload_bytes or plan.engine not in ENGINES:
        return HostCache()
    if plan.engine == "vllm" and plan.engine_version is not None and parse(plan.engine_version) < VLLM_SINCE:
        return HostCache(notes=(text("serving.assume.unused", names="kv_offload_bytes"),))
    ranks = plan.tp * plan.pp
    each = plan.kv_offload_bytes // ranks if plan.engine in SHARED_BY_RANKS else plan.kv_offload_bytes
    tokens = begun.cache.tokens(each, begun.max_model_len)
    notes = [text("serving.assume.host_cache", tokens_count=tokens, host_bytes=each * ranks)]
    if plan.engine == "sglang" and each <= begun.pool.value:
        notes.append(text("serving.assume.hicache_small", host_bytes=each, pool_bytes=begun.pool.value))
    return HostCache(each * ranks_of(plan), tokens, tuple(notes))
