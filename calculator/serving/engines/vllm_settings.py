"""vLLM's settings: the plan with the defaults of a release filled in."""

from __future__ import annotations

from dataclasses import dataclass

from calculator.hardware import Gpu
from calculator.model.shape import Attention, ModelShape, StateMixer
from calculator.serving.context import context_limit
from calculator.serving.engines import vllm_rules as rules
from calculator.serving.plan import ServingPlan
from calculator.serving.versions import Version, at, parse
from calculator.text import Text, text


@dataclass(frozen=True, slots=True)
class Settings:
    """The plan with the engine's defaults filled in."""

    version: Version
    runner: str
    context: int
    seqs: int
    tokens: int
    fraction: float
    sampler: str
    guessed_sampler: bool
    chunked: bool
    state_pages: int | None
    assumptions: tuple[Text, ...]


def settings(shape: ModelShape, plan: ServingPlan, gpu: Gpu) -> Settings:
    """Release, runner and defaults. What had to be filled in is listed as assumptions."""
    notes: list[Text] = []
    if plan.engine_version is not None:
        version = parse(plan.engine_version)
    else:
        version = rules.NEWEST_V0 if plan.runner == "v0" else rules.NEWEST
        notes.append(text("serving.assume.version", engine="vLLM", version=".".join(map(str, version))))
    if version > rules.NEWEST:
        notes.append(text("serving.assume.newer", version=plan.engine_version or "", newest="0.33.0"))
    runner = plan.runner or rules.default_runner(version, shape)
    context = plan.max_model_len or context_limit(shape, "vllm") or 2048
    if plan.max_model_len is None:
        notes.append(text("serving.assume.max_model_len", context_tokens=context))
    chunked = runner != "v0" or _chunks_by_itself(shape, plan, context, version)
    seqs = plan.max_num_seqs or rules.default_seqs(runner, version, gpu)
    if plan.max_num_batched_tokens is not None:
        tokens = plan.max_num_batched_tokens
    else:
        tokens = rules.default_tokens(
            runner, version, gpu, plan.usage, context, multimodal=bool(shape.towers), chunked=chunked
        )
        tokens = max(tokens, seqs) if runner != "v0" else tokens
        tokens = min(tokens, seqs * context) if runner != "v0" else tokens
    if plan.max_num_seqs is None or plan.max_num_batched_tokens is None:
        notes.append(text("serving.assume.batch", seqs_count=seqs, batched_tokens=tokens, gpu=gpu.name))
    fraction = plan.memory_fraction
    if fraction is None:
        fraction = at(rules.FRACTION, version).value
        notes.append(text("serving.assume.fraction", fraction=fraction))
    sampler, guessed = rules.sampler_of(plan, version, runner, gpu)
    if guessed:
        notes.append(text("serving.assume.sampler"))
    pages, note = _state_pages(shape, plan, version)
    if note is not None:
        notes.append(note)
    return Settings(
        version, runner, context, min(seqs, tokens), tokens, fraction, sampler, guessed, chunked, pages, tuple(notes)
    )


def _chunks_by_itself(shape: ModelShape, plan: ServingPlan, context: int, version: Version) -> bool:
    windows = any(isinstance(m, Attention) and m.window for b in shape.blocks for m in b.mixers)
    if plan.chunked_prefill is not None:
        return plan.chunked_prefill
    if plan.max_num_batched_tokens is not None and plan.max_num_batched_tokens < context:
        return True
    if version < rules.CHUNKED_SINCE:
        return False
    return context > rules.CHUNKED_FROM and not windows and not shape.towers


def _state_pages(shape: ModelShape, plan: ServingPlan, version: Version) -> tuple[int | None, Text | None]:
    """Pages of a state that a request holds: 1, or 2 with prefix caching in mode "align"; None: one for every block
    (mode "all"). vllm/model_executor/models/config.py, 0.16.0 to 0.33.0."""
    states = [m for b in shape.blocks for m in b.mixers if isinstance(m, StateMixer)]
    if not states:
        return 1, None
    caching = plan.prefix_caching
    note = None
    if caching is None:
        caching = version >= (0, 16, 0)
        if caching:
            note = text("serving.assume.prefix_caching")
    if not caching:
        return 1, note
    if version < (0, 16, 0):
        return None, note
    whole = all(mixer.variant in ("mamba1", "mamba2") for mixer in states) and version < (0, 24, 0)
    return (None if whole else 2), note
