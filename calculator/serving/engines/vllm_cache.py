"""vLLM's cache: equal groups of layers that share one pool of blocks.

Layers are bucketed by what they cache. Every bucket is cut into groups of g layers, and one block of the pool serves
one group: it is g pages long, a page being one layer's share of a block. A request needs blocks of every group, so the
needs of the groups are added. Source: vllm/v1/core/kv_cache_utils.py and vllm/v1/kv_cache_interface.py, from 0.33
vllm/v1/core/kv_cache_planning.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from calculator.errors import PlanError
from calculator.serving.cache import Spec
from calculator.serving.split import ceil_div
from calculator.serving.versions import Version

LONGEST = 2**31


@dataclass(frozen=True, slots=True)
class Group:
    """``count`` groups of g layers of one kind, whose blocks hold ``block`` tokens."""

    kind: str
    count: int
    block: int
    window: int = 0


@dataclass(frozen=True, slots=True)
class VllmCache:
    """``block_bytes`` is a pool block: a page of every layer of one group.

    ``in_flight`` are the tokens of a step that a window must hold beside the window itself; ``state_pages`` pages of
    a state that a request holds (None: one for every block of its length). ``line`` says how the printed token count
    is made: "groups" divides blocks among the groups, "requests" multiplies concurrency and length.
    """

    block_bytes: int
    groups: tuple[Group, ...]
    block_size: int
    bytes_per_token: int
    state_bytes_per_sequence: int
    in_flight: int
    state_pages: int | None
    line: str
    dcp: int = 1

    def blocks(self, pool_bytes: int) -> int:
        return max(pool_bytes, 0) // self.block_bytes if self.block_bytes else 0

    def request_blocks(self, context: int) -> int:
        """Blocks that one request of ``context`` tokens needs, over all groups."""
        length = ceil_div(context, self.dcp)
        total = 0
        for group in self.groups:
            if group.kind == "state":
                each = self.state_pages if self.state_pages is not None else ceil_div(length, group.block)
            elif group.kind in ("window", "chunk"):
                seen = group.window - 1 if group.kind == "window" else group.window
                reach = min(seen + self.in_flight, length)
                each = ceil_div(reach, group.block) + (1 if group.kind == "window" else 0)
            else:
                each = ceil_div(length, group.block)
            total += group.count * each
        return total

    def tokens(self, pool_bytes: int, max_model_len: int) -> int:
        if self.line == "requests" and len(self.groups) > 1:
            return int(self.concurrency(pool_bytes, max_model_len) * max_model_len)
        return self.blocks(pool_bytes) // sum(group.count for group in self.groups) * self.block_size * self.dcp

    def concurrency(self, pool_bytes: int, context: int) -> float:
        need = self.request_blocks(context)
        return self.blocks(pool_bytes) / need if need and self.block_bytes else float(LONGEST)

    def needed(self, requests: int, context: int) -> int:
        return requests * self.request_blocks(context) * self.block_bytes

    def shared_bytes(self, prefix_tokens: int) -> int:
        """Whole blocks of the full groups; windows and states are not shared."""
        length = prefix_tokens // self.dcp
        return self.block_bytes * sum(g.count * (length // g.block) for g in self.groups if g.kind == "full")

    def longest(self, pool_bytes: int) -> int:
        if not self.block_bytes:
            return LONGEST
        blocks, low, high = self.blocks(pool_bytes), 0, LONGEST
        while low < high:
            middle = (low + high + 1) // 2
            if self.request_blocks(middle) <= blocks:
                low = middle
            else:
                high = middle - 1
        return low


@dataclass(frozen=True, slots=True)
class CacheRules:
    """What differs by release.

    ``window_credit``: windows have groups of their own (from 0.9); ``group_slack``: the bucket size that still counts
    as equal to the smallest (0: never); ``unify_pages``: unequal pages are made equal by larger blocks (0.12);
    ``line`` as in ``VllmCache``.
    """

    window_credit: bool
    group_slack: float
    unify_pages: bool
    line: str


def cache_rules(version: Version, runner: str, *, hybrid: bool = True) -> CacheRules:
    """Rules of a release; ranges as read in the releases named in the module's sources. ``hybrid`` False: the manager
    of unlike groups is off, so windows are charged as full attention."""
    slack = 1.5 if version >= (0, 18, 0) else 1.25 if version >= (0, 12, 0) else 0.0
    return CacheRules(
        window_credit=hybrid and runner != "v0" and version >= (0, 9, 0),
        group_slack=slack,
        unify_pages=version >= (0, 12, 0),
        line="requests" if version >= (0, 21, 0) else "groups",
    )


def lay_out(
    specs: Mapping[Spec, int],
    rules: CacheRules,
    *,
    block: int,
    in_flight: int,
    state_pages: int | None,
    state_alignment: int,
    dcp: int = 1,
) -> VllmCache:
    """Cut the layers of one rank into groups.

    ``specs`` counts layers by what they cache; ``block`` is the block size in tokens, ``state_alignment`` the multiple
    to which a block is enlarged so that its page holds a state. Raises ``PlanError`` ("serving.unequal_pages") where
    the release takes no windows and full layers of different size.
    """
    attention = {spec: n for spec, n in specs.items() if spec.kind != "state"}
    states = {spec: n for spec, n in specs.items() if spec.kind == "state"}
    if not rules.window_credit:
        attention = _without_windows(attention)
    token_bytes = ceil_div(sum(spec.token_bytes * n for spec, n in attention.items()), dcp)
    state_bytes = sum(spec.state_bytes * n for spec, n in states.items())
    kinds = {spec.kind for spec in attention}
    if not states and (len(attention) <= 1 or kinds <= {"full"}):
        page = block * sum(spec.token_bytes * n for spec, n in attention.items())
        only = next(iter(attention), Spec("full"))
        groups = [Group(only.kind, 1, block, only.window)]
        return VllmCache(page, tuple(groups), block, token_bytes, state_bytes, in_flight, state_pages, rules.line, dcp)
    if not rules.unify_pages and not states and len({spec.token_bytes for spec in attention}) > 1:
        raise PlanError("serving.unequal_pages", field="engine_version")
    if states and attention:
        largest_state = max(spec.state_bytes for spec in states)
        smallest = min(spec.token_bytes for spec in attention)
        block = max(block, state_alignment * ceil_div(largest_state, state_alignment * smallest))
    page = max([spec.token_bytes * block for spec in attention] + [spec.state_bytes for spec in states], default=0)
    size = group_size([*attention.values(), *states.values()], rules.group_slack)
    groups = [
        Group(spec.kind, ceil_div(n, size), _block_of(spec, page, block), spec.window)
        for spec, n in attention.items()
    ]  # fmt: skip
    groups += [Group("state", ceil_div(n, size), block) for n in states.values()]
    return VllmCache(
        page * size, tuple(groups), block, token_bytes, state_bytes, in_flight, state_pages, rules.line, dcp
    )


def group_size(counts: list[int], slack: float) -> int:
    """Layers of a group: the smallest bucket, or the largest where it is less than ``slack`` times the smallest."""
    smallest, largest = min(counts), max(counts)
    return largest if largest < slack * smallest else smallest


def _block_of(spec: Spec, page: int, block: int) -> int:
    """Tokens of a block of ``page`` bytes a layer: a smaller token gets a larger block, in whole multiples."""
    return block * max(1, page // (spec.token_bytes * block))


def _without_windows(attention: Mapping[Spec, int]) -> dict[Spec, int]:
    """Releases without groups keep every layer whole; a model of windows alone keeps its window."""
    if len({spec.kind for spec in attention}) == 1:
        return dict(attention)
    found: dict[Spec, int] = {}
    for spec, n in attention.items():
        full = Spec("full", spec.token_bytes)
        found[full] = found.get(full, 0) + n
    return found
