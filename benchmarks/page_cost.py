"""What the calculator adds to a page: the server's time for a change of a setting, with it and without.

    .venv/bin/python benchmarks/page_cost.py [--changes 40]

Each page is run as a visitor changes one number. Every change is run twice, side by side: once as it is, and once with
the bill and the timeline of the first run handed back in place of the calculator, so that widgets, charts and table
are the same. The time is the page's script from its first line to its last. Also timed: one bill alone, of plans that
were not billed before. Exit code 1 if a page costs more than 1.5 times the page with the constant, or a bill 1 ms.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from streamlit.testing.v1 import AppTest  # noqa: E402

from calculator import hardware, lookup, serving, training  # noqa: E402
from calculator.serving.plan import ServingPlan  # noqa: E402
from calculator.training.plan import Adapter, TrainingPlan  # noqa: E402
from ui import state  # noqa: E402

MOST_RATIO = 1.5
MOST_BILL_SECONDS = 0.001
CHANGED = {"training": "training.micro_batch", "finetuning": "training.micro_batch", "serving": "serving.concurrency"}
PLANS: dict[str, Callable[[int], Any]] = {
    "full": lambda n: TrainingPlan(micro_batch=n),
    "LoRA": lambda n: TrainingPlan(method="lora", adapter=Adapter(), micro_batch=n),
    "QLoRA": lambda n: TrainingPlan(method="qlora", base_quant="nf4", adapter=Adapter(), micro_batch=n),
    "ZeRO-3 on 64": lambda n: TrainingPlan(n_gpus=64, sharding="zero3", micro_batch=n),
    "vLLM": lambda n: ServingPlan(max_model_len=8192, concurrency=n),
}


class Clock:
    """Seconds from the first to the last line of the entry point's script."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._begin, self._mirror = state.begin, state.mirror

    @contextmanager
    def watching(self) -> Iterator[None]:
        def begin(page: str) -> None:
            self._start = time.perf_counter()
            self._begin(page)

        def mirror(page: str) -> None:
            self._mirror(page)
            self.seconds = time.perf_counter() - self._start

        with patch.object(state, "begin", begin), patch.object(state, "mirror", mirror):
            yield


class Constant:
    """The first answer of each of the calculator's functions, handed back for ever while it is in place."""

    def __init__(self) -> None:
        self._kept: dict[str, Any] = {}

    @contextmanager
    def in_place(self) -> Iterator[None]:
        with (
            patch.object(training, "bill", self._first("bill", training.bill)),
            patch.object(training, "timeline", self._first("timeline", training.timeline)),
            patch.object(serving, "bill", self._first("serving", serving.bill)),
        ):
            yield

    def _first(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def answer(*arguments: Any, **named: Any) -> Any:
            if name not in self._kept:
                self._kept[name] = function(*arguments, **named)
            return self._kept[name]

        return answer


def page_times(page: str, changes: int) -> tuple[float, float]:
    """Median seconds of a change with the calculator and with the constant, taken in turns."""
    clock, constant = Clock(), Constant()
    real, without = [], []
    with clock.watching():
        at = AppTest.from_file(str(ROOT / "app.py"), default_timeout=120).run()
        if page != "training":
            at.switch_page(f"pages/{page}.py").run()
        with constant.in_place():
            at.run()
        for number in range(2, changes + 2):
            at.number_input(key=CHANGED[page]).set_value(2 * number).run()
            real.append(clock.seconds)
            with constant.in_place():
                at.number_input(key=CHANGED[page]).set_value(2 * number + 1).run()
            without.append(clock.seconds)
            assert not at.exception
    return median(real), median(without)


def bill_seconds(plan_of: Callable[[int], Any], repeats: int = 200) -> float:
    """Median seconds of one bill of a plan that was not billed before."""
    shape = lookup.load_preset("llama-3.1-8b").shape
    gpu = hardware.resolve("h100-80gb-sxm")
    make = serving.bill if isinstance(plan_of(1), ServingPlan) else training.bill
    make(shape, plan_of(1), gpu)
    taken = []
    for number in range(2, repeats + 2):
        plan = plan_of(number)
        start = time.perf_counter()
        make(shape, plan, gpu)
        taken.append(time.perf_counter() - start)
    return median(taken)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--changes", type=int, default=40, help="changes of a setting on each page")
    changes = options.parse_args().changes
    logging.getLogger("streamlit").setLevel(logging.ERROR)
    good = True
    for page in CHANGED:
        real, without = page_times(page, changes)
        good &= real / without <= MOST_RATIO
        print(f"{page:12} {1000 * real:7.1f} ms   constant {1000 * without:7.1f} ms   ratio {real / without:.2f}")
    for name, plan_of in PLANS.items():
        seconds = bill_seconds(plan_of)
        good &= seconds <= MOST_BILL_SECONDS
        print(f"one bill, {name:14} {1000 * seconds:.3f} ms")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
