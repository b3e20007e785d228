"""One replica under the plan's traffic: how many requests run, wait and are preempted, as a distribution."""

from __future__ import annotations

from calculator.base import Frozen
from calculator.errors import PlanError
from calculator.hardware import Gpu
from calculator.model.shape import ModelShape
from calculator.model.stored import StoredWeights
from calculator.serving.bill import start
from calculator.serving.capacity import Packed, Separated, packed, separated
from calculator.serving.lengths import Lengths, Lognormal, preset
from calculator.serving.plan import ServingPlan
from calculator.serving.simulator import Simulated, Traffic, percentile, simulate
from calculator.serving.speed import Speed, speed

LONG_SHARES = (0.9, 0.75, 0.5)
"""Requests longer than this share of them count as long where long and short traffic are compared: the first share at
which there are longer ones, since many may end at the context limit."""
REQUESTS = 4000
_DRAWN = 40_000
"""Requests drawn to fill the pool over and over: fewer fillings where it holds many, whose number varies less."""
_SAMPLE = 4096


class Outlook(Frozen):
    """What the traffic does to one replica.

    ``full``: requests that a full pool holds; ``beside_longest``: the same while one request of the engine's full
    context runs; ``split``: with requests above ``long_tokens`` (0: all are of one length) on servers of their own.
    ``simulated`` is the traffic at the plan's mean concurrency, ``speed`` what it was run at; both None where the
    card's rates are not known. ``prompt_tokens`` and ``output_tokens`` are medians.
    """

    full: Packed
    beside_longest: Packed
    split: Separated
    long_tokens: int
    prompt_tokens: int
    output_tokens: int
    speed: Speed | None
    simulated: Simulated | None


def lengths_of(plan: ServingPlan) -> Lengths | None:
    """The plan's request lengths; None where every request is of the plan's context."""
    if plan.request_lengths is None:
        return None
    if plan.request_lengths != "lognormal":
        return preset(plan.request_lengths)
    return Lengths(
        name="lognormal",
        prompt=Lognormal(median=plan.prompt_median_tokens, spread=plan.prompt_spread),
        output=Lognormal(median=plan.output_median_tokens, spread=plan.output_spread),
    )


def outlook(
    shape: ModelShape, plan: ServingPlan, gpu: Gpu, lengths: Lengths, stored: StoredWeights | None = None
) -> Outlook:
    """The plan's mean concurrency with requests of these lengths, cut at the engine's context limit.

    Raises ``PlanError`` for what the engine cannot run, and ("speed.nothing_fits") where no request fits.
    """
    begun = start(shape, plan, gpu, stored)
    cache, pool = begun.cache, max(begun.pool.value, 0)
    lengths = lengths.capped(begun.max_model_len)
    sample = lengths.draw(_SAMPLE, 7)
    prompt, output = (int(percentile(sorted(pair[i] for pair in sample), 0.5)) for i in (0, 1))
    slots = begun.max_num_seqs
    typical = max(cache.needed(1, sum(map(sum, sample)) // len(sample)), 1)
    draws = max(12, min(100, int(_DRAWN // max(min(pool / typical, slots), 1))))
    full = packed(cache, pool, lengths, max_num_seqs=slots, draws=draws)
    if full.p50 < 1:
        raise PlanError("speed.nothing_fits", field="gpu", context_tokens=prompt + output)
    longest = cache.needed(1, min(begun.max_model_len, cache.longest(pool)))
    totals = sorted(map(sum, sample))
    cuts = [int(percentile(totals, share)) for share in LONG_SHARES]
    threshold = next((cut for cut in cuts if cut < totals[-1]), 0)
    wished = plan.concurrency / begun.replicas
    try:
        rate = speed(
            shape, plan, gpu, prompt_tokens=prompt, output_tokens=output, batch=max(1, min(round(wished), full.p50)),
            stored=stored,
        )  # fmt: skip
    except PlanError:
        rate = None
    traffic = None if rate is None else _stream(lengths, sample, rate, wished, prompt)
    return Outlook(
        full=full,
        beside_longest=packed(cache, pool, lengths, max_num_seqs=slots, draws=draws, fixed_bytes=longest),
        split=separated(cache, pool, lengths, threshold, max_num_seqs=slots, draws=draws),
        long_tokens=threshold, prompt_tokens=prompt, output_tokens=output, speed=rate,
        simulated=None if traffic is None else simulate(cache, pool, slots, traffic),
    )  # fmt: skip


def _stream(lengths: Lengths, sample: list[tuple[int, int]], rate: Speed, wished: float, prompt: int) -> Traffic:
    """Arrivals that keep ``wished`` requests busy on average: by Little's law, their number over the time of one."""
    prefill = prompt / rate.ttft_s.value
    held = [pair[0] / prefill + pair[1] * rate.tpot_s.value for pair in sample]
    return Traffic(
        lengths=lengths, arrivals_per_s=wished * len(held) / sum(held), tpot_s=rate.tpot_s.value,
        prefill_tokens_per_s=prefill, requests=REQUESTS,
    )  # fmt: skip
