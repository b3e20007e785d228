"""What vLLM's releases do differently: budget, runner, sampler, defaults, graphs.

Ranges are half open and begin at the first release in which the source was seen to do so.
"""

from __future__ import annotations

from calculator.hardware import Gpu
from calculator.model.shape import ModelShape, StateMixer
from calculator.serving.plan import ServingPlan
from calculator.serving.split import round_up
from calculator.serving.versions import Rule, Version
from calculator.sources import Source
from calculator.units import GIB

NEWEST: Version = (0, 33, 0)
NEWEST_V0: Version = (0, 8, 5)


def source(path: str, versions: str) -> Source:
    return Source(
        title=f"vLLM source, {path}", url="https://github.com/vllm-project/vllm", checked_on="2026-11-29",
        versions=versions,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------- budget

FRACTION: tuple[Rule[float], ...] = (
    Rule((0, 1, 0), 0.90, source("vllm/config/cache.py", "0.1 to 0.19")),
    Rule((0, 20, 0), 0.92, source("vllm/config/cache.py", "0.20.0 and later")),
)
"""``gpu_memory_utilization``, a share of the card's total."""


def context_in_budget(version: Version, runner: str) -> bool:
    """Whether CUDA context and other processes are charged to the budget: V0 0.6.4 and V1 up to 0.8.5 count the whole
    card's use outside torch, later releases only its growth since the worker's first snapshot."""
    return (0, 6, 4) <= version < (0, 6, 5) if runner == "v0" else version < (0, 9, 0)


BUDGET_SOURCE = source("vllm/v1/worker/gpu_worker.py, vllm/worker/worker.py, vllm/utils/mem_utils.py", "0.4 to 0.33")

PERSISTENT_COUNTED: Version = (0, 27, 0)
"""From here on the budget is charged by the difference of free memory, buffers made with the runner included."""

# ------------------------------------------------------------------------------------------------------- runner


def capability_of(gpu: Gpu) -> float:
    """NVIDIA compute capability, 0 for other makers' cards and unknown ones."""
    number = gpu.compute_capability or ""
    return float(number) if gpu.vendor == "NVIDIA" and number.replace(".", "").isdigit() else 0.0


def default_runner(version: Version, shape: ModelShape) -> str:
    """ "v0", "v1" or "v2" (vllm/config/vllm.py, use_v2_model_runner; V1 by default from 0.8)."""
    if version < (0, 8, 0):
        return "v0"
    if version < (0, 22, 0):
        return "v1"
    moe = any(block.mixture for block in shape.blocks)
    state = any(isinstance(mixer, StateMixer) for block in shape.blocks for mixer in block.mixers)
    if version < (0, 25, 0):
        return "v2" if shape.model_type == "qwen3" and shape.quantization is None else "v1"
    if version < (0, 29, 0):
        listed = shape.model_type in ("deepseek_v2", "deepseek_v3", "granitemoe", "qwen2_moe", "longcat_flash")
        return "v2" if not state and (not moe or listed) else "v1"
    return "v2"


# ------------------------------------------------------------------------------------------------------ sampler

SORT_FACTOR = 9.5
"""Logits buffers of N x vocabulary x 4 bytes alive in PyTorch's sorting sampler: 0.5 raw, 1 fp32 copy, 1 sorted
values, 2 indices, 2 reverse indices, 3 of the segmented sort."""


def sampler_of(plan: ServingPlan, version: Version, runner: str, gpu: Gpu) -> tuple[str, bool]:
    """The sampler, and whether it is a guess: to 0.11 FlashInfer is used where it can be imported, which container
    images provide and pip installs do not."""
    if plan.sampler is not None:
        return plan.sampler, False
    if runner == "v2":
        return "v2", False
    if runner == "v0" or version < (0, 17, 0):
        return "torch", runner == "v1" and version < (0, 11, 2)
    if version < (0, 21, 0):
        return "triton", False
    known = gpu.vendor == "other" or capability_of(gpu) >= 7.5
    return ("flashinfer" if known else "triton"), False


def sampler_factor(sampler: str, version: Version, rows: int, multiprocessors: int) -> tuple[float, float, float]:
    """Buffers of rows x vocabulary x 4 bytes at the sampler's peak: value, low, high."""
    if sampler == "torch":
        return (SORT_FACTOR,) * 3
    if sampler == "flashinfer":
        return (3.5,) * 3
    if sampler == "triton":
        if rows < 8:
            return (SORT_FACTOR, 3.5, SORT_FACTOR)
        value = 3.5 + min(multiprocessors, rows) / rows
        return (value,) * 3
    if version < (0, 26, 0):
        return (1.5, 1.5, 1.5)
    if version < (0, 33, 0):
        return (0.5, 0.5, 1.5)
    return (4.0, 3.5, 4.5)


SAMPLER_SOURCE: tuple[Rule[str], ...] = (
    Rule((0, 1, 0), "", source("vllm/v1/sample/ops/topk_topp_sampler.py", "V0 and V1 to 0.16")),
    Rule((0, 17, 0), "", source("vllm/v1/sample/ops/topk_topp_triton.py", "0.17 to 0.20")),
    Rule((0, 21, 0), "", source("vllm/v1/sample/ops/topk_topp_sampler.py, vllm/v1/worker/gpu/sample/sampler.py",
                                "0.21 to 0.33")),
)  # fmt: skip

# ----------------------------------------------------------------------------------------------------- defaults


def is_large_card(gpu: Gpu, version: Version) -> bool:
    """Whether the card gets the large defaults of N and T (vllm/engine/arg_utils.py, 0.8.5, 0.9.2, 0.29.0)."""
    if version >= (0, 29, 0):
        return gpu.total_bytes >= 160 * GIB
    if version < (0, 9, 0):
        return gpu.total_bytes >= 70 * GIB
    return gpu.total_bytes >= 70 * GIB and "a100" not in gpu.key


DEFAULTS_SOURCE = source("vllm/engine/arg_utils.py, vllm/config.py", "0.4 to 0.33")


def default_seqs(runner: str, version: Version, gpu: Gpu) -> int:
    return 1024 if runner != "v0" and is_large_card(gpu, version) else 256


def default_tokens(runner: str, version: Version, gpu: Gpu, usage: str, context: int, *, multimodal: bool,
                   chunked: bool) -> int:  # fmt: skip
    """``max_num_batched_tokens`` where it is not set."""
    if runner == "v0":
        if chunked:
            return 512 if version < (0, 7, 0) else 2048
        return max(context, 5120 if multimodal and version >= (0, 6, 0) else 2048)
    if version >= (0, 29, 0) and is_large_card(gpu, version):
        return 16384
    server, offline = (8192, 16384) if is_large_card(gpu, version) else (2048, 8192)
    return server if usage == "server" else offline


CHUNKED_FROM = 32768
CHUNKED_SINCE: Version = (0, 5, 4)
"""V0 from 0.5.4 switches chunked prefill on by itself for longer contexts, unless windows or towers forbid it
(vllm/engine/arg_utils.py, 0.6.4)."""

# ------------------------------------------------------------------------------------------------------- graphs


VERIFIED_CAPTURED: Version = (0, 14, 0)
"""From here on captured sizes count the tokens that a decoding request checks, its drafts and one more."""


def captured(version: Version, runner: str, seqs: int, checked: int = 1) -> tuple[int, ...]:
    """The batch sizes in tokens that are captured by default (vllm/config/vllm.py, vllm/worker/model_runner.py): 1, 2,
    4, then every 8, from 0.11.2 every 16 above 248. ``checked`` tokens of each request are decoded in a step."""
    if runner == "v0":
        largest = seqs if seqs <= 2 else 4 if seqs <= 4 else round_up(seqs, 8)
    elif version < (0, 9, 0):
        largest = 512
    else:
        largest = min(2 * seqs * (checked if version >= VERIFIED_CAPTURED else 1), 512)
    few = tuple(size for size in (1, 2, 4) if size <= largest)
    if runner == "v0" or version < (0, 11, 2):
        return (*few, *range(8, largest + 1, 8))
    return (*few, *range(8, min(largest, 248) + 1, 8), *range(256, largest + 1, 16))


# ---------------------------------------------------------------------------------------- outside the allocator

NON_TORCH_SOURCE = Source(
    title="Non-torch memory printed by public vLLM starts", url="https://github.com/llm-d-incubation/llm-d-planner",
    checked_on="2026-11-29", versions="0.6 to 0.26",
)  # fmt: skip


def non_torch(version: Version, runner: str, gpu: Gpu, ranks: int, *, samples: bool) -> tuple[float, float, float]:
    """GiB of memory outside torch's allocator that grows from first snapshot to profiling: value, low, high.

    ``ranks`` share tensors or experts; ``samples`` is False on pipeline stages that hold no sampler.
    """
    big_unknown = gpu.kind == "custom" and gpu.total_bytes >= 60 * GIB
    linked = big_unknown or (gpu.kind == "datacenter" and gpu.link_bytes_per_s is not None)
    large = gpu.total_bytes >= 70 * GIB
    if ranks > 1:
        if not linked:
            return 0.25, 0.15, 0.5
        if version >= (0, 17, 0):
            return 2.1, 1.2, 2.6
        return (0.55, 0.5, 1.9) if ranks == 2 and runner != "v0" else (1.9, 0.6, 2.3)
    if runner == "v0":
        if (0, 6, 5) <= version < (0, 7, 0):
            # 0.6.5 printed up to 1.79 GiB, which its own later fixes took back.
            return 0.25, 0.05, 1.8 if version < (0, 6, 6) else 0.3
        return 0.05, 0.01, 0.26
    if version >= (0, 17, 0):
        return (0.25, 0.07, 0.27) if large and samples else (0.07, 0.02, 0.25)
    return (0.13, 0.05, 0.15) if large else (0.03, 0.01, 0.13)
