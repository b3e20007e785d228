"""What a bill costs, and what the allocator's replay adds.

    .venv/bin/python benchmarks/bill_cost.py

Prints, for some plans, the processor time of a bill whose model has been seen before (a changed setting of the page),
of the first bill of a model, and of the replay, with the replay's events per second. The last column says how many
bills a replay costs: the ratio does not depend on the machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from calculator import hardware, model, presets
from calculator.training import bill
from calculator.training.allocator import replay
from calculator.training.parts import parts
from calculator.training.plan import TrainingPlan
from calculator.training.sequence import expand
from calculator.training.step import step

PLANS = {
    "qwen2.5-0.5b, full": ("qwen2.5-0.5b", {"micro_batch": 4, "seq_len": 2048}),
    "llama-3.1-8b, LoRA": ("llama-3.1-8b", {"method": "lora", "micro_batch": 4, "seq_len": 4096}),
    "llama-3.1-8b, FSDP x 8": ("llama-3.1-8b", {"seq_len": 8192, "n_gpus": 8, "sharding": "fsdp2"}),
    "llama-3.1-405b, ZeRO-3 x 1024": ("llama-3.1-405b", {"seq_len": 8192, "n_gpus": 1024, "sharding": "zero3"}),
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
    print(f"{'plan':32s} {'first':>9s} {'again':>9s} {'replay':>9s} {'events/s':>10s} {'replay/again':>13s}")
    for name, (key, fields) in PLANS.items():
        shape = model.read(presets.preset(key).config())
        plan = TrainingPlan(**fields)
        gpu = hardware.resolve(plan.gpu)
        start = time.process_time()
        bill(shape, plan, gpu)
        first = time.process_time() - start
        lengths = iter(range(1, 1_000_000))
        again = seconds(lambda: bill(shape, changed(plan, next(lengths)), gpu), times=50)  # noqa: B023 - used at once
        program = step(shape, plan, gpu).program
        events = expand([program, program], parts(shape, plan, gpu))
        alone = seconds(lambda: replay(events))  # noqa: B023 - used at once
        print(
            f"{name:32s} {1e3 * first:6.1f} ms {1e3 * again:6.2f} ms {1e3 * alone:6.1f} ms {len(events) / alone:10.0f} "
            f"{alone / again:13.0f}"
        )


def changed(plan: TrainingPlan, number: int) -> TrainingPlan:
    """The plan with another length, so that no answer is a remembered one."""
    return plan.model_copy(update={"seq_len": plan.seq_len + number})


if __name__ == "__main__":
    main()
