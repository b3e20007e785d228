"""Command-line flags of the engines: which field of the plan each sets, and how its value is written.

Names are those of the engines' own ``--help``, dashes for underscores. The first name is the one that is written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

Kind = Literal["int", "tokens", "float", "text", "on", "off", "gib", "mib", "bytes", "cache", "json", "floats"]
_SUFFIX = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True, slots=True)
class Flag:
    """``field`` of the plan, the value's ``kind``, and the values that the engine spells in its own way."""

    names: tuple[str, ...]
    field: str
    kind: Kind = "int"
    spelled: Mapping[str, str] | None = None

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
        if self.kind == "gib":
            return int(float(written) * 2**30)
        if self.kind == "mib":
            return max(int(part) for part in written.split(",")) * 2**20
        if self.kind == "bytes":
            return _count(written)
        if self.kind == "json":
            return _counts(json.loads(written))
        if self.kind == "floats":
            return tuple(float(part) for part in written.split(","))
        if self.spelled is not None:
            if written.lower() not in self.spelled:
                raise ValueError(written)
            return self.spelled[written.lower()]
        return written

    def write(self, value: Any) -> list[str]:
        """The flag with a value of the plan, as tokens; empty where the plan's value has no spelling."""
        flag = ("-" if len(self.names[0]) <= 3 else "--") + self.names[0]
        if self.kind in ("on", "off"):
            return [flag] if value is (self.kind == "on") else []
        if self.kind == "gib":
            return [flag, f"{value / 2**30:g}"] if value else []
        if self.kind == "mib":
            return [flag, str(value // 2**20)]
        if self.kind == "json":
            return [flag, json.dumps(value, separators=(",", ":"))]
        if self.kind == "floats":
            return [flag, ",".join(f"{part:g}" for part in value)]
        if self.spelled is not None:
            found = next((word for word, meant in self.spelled.items() if meant == value), None)
            return [flag, found] if found is not None else []
        return [flag, f"{value:g}" if isinstance(value, float) else str(value)]


def _counts(given: Any) -> Any:
    """Counts by name; of vLLM's longer form, an object with "count" and the sizes of dummy items, the count."""
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


_VLLM_CACHE = MappingProxyType(
    {
        "auto": "auto", "fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "fp8_ds_mla": "fp8", "bfloat16": "bf16",
        "float16": "fp16", "int8": "int8",
    }
)  # fmt: skip
_GGML_CACHE = MappingProxyType({"f16": "fp16", "bf16": "bf16", "q8_0": "q8_0", "q5_1": "q5_1", "q4_0": "q4_0"})
_RUNTIME = MappingProxyType({"fp8": "fp8", "bitsandbytes": "bnb_nf4", "bitsandbytes-nf4": "bnb_nf4"})
_VLLM_RUNTIME = MappingProxyType({"fp8": "fp8", "bitsandbytes": "bnb_nf4"})
_TGI_CACHE = MappingProxyType({"fp8_e4m3fn": "fp8", "fp8_e5m2": "fp8"})
_SWITCH = MappingProxyType({"on": "on", "off": "off", "auto": "auto", "1": "on", "0": "off"})

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
            Flag(("quantization", "q"), "weights", "text", _VLLM_RUNTIME),
            Flag(("cpu-offload-gb",), "cpu_offload_bytes", "gib"),
            Flag(("limit-mm-per-prompt",), "limit_mm_per_prompt", "json"),
            Flag(("max-loras",), "max_loras"),
            Flag(("max-lora-rank",), "max_lora_rank"),
            Flag(("disable-hybrid-kv-cache-manager",), "hybrid_kv_cache_manager", "off"),
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
            Flag(("kv-cache-dtype",), "kv_cache_dtype", "text", _VLLM_CACHE),
            Flag(("page-size",), "block_size"),
            Flag(("disable-cuda-graph",), "cuda_graphs", "off"),
            Flag(("disable-radix-cache",), "prefix_caching", "off"),
            Flag(("enable-dp-attention",), "dp_attention", "on"),
            Flag(("quantization",), "weights", "text", MappingProxyType({"fp8": "fp8"})),
            Flag(("speculative-draft-model-path", "speculative-draft-model"), "draft_model", "text"),
            Flag(("speculative-num-draft-tokens",), "draft_tokens"),
            Flag(("max-loras-per-batch",), "max_loras"),
            Flag(("max-lora-rank",), "max_lora_rank"),
        ),
        "tensorrt_llm": (
            Flag(("tp-size", "tp"), "tp"),
            Flag(("pp-size", "pp"), "pp"),
            Flag(("ep-size", "ep"), "ep"),
            Flag(("max-batch-size",), "max_num_seqs"),
            Flag(("max-num-tokens",), "max_num_batched_tokens"),
            Flag(("max-seq-len",), "max_model_len"),
            Flag(("kv-cache-free-gpu-memory-fraction", "kv-cache-free-gpu-mem-fraction"), "memory_fraction", "float"),
            Flag(("kv-cache-dtype",), "kv_cache_dtype", "text", _VLLM_CACHE),
        ),
        "llama_cpp": (
            Flag(("ctx-size", "c"), "max_model_len"),
            Flag(("n-gpu-layers", "ngl", "gpu-layers"), "n_gpu_layers"),
            Flag(("parallel", "np"), "max_num_seqs"),
            Flag(("batch-size", "b"), "max_num_batched_tokens"),
            Flag(("ubatch-size", "ub"), "n_ubatch"),
            Flag(("cache-type-k", "ctk"), "kv_cache_dtype", "text", _GGML_CACHE),
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
            Flag(("quant-policy",), "kv_cache_dtype", "text", MappingProxyType({"0": "auto", "8": "int8"})),
            Flag(("enable-prefix-caching",), "prefix_caching", "on"),
        ),
        "tgi": (
            Flag(("num-shard",), "tp"),
            Flag(("max-total-tokens",), "max_model_len"),
            Flag(("max-batch-prefill-tokens",), "max_num_batched_tokens"),
            Flag(("max-concurrent-requests",), "max_num_seqs"),
            Flag(("cuda-memory-fraction",), "memory_fraction", "float"),
            Flag(("kv-cache-dtype",), "kv_cache_dtype", "text", _TGI_CACHE),
            Flag(("quantize",), "weights", "text", _RUNTIME),
        ),
    }
)  # fmt: skip

