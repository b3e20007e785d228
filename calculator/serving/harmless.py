"""Flags and variables without a field in the plan: those without effect on the card's memory, and those that name a
format which the checkpoint tells anyway."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

_SERVER = (
    "host", "port", "served-model-name", "revision", "seed", "tokenizer", "chat-template", "log-level",
)  # fmt: skip
HARMLESS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "vllm": frozenset((
            *_SERVER, "trust-remote-code", "tokenizer-mode", "load-format", "config-format", "download-dir",
            "tool-call-parser", "reasoning-parser", "enable-auto-tool-choice", "disable-log-requests",
            "no-enable-log-requests", "enable-log-requests", "disable-log-stats", "chat-template-content-format",
            "generation-config", "allowed-local-media-path", "mm-processor-cache-type", "mm-processor-cache-gb",
            "uvicorn-log-level", "root-path", "allowed-origins", "distributed-executor-backend", "task",
            "runner", "default-chat-template-kwargs", "override-generation-config", "max-logprobs", "lora-modules",
            "enable-reasoning", "guided-decoding-backend", "tool-server", "headless",
        )),
        "sglang": frozenset((
            *_SERVER, "trust-remote-code", "tool-call-parser", "reasoning-parser", "tokenizer-path",
            "load-format", "enable-metrics", "log-requests", "schedule-policy", "nnodes", "node-rank", "dist-init-addr",
            "skip-server-warmup", "show-time-cost", "watchdog-timeout", "schedule-conservativeness", "download-dir",
        )),
        "tensorrt_llm": frozenset((
            *_SERVER, "backend", "trust-remote-code", "reasoning-parser", "tool-parser",
            "num-postprocess-workers", "custom-tokenizer", "otlp-traces-endpoint", "media-io-kwargs",
            "fail-fast-on-attention-window-too-large",
        )),
        "llama_cpp": frozenset((
            *_SERVER, "alias", "a", "t", "threads", "tb", "threads-batch", "jinja", "temp", "top-p", "top-k", "min-p",
            "no-warmup", "no-mmap", "mlock", "reasoning-format", "reasoning-budget", "reasoning", "metrics", "n",
            "predict", "no-context-shift", "no-webui", "log-disable", "prio", "numa", "cont-batching", "cb", "props",
            "slots", "repeat-penalty", "presence-penalty", "chat-template-file", "prio-batch", "cache-prompt",
        )),
        "lmdeploy": frozenset((
            "server-name", "server-port", "model-name", "backend", "chat-template", "log-level", "model-format",
            "dtype", "task", "device", "tool-call-parser", "reasoning-parser", "revision", "trust-remote-code",
        )),
        "tgi": frozenset((
            "port", "p", "hostname", "sharded", "trust-remote-code", "json-output", "revision", "master-port",
            "master-addr", "shard-uds-path", "huggingface-hub-cache", "weights-cache-override", "max-stop-sequences",
            "max-input-length", "max-input-tokens", "max-top-n-tokens", "max-client-batch-size", "validation-workers",
            "max-waiting-tokens", "waiting-served-ratio", "otlp-endpoint", "otlp-service-name", "max-best-of",
            "cors-allow-origin", "tokenizer-config-path", "disable-grammar-support", "usage-stats", "watermark-gamma",
            "watermark-delta",
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
    "enable-deepep-moe", "disable-overlap-schedule", "enable-mixed-chunk", "enable-hierarchical-cache",
    "enable-chunked-prefill", "fail-fast-on-attention-window-too-large", "json-output", "disable-grammar-support",
    "disable-custom-kernels",
))  # fmt: skip
"""Flags known to stand alone: the next word is not their value."""

QUIET: frozenset[str] = frozenset((
    "awq", "awq_marlin", "awq_triton", "gptq", "gptq_marlin", "gptq_marlin_24", "marlin", "compressed-tensors",
    "modelopt", "modelopt_fp4", "modelopt_fp8", "modelopt_mixed", "mxfp4", "mxfp8", "gguf", "quark", "auto-round",
    "moe_wna16", "bitblas", "gptq_bitblas", "hqq", "aqlm", "squeezellm", "petit_nvfp4", "fbgemm_fp8", "exl2",
    "w8a8_int8", "w8a8_fp8", "w4afp8", "qoq", "modelslim", "none",
))  # fmt: skip
"""Values of ``--quantization`` and ``--quantize`` that name how the checkpoint is stored. Formats that are made while
it is loaded are not among them: they change the bytes, and are named where no field has them."""

SECRET = re.compile(r"(TOKEN|KEYS?|PASSWORD|SECRET)$", re.IGNORECASE)
"""Ends of the names, of flags and of variables, whose values are never kept."""

VARIABLES: Mapping[str, re.Pattern[str]] = MappingProxyType({
    "": re.compile(
        r"(HF|HUGGINGFACE|HUGGING_FACE|TRANSFORMERS|MODELSCOPE|NCCL|GLOO|UCX|OMPI|MPI|NVIDIA|TOKENIZERS|PYTHON|OMP|MKL|"
        r"LD|LC|SSL|SAFETENSORS|RAY)_?\w*|CUDA_(HOME|PATH|DEVICE_ORDER|LAUNCH_BLOCKING|MODULE_LOADING)|\w+_proxy|PATH|"
        r"HOME|USER|LANG|TZ|DEBIAN_FRONTEND|[A-Z_]*LOG_LEVEL|DO_NOT_TRACK",
        re.IGNORECASE,
    ),
    "vllm": re.compile(
        r"VLLM_(LOGGING_\w+|CONFIGURE_LOGGING|HOST_IP|PORT|DP_\w+|RPC_\w+|HTTP_\w+|CACHE_ROOT|CONFIG_ROOT|ASSETS_CACHE|"
        r"USE_MODELSCOPE|WORKER_MULTIPROC_METHOD|NO_USAGE_STATS|DO_NOT_TRACK|USAGE_SOURCE|ENGINE_\w*TIMEOUT_S|"
        r"ALLOW_LONG_MAX_MODEL_LEN|SERVER_DEV_MODE|TRACE_FUNCTION|PLUGINS|ALLOW_RUNTIME_LORA_UPDATING|DEBUG_\w+)"
    ),
    "sglang": re.compile(r"SGL(ANG)?_(LOGGING_\w+|HOST_IP|PORT|USE_MODELSCOPE|TORCH_PROFILER_DIR)"),
    "ollama": re.compile(
        r"OLLAMA_(HOST|MODELS|KEEP_ALIVE|ORIGINS|DEBUG|LOAD_TIMEOUT|MAX_QUEUE|NOPRUNE|NOHISTORY|TMPDIR|REMOTES)"
    ),
    "lmdeploy": re.compile(r"LMDEPLOY_(USE_MODELSCOPE|LOG_\w+|USE_OPENMIND_HUB)"),
})  # fmt: skip
"""Variables of the environment without effect on the card's memory: those of every engine, and each engine's own."""
