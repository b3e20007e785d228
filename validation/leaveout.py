"""What errors are out of sample: constants fitted once more without the release or the source they are judged on.

Of what vLLM's start is made, the weights, the cache's layout, the budget and the profiling buffers are counted from its
code; no start enters them, so that leaving a release out cannot change them. Read off starts are the memory outside the
allocator (a value for each kind of start), the captured graphs (a value for a layer of each) and one constant of the
layer peak, read off release 0.19 alone. ``leave_one_version_out`` fits the first two without a minor release and judges
them on it; the activation of every release but 0.19 is out of sample as it stands. ``leave_one_source_out`` does the
same with the shares of the peak that the speed assumes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import log
from statistics import median
from typing import Any

from calculator.errors import CalculatorError
from calculator.hardware import Gpu, find, resolve
from calculator.model.shape import ModelShape
from calculator.serving.bill import start
from calculator.serving.engines import vllm_rules as rules
from calculator.serving.engines.vllm_graphs import NONE, graphs
from calculator.serving.engines.vllm_settings import settings
from calculator.serving.overheads import context_term, is_linked
from calculator.serving.plan import ServingPlan
from calculator.serving.speed import FAST, SLOW, USUAL, Estimate, Point, Shares, Speed, point, speed
from calculator.serving.start import Start
from calculator.units import GIB
from validation.models import shape_of
from validation.outcome import UnpredictableError
from validation.plans import serving_plan
from validation.rows import Row
from validation.throughput import figure, measured, plan_of

NON_TORCH = "non_torch_bytes"
GRAPHS = "cuda_graph_bytes"
POOL = "kv_pool_bytes"
ALL = "all"
BANDWIDTHS = (0.58, 0.67, 0.76, 0.85, 0.94)
COMPUTES = (0.48, 0.56, 0.64, 0.72, 0.80)
LARGE_BYTES = 70 * GIB
"""Cards from this size on are a class of their own in the engine's table."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One start's value of one fitted term: measured, as predicted, and the kind of start it is, widest first.

    ``known`` bytes of it are not fitted here: the CUDA context, which some releases count with it."""

    id: str
    release: str
    key: str
    measured: int
    predicted: int
    kind: tuple[Any, ...]
    layer_graphs: int = 0
    known: int = 0
    pool: tuple[int, int] | None = None


def readings(rows: Sequence[Row]) -> list[Reading]:
    """The fitted terms of the vLLM starts that are scored on them."""
    return [reading for row in rows if row.kind == "serving" for reading in _readings(row.data)]


def _readings(case: Mapping[str, Any]) -> list[Reading]:
    wanted = [key for key in (NON_TORCH, GRAPHS) if key in (case.get("score") or ())]
    if case.get("engine") != "vllm" or not wanted:
        return []
    try:
        shape = shape_of(case.get("model"))
        plan = serving_plan(case, shape)
        gpu = resolve(plan.gpu, plan.gpu_capacity_bytes)
        begun, chosen = start(shape, plan, gpu), settings(shape, plan, gpu)
    except (UnpredictableError, CalculatorError):
        return []
    ranks = max(plan.tp, plan.ep, plan.tp * plan.dp)
    samples = plan.pp == 1 or plan.pp_rank == plan.pp - 1
    kind = (ranks > 1, _linked(gpu), chosen.runner, min(ranks, 3), gpu.total_bytes >= LARGE_BYTES, samples,
            chosen.version >= (0, 17, 0))  # fmt: skip
    given = case["measured"]
    release = ".".join(str(part) for part in chosen.version[:2])
    layers = range(shape.layers)
    taken = graphs(shape, layers, 0, chosen.version, chosen.runner, chosen.seqs) if plan.cuda_graphs else NONE
    counted = context_term(gpu).span.value if rules.context_in_budget(chosen.version, chosen.runner) else 0
    found = []
    for key in wanted:
        known = counted if key == NON_TORCH else 0
        pool = (given[POOL], begun.pool.value) if key == NON_TORCH and POOL in (case.get("score") or ()) else None
        predicted = (begun.non_torch if key == NON_TORCH else begun.cuda_graphs).span.value
        found.append(
            Reading(str(case["id"]), release, key, int(given[key]), predicted, kind, taken.layer_graphs, known, pool)
        )
    return found


def _linked(gpu: Gpu) -> bool:
    return gpu.total_bytes >= 60 * GIB if gpu.kind == "custom" else is_linked(gpu)


def refit_non_torch(judged: Reading, others: Sequence[Reading]) -> int | None:
    """The median of the starts of the same kind in other releases; where there are none, of the widest kind that has
    some: the table's classes are dropped one by one from the finest. None where no start has as many ranks."""
    for depth in range(len(judged.kind), 0, -1):
        alike = [other.measured - other.known for other in others if other.kind[:depth] == judged.kind[:depth]]
        if alike:
            return int(median(alike)) + judged.known
    return None


