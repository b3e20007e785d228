"""Capacity under real traffic: how many requests of unlike lengths a pool holds, who waits, who is thrown out.

``packed`` asks how many requests, each caught at a random moment of its life, fit in the pool: what a saturated server
runs at. ``calculator.serving.simulator`` lets requests arrive, grow, wait and be preempted.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from calculator.base import Frozen
from calculator.bill import Bill, Verdict
from calculator.hardware import Gpu
from calculator.model.shape import ModelShape
from calculator.model.stored import StoredWeights
from calculator.serving.bill import bill
from calculator.serving.lengths import Lengths
from calculator.serving.plan import ServingPlan
from calculator.serving.simulator import Sizes, percentile


class Packed(Frozen):
    """Concurrent requests that a full pool holds: the number that half of the draws reach, and those that 90 and 99 %
    reach. ``mean_bytes`` is the cache of one request at a random moment."""

    p50: int
    p90: int
    p99: int
    mean_bytes: float


class Cell(Frozen):
    """One field of the matrix: so many requests of such a context. ``pool_share`` is what they fill of the pool (above
    1 where they do not fit, 0 where the engine does not start), ``held`` the requests that run at once."""

    context_tokens: int
    requests: int
    verdict: Verdict
    need_bytes: int
    pool_share: float = 0.0
    held: int = 0


def packed(
    cache: Sizes,
    pool_bytes: int,
    lengths: Lengths,
    *,
    max_num_seqs: int = 1_048_576,
    draws: int = 400,
    seed: int = 0,
    fixed_bytes: int = 0,
) -> Packed:
    """How many requests fit at once. A request is met in proportion to its output, which is how long it stays, at a
    uniformly random point of it. ``fixed_bytes`` are taken already, by one very long request for example."""
    sample = lengths.draw(4096, seed)
    source = random.Random(seed + 1)
    weights = [output for _, output in sample]
    size: dict[int, int] = {}
    room = max(pool_bytes - fixed_bytes, 0)
    total, count = 0.0, 0
    found: list[int] = []
    longest = max(1, min(max_num_seqs, 20_000))
    for _ in range(draws):
        left, held = room, 0
        while held < longest:
            batch = source.choices(sample, weights, k=64)
            done = False
            for prompt, output in batch:
                tokens = prompt + 1 + int(source.random() * output)
                need = size.get(tokens)
                if need is None:
                    need = size[tokens] = cache.needed(1, tokens)
                total, count = total + need, count + 1
                if need > left or held >= longest:
                    done = True
                    break
                left, held = left - need, held + 1
            if done:
                break
        found.append(held)
    found.sort(reverse=True)
    p50, p90, p99 = (int(percentile(found, share)) for share in (0.5, 0.9, 0.99))
    return Packed(p50=p50, p90=p90, p99=p99, mean_bytes=total / max(count, 1))


def matrix(
    shape: ModelShape,
    plan: ServingPlan,
    gpu: Gpu,
    contexts: Sequence[int],
    requests: Sequence[int],
    stored: StoredWeights | None = None,
) -> tuple[tuple[Cell, ...], ...]:
    """Context lengths against numbers of requests. The engine's limit is the row's own context, so a row says what a
    server started for that context holds."""
    rows = []
    for context in contexts:
        row = []
        for count in requests:
            asked = plan.model_copy(
                update={"max_model_len": None, "context_tokens": context, "concurrency": count}
                if plan.engine in ("llama_cpp", "ollama", "transformers")
                else {"max_model_len": context, "context_tokens": context, "concurrency": count}
            )
            row.append(cell(context, count, bill(shape, asked, gpu, stored)))
        rows.append(tuple(row))
    return tuple(rows)


def cell(context: int, requests: int, result: Bill) -> Cell:
    """The field that a bill fills."""
    figures = result.serving
    assert figures is not None
    share = figures.needed_pool_bytes / figures.kv_pool_bytes if figures.starts and figures.kv_pool_bytes > 0 else 0.0
    return Cell(
        context_tokens=context, requests=requests, verdict=result.verdict, need_bytes=result.need.value,
        pool_share=share, held=min(int(figures.requests_at_context), requests) if figures.starts else 0,
    )  # fmt: skip


class Separated(Frozen):
    """Requests that a pool holds when all lengths share it, and when short and long ones each have servers of their
    own: per server, at the median."""

    mixed: int
    short_only: int
    long_only: int
    short_share: float


def separated(
    cache: Sizes, pool_bytes: int, lengths: Lengths, threshold_tokens: int, *, max_num_seqs: int, draws: int = 100
) -> Separated:
    """What splitting the traffic at ``threshold_tokens`` (prompt and output) does to one server's concurrency."""
    sample = lengths.draw(4096, 7)
    short = tuple(pair for pair in sample if sum(pair) <= threshold_tokens)
    long = tuple(pair for pair in sample if sum(pair) > threshold_tokens)

    def held(pairs: tuple[tuple[int, int], ...]) -> int:
        if not pairs:
            return 0
        return packed(cache, pool_bytes, Lengths(name="part", pairs=pairs), max_num_seqs=max_num_seqs, draws=draws).p50

    return Separated(
        mixed=held(tuple(sample)), short_only=held(short), long_only=held(long), short_share=len(short) / len(sample)
    )
