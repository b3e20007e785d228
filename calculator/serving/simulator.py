"""A replica under traffic: requests arrive, grow block by block, wait and are preempted."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Sequence
from math import ceil
from typing import Protocol

from pydantic import Field

from calculator.base import Frozen
from calculator.serving.lengths import Lengths

GROWTH_STEPS = 16
"""At most this many growth events a request: its output is held in as many equal steps, whole blocks each, so long
answers are counted up to a sixteenth too long while they grow."""
WATERMARK = 0.01
"""Share of the blocks that vLLM keeps free when it admits a request (vllm/core/block_manager.py)."""
OVERLOAD = 0.05
"""Share of all requests that may still wait when the last one arrives. A queue that grows without end holds the same
share however many arrive, one that does not an ever smaller one."""


class Sizes(Protocol):
    """The bytes of a pool that requests take."""

    @property
    def block_size(self) -> int:
        """Tokens of one block."""

    def needed(self, requests: int, context: int) -> int:
        """Bytes of so many requests of ``context`` tokens."""


class Traffic(Frozen):
    """A stream of requests: Poisson arrivals, lengths, and how fast the engine works on one of them. The first
    ``cached_tokens`` of a prompt are held already and need no work."""

    lengths: Lengths
    arrivals_per_s: float = Field(gt=0)
    tpot_s: float = Field(gt=0)
    prefill_tokens_per_s: float = Field(gt=0)
    cached_tokens: int = Field(0, ge=0)
    requests: int = Field(10_000, ge=1, le=200_000)
    seed: int = 0


class Simulated(Frozen):
    """What the traffic did. Percentiles of ``running`` are over time, those of ``waiting_s`` over requests;
    ``preempted_share`` counts requests that were thrown out at least once, ``refused`` those that alone exceed the
    pool; ``backlog`` are those that wait when the last one arrives, of ``requests``. Where they are too many, the
    arrivals exceed what the replica serves, and the waiting times say only how long was simulated. ``events`` is the
    work it took: arrivals, growth steps and ends."""

    running_mean: float
    running_p50: int
    running_p90: int
    running_p99: int
    waiting_p50_s: float
    waiting_p90_s: float
    waiting_p99_s: float
    preempted_share: float
    refused: int
    used_mean_bytes: float
    finished: int
    backlog: int
    requests: int
    events: int

    @property
    def overloaded(self) -> bool:
        return self.backlog > OVERLOAD * self.requests


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of the sorted ``values`` do not exceed."""
    return values[min(max(ceil(share * len(values)) - 1, 0), len(values) - 1)]


def simulate(cache: Sizes, pool_bytes: int, max_num_seqs: int, traffic: Traffic) -> Simulated:
    """Let the traffic run through one replica.

    First come, first served; a request is admitted when its prompt fits beside the watermark, grows by blocks, and
    the newest is preempted and computed again when the pool is full (vllm/v1/core/sched/scheduler.py). Speed does not
    depend on how many run: ``tpot_s`` is that of the planned batch.
    """
    source = random.Random(traffic.seed)
    plans = traffic.lengths.draw(traffic.requests, traffic.seed + 1)
    arrive, clock = [], 0.0
    for _ in plans:
        clock += source.expovariate(traffic.arrivals_per_s)
        arrive.append(clock)
    state = _Replica(cache, pool_bytes, max_num_seqs, traffic, plans, arrive)
    state.run()
    return state.report()


