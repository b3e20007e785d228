"""How a model is divided over the GPUs of a replica, and which divisions are possible.

What an engine makes of the same degrees differs. vLLM spreads a layer's experts over all replicas; the others start
whole replicas, or divide attention alone among the ranks of one (``dp_attention``).
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from calculator.errors import PlanError
from calculator.model.shape import Attention, DenseMlp, LatentAttention, ModelShape, MoeMlp
from calculator.serving.plan import ServingPlan
from calculator.sources import Source


def _source(title: str, url: str, versions: str) -> Source:
    return Source(title=title, url=url, checked_on="2026-11-30", versions=versions)


DIVISION_SOURCES = MappingProxyType(
    {
        "vllm": _source(
            "vLLM: experts are spread over tensor times data parallel ranks (vllm/model_executor/layers/fused_moe), "
            "expert parallelism needs experts, decode context parallelism copied KV heads (verify_with_parallel_config "
            "in vllm/config/model.py) and no sliding windows (vllm/v1/kv_cache_interface.py)",
            "https://github.com/vllm-project/vllm/tree/main/vllm/config", "0.11 to 0.33",
        ),
        "sglang": _source(
            "SGLang: whole replicas (launch_dp_schedulers in managers/data_parallel_controller.py) or attention's "
            "alone inside the tensor-parallel group (layers/dp_attention.py); tp % ep == 0 "
            "(model_executor/model_runner.py) and whole experts a rank (eplb/expert_location.py)",
            "https://github.com/sgl-project/sglang/tree/main/python/sglang/srt", "0.4.8 to 0.5.23",
        ),
        "tensorrt_llm": _source(
            "TensorRT-LLM: moe_tp_size x moe_ep_size = tp_size (tensorrt_llm/mapping.py), as many experts on every "
            "rank (_torch/modules/fused_moe/interface.py); with enable_attention_dp "
            "attention, dense MLPs, shared experts, embedding and head are whole on every rank "
            "(_torch/models/modeling_deepseekv3.py, modeling_utils.py)",
            "https://github.com/NVIDIA/TensorRT-LLM/tree/main/tensorrt_llm", "1.0 to 1.2",
        ),
        "lmdeploy": _source(
            "LMDeploy: dp x tp devices are whole replicas (outer_dp_size in lmdeploy/turbomind/turbomind.py), experts "
            "take the whole world (DistConfig in lmdeploy/pytorch/config.py); neither engine has pipeline stages",
            "https://github.com/InternLM/lmdeploy", "0.7 to 0.10",
        ),
        "tgi": _source(
            "Text Generation Inference: --num-shard is the only degree of parallelism (launcher/src/main.rs)",
            "https://github.com/huggingface/text-generation-inference", "2.0 to 3.3.7",
        ),
    }
)  # fmt: skip
"""Where each engine's rules stand."""

WITHOUT_STAGES = ("lmdeploy", "tgi")
"""Engines that cannot put layers on different cards."""
ATTENTION_REPLICAS = ("sglang", "tensorrt_llm")
"""Engines that ``dp_attention`` tells to divide attention alone among the ranks of one tensor-parallel group."""


BY_CARD = ("transformers", "llama_cpp", "ollama")
"""Engines of one process that puts whole layers on the cards: as many stages as cards, whatever a plan calls them."""


@dataclass(frozen=True, slots=True)
class Split:
    """Degrees of parallelism inside what holds the model once: tensors, pipeline stages, replicas of all but the
    experts, whole experts, ranks that share one sequence's cache. ``attention_tp`` divides attention and embedding,
    ``dense_tp`` the MLPs, shared experts and head, where they differ from ``tp`` (0: the same)."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    dcp: int = 1
    attention_tp: int = 0
    dense_tp: int = 0

    @property
    def heads_tp(self) -> int:
        """Ranks that share the attention heads."""
        return self.attention_tp or self.tp

    @property
    def width_tp(self) -> int:
        """Ranks that share a dense MLP's width."""
        return self.dense_tp or self.tp

    @property
    def width_ranks(self) -> int:
        """GPUs over which one expert's width is spread."""
        return self.tp * self.dp // self.ep

    def expert_share(self, experts: int) -> float:
        """The part of a layer's ``experts`` on the rank that holds the most: whole experts by ``ep``, each by its width
        among the ranks that are left. Experts that do not divide give the first ranks one more (determine_expert_map in
        vllm/model_executor/layers/fused_moe/layer.py)."""
        held = ceil_div(experts, self.ep) / experts if experts else 1 / self.ep
        return held / self.width_ranks


def attention_apart(plan: ServingPlan) -> bool:
    """Whether the plan's replicas are of attention alone, inside one tensor-parallel group. SGLang takes the setting
    back where there is one replica (_handle_data_parallelism in server_args.py)."""
    if not plan.dp_attention or plan.engine not in ATTENTION_REPLICAS:
        return False
    return (plan.dp if plan.engine == "sglang" else plan.tp) > 1


def experts_over_replicas(plan: ServingPlan, shape: ModelShape) -> bool:
    """Whether the replicas of a plan hold one set of experts together."""
    return plan.engine == "vllm" and any(block.mixture for block in shape.blocks)


