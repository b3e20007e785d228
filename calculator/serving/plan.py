"""A serving engine's start as the person describes it. Field names and values are those of the measured cases."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from calculator.base import Frozen

Engine = Literal["vllm", "sglang", "tensorrt_llm", "llama_cpp", "ollama", "tgi", "lmdeploy", "transformers", "other"]


class ServingPlan(Frozen):
    """Everything that decides what a serving engine holds. None means the engine's own default for its version and
    card. ``weights`` None keeps the stored format; ``concurrency`` is the wished number of requests at
    ``context_tokens`` each (prompt and answer; None: ``max_model_len``). ``kv_cache_memory_bytes`` fixes the cache pool
    of one GPU instead of letting ``memory_fraction`` and what is loaded decide (vLLM's ``--kv-cache-memory-bytes``)."""

    engine: Engine = "vllm"
    engine_version: str | None = None
    weights: str | None = None
    kv_cache_dtype: Literal["auto", "bf16", "fp16", "fp8", "int8", "q8_0", "q5_1", "q4_0"] = "auto"
    memory_fraction: float | None = Field(None, gt=0, le=1)
    kv_cache_memory_bytes: int | None = Field(None, ge=0)
    max_model_len: int | None = Field(None, ge=1, le=16_777_216)
    max_num_seqs: int | None = Field(None, ge=1, le=1_048_576)
    max_num_batched_tokens: int | None = Field(None, ge=1, le=16_777_216)
    block_size: int | None = Field(None, ge=1)
    cuda_graphs: bool = True
    prefix_caching: bool | None = None
    usage: Literal["server", "offline"] = "server"
    sampler: Literal["torch", "triton", "flashinfer"] | None = None
    runner: Literal["v0", "v1", "v2"] | None = None
    concurrency: int = Field(16, ge=1, le=1_048_576)
    context_tokens: int | None = Field(None, ge=1, le=16_777_216)
    practical_share: float = Field(0.7, gt=0, le=1)
    gpu: str = "h100-80gb-sxm"
    gpu_capacity_bytes: int | None = Field(None, ge=1)
    n_gpus: int = Field(1, ge=1, le=65_536)
    tp: int = Field(1, ge=1)
    pp: int = Field(1, ge=1)
    dp: int = Field(1, ge=1)
    ep: int = Field(1, ge=1)
    dcp: int = Field(1, ge=1)
    n_gpu_layers: int | None = Field(None, ge=0)
    ttft_goal_s: float | None = Field(None, gt=0)
    tpot_goal_s: float | None = Field(None, gt=0)