class _Replica:
    """The event loop. Events: arrival (0), growth by a step (1), finish (2)."""

    def __init__(
        self, cache: Sizes, pool: int, slots: int, traffic: Traffic, plans: list[tuple[int, int]], arrive: list[float]
    ) -> None:
        self.cache, self.pool, self.slots, self.traffic, self.plans, self.arrive = (
            cache,
            pool,
            slots,
            traffic,
            plans,
            arrive,
        )
        self.sizes: dict[int, int] = {}
        self.block = cache.block_size
        self.events: list[tuple[float, int, int, int]] = [(t, 0, i, 0) for i, t in enumerate(arrive)]
        self.waiting: deque[int] = deque()
        self.running: dict[int, int] = {}
        self.epoch = [0] * len(plans)
        self.done_tokens = [0] * len(plans)
        self.used, self.now = 0, 0.0
        self.waited = [0.0] * len(plans)
        self.since = list(arrive)
        self.preempted: set[int] = set()
        self.refused = self.finished = self.backlog = 0
        self.time_at: dict[int, float] = {}
        self.byte_seconds = 0.0
        self.handled = 0

    def size(self, tokens: int) -> int:
        rounded = -(-tokens // self.block) * self.block
        found = self.sizes.get(rounded)
        if found is None:
            found = self.sizes[rounded] = self.cache.needed(1, rounded)
        return found

    def run(self) -> None:
        heapq.heapify(self.events)
        last_arrival = self.arrive[-1]
        while self.events:
            time, kind, who, epoch = heapq.heappop(self.events)
            self.handled += 1
            if kind and epoch != self.epoch[who]:
                continue
            # The tail after the last arrival is no longer the traffic that was asked for.
            if self.now < last_arrival:
                span = (time if time < last_arrival else last_arrival) - self.now
                count = len(self.running)
                self.time_at[count] = self.time_at.get(count, 0.0) + span
                self.byte_seconds += span * self.used
            self.now = time
            if kind == 0:
                if self.size(sum(self.plans[who])) > self.pool:
                    self.refused += 1
                else:
                    self.waiting.append(who)
            elif kind == 1:
                self.grow(who)
            else:
                self.used -= self.running.pop(who)
                self.finished += 1
            if self.waiting:
                self.admit()
            if kind == 0 and who == len(self.plans) - 1:
                self.backlog = len(self.waiting)

    def admit(self) -> None:
        spare = int(self.pool * WATERMARK)
        while self.waiting and len(self.running) < self.slots:
            who = self.waiting[0]
            prompt, output = self.plans[who]
            tokens = prompt + self.done_tokens[who]
            need = self.size(tokens + 1)
            if self.used + need + (spare if self.running else 0) > self.pool:
                return
            self.waiting.popleft()
            self.used += need
            self.running[who] = need
            self.waited[who] += self.now - self.since[who]
            fresh = max(tokens - self.traffic.cached_tokens, 1)
            start = self.now + fresh / self.traffic.prefill_tokens_per_s
            self.schedule(who, start, output)

    def schedule(self, who: int, start: float, output: int) -> None:
        epoch, done, tpot = self.epoch[who], self.done_tokens[who], self.traffic.tpot_s
        step = self.step(output)
        heapq.heappush(self.events, (start + (output - done) * tpot, 2, who, epoch))
        if done + step < output:
            heapq.heappush(self.events, (start + step * tpot, 1, who, epoch))

    def step(self, output: int) -> int:
        return max(self.block, -(-output // GROWTH_STEPS // self.block) * self.block)

    def grow(self, who: int) -> None:
        prompt, output = self.plans[who]
        step = self.step(output)
        self.done_tokens[who] += step
        held = self.running[who]
        need = self.size(min(prompt + self.done_tokens[who] + step, prompt + output))
        while self.used + need - held > self.pool:
            newest = next(reversed(self.running))
            self.evict(newest)
            if newest == who:
                return
        self.used += need - held
        self.running[who] = need
        if self.done_tokens[who] + step < output:
            heapq.heappush(self.events, (self.now + step * self.traffic.tpot_s, 1, who, self.epoch[who]))

    def evict(self, who: int) -> None:
        self.used -= self.running.pop(who)
        self.epoch[who] += 1
        self.preempted.add(who)
        self.since[who] = self.now
        self.waiting.appendleft(who)

    def report(self) -> Simulated:
        span = sum(self.time_at.values()) or 1.0
        ordered = sorted(self.time_at.items())
        waits = sorted(self.waited)

        def at(share: float) -> int:
            passed = 0.0
            for count, time in ordered:
                passed += time
                if passed >= share * span - 1e-12:
                    return count
            return ordered[-1][0] if ordered else 0

        return Simulated(
            running_mean=sum(count * time for count, time in ordered) / span,
            running_p50=at(0.5), running_p90=at(0.9), running_p99=at(0.99),
            waiting_p50_s=percentile(waits, 0.5), waiting_p90_s=percentile(waits, 0.9),
            waiting_p99_s=percentile(waits, 0.99), preempted_share=len(self.preempted) / len(self.plans),
            refused=self.refused, used_mean_bytes=self.byte_seconds / span, finished=self.finished,
            backlog=self.backlog, requests=len(self.plans), events=self.handled,
        )  # fmt: skip