def replicas_of(plan: ServingPlan) -> int:
    """How many caches requests are spread over. TensorRT-LLM's attention replicas are as many as its ranks;
    engines of one process have none."""
    if plan.engine in BY_CARD:
        return 1
    return plan.tp if plan.engine == "tensorrt_llm" and attention_apart(plan) else plan.dp


def ranks_of(plan: ServingPlan) -> int:
    """GPUs that the plan's degrees take."""
    return plan.tp * plan.pp * (1 if attention_apart(plan) else plan.dp)


def split_of(plan: ServingPlan, shape: ModelShape) -> Split:
    """The plan's division, checked (DIVISION_SOURCES).

    Data parallelism makes whole replicas, so ``dp`` divides nothing, except of a model with experts on vLLM. Raises
    ``PlanError`` naming the degree at fault: heads or widths that do not divide, more pipeline stages than layers,
    stages, experts or a shared cache where there are none, more ranks than GPUs.
    """
    if plan.pp > 1 and plan.engine in WITHOUT_STAGES:
        raise PlanError("serving.no_pp", field="pp", engine=plan.engine)
    ep = plan.ep if plan.engine != "tgi" else 1
    if ep > 1 and not any(block.mixture for block in shape.blocks):
        raise PlanError("serving.ep_dense", field="ep", ep=ep)
    split = Split(
        tp=plan.tp, pp=plan.pp, dp=plan.dp if experts_over_replicas(plan, shape) else 1, ep=ep,
        dcp=plan.dcp if plan.engine == "vllm" else 1, **_attention(plan),
    )  # fmt: skip
    ranks = ranks_of(plan)
    if ranks > plan.n_gpus:
        raise PlanError("serving.too_few_gpus", field="n_gpus", gpus_count=plan.n_gpus, ranks_count=ranks)
    if split.pp > shape.layers:
        raise PlanError("serving.pp_layers", field="pp", pp=split.pp, layers_count=shape.layers)
    if split.dcp > 1:
        _check_shared_cache(plan, shape)
    if split.ep > 1:
        _check_experts(plan, shape, split)
    check_layers(shape, split)
    return split


def _attention(plan: ServingPlan) -> dict[str, int]:
    """The degrees that replicas of attention have of their own."""
    if not attention_apart(plan):
        return {}
    if plan.engine == "tensorrt_llm":
        if plan.dp not in (1, plan.tp):
            raise PlanError("serving.dp_attention_ranks", field="dp", dp=plan.dp, tp=plan.tp)
        return {"attention_tp": 1, "dense_tp": 1}
    if plan.tp % plan.dp:
        raise PlanError("serving.dp_attention", field="dp", dp=plan.dp, tp=plan.tp)
    return {"attention_tp": plan.tp // plan.dp}


def check_layers(shape: ModelShape, split: Split) -> None:
    """Raises ``PlanError`` where heads or widths of a layer cannot be divided among the ranks."""
    if split.tp * split.dp > 1:
        for index in set(shape.order):
            _check_block(shape, index, split)


def _check_experts(plan: ServingPlan, shape: ModelShape, split: Split) -> None:
    """SGLang and TensorRT-LLM cut the experts' widths where there are more ranks than groups of whole experts; vLLM and
    LMDeploy put whole experts on all ranks or on none."""
    experts = max(block.mixture.experts for block in shape.blocks if block.mixture)
    ranks = split.tp * split.dp
    if plan.engine in ATTENTION_REPLICAS:
        if ranks % split.ep:
            raise PlanError("serving.ep_tp", field="ep", ep=split.ep, tp=split.tp)
    elif split.ep != ranks:
        raise PlanError("serving.ep_ranks", field="ep", ep=split.ep, ranks_count=ranks)
    if split.ep > experts or (plan.engine in ATTENTION_REPLICAS and experts % split.ep):
        raise PlanError("serving.ep_experts", field="ep", ep=split.ep, experts_count=experts)


def _check_shared_cache(plan: ServingPlan, shape: ModelShape) -> None:
    """vLLM shares a sequence's cache only among ranks that would hold copies of it: MLA's among all, KV heads among
    the ranks that have the same one."""
    tp, dcp = plan.tp, plan.dcp
    if tp % dcp:
        raise PlanError("serving.dcp_tp", field="dcp", dcp=dcp, tp=tp)
    whole = plan.mla is not None and not plan.mla
    for mixer in (mixer for block in shape.blocks for mixer in block.mixers):
        if isinstance(mixer, Attention):
            heads = mixer.kv_heads
        elif isinstance(mixer, LatentAttention) and whole:
            heads = mixer.heads
        else:
            continue
        if isinstance(mixer, Attention) and mixer.compress:
            continue
        legal = [n for n in range(1, tp + 1) if tp % n == 0 and n <= tp // heads and mixer.heads // heads % n == 0]
        if dcp not in legal:
            sizes = ", ".join(str(n) for n in legal) or "1"
            raise PlanError("serving.dcp_kv_heads", field="dcp", dcp=dcp, tp=tp, heads_count=heads, legal=sizes)
        if isinstance(mixer, Attention) and (mixer.window or mixer.chunk) and plan.hybrid_kv_cache_manager is not False:
            raise PlanError("serving.dcp_window", field="dcp", dcp=dcp)


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
        tp, width = split.width_tp, mlp.width if isinstance(mlp, DenseMlp) else 0
        if isinstance(mlp, MoeMlp):
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
