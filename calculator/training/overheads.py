"""What a process holds beyond its tensors: CUDA context, library workspaces, communicators, allocator slack.

Only these may be statistical; each is a range with its source.
"""

from __future__ import annotations

from calculator.bill import Range
from calculator.hardware import Gpu
from calculator.sources import Source
from calculator.training.plan import TrainingPlan

MIB = 1 << 20
GIB = 1 << 30

CUBLAS = Source(
    title="PyTorch CUDABlas: default workspace, one a thread and handle",
    checked_on="2026-11-29",
    url="https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/cuda/CublasHandlePool.cpp",
    versions="torch >= 1.13",
)
CONTEXT = Source(
    title="Process less reserved memory: 35 fms-acceleration runs on A100 (0.51 GiB), T4 runs (141 MiB), and the "
    "own-process figures of PyTorch out-of-memory reports (0.3 to 0.97 GiB, median 0.52)",
    url="https://github.com/foundation-model-stack/fms-acceleration",
    checked_on="2026-11-29",
    versions="torch 2.1 - 2.10",
)
NCCL = Source(
    title="NCCL: buffers of a ring or tree communicator between 2 and 8 NVLink cards",
    checked_on="2026-11-29",
    url="https://github.com/NVIDIA/nccl/issues/964",
    versions="NCCL 2.14 - 2.30",
)
SLACK = Source(
    title="Reserved over allocated memory in 35 replayed and measured single-GPU steps",
    checked_on="2026-11-29",
    url="https://github.com/foundation-model-stack/fms-acceleration/tree/main/scripts/benchmarks/refs",
    versions="torch 2.1 - 2.14",
)


def cublas_workspace_bytes(gpu: Gpu) -> int:
    """Workspaces of the forward and the backward thread, which PyTorch takes through its allocator and keeps: 32 MiB
    each on Hopper and data-centre Blackwell, 8,519,680 bytes elsewhere."""
    if gpu.vendor != "NVIDIA":
        return 0
    major = int((gpu.compute_capability or "8.0").split(".")[0])
    return 2 * (32 * MIB if major in (9, 10) else 8_519_680)


def context(gpu: Gpu) -> Range:
    """CUDA context with the kernels that a training step loads."""
    if gpu.compute_capability == "7.5":
        return Range(value=141 * MIB, low=130 * MIB, high=330 * MIB)
    return Range(value=522 * MIB, low=300 * MIB, high=990 * MIB)


def communicators(plan: TrainingPlan) -> int:
    """Groups of ranks that exchange data, each with its own buffers."""
    if plan.n_gpus == 1:
        return 0
    groups = [plan.tp > 1, plan.pp > 1, plan.cp > 1, plan.ep > 1, plan.sharding == "hsdp"]
    data_parallel = plan.n_gpus > plan.tp * plan.pp * plan.cp
    return max(1, sum(groups) + int(data_parallel))


def nccl(plan: TrainingPlan) -> Range:
    groups = communicators(plan)
    return Range(value=groups * 616 * MIB, low=groups * 256 * MIB, high=groups * 1400 * MIB)


def slack(allocated: int, plan: TrainingPlan) -> Range:
    """Blocks that the caching allocator keeps free, before the step is replayed: a range over measured steps."""
    if plan.allocator == "expandable":
        return Range(value=allocated // 50, low=0, high=allocated // 12)
    return Range(value=allocated // 10, low=allocated // 100, high=allocated * 45 // 100)


def kept_slack(allocated: int) -> Range:
    """The part of the slack that stays when the card is full and the allocator gives its cache back (1 to 5 GiB of
    80)."""
    return Range(value=allocated // 60, low=0, high=allocated // 16)
