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
from calculator.serving.prefix import Beside, cached_tokens
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

    ``arrivals_per_s`` keep the wished number busy if all of them run, ``served_per_s`` is what the replica gets done:
    where it is less, the queue grows without end. A prefix that all requests share is held once, beside them.
    """

    full: Packed
    beside_longest: Packed
    split: Separated
    long_tokens: int
    prompt_tokens: int
    output_tokens: int
    speed: Speed | None
    simulated: Simulated | None
    arrivals_per_s: float = 0.0
    served_per_s: float = 0.0

    @property
    def overloaded(self) -> bool:
        return self.served_per_s < self.arrivals_per_s


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
    shape: ModelShape, plan: ServingPlan, gpu: Gpu, lengths: Lengths, stored: StoredWeights | None = None,
    *, requests: int = REQUESTS,
) -> Outlook:  # fmt: skip
    """The plan's mean concurrency with ``requests`` of these lengths, cut at the engine's context limit.

    Raises ``PlanError`` for what the engine cannot run, and ("speed.nothing_fits") where no request fits.
    """
    begun = start(shape, plan, gpu, stored)
    cached = cached_tokens(plan, begun, begun.max_model_len)
    cache, pool = Beside(begun.cache, cached), max(begun.pool.value - begun.cache.shared_bytes(cached), 0)
    lengths = lengths.capped(begun.max_model_len)
    sample = lengths.draw(_SAMPLE, 7)
    prompt, output = (int(percentile(sorted(pair[i] for pair in sample), 0.5)) for i in (0, 1))
    slots = begun.max_num_seqs
    typical = max(cache.needed(1, sum(map(sum, sample)) // len(sample)), 1)
    draws = max(12, min(100, int(_DRAWN // max(min(pool / typical, slots), 1))))
    full = packed(cache, pool, lengths, max_num_seqs=slots, draws=draws)
    if full.p50 < 1:
        raise PlanError("speed.nothing_fits", field="gpu", context_tokens=prompt + output)
    longest = cache.needed(1, min(begun.max_model_len, begun.cache.longest(begun.pool.value)))
    totals = sorted(map(sum, sample))
    cuts = [int(percentile(totals, share)) for share in LONG_SHARES]
    threshold = next((cut for cut in cuts if cut < totals[-1]), 0)
    wished = plan.concurrency / begun.replicas
    running = max(1, min(round(wished), full.p50))

    def rated(asked: ServingPlan) -> Speed:
        return speed(
            shape, asked, gpu, prompt_tokens=prompt, output_tokens=output, batch=running, stored=stored
        )  # fmt: skip

    rate, traffic = None, None
    try:
        rate, cold = rated(plan), rated(plan.model_copy(update={"shared_prefix_tokens": 0}))
    except PlanError:
        pass
    else:
        traffic = _stream(lengths, sample, prompt / cold.ttft_s.value, cold.tpot_s.value, wished, cached, requests)
    run = None if traffic is None else simulate(cache, pool, slots, traffic)
    arrivals = 0.0 if traffic is None else traffic.arrivals_per_s
    share = min(1.0, full.p50 / wished)
    if run is not None and run.overloaded:
        share = min(share, 1 - run.backlog / run.requests)
    return Outlook(
        full=full,
        beside_longest=packed(cache, pool, lengths, max_num_seqs=slots, draws=draws, fixed_bytes=longest),
        split=separated(cache, pool, lengths, threshold, max_num_seqs=slots, draws=draws),
        long_tokens=threshold, prompt_tokens=prompt, output_tokens=output, speed=rate,
        simulated=run, arrivals_per_s=arrivals, served_per_s=arrivals * share,
    )  # fmt: skip


def _stream(
    lengths: Lengths, sample: list[tuple[int, int]], prefill: float, tpot: float, wished: float, cached: int,
    requests: int,
) -> Traffic:  # fmt: skip
    """Arrivals that keep ``wished`` requests busy on average: by Little's law, their number over the time of one.
    ``prefill`` tokens a second of a prompt are computed that are not ``cached``."""
    held = [max(pair[0] - cached, 1) / prefill + pair[1] * tpot for pair in sample]
    return Traffic(
        lengths=lengths, arrivals_per_s=wished * len(held) / sum(held), tpot_s=tpot, prefill_tokens_per_s=prefill,
        cached_tokens=cached, requests=requests,
    )  # fmt: skip
