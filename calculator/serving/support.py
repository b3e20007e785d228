"""What an engine runs at all: makers' cards, weights' formats by compute capability, formats of the cache."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import get_args

from calculator.errors import PlanError
from calculator.hardware import Gpu
from calculator.model.shape import ModelShape
from calculator.precision import weight_format
from calculator.serving.engines import llama_cpp, sglang, tensorrt_llm, tgi
from calculator.serving.engines import vllm_rules as vllm
from calculator.serving.engines.lmdeploy import source as lmdeploy_source
from calculator.serving.plan import ServingPlan, ValueType
from calculator.serving.prefix import NEWEST
from calculator.serving.unused import UNUSED
from calculator.serving.versions import Rule, Version, at, parse
from calculator.sources import Source

VENDORS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "vllm": ("NVIDIA", "AMD", "Intel", "Google", "AWS", "Huawei"),
    "sglang": ("NVIDIA", "AMD", "Intel", "Google", "Huawei"),
    "tensorrt_llm": ("NVIDIA",),
    "tgi": ("NVIDIA", "AMD", "Intel", "Google", "AWS"),
    "lmdeploy": ("NVIDIA", "Huawei"),
    "llama_cpp": ("NVIDIA", "AMD", "Intel", "Apple", "Huawei"),
    "ollama": ("NVIDIA", "AMD", "Intel", "Apple"),
})  # fmt: skip
"""Makers whose cards an engine runs on by a back end whose memory is laid out as billed here. Ports to Apple's Metal
and MLX share the machine's memory by rules of their own, so they are not covered."""
VENDOR_SOURCES = (
    Source(title="vLLM documentation, installation (GPU, other hardware)",
           url="https://docs.vllm.ai/en/stable/getting_started/installation/", checked_on="2026-11-30"),
    Source(title="TensorRT-LLM documentation, supported hardware",
           url="https://nvidia.github.io/TensorRT-LLM/supported-hardware.html", checked_on="2026-11-30"),
    Source(title="LMDeploy source, lmdeploy/messages.py: device_type cuda, ascend, maca, camb",
           url="https://github.com/InternLM/lmdeploy", checked_on="2026-11-30"),
    Source(title="Text Generation Inference documentation, back ends",
           url="https://huggingface.co/docs/text-generation-inference", checked_on="2026-11-30"),
)  # fmt: skip

CARDS: Mapping[str, tuple[Rule[float], ...]] = MappingProxyType({
    "vllm": (
        Rule((0, 0, 0), 7.0, vllm.source("docs/getting_started/installation/gpu.md", "0.3 to 0.14")),
        Rule((0, 21, 0), 7.5, vllm.source("docs/getting_started/installation/gpu.cuda.inc.md", "0.21")),
    ),
    "sglang": (Rule((0, 0, 0), 7.5, sglang.source("model_executor/model_runner.py", "0.3.6 to 0.5.10")),),
    "tensorrt_llm": (
        Rule((0, 0, 0), 7.0, tensorrt_llm.source("docs/source/reference/support-matrix.md")),
        Rule((0, 18, 0), 8.0, tensorrt_llm.source("docs/source/reference/support-matrix.md")),
    ),
})  # fmt: skip
"""Lowest compute capability of an NVIDIA card, by release. Between the releases seen the older number holds."""

WEIGHTS: Mapping[str, Mapping[str, tuple[Rule[float], ...]]] = MappingProxyType({
    "vllm": {
        "fp8": (Rule((0, 0, 0), 8.0, vllm.source("vllm/model_executor/layers/quantization/fp8.py", "0.5 to 0.14")),
                Rule((0, 21, 0), 7.5, vllm.source("vllm/model_executor/layers/quantization/modelopt.py", "2026"))),
        "nvfp4": (Rule((0, 0, 0), 10.0, vllm.source("vllm/model_executor/layers/quantization/modelopt.py", "0.8")),
                  Rule((0, 9, 0), 8.0, vllm.source("vllm/model_executor/layers/quantization/modelopt.py", "0.9 on")),
                  Rule((0, 21, 0), 7.5, vllm.source("vllm/model_executor/layers/quantization/modelopt.py", "2026"))),
    },
    "sglang": {
        "fp8": (Rule((0, 0, 0), 8.0, sglang.source("layers/quantization/fp8.py", "0.5.10")),),
        "nvfp4": (Rule((0, 0, 0), 10.0, sglang.source("layers/quantization/modelopt_quant.py", "0.5.10")),),
    },
    "tensorrt_llm": {
        "fp8": (Rule((0, 0, 0), 8.9, tensorrt_llm.source("docs/source/reference/support-matrix.md")),),
        "nvfp4": (Rule((0, 0, 0), 10.0, tensorrt_llm.source("docs/source/reference/support-matrix.md")),),
    },
    "tgi": {"fp8": (Rule((0, 0, 0), 8.0, tgi.source("server/text_generation_server/layers/fp8.py")),)},
})  # fmt: skip
"""Lowest capability for weights of a format. Below the card's own arithmetic in it (8.9 for FP8, 10.0 for NVFP4) the
weights stay packed and are multiplied in 16 bit, which is what the lower numbers stand for."""

