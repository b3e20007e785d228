"""Command-line flags of the engines: which field of the plan each sets, and how its value is written.

Names are those of the engines' own ``--help``, dashes for underscores. The first name is the one that is written.
Sources: vllm/engine/arg_utils.py, sglang/srt/server_args.py, tensorrt_llm/commands/serve.py, lmdeploy/cli/utils.py and
lmdeploy's pull request 4563 (``--quant-policy fp8``), launcher/src/main.rs of text-generation-inference,
tools/server/README.md of llama.cpp.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from types import MappingProxyType
from typing import Any, Literal

from calculator.serving.harmless import QUIET
from calculator.serving.versions import Version

Kind = Literal[
    "int", "tokens", "float", "text", "on", "off", "gib", "whole_gib", "mib", "bytes", "cache", "json", "floats"
]
_SUFFIX = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True, slots=True)
class Flag:
    """``field`` of the plan, the value's ``kind``, and the values that the engine spells in its own way.

    ``quiet`` are values that need no field. The flag is written for releases from ``since`` on."""

    names: tuple[str, ...]
    field: str
    kind: Kind = "int"
    spelled: Mapping[str, Any] | None = None
    quiet: frozenset[str] = frozenset()
    since: Version = (0, 0, 0)

    @property
    def takes_value(self) -> bool:
        return self.kind not in ("on", "off")

    def read(self, written: str) -> Any:
        """The plan's value of a written one; None where the engine is left to decide. Raises ``ValueError``."""
        if self.kind == "tokens":
            return _count(written)
        if self.kind == "int":
            return None if written in ("auto", "all", "-1") else int(written)
        if self.kind == "float":
            return float(written)
        if self.kind in ("gib", "whole_gib"):
            return int(float(written) * 2**30)
        if self.kind == "mib":
            return max(int(part) for part in written.split(",")) * 2**20
        if self.kind == "bytes":
            return _count(written)
        if self.kind == "json":
            return _counts(written)
        if self.kind == "floats":
            parts = tuple(float(part) for part in written.split(","))
            if not all(map(isfinite, parts)):
                raise ValueError(written)
            return parts
        if self.spelled is not None:
            if written.lower() not in self.spelled:
                raise ValueError(written)
            return self.spelled[written.lower()]
        return written

    def write(self, value: Any, *, underscores: bool = False) -> list[str]:
        """The flag with a value of the plan, as words; empty where the plan's value has no spelling."""
        flag = "--" + (self.names[0].replace("-", "_") if underscores else self.names[0])
        if self.kind in ("on", "off"):
            return [flag] if value is (self.kind == "on") else []
        if value is None:
            return []
        if self.kind == "gib":
            return [flag, _short(value / 2**30)]
        if self.kind == "whole_gib":
            return [flag, str(value >> 30)] if value % 2**30 == 0 else []
        if self.kind == "mib":
            return [flag, str(value >> 20)] if value % 2**20 == 0 else []
        if self.kind == "json":
            return [flag, json.dumps(value, separators=(",", ":"))]
        if self.kind == "floats":
            return [flag, ",".join(_short(part) for part in value)]
        if self.spelled is not None:
            found = next((word for word, meant in self.spelled.items() if meant == value), None)
            return [flag, found] if found is not None else []
        return [flag, _short(value) if isinstance(value, float) else str(value)]


def _short(number: float) -> str:
    """A number as it is read back to the last bit, without a decimal point where it is whole."""
    return str(int(number)) if number == int(number) else repr(number)


def _counts(written: str) -> Any:
    """Counts by name; of vLLM's longer form, an object with "count" and the sizes of dummy items, the count. Releases
    before 0.9 wrote "image=2,video=1" (vllm/engine/arg_utils.py, ``nullable_kvs``)."""
    if "=" in written and not written.lstrip().startswith("{"):
        pairs = (part.partition("=") for part in written.split(","))
        return {name.strip(): int(count) for name, _, count in pairs}
    given = json.loads(written)
    if not isinstance(given, dict):
        return given
    return {name: value.get("count", 999) if isinstance(value, dict) else value for name, value in given.items()}


def _count(written: str) -> int | None:
    """ "32k" is 32,000 and "32K" 32,768, as vLLM reads them; "auto" and -1 leave it to the engine."""
    if written in ("auto", "-1"):
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgKMG]?)", written)
    if match is None:
        raise ValueError(written)
    return int(float(match[1]) * _SUFFIX.get(match[2], 1))