_SERVER = (
    "host",
    "port",
    "api-key",
    "served-model-name",
    "revision",
    "seed",
    "tokenizer",
    "chat-template",
    "log-level",
)
SETS: Mapping[str, Mapping[str, tuple[str, Any]]] = MappingProxyType({
    "llama_cpp": MappingProxyType({
        "mmproj-offload": ("mmproj", "gpu"), "no-mmproj-offload": ("mmproj", "host"), "no-mmproj": ("mmproj", "none"),
        "no-mmproj-auto": ("mmproj", "none"), "no-kv-unified": ("kv_unified", False), "no-kvu": ("kv_unified", False),
    }),
})  # fmt: skip
"""Flags that stand alone and set a field to one value."""

HARMLESS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "vllm": frozenset((
            *_SERVER, "trust-remote-code", "tokenizer-mode", "load-format", "config-format", "download-dir", "dtype",
            "tool-call-parser", "reasoning-parser", "enable-auto-tool-choice", "disable-log-requests",
            "no-enable-log-requests", "enable-log-requests", "disable-log-stats", "chat-template-content-format",
            "generation-config", "allowed-local-media-path", "mm-processor-cache-type", "mm-processor-cache-gb",
            "uvicorn-log-level", "root-path", "allowed-origins", "swap-space", "distributed-executor-backend", "task",
            "runner", "default-chat-template-kwargs", "override-generation-config", "max-logprobs", "lora-modules",
            "hf-token", "enable-reasoning", "guided-decoding-backend", "tool-server", "headless",
        )),
        "sglang": frozenset((
            *_SERVER, "trust-remote-code", "tool-call-parser", "reasoning-parser", "tokenizer-path", "dtype",
            "load-format", "enable-metrics", "log-requests", "schedule-policy", "nnodes", "node-rank", "dist-init-addr",
            "skip-server-warmup", "show-time-cost", "watchdog-timeout", "schedule-conservativeness", "download-dir",
        )),
        "tensorrt_llm": frozenset((*_SERVER, "tokenizer", "backend", "trust-remote-code", "reasoning-parser",
                                   "tool-parser", "gpus-per-node", "num-postprocess-workers")),
        "llama_cpp": frozenset((
            *_SERVER, "alias", "a", "t", "threads", "tb", "threads-batch", "jinja", "temp", "top-p", "top-k", "min-p",
            "no-warmup", "no-mmap", "mlock", "reasoning-format", "reasoning-budget", "reasoning", "metrics", "n",
            "predict", "no-context-shift", "no-webui", "log-disable", "prio", "numa", "cont-batching", "cb", "props",
            "slots", "repeat-penalty", "presence-penalty", "chat-template-file", "prio-batch", "cache-prompt",
        )),
        "lmdeploy": frozenset((
            "server-name", "server-port", "model-name", "backend", "chat-template", "log-level", "model-format",
            "dtype", "task", "api-keys", "device", "tool-call-parser", "reasoning-parser", "revision",
            "trust-remote-code",
        )),
        "tgi": frozenset((
            "port", "p", "hostname", "sharded", "trust-remote-code", "json-output", "revision", "dtype", "master-port",
            "shard-uds-path", "huggingface-hub-cache", "max-stop-sequences", "max-input-length", "max-input-tokens",
            "validation-workers", "max-waiting-tokens", "waiting-served-ratio", "otlp-endpoint", "max-best-of",
        )),
    }
)  # fmt: skip
"""Flags without effect on the card's memory, or whose effect the model's own files already tell."""

SWITCHES: frozenset[str] = frozenset((
    "trust-remote-code", "enable-auto-tool-choice", "disable-log-requests", "no-enable-log-requests",
    "enable-log-requests", "disable-log-stats", "enable-reasoning", "headless", "enable-metrics", "log-requests",
    "skip-server-warmup", "show-time-cost", "jinja", "no-warmup", "no-mmap", "mlock", "metrics", "no-context-shift",
    "no-webui", "log-disable", "cont-batching", "cb", "props", "slots", "cache-prompt", "async-scheduling",
    "enable-expert-parallel", "enable-lora", "language-model-only", "language-only", "no-kv-offload", "no-op-offload",
    "disable-custom-all-reduce", "disable-cascade-attn", "enable-dbo", "enable-torch-compile", "enable-dp-lm-head",
    "enable-deepep-moe", "disable-overlap-schedule", "enable-mixed-chunk",
))  # fmt: skip
"""Flags known to stand alone: the next word is not their value."""
