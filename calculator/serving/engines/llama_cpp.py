"""llama.cpp: no pool to fill. The cache has the cells that context, slots, windows and micro-batch ask for, and the
automatic fit moves to the host what the cards cannot hold.

Source: as in ``cells.py`` and ``fit.py``.
"""

from __future__ import annotations

import re
from dataclasses import replace

from calculator.errors import PlanError
from calculator.hardware import Gpu
from calculator.model.shape import ModelShape
from calculator.model.stored import StoredWeights
from calculator.serving.adapters import Adapted, adapter_rows
from calculator.serving.engines import fit
from calculator.serving.engines.cells import Setup
from calculator.serving.overheads import context_term
from calculator.serving.plan import ServingPlan
from calculator.serving.split import Split
from calculator.serving.start import Span, Start, Term
from calculator.sources import Source
from calculator.text import Text, text
from calculator.units import GIB

BATCH, UBATCH = 2048, 512
"""``n_batch`` and ``n_ubatch``."""
NEWEST_BUILD = 9000


def source(path: str) -> Source:
    return Source(
        title=f"llama.cpp source, {path}", url="https://github.com/ggml-org/llama.cpp", checked_on="2026-11-29",
        versions="2024 to the tree of llama-cpp-python 0.3.36",
    )  # fmt: skip


def build_of(written: str | None) -> int:
    """The build number of "b6123" or "6123"; the newest where none is given.

    Raises ``PlanError`` ("serving.version_unreadable").
    """
    if written is None:
        return NEWEST_BUILD
    match = re.fullmatch(r"b?(\d{3,6})", written.strip()[:16])
    if match is None:
        raise PlanError("serving.version_unreadable", field="engine_version", text=written[:64])
    return int(match[1])


def start(shape: ModelShape, plan: ServingPlan, gpu: Gpu, stored: StoredWeights | None = None) -> Start:
    """One server process. ``max_model_len`` is the context of all slots together, ``max_num_seqs`` the slots."""
    notes: list[Text] = []
    if plan.engine_version is None:
        notes.append(text("serving.assume.version", engine="llama.cpp", version=f"b{NEWEST_BUILD}"))
    build = build_of(plan.engine_version)
    slots = plan.max_num_seqs or plan.concurrency
    context = plan.max_model_len or (plan.context_tokens * slots if plan.context_tokens is not None else None)
    setup = Setup(
        shape, plan, stored, build=build, slots=slots, context=context or shape.max_context or 4096,
        ubatch=plan.n_ubatch or min(UBATCH, plan.max_num_batched_tokens or BATCH), open_context=context is None,
        target_bytes=GIB if plan.fit_target_bytes is None else plan.fit_target_bytes,
    )  # fmt: skip
    return begin(setup, gpu, notes, fits=plan.fit is not False and build >= fit.BUILD)


def begin(setup: Setup, gpu: Gpu, notes: list[Text], *, fits: bool) -> Start:
    """The start of a server, with what its automatic fit makes of it where ``fits`` says that there is one."""
    found = fit.fitted(setup, gpu) if fits else fit.Fit(setup, setup)
    if found.whole.open_context:
        notes.append(text("serving.assume.max_model_len", context_tokens=found.whole.context))
    if found.whole.context != setup.context:
        notes.append(text("serving.assume.fit_context", context_tokens=found.whole.context,
                          whole_tokens=setup.context))  # fmt: skip
    if setup.plan.flash_attn is None:
        notes.append(text("serving.assume.flash_attn" if setup.flash else "serving.assume.no_flash_attn"))
    if setup.projector is not None and setup.plan.mmproj is None:
        notes.append(text("serving.assume.mmproj"))
    asked = _begun(found.whole, gpu, notes)
    if found.moved is None:
        return asked
    return replace(_begun(found.setup, gpu, notes), moved=found.moved, asked=asked)


def _begun(setup: Setup, gpu: Gpu, notes: list[Text]) -> Start:
    """The bill is of the card that holds the most."""
    shape, plan, slots, context = setup.shape, setup.plan, setup.slots, setup.context
    cards = setup.cards()
    number, card = max(enumerate(cards), key=lambda c: c[1].used - c[1].scratch.value)
    cache, states = card.cache, card.states
    on_host = sum(setup.cache(range(shape.layers)).split_bytes(context, slots)) - sum(c.full + c.windows for c in cards)
    read = plan.weights is None and setup.stored is not None and setup.stored.gguf
    held = Span.about(card.placement.weights_bytes, 0 if read and len(cards) == 1 else 0.01)
    context_memory = context_term(gpu)
    projector = setup.projector
    extras = adapter_rows(shape, card.placement.layers, Split(), plan, Adapted(experts=not plan.experts_on_cpu))
    if projector is not None and not projector.on_host and number == 0:
        extras = (*projector.rows, *extras)
    host = card.placement.host_bytes + max(on_host, 0) + slots * (shape.vocab + shape.hidden) * 4
    if projector is not None and projector.on_host:
        host += projector.weights_bytes + projector.scratch.value
    state = None
    if states:
        state = Term(Span.exact(states),
                     text("serving.item.state", state_bytes=cache.state_bytes_per_sequence, slots_count=slots),
                     "computed", source("src/llama-hparams.cpp"))  # fmt: skip
    return Start(
        weights=Term(held, text("serving.item.weights.layers", weights_bytes=card.placement.weights_bytes,
                                layers_count=len(card.placement.layers), host_bytes=card.placement.host_bytes),
                     "computed", source("src/llama-model.cpp"), len(cards)),
        activation=Term(card.scratch, text("serving.item.compute", ubatch_tokens=setup.ubatch, vocab_count=shape.vocab),
                        "assumed", source("src/llama-graph.cpp")),
        non_torch=Term(Span.exact(0), text("serving.item.non_torch", ranks_count=1), "computed",
                       source("ggml/src/ggml-cuda")),
        cuda_graphs=Term(Span.exact(0), text("serving.item.cuda_graphs", sizes_count=0), "computed",
                         source("ggml/src/ggml-cuda")),
        context=context_memory,
        pool=Span.exact(card.full + card.windows),
        pool_formula=text("serving.item.pool.cells", cells_count=cache.cells(context, slots)[0],
                          slots_count=slots, full_bytes=card.full, window_bytes=card.windows),
        pool_source=source("src/llama-kv-cache.cpp, src/llama-kv-cache-iswa.cpp"),
        cache=cache,
        budget_bytes=gpu.total_bytes,
        memory_fraction=1.0,
        max_model_len=context,
        max_num_seqs=slots,
        max_num_batched_tokens=plan.max_num_batched_tokens or BATCH,
        replicas=1,
        rank=str(number),
        request_tokens=max(context // slots, 1),
        state=state,
        extras=extras,
        needs_whole_request=False,
        pool_follows_wish=True,
        host_bytes=host,
        kv_full_bytes=card.full,
        kv_swa_bytes=card.windows,
        assumptions=tuple(notes),
        partly_on_host=sum(len(c.placement.layers) for c in cards) < shape.layers or card.placement.streamed_bytes > 0,
    )  # fmt: skip
