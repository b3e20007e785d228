"""Ollama: llama.cpp with its own defaults for slots and context.

Source: envconfig/config.go, server/routes.go, server/sched.go, llm/llama_server.go, from v0.1.48 to v0.30.0.
"""

from __future__ import annotations

from calculator.hardware import Gpu
from calculator.model.shape import ModelShape
from calculator.model.stored import StoredWeights
from calculator.serving.engines import llama_cpp
from calculator.serving.engines.cells import Setup
from calculator.serving.plan import ServingPlan
from calculator.serving.start import Start
from calculator.serving.versions import Version, parse
from calculator.text import Text, text
from calculator.units import GIB, MIB

NEWEST: Version = (0, 30, 0)
LLAMA_SERVER: Version = (0, 30, 0)
"""From here on a stock llama-server places the layers; before, Ollama's own estimate or trial allocation did."""
OLD_MARGIN_BYTES = 457 * MIB
"""Minimum memory of a CUDA card, kept out of the layers' room (discover/gpu.go)."""
BATCH = 512


def default_context(version: Version, total_bytes: int) -> int:
    """Tokens of one slot: 2048, 4096 from 0.6.7, by the card's memory from 0.16."""
    if version < (0, 6, 7):
        return 2048
    if version < (0, 16, 0) or total_bytes < 23 * GIB:
        return 4096
    return 262144 if total_bytes >= 47 * GIB else 32768


def default_slots(version: Version) -> int:
    """Parallel requests: 4 from 0.2 to 0.9 where they fit, else 1."""
    return 4 if (0, 2, 0) <= version < (0, 10, 0) else 1


def build_of(version: Version) -> int:
    """The llama.cpp build whose cache rules a release follows, to the era."""
    if version < (0, 7, 0):
        return 4000
    return 6000 if version < (0, 13, 0) else llama_cpp.NEWEST_BUILD


def start(shape: ModelShape, plan: ServingPlan, gpu: Gpu, stored: StoredWeights | None = None) -> Start:
    """One model runner. ``max_model_len`` is the context of all slots together."""
    notes: list[Text] = []
    version = NEWEST
    if plan.engine_version is not None:
        version = parse(plan.engine_version)
    else:
        notes.append(text("serving.assume.version", engine="Ollama", version=".".join(map(str, NEWEST))))
    open_context = plan.max_model_len is None and plan.context_tokens is not None
    slots = plan.max_num_seqs or (plan.concurrency if open_context else default_slots(version))
    context = plan.max_model_len
    if context is None:
        each = plan.context_tokens or min(default_context(version, gpu.total_bytes), shape.max_context or 2**31)
        context = each * slots
        if plan.context_tokens is None:
            notes.append(text("serving.assume.max_model_len", context_tokens=context))
    if plan.max_num_seqs is None:
        notes.append(text("serving.assume.slots", slots_count=slots))
    batch = plan.n_ubatch or min(BATCH, plan.max_num_batched_tokens or BATCH)
    given = plan.n_gpu_layers
    if plan.mmproj is None and given is not None and given <= shape.layers:
        plan = plan.model_copy(update={"mmproj": "host"})
    setup = Setup(
        shape, plan, stored, build=build_of(version), slots=slots, context=context, ubatch=batch, open_context=False,
        latent=version >= (0, 7, 0), target_bytes=_target(plan, version),
        whole_layers=version < LLAMA_SERVER,
    )  # fmt: skip
    return llama_cpp.begin(setup, gpu, notes, fits=plan.fit is not False)


def _target(plan: ServingPlan, version: Version) -> int:
    """What is left free on each card: the release's own margin and OLLAMA_GPU_OVERHEAD."""
    return (GIB if version >= LLAMA_SERVER else OLD_MARGIN_BYTES) + (plan.fit_target_bytes or 0)