def refit_graphs(judged: Reading, others: Sequence[Reading]) -> int | None:
    """The median of what a layer of a graph takes in the other releases' starts."""
    known = [other.measured / other.layer_graphs for other in others if other.layer_graphs]
    return int(median(known) * judged.layer_graphs) if len(known) > 1 else None


_REFITS: Mapping[str, Callable[[Reading, Sequence[Reading]], int | None]] = {
    NON_TORCH: refit_non_torch, GRAPHS: refit_graphs
}  # fmt: skip


def leave_one_version_out(found: Sequence[Reading]) -> list[dict[str, Any]]:
    """For each minor release and fitted term: the error as shipped, and with the term fitted without that release.

    ``shipped_bytes`` and ``refit_bytes`` are median absolute differences in bytes; ``shipped_ape`` and ``refit_ape``
    those of the KV pool, as shares, with the term as shipped and as fitted without the release. A term that no other
    release can tell has no ``refit_bytes``. The entry of the release "all" holds every start, each judged without its
    own release.
    """
    table = []
    again = {
        (r.key, r.id): _REFITS[r.key](r, [o for o in found if o.key == r.key and o.release != r.release]) for r in found
    }
    for key, release in _parts(found):
        judged = [r for r in found if r.key == key and release in (r.release, ALL)]
        fitted = [(r, value) for r in judged if (value := again[key, r.id]) is not None]
        pools = [(r.pool[0], r.pool[1], r.pool[1] + r.predicted - value) for r, value in fitted if r.pool]
        table.append(
            {
                "value": release, "quantity": key, "n": len(judged), "refitted": len(fitted),
                "shipped_bytes": int(median(abs(r.predicted - r.measured) for r in judged)),
                "refit_bytes": int(median(abs(v - r.measured) for r, v in fitted)) if fitted else None,
                "pools": len(pools),
                "shipped_ape": median(abs(s - m) / m for m, s, _ in pools) if pools else None,
                "refit_ape": median(abs(a - m) / m for m, _, a in pools) if pools else None,
            }
        )  # fmt: skip
    return table


def _parts(found: Sequence[Reading]) -> list[tuple[str, str]]:
    """Each term with all its releases together, then with each, oldest first."""
    releases = {(r.key, tuple(int(part) for part in r.release.split("."))) for r in found}
    parts = []
    for key in sorted({r.key for r in found}):
        parts += [(key, ALL), *((key, ".".join(map(str, version))) for k, version in sorted(releases) if k == key)]
    return parts


# --------------------------------------------------------------------------------------------------------- speed


@dataclass(frozen=True, slots=True)
class Published:
    """One published speed, with everything that does not depend on the shares."""

    row: Row
    shape: ModelShape
    plan: ServingPlan
    begun: Start
    batch: int


def published(rows: Sequence[Row]) -> list[Published]:
    """The published speeds that can be predicted."""
    found = []
    for row in rows:
        if row.kind != "throughput":
            continue
        case = row.data
        try:
            plan, shape, gpu = plan_of(case), shape_of(case["model"]), find(case["gpu"])
            lengths = {"prompt_tokens": case["prompt"], "output_tokens": case["output"]}
            held = speed(shape, plan, gpu, **lengths, batch=case.get("batch"))
            found.append(Published(row, shape, plan, start(shape, plan, gpu), held.batch))
        except (UnpredictableError, CalculatorError, KeyError):
            continue
    return found


