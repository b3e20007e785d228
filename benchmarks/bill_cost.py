"""What a bill costs, and what the allocator's replay adds.

    .venv/bin/python benchmarks/bill_cost.py

Prints, for training plans, the processor time of the first bill of a model, of one whose model has been seen before
with other settings (``changed``), of one that differs only in its length (``again``, a new length every time), and of
the replay, with the replay's events per second. The last column says how many bills a replay costs: the ratio does not
depend on the machine. Then, for some serving plans, the first bill and one of another ``max_model_len``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from calculator import hardware, model, presets, serving
from calculator.serving.plan import ServingPlan
from calculator.training import bill
from calculator.training.allocator import replay
from calculator.training.parts import parts
from calculator.training.plan import TrainingPlan
from calculator.training.sequence import expand
from calculator.training.step import step

PLANS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2.5-0.5b, full": ("qwen2.5-0.5b", {"micro_batch": 4, "seq_len": 2048}),
    "llama-3.1-8b, LoRA": ("llama-3.1-8b", {"method": "lora", "micro_batch": 4, "seq_len": 4096}),
    "llama-3.1-8b, LoRA, packed": ("llama-3.1-8b", {"method": "lora", "packed": True, "loss": "fused_ce"}),
    "llama-3.1-8b, QLoRA": ("llama-3.1-8b", {"method": "qlora", "base_quant": "nf4", "micro_batch": 4}),
    "llama-3.1-8b, none recomputed": ("llama-3.1-8b", {"checkpointing": "none", "micro_batch": 2}),
    "llama-3.1-8b, every third, x 2": ("llama-3.1-8b", {"checkpoint_every": 3, "grad_accum": 2}),
    "llama-3.1-8b, FSDP x 8": ("llama-3.1-8b", {"seq_len": 8192, "n_gpus": 8, "sharding": "fsdp2"}),
    "llama-3.1-70b, ZeRO-3 LoRA x 8": ("llama-3.1-70b", {"method": "lora", "n_gpus": 8, "sharding": "zero3"}),
    "mixtral-8x7b, FSDP x 64": ("mixtral-8x7b", {"n_gpus": 64, "sharding": "fsdp2"}),
    "qwen3-30b-a3b, LoRA": ("qwen3-30b-a3b", {"method": "lora"}),
    "qwen2.5-vl-7b, full": ("qwen2.5-vl-7b", {"n_gpus": 8, "sharding": "zero2"}),
    "gemma-3-27b, QLoRA": ("gemma-3-27b", {"method": "qlora", "base_quant": "nf4_dq"}),
    "qwen3-next-80b, FSDP x 64": ("qwen3-next-80b", {"n_gpus": 64, "sharding": "fsdp2"}),
    "deepseek-v3, FSDP x 1024": ("deepseek-v3", {"n_gpus": 1024, "sharding": "fsdp2"}),
    "llama-3.1-70b, tp 8 pp 4": (
        "llama-3.1-70b",
        {"n_gpus": 64, "tp": 8, "pp": 4, "framework": "megatron", "micro_batches": 16, "sequence_parallel": True},
    ),
    "llama-3.1-405b, tp 8 pp 16": (
        "llama-3.1-405b",
        {"n_gpus": 1024, "tp": 8, "pp": 16, "framework": "megatron", "micro_batches": 64, "precision": "mixed_bf16"},
    ),
    "llama-3.1-405b, ZeRO-3 x 1024": ("llama-3.1-405b", {"seq_len": 8192, "n_gpus": 1024, "sharding": "zero3"}),
}


SERVED: dict[str, tuple[str, dict[str, Any]]] = {
    "vLLM, llama-3.1-8b": ("llama-3.1-8b", {}),
    "vLLM, deepseek-v3, tp 8": ("deepseek-v3", {"n_gpus": 8, "tp": 8, "gpu": "h200-141gb-sxm"}),
    "vLLM, qwen3-next-80b, tp 4": ("qwen3-next-80b", {"n_gpus": 4, "tp": 4}),
    "llama.cpp, llama-3.1-8b Q4_K_M": ("llama-3.1-8b", {"engine": "llama_cpp", "weights": "Q4_K_M", "concurrency": 1}),
    "SGLang, llama-3.1-8b": ("llama-3.1-8b", {"engine": "sglang"}),
}


def seconds(work: Callable[[], object], times: int = 1) -> float:
    """Processor time of one call, the best of three rounds."""
    rounds = []
    for _ in range(3):
        start = time.process_time()
        for _ in range(times):
            work()
        rounds.append((time.process_time() - start) / times)
    return min(rounds)


def main() -> None:
    columns = ("first", "changed", "again", "replay")
    print(f"{'plan':32s}", *(f"{column:>9s}" for column in columns), "events/s replay/again")
    for name, (key, fields) in PLANS.items():
        shape = model.read(presets.preset(key).config())
        plan = TrainingPlan(**fields)
        gpu = hardware.resolve(plan.gpu)
        start = time.process_time()
        bill(shape, plan, gpu)
        first = time.process_time() - start
        lengths = iter(range(1, 1_000_000))
        other = seconds(lambda: bill(shape, otherwise(plan, next(lengths)), gpu), times=5)  # noqa: B023 - used at once
        again = seconds(lambda: bill(shape, changed(plan, next(lengths)), gpu), times=50)  # noqa: B023 - used at once
        program = step(shape, plan, gpu).program
        events = expand([program, program], parts(shape, plan, gpu)).events
        alone = seconds(lambda: replay(events))  # noqa: B023 - used at once
        print(f"{name:32s}", *(f"{1e3 * each:6.2f} ms" for each in (first, other, again, alone)), end=" ")
        print(f"{len(events) / alone:8.0f} {alone / again:12.0f}")

    print(f"\n{'serving':32s}", *(f"{column:>9s}" for column in ("first", "again")))
    for name, (key, fields) in SERVED.items():
        shape = model.read(presets.preset(key).config())
        served = ServingPlan(**fields, max_model_len=8192)
        gpu = hardware.resolve(served.gpu)
        start = time.process_time()
        serving.bill(shape, served, gpu)
        first = time.process_time() - start
        plans = (served.model_copy(update={"max_model_len": 8192 + 16 * number}) for number in range(1, 1_000))
        again = seconds(lambda: serving.bill(shape, next(plans), gpu), times=50)  # noqa: B023 - used at once
        print(f"{name:32s}", *(f"{1e3 * each:6.2f} ms" for each in (first, again)))


def changed(plan: TrainingPlan, number: int) -> TrainingPlan:
    """The plan with another length, so that no answer is a remembered one."""
    return plan.model_copy(update={"seq_len": plan.seq_len + number})


def otherwise(plan: TrainingPlan, number: int) -> TrainingPlan:
    """The plan with another setting that changes what it is put together from."""
    return plan.model_copy(update={"zero_reduce_bucket": 100_000_000 + number})


if __name__ == "__main__":
    main()