CACHES: Mapping[str, tuple[Rule[tuple[str, ...]], ...]] = MappingProxyType({
    "vllm": (
        Rule((0, 0, 0), ("auto", "bf16", "fp16", "fp8"), vllm.source("vllm/config/cache.py", "to 0.20")),
        Rule((0, 21, 0), ("auto", "bf16", "fp16", "fp8", "int8"), vllm.source("vllm/config/cache.py", "0.21 on")),
    ),
    "sglang": (Rule((0, 0, 0), ("auto", "bf16", "fp16", "fp8"), sglang.source("server_args.py")),),
    "tensorrt_llm": (
        Rule((0, 0, 0), ("auto", "bf16", "fp16", "fp8", "int8"), tensorrt_llm.source("llmapi/llm_args.py")),
    ),
    "lmdeploy": (Rule((0, 0, 0), ("auto", "bf16", "fp16", "fp8", "int8", "int4"),
                      lmdeploy_source("lmdeploy/messages.py, quant_policy; pull request 4563 for fp8")),),
    "tgi": (Rule((0, 0, 0), ("auto", "bf16", "fp16", "fp8"), tgi.source("launcher/src/main.rs, KVCacheDtype")),),
    "llama_cpp": (Rule((0, 0, 0), ("auto", *get_args(ValueType)), llama_cpp.source("common/arg.cpp, kv_cache_types")),),
    "ollama": (Rule((0, 0, 0), ("auto", "fp16", "q8_0", "q4_0"), Source(
        title="Ollama documentation, OLLAMA_KV_CACHE_TYPE", url="https://github.com/ollama/ollama/blob/main/docs/faq.md",
        checked_on="2026-11-30")),),
    "transformers": (Rule((0, 0, 0), ("auto", "bf16", "fp16", "fp32"), Source(
        title="transformers source, src/transformers/cache_utils.py: the cache has the model's dtype",
        url="https://github.com/huggingface/transformers", checked_on="2026-11-30")),),
})  # fmt: skip
"""Formats of the cache by engine and release."""
CACHE_CARDS = MappingProxyType({"tensorrt_llm": 8.9, "tgi": 8.0})
"""Lowest capability for an FP8 cache: TensorRT-LLM's kernels for it need FP8 arithmetic, TGI's back ends Ampere."""
BLOCK_UNIT = 16
SMALL_BLOCKS = (1, 8)
"""Tokens of a cache block: vLLM's kernels work on multiples of 16, a few on 1 or 8 (vllm/config/cache.py).
TensorRT-LLM takes powers of two above one (its documentation of the KV cache system)."""


def check_support(shape: ModelShape, plan: ServingPlan, gpu: Gpu) -> None:
    """Raises ``PlanError``: "serving.card_vendor", "serving.card_capability", "serving.card_format",
    "serving.kv_format" or "serving.block_size"."""
    engine = plan.engine
    version = NEWEST
    if engine != "llama_cpp" and plan.engine_version is not None:
        version = parse(plan.engine_version)
    _check_cache(plan, version)
    _check_block(plan)
    makers = VENDORS.get(engine)
    if makers is not None and gpu.vendor != "other" and gpu.vendor not in makers:
        raise PlanError("serving.card_vendor", field="gpu", engine=engine, gpu=gpu.name, makers=", ".join(makers))
    capability = vllm.capability_of(gpu)
    if not capability:
        return
    if engine in CARDS and capability < (least := at(CARDS[engine], version).value):
        raise PlanError("serving.card_capability", field="gpu", engine=engine, gpu=gpu.name, has=f"{capability:.1f}",
                        needs=f"{least:.1f}")  # fmt: skip
    form = _format(shape, plan) if engine in WEIGHTS else ""
    rules = WEIGHTS[engine].get(form) if form else None
    if rules is not None and capability < (least := at(rules, version).value):
        field = "weights" if plan.weights is not None else "gpu"
        raise PlanError("serving.card_format", field=field, engine=engine, gpu=gpu.name, text=form,
                        has=f"{capability:.1f}", needs=f"{least:.1f}")  # fmt: skip
    if plan.kv_cache_dtype == "fp8" and capability < CACHE_CARDS.get(engine, 0):
        raise PlanError("serving.card_format", field="kv_cache_dtype", engine=engine, gpu=gpu.name, text="fp8",
                        has=f"{capability:.1f}", needs=f"{CACHE_CARDS[engine]:.1f}")  # fmt: skip


def _check_block(plan: ServingPlan) -> None:
    size = plan.block_size
    if size is None:
        return
    odd = plan.engine == "vllm" and size % BLOCK_UNIT and size not in SMALL_BLOCKS
    if odd or (plan.engine == "tensorrt_llm" and (size < 2 or size & (size - 1))):
        raise PlanError("serving.block_size", field="block_size", engine=plan.engine, block_tokens=size,
                        legal="16, 32, 64, 128")  # fmt: skip


def _check_cache(plan: ServingPlan, version: Version) -> None:
    rules = CACHES.get(plan.engine)
    if rules is None:
        return
    formats = at(rules, version).value
    for field, chosen in (("kv_cache_dtype", plan.kv_cache_dtype), ("v_cache_dtype", plan.v_cache_dtype)):
        if chosen is not None and chosen not in formats and field not in UNUSED[plan.engine]:
            raise PlanError("serving.kv_format", field=field, engine=plan.engine, text=chosen,
                            candidates=", ".join(formats))  # fmt: skip


def _format(shape: ModelShape, plan: ServingPlan) -> str:
    """ "fp8" or "nvfp4" where most weights are held so, whatever the format's variant; else its own name."""
    name = plan.weights or (shape.quantization.format if shape.quantization is not None else "")
    if plan.weights is not None:
        name = weight_format(plan.weights).key
    return next((family for family in ("nvfp4", "fp8") if name.startswith(family)), name)