_VLLM_CACHE = MappingProxyType({
    "auto": "auto", "fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "fp8_ds_mla": "fp8", "bfloat16": "bf16",
    "float16": "fp16", "int8_per_token_head": "int8", "int8": "int8",
})  # fmt: skip
_SGLANG_CACHE = MappingProxyType({
    "auto": "auto", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "bf16": "bf16", "bfloat16": "bf16",
})  # fmt: skip
_TRT_CACHE = MappingProxyType({"auto": "auto", "fp8": "fp8"})
_GGML_CACHE = MappingProxyType({
    "f16": "fp16", "bf16": "bf16", "f32": "fp32", "q8_0": "q8_0", "q5_1": "q5_1", "q5_0": "q5_0", "q4_1": "q4_1",
    "q4_0": "q4_0", "iq4_nl": "iq4_nl",
})  # fmt: skip
_LMDEPLOY_CACHE = MappingProxyType({
    "0": "auto", "8": "int8", "4": "int4", "fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8",
})  # fmt: skip
_TGI_CACHE = MappingProxyType({"fp8_e4m3fn": "fp8", "fp8_e5m2": "fp8"})
_TGI_MADE = MappingProxyType({
    "fp8": "fp8", "bitsandbytes": "bnb_int8", "bitsandbytes-nf4": "bnb_nf4", "bitsandbytes-fp4": "bnb_fp4",
})  # fmt: skip
"""launcher/src/main.rs: "bitsandbytes" without more is the 8-bit form."""
_MADE = MappingProxyType({"fp8": "fp8", "bitsandbytes": "bnb_nf4"})
_DTYPE = MappingProxyType({"float32": "fp32", "float": "fp32"})
_HALVES = frozenset(("auto", "half", "float16", "bfloat16"))
"""Values of ``--dtype`` that change no size: 16 bits is what the engines make of 32 where nobody asks for them."""
_SWITCH = MappingProxyType({"on": "on", "off": "off", "auto": "auto", "1": "on", "0": "off"})

UNDERSCORES = frozenset(("tensorrt_llm",))
"""Engines whose flags are declared with underscores and known by no other name (tensorrt_llm/commands/serve.py)."""

