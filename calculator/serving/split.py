"""How a model is divided over the GPUs of a replica, and which divisions are possible."""

from __future__ import annotations

from dataclasses import dataclass

from calculator.errors import PlanError
from calculator.model.shape import Attention, DenseMlp, LatentAttention, ModelShape, MoeMlp
from calculator.serving.plan import ServingPlan


@dataclass(frozen=True, slots=True)
class Split:
    """Degrees of parallelism: tensors, pipeline stages, replicas of the attention part, whole experts, ranks that share
    one sequence's cache. ``attention_tp`` divides attention where that differs from ``tp`` (data-parallel attention
    inside one tensor-parallel group; 0: the same)."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    dcp: int = 1
    attention_tp: int = 0

    @property
    def heads_tp(self) -> int:
        """Ranks that share the attention heads."""
        return self.attention_tp or self.tp

    @property
    def expert_ranks(self) -> int:
        """GPUs over which the experts of one layer are spread, by whole experts or by width."""
        return self.ep if self.ep > 1 else self.tp * self.dp

    @property
    def width_ranks(self) -> int:
        """GPUs over which one expert's width is spread."""
        return 1 if self.ep > 1 else self.tp * self.dp


def split_of(plan: ServingPlan, shape: ModelShape) -> Split:
    """The plan's division, checked.

    Without experts data parallelism makes whole replicas, so ``dp`` divides nothing. Raises ``PlanError`` naming the
    degree at fault: heads or widths that do not divide, more pipeline stages than layers, more ranks than GPUs.
    """
    moe = any(block.mixture for block in shape.blocks)
    inside = plan.engine == "sglang" and plan.dp_attention
    if inside and plan.tp % plan.dp:
        raise PlanError("serving.dp_attention", field="dp", dp=plan.dp, tp=plan.tp)
    split = Split(
        tp=plan.tp, pp=plan.pp, dp=plan.dp if moe and not inside else 1, ep=plan.ep if moe else 1, dcp=plan.dcp,
        attention_tp=plan.tp // plan.dp if inside else 0,
    )  # fmt: skip
    ranks = plan.tp * plan.pp * (1 if inside else plan.dp)
    if ranks > plan.n_gpus:
        raise PlanError("serving.too_few_gpus", field="n_gpus", gpus_count=plan.n_gpus, ranks_count=ranks)
    if split.pp > shape.layers:
        raise PlanError("serving.pp_layers", field="pp", pp=split.pp, layers_count=shape.layers)
    if split.tp % split.dcp:
        raise PlanError("serving.dcp_tp", field="dcp", dcp=split.dcp, tp=split.tp)
    if moe and split.ep > 1:
        _check_experts(shape, split)
    check_layers(shape, split)
    return split


def check_layers(shape: ModelShape, split: Split) -> None:
    """Raises ``PlanError`` where heads or widths of a layer cannot be divided among the ranks."""
    if split.tp > 1:
        for index in set(shape.order):
            _check_block(shape, index, split)


def _check_experts(shape: ModelShape, split: Split) -> None:
    experts = max(block.mixture.experts for block in shape.blocks if block.mixture)
    if split.ep > experts:
        raise PlanError("serving.ep_experts", field="ep", ep=split.ep, experts_count=experts)
    if split.ep != split.tp * split.dp:
        raise PlanError("serving.ep_ranks", field="ep", ep=split.ep, ranks_count=split.tp * split.dp)


def _check_block(shape: ModelShape, index: int, split: Split) -> None:
    block, tp = shape.blocks[index], split.heads_tp
    for mixer in block.mixers:
        if not isinstance(mixer, Attention | LatentAttention):
            continue
        if mixer.heads % tp:
            raise PlanError("serving.tp_heads", field="tp", tp=tp, heads_count=mixer.heads, legal=_legal(mixer.heads))
        if isinstance(mixer, Attention) and mixer.kv_heads % tp and tp % mixer.kv_heads:
            heads, legal = mixer.kv_heads, _legal(mixer.heads)
            raise PlanError("serving.tp_kv_heads", field="tp", tp=tp, heads_count=heads, legal=legal)
    for mlp in block.mlps:
        tp, width = split.tp, mlp.width if isinstance(mlp, DenseMlp) else 0
        if isinstance(mlp, MoeMlp) and split.ep == 1:
            tp, width = split.width_ranks, mlp.width
        if width % tp:
            raise PlanError("serving.tp_width", field="tp", tp=tp, width_count=width, legal=_legal(width))


def _legal(number: int) -> str:
    """The usual degrees that divide ``number``."""
    return ", ".join(str(degree) for degree in (1, 2, 4, 8, 16, 32, 64) if number % degree == 0)


def stages(layers: int, pp: int, partition: tuple[int, ...] | None = None) -> tuple[range, ...]:
    """The layers of each pipeline stage: even shares, the remainder from the second-to-last stage backwards, or the
    plan's own ``partition``.

    Source: vLLM, vllm/distributed/utils.py (0.19.1). Raises ``PlanError`` ("serving.pp_partition").
    """
    counts = [layers // pp] * pp
    for extra in range(layers % pp):
        counts[-(extra + 2) if pp > 1 else 0] += 1
    if partition is not None:
        if len(partition) != pp or sum(partition) != layers or min(partition) < 1:
            raise PlanError("serving.pp_partition", field="pp_layer_partition", pp=pp, layers_count=layers)
        counts = list(partition)
    ends = [sum(counts[: i + 1]) for i in range(pp)]
    return tuple(range(end - count, end) for end, count in zip(ends, counts, strict=True))


def ceil_div(number: int, by: int) -> int:
    return -(-number // by)


def round_up(number: int, multiple: int) -> int:
    return ceil_div(number, multiple) * multiple


def kv_heads_per_rank(kv_heads: int, tp: int) -> int:
    """KV heads that one rank caches: a head is copied where there are more ranks than heads."""
    return max(1, kv_heads // tp)
