"""Releases to choose from: those at which what an engine holds changes, newest first. Any other can be named too and
follows the rules of the last one before it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from calculator.serving.plan import ServingPlan
from calculator.serving.versions import parse
from calculator.text import Text, text

RELEASES: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "vllm": (
        "0.33.0", "0.29.0", "0.27.0", "0.26.0", "0.25.0", "0.24.0", "0.22.0", "0.21.0", "0.20.0", "0.19.0", "0.18.0",
        "0.17.0", "0.16.0", "0.13.0", "0.12.0", "0.11.2", "0.11.0", "0.10.2", "0.9.2", "0.8.5", "0.7.3", "0.6.4",
    ),
    "sglang": ("0.5.23", "0.5.10", "0.5.4", "0.5.0", "0.4.8"),
    "tensorrt_llm": ("1.2.1", "1.0.0", "0.18.0", "0.13.0"),
    "lmdeploy": ("0.10.0", "0.7.0", "0.4.0"),
    "tgi": ("3.3.7", "3.0.0", "2.4.0", "2.2.0"),
    "llama_cpp": ("b9000", "b8700", "b7410", "b6900", "b6000", "b5000", "b4000"),
    "ollama": ("0.30.0", "0.16.0", "0.13.0", "0.10.0", "0.7.0"),
    "transformers": ("5.24.0", "4.57.0", "4.50.0", "4.45.0"),
})  # fmt: skip


def older(plan: ServingPlan) -> tuple[Text, ...]:
    """That the named release is older than any whose rules are known. Raises ``PlanError`` for one that cannot be
    read."""
    known = RELEASES.get(plan.engine)
    if plan.engine_version is None or known is None:
        return ()
    numbers = [parse(version.removeprefix("b")) for version in (plan.engine_version, known[-1])]
    if numbers[0] >= numbers[1]:
        return ()
    return (text("serving.assume.older_release", version=plan.engine_version[:40], oldest=known[-1]),)