FLAGS: Mapping[str, tuple[Flag, ...]] = MappingProxyType(
    {
        "vllm": (
            Flag(("tensor-parallel-size", "tp"), "tp"),
            Flag(("pipeline-parallel-size", "pp"), "pp"),
            Flag(("data-parallel-size", "dp"), "dp"),
            Flag(("decode-context-parallel-size", "dcp"), "dcp"),
            Flag(("max-model-len",), "max_model_len", "tokens"),
            Flag(("max-num-seqs",), "max_num_seqs"),
            Flag(("max-num-batched-tokens",), "max_num_batched_tokens", "tokens"),
            Flag(("gpu-memory-utilization",), "memory_fraction", "float"),
            Flag(("kv-cache-memory-bytes", "kv-cache-memory"), "kv_cache_memory_bytes", "bytes"),
            Flag(("kv-cache-dtype",), "kv_cache_dtype", "text", _VLLM_CACHE),
            Flag(("block-size",), "block_size"),
            Flag(("enforce-eager",), "cuda_graphs", "off"),
            Flag(("enable-prefix-caching",), "prefix_caching", "on"),
            Flag(("no-enable-prefix-caching",), "prefix_caching", "off"),
            Flag(("enable-chunked-prefill",), "chunked_prefill", "on"),
            Flag(("no-enable-chunked-prefill",), "chunked_prefill", "off"),
            Flag(("quantization", "q"), "weights", "text", _MADE, QUIET),
            Flag(("dtype",), "weights", "text", _DTYPE, _HALVES),
            Flag(("cpu-offload-gb",), "cpu_offload_bytes", "gib"),
            Flag(("kv-offloading-size",), "kv_offload_bytes", "gib"),
            Flag(("limit-mm-per-prompt",), "limit_mm_per_prompt", "json"),
            Flag(("max-loras",), "max_loras"),
            Flag(("max-lora-rank",), "max_lora_rank"),
            Flag(("disable-hybrid-kv-cache-manager",), "hybrid_kv_cache_manager", "off"),
            Flag(("no-disable-hybrid-kv-cache-manager",), "hybrid_kv_cache_manager", "on"),
        ),
        "sglang": (
            Flag(("tp-size", "tp", "tensor-parallel-size"), "tp"),
            Flag(("pp-size", "pp", "pipeline-parallel-size"), "pp"),
            Flag(("dp-size", "dp", "data-parallel-size"), "dp"),
            Flag(("ep-size", "ep", "expert-parallel-size"), "ep"),
            Flag(("context-length",), "max_model_len"),
            Flag(("max-running-requests",), "max_num_seqs"),
            Flag(("chunked-prefill-size",), "chunked_prefill_size"),
            Flag(("mem-fraction-static",), "memory_fraction", "float"),
            Flag(("kv-cache-dtype",), "kv_cache_dtype", "text", _SGLANG_CACHE),
            Flag(("page-size",), "block_size"),
            Flag(("disable-cuda-graph",), "cuda_graphs", "off"),
            Flag(("disable-radix-cache",), "prefix_caching", "off"),
            Flag(("enable-dp-attention",), "dp_attention", "on"),
            Flag(("quantization",), "weights", "text", _MADE, QUIET),
            Flag(("dtype",), "weights", "text", _DTYPE, _HALVES),
            Flag(("cpu-offload-gb",), "cpu_offload_bytes", "whole_gib"),
            Flag(("speculative-draft-model-path", "speculative-draft-model"), "draft_model", "text"),
            Flag(("speculative-num-draft-tokens",), "draft_tokens"),
            Flag(("max-loras-per-batch",), "max_loras"),
            Flag(("max-lora-rank",), "max_lora_rank"),
        ),
        "tensorrt_llm": (
            Flag(("tp-size", "tensor-parallel-size"), "tp"),
            Flag(("pp-size", "pipeline-parallel-size"), "pp"),
            Flag(("ep-size", "moe-expert-parallel-size"), "ep"),
            Flag(("gpus-per-node",), "gpus_per_node"),
            Flag(("max-batch-size",), "max_num_seqs"),
            Flag(("max-num-tokens",), "max_num_batched_tokens"),
            Flag(("max-seq-len",), "max_model_len"),
            Flag(("kv-cache-free-gpu-memory-fraction", "free-gpu-memory-fraction"), "memory_fraction", "float"),
            Flag(("kv-cache-dtype",), "kv_cache_dtype", "text", _TRT_CACHE, since=(1, 2, 0)),
        ),
        "llama_cpp": (
            Flag(("ctx-size", "c"), "max_model_len"),
            Flag(("n-gpu-layers", "ngl", "gpu-layers"), "n_gpu_layers"),
            Flag(("parallel", "np"), "max_num_seqs"),
            Flag(("batch-size", "b"), "max_num_batched_tokens"),
            Flag(("ubatch-size", "ub"), "n_ubatch"),
            Flag(("cache-type-k", "ctk"), "kv_cache_dtype", "text", _GGML_CACHE),
            Flag(("cache-type-v", "ctv"), "v_cache_dtype", "text", _GGML_CACHE),
            Flag(("flash-attn", "fa"), "flash_attn", "text", _SWITCH),
            Flag(("kv-unified", "kvu"), "kv_unified", "on"),
            Flag(("swa-full",), "swa_full", "on"),
            Flag(("cpu-moe", "cmoe"), "experts_on_cpu", "on"),
            Flag(("n-cpu-moe", "ncmoe"), "n_cpu_moe"),
            Flag(("tensor-split", "ts"), "tensor_split", "floats"),
            Flag(("fit",), "fit", "text", _SWITCH),
            Flag(("fit-target", "fitt"), "fit_target_bytes", "mib"),
            Flag(("fit-ctx", "fitc"), "fit_min_context"),
        ),
        "lmdeploy": (
            Flag(("tp",), "tp"),
            Flag(("dp",), "dp"),
            Flag(("ep",), "ep"),
            Flag(("session-len",), "max_model_len"),
            Flag(("max-batch-size",), "max_num_seqs"),
            Flag(("max-prefill-token-num",), "max_num_batched_tokens"),
            Flag(("cache-max-entry-count",), "memory_fraction", "float"),
            Flag(("cache-block-seq-len",), "block_size"),
            Flag(("quant-policy",), "kv_cache_dtype", "text", _LMDEPLOY_CACHE),
            Flag(("enable-prefix-caching",), "prefix_caching", "on"),
            Flag(("eager-mode",), "cuda_graphs", "off"),
        ),
        "tgi": (
            Flag(("num-shard",), "tp"),
            Flag(("max-total-tokens",), "max_model_len"),
            Flag(("max-batch-prefill-tokens",), "max_num_batched_tokens"),
            Flag(("max-concurrent-requests",), "max_num_seqs"),
            Flag(("cuda-memory-fraction",), "memory_fraction", "float"),
            Flag(("kv-cache-dtype",), "kv_cache_dtype", "text", _TGI_CACHE),
            Flag(("quantize",), "weights", "text", _TGI_MADE, QUIET),
            Flag(("dtype",), "weights", "text", MappingProxyType({}), _HALVES),
            Flag(("cuda-graphs",), "cuda_graphs", "text", MappingProxyType({"0": False})),
        ),
    }
)  # fmt: skip

SETS: Mapping[str, Mapping[str, tuple[str, Any]]] = MappingProxyType({
    "llama_cpp": MappingProxyType({
        "mmproj-offload": ("mmproj", "gpu"), "no-mmproj-offload": ("mmproj", "host"), "no-mmproj": ("mmproj", "none"),
        "no-mmproj-auto": ("mmproj", "none"), "no-kv-unified": ("kv_unified", False), "no-kvu": ("kv_unified", False),
    }),
})  # fmt: skip
"""Flags that stand alone and set a field to one value."""
