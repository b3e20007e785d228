"""A serving engine's start as the person describes it. Field names and values are those of the measured cases."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from calculator.base import Frozen

Engine = Literal["vllm", "sglang", "tensorrt_llm", "llama_cpp", "ollama", "tgi", "lmdeploy", "transformers", "other"]

ValueType = Literal["bf16", "fp16", "fp32", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]
CacheType = Literal["auto", "bf16", "fp16", "fp32", "fp8", "int8", "int4", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0",
                    "iq4_nl"]  # fmt: skip

USUAL_CONTEXT_TOKENS = 8192
"""What page and command line take a request to be where nobody says, rather than the model's whole context."""


LONGEST_TOKENS = 16_777_216
"""The longest context that a plan may ask for."""


def _switched_on(value: Any) -> Any:
    """ik_llama.cpp numbers its ways of MLA, 0 for none: all of them cache the latent."""
    return bool(value) if isinstance(value, int) else value


class ServingPlan(Frozen):
    """Everything that decides what a serving engine holds. None means the engine's own default for its version and
    card. ``weights`` None keeps the stored format; ``concurrency`` is the wished number of requests at
    ``context_tokens`` each (prompt and answer; None: ``max_model_len``). ``kv_cache_memory_bytes`` fixes the cache pool
    of one GPU instead of letting ``memory_fraction`` and what is loaded decide (vLLM's ``--kv-cache-memory-bytes``).

    ``free_memory_bytes`` is what is free on the card when the pool is sized, where it was seen in a log: engines that
    take a fraction of the free memory then need no estimate of it. ``hybrid_kv_cache_manager`` False makes vLLM charge
    sliding windows as full attention; ``mla`` False stores full heads, as releases before MLA did;
    ``pp_layer_partition`` lists the layers of each stage, ``pp_rank`` asks for one stage's bill (None: the tightest);
    ``limit_mm_per_prompt`` the items of each modality that a
    request may hold. ``speculative`` is the method of drafting (``calculator.serving.drafts``) with ``draft_tokens``
    tokens a step; ``draft_model`` names the drafting model, and ``draft_bytes`` replace its derived weights;
    ``draft_acceptance`` is the chance that a draft is right, given that those before it were (None: assumed by method).
    ``gpus_per_node`` cards are joined by their own links (None: the card's usual box), others by the network.
    ``max_loras`` adapters of ``max_lora_rank`` are kept in slots. ``cpu_offload_bytes`` of each rank's weights stay on
    the host; ``kv_offload_bytes`` of host memory keep cache (of a replica for vLLM, of each rank elsewhere, as the
    engines' own options count). ``practical_share`` of the requests that fit, or the pool without its
    ``peak_reserve``, is what to plan with: two rules of thumb, never one on top of the other. ``longer_context``
    starts beyond the model's own limit where the engine would refuse (VLLM_ALLOW_LONG_MAX_MODEL_LEN,
    SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN).
    ``shared_prefix_tokens`` of every request are the same and cached once.
    llama.cpp and Ollama: ``v_cache_dtype`` is the format of the cached values where it is another than that of the
    keys, ``kv_cache_dtype``; ``n_ubatch``, ``kv_unified``, ``flash_attn``, ``swa_full``,
    ``experts_on_cpu``, ``n_cpu_moe`` (layers, from the first, whose experts stay on the host), ``tensor_split`` and
    ``max_model_len`` as the context of all slots together; ``n_gpu_layers`` None lets the engine decide. ``fit`` False
    turns the automatic fit off, which leaves ``fit_target_bytes`` of every card free and shortens an open context to no
    less than ``fit_min_context``. ``mmproj``: where the projector of a model of towers goes (None: to the first card,
    if there is one).
    ``request_lengths`` describes the traffic (None: every request is of ``context_tokens``); the medians and spreads
    (of the logarithm) are those of "lognormal".
    """

    engine: Engine = "vllm"
    engine_version: str | None = None
    weights: str | None = None
    kv_cache_dtype: CacheType = "auto"
    v_cache_dtype: ValueType | None = None
    memory_fraction: float | None = Field(None, gt=0, le=1)
    kv_cache_memory_bytes: int | None = Field(None, ge=0)
    max_model_len: int | None = Field(None, ge=1, le=LONGEST_TOKENS)
    max_num_seqs: int | None = Field(None, ge=1, le=1_048_576)
    max_num_batched_tokens: int | None = Field(None, ge=1, le=LONGEST_TOKENS)
    block_size: int | None = Field(None, ge=1)
    cuda_graphs: bool = True
    prefix_caching: bool | None = None
    usage: Literal["server", "offline"] = "server"
    sampler: Literal["torch", "triton", "flashinfer"] | None = None
    runner: Literal["v0", "v1", "v2"] | None = None
    concurrency: int = Field(16, ge=1, le=1_048_576)
    context_tokens: int | None = Field(None, ge=1, le=LONGEST_TOKENS)
    longer_context: bool = False
    practical_share: float = Field(0.7, gt=0, le=1)
    peak_reserve: float = Field(0.3, ge=0, lt=1)
    gpu: str = "h100-80gb-sxm"
    gpu_capacity_bytes: int | None = Field(None, ge=1)
    n_gpus: int = Field(1, ge=1, le=65_536)
    gpus_per_node: int | None = Field(None, ge=1, le=65_536)
    tp: int = Field(1, ge=1)
    pp: int = Field(1, ge=1)
    dp: int = Field(1, ge=1)
    ep: int = Field(1, ge=1)
    dcp: int = Field(1, ge=1)
    n_gpu_layers: int | None = Field(None, ge=0)
    free_memory_bytes: int | None = Field(None, ge=0)
    hybrid_kv_cache_manager: bool | None = None
    mla: Annotated[bool | None, BeforeValidator(_switched_on)] = None
    kernel: str | None = None
    pp_layer_partition: tuple[int, ...] | None = None
    pp_rank: int | None = Field(None, ge=0)
    limit_mm_per_prompt: dict[str, int] | None = None
    speculative: str | None = None
    draft_model: str | None = Field(None, max_length=200)
    draft_tokens: int = Field(0, ge=0, le=1024)
    draft_bytes: int = Field(0, ge=0)
    draft_acceptance: float | None = Field(None, ge=0.01, le=1)
    max_loras: int = Field(0, ge=0, le=4096)
    max_lora_rank: int = Field(16, ge=1, le=4096)
    cpu_offload_bytes: int = Field(0, ge=0)
    kv_offload_bytes: int = Field(0, ge=0)
    shared_prefix_tokens: int = Field(0, ge=0, le=LONGEST_TOKENS)
    dp_attention: bool = False
    chunked_prefill: bool | None = None
    chunked_prefill_size: int | None = Field(None, ge=1, le=LONGEST_TOKENS)
    n_ubatch: int | None = Field(None, ge=1, le=1_048_576)
    kv_unified: bool | None = None
    flash_attn: bool | None = None
    swa_full: bool = False
    experts_on_cpu: bool = False
    n_cpu_moe: int = Field(0, ge=0, le=100_000)
    fit: bool | None = None
    fit_target_bytes: int | None = Field(None, ge=0)
    fit_min_context: int | None = Field(None, ge=1, le=LONGEST_TOKENS)
    mmproj: Literal["gpu", "host", "none"] | None = None
    tensor_split: tuple[float, ...] | None = None
    request_lengths: Literal["chat", "rag", "code", "long_document", "agent", "lognormal"] | None = None
    prompt_median_tokens: int = Field(1000, ge=1, le=LONGEST_TOKENS)
    prompt_spread: float = Field(1.0, ge=0, le=4)
    output_median_tokens: int = Field(250, ge=1, le=LONGEST_TOKENS)
    output_spread: float = Field(0.8, ge=0, le=4)
    ttft_goal_s: float | None = Field(None, gt=0)
    tpot_goal_s: float | None = Field(None, gt=0)