def _estimate(item: Published, three: tuple[Shares, Shares, Shares]) -> Estimate:
    """The figure under slow, usual and fast shares."""
    case = item.row.data
    lengths = (case["prompt"], case["output"], item.batch)
    slow, usual, fast = (
        point(item.shape, item.plan, find(case["gpu"]), item.begun, *lengths, shares) for shares in three
    )
    made = Speed(
        ttft_s=_span(fast, usual, slow, "ttft"), tpot_s=_span(fast, usual, slow, "step"),
        tokens_per_s=_span(slow, usual, fast, "rate"), batch=item.batch, bound=usual.bound,
    )  # fmt: skip
    return figure(made, case["figure"])


def _span(low: Point, value: Point, high: Point, name: str) -> Estimate:
    return Estimate(low=getattr(low, name), value=getattr(value, name), high=getattr(high, name))


def _scaled(shares: Shares, bandwidth: float, compute: float) -> Shares:
    """Shares moved by the ratio of new usual shares to the stated ones, so that the range keeps its width."""
    return shares.model_copy(
        update={
            "bandwidth": min(shares.bandwidth * bandwidth / USUAL.bandwidth, 1.0),
            "compute": min(shares.compute * compute / USUAL.compute, 1.0),
        }
    )


def leave_one_source_out(items: Sequence[Published]) -> list[dict[str, Any]]:
    """For each publication: its figures' median error and share in range with the stated shares of the peak, and with
    shares fitted on all other publications (median absolute log error, by search over a grid)."""
    grid = [(bandwidth, compute) for bandwidth in BANDWIDTHS for compute in COMPUTES]

    @cache
    def misses(place: int) -> tuple[float, ...]:
        """The log error of a figure at each point of the grid."""
        item = items[place]
        told = measured(item.row.data)
        return tuple(abs(log(_estimate(item, (_scaled(USUAL, *shares),) * 3).value / told)) for shares in grid)

    table = []
    for source in dict.fromkeys(str(item.row.data.get("publication")) for item in items):
        own = [item for item in items if item.row.data.get("publication") == source]
        rest = [place for place, item in enumerate(items) if item.row.data.get("publication") != source]
        if not rest:
            continue
        fitted = min(range(len(grid)), key=lambda at: median(misses(place)[at] for place in rest))
        shares = (_scaled(SLOW, *grid[fitted]), _scaled(USUAL, *grid[fitted]), _scaled(FAST, *grid[fitted]))
        shipped = [_judged(item, (SLOW, USUAL, FAST)) for item in own]
        again = [_judged(item, shares) for item in own]
        table.append(
            {
                "value": source, "n": len(own), "bandwidth": grid[fitted][0], "compute": grid[fitted][1],
                "shipped_ape": median(error for error, _ in shipped),
                "shipped_in_range": sum(inside for _, inside in shipped) / len(own),
                "refit_ape": median(error for error, _ in again),
                "refit_in_range": sum(inside for _, inside in again) / len(own),
            }
        )  # fmt: skip
    return table


def _judged(item: Published, three: tuple[Shares, Shares, Shares]) -> tuple[float, bool]:
    """Absolute error of the middle, and whether the range holds the published figure."""
    found, told = _estimate(item, three), measured(item.row.data)
    return abs(found.value / told - 1), found.low <= told <= found.high


def add(report: dict[str, Any], rows: Sequence[Row]) -> None:
    """Both tables into a report, under their kinds of case."""
    kinds = report["kinds"]
    if "serving" in kinds:
        kinds["serving"]["leave_one_version_out"] = leave_one_version_out(readings(rows))
    if "throughput" in kinds:
        kinds["throughput"]["leave_one_source_out"] = leave_one_source_out(published(rows))
