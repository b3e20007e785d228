"""LoRA adapters that a server holds on the card beside the model: slots made at the start, or adapters as loaded.

One adapter of rank r takes r x (in + out) of every matrix that it adapts, in 16 bit. Of a divided matrix one side is
divided with it: the outputs of column-parallel matrices, the inputs of row-parallel ones; the other half stands whole
on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from calculator.model.shape import ModelShape, MoeMlp, Tensor
from calculator.serving.plan import ServingPlan
from calculator.serving.split import Split, ceil_div, kv_heads_per_rank, round_up
from calculator.serving.start import Rows, Span, Term
from calculator.sources import Source
from calculator.text import text

SOURCES = {
    "vllm": Source(
        title="vLLM source, vllm/lora/layers: stacked A and B of every linear layer, embedding and head",
        url="https://github.com/vllm-project/vllm/tree/main/vllm/lora/layers", checked_on="2026-11-29",
        versions="0.4 to 0.33",
    ),
    "sglang": Source(
        title="SGLang source, python/sglang/srt/lora/mem_pool.py: A [slots, parts x rank, in], B [slots, out, rank]",
        url="https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/lora/mem_pool.py",
        checked_on="2026-11-29", versions="0.4 to 0.5.23",
    ),
    "tensorrt_llm": Source(
        title="TensorRT-LLM source, tensorrt_llm/_torch/pyexecutor/_util.py: slots of the widest module, rank x "
        "layers x modules x adapters",
        url="https://github.com/NVIDIA/TensorRT-LLM/blob/main/tensorrt_llm/_torch/pyexecutor/_util.py",
        checked_on="2026-11-29", versions="0.18 to 1.2",
    ),
    "lmdeploy": Source(
        title="LMDeploy source, lmdeploy/pytorch/nn/linear/lora.py: A [sum of ranks, in], B [sum of ranks, out]",
        url="https://github.com/InternLM/lmdeploy/blob/main/lmdeploy/pytorch/nn/linear/lora.py",
        checked_on="2026-11-29",
    ),
    "tgi": Source(
        title="TGI source, server/text_generation_server/adapters/lora.py: every adapter's A and B by "
        "layer, both divided among the shards",
        url="https://github.com/huggingface/text-generation-inference/blob/main/server/text_generation_server/adapters/"
        "lora.py", checked_on="2026-11-29",
    ),
    "llama_cpp": Source(
        title="llama.cpp source, src/llama-adapter.cpp: an adapter's tensors stand where their matrix stands",
        url="https://github.com/ggml-org/llama.cpp/blob/master/src/llama-adapter.cpp", checked_on="2026-11-29",
    ),
    "transformers": Source(
        title="PEFT source, peft/tuners/lora/layer.py: A and B of each adapter beside the matrix",
        url="https://github.com/huggingface/peft/blob/main/src/peft/tuners/lora/layer.py", checked_on="2026-11-29",
    ),
}  # fmt: skip
SOURCES["ollama"] = SOURCES["llama_cpp"]


@dataclass(frozen=True, slots=True)
class Adapted:
    """Which matrices an engine adapts, and how. ``experts``: those of routed experts too; ``ends``: embedding and head,
    with ``extra`` rows for added tokens; ``sharded``: both halves of a pair are divided among tensor-parallel ranks,
    one of them along its rank."""

    experts: bool = True
    ends: bool = False
    extra: int = 0
    sharded: bool = False


def elements(shape: ModelShape, layers: Sequence[int], split: Split, adapted: Adapted) -> float:
    """Elements of one adapter of rank 1 on one rank: the sum of in and out over the adapted matrices."""
    per_block: dict[int, float] = {}
    for index in {shape.order[layer] for layer in layers}:
        block = shape.blocks[index]
        kv_heads = block.kv_heads
        per_block[index] = sum(
            _sides(t, shape, block.mixture, split, kv_heads)
            for t in block.tensors
            if t.kind == "linear" and len(t.shape) == 2 and (adapted.experts or t.component != "experts")
        )
    total = sum(per_block[shape.order[layer]] for layer in layers)
    if adapted.ends:
        # Embedding and head stand on the first and the last stage, their adapters whole on every rank.
        rows = round_up(shape.vocab + adapted.extra, 64) + shape.hidden
        total += rows * ((0 in layers) + (shape.layers - 1 in layers))
    return total


def _sides(tensor: Tensor, shape: ModelShape, mixture: MoeMlp | None, split: Split, kv_heads: int) -> float:
    """Inputs and outputs of a matrix, and of all its copies, as one rank holds them."""
    inside, outside = tensor.in_features, tensor.out_features
    if tensor.component == "experts" and mixture is not None:
        held = tensor.copies * ceil_div(mixture.experts, split.ep) / mixture.experts
        hidden = mixture.latent or shape.hidden
        halves = 2 if outside == 2 * mixture.width else 1
        return held * halves * (hidden + mixture.width / split.width_ranks)
    tp = split.heads_tp if tensor.component in ("attention", "ssm") else split.width_tp
    if tensor.split == "kv":
        return tensor.copies * (inside + outside * kv_heads_per_rank(kv_heads, tp) / max(kv_heads, 1))
    return tensor.copies * (
        inside / (tp if tensor.split == "row" else 1) + outside / (tp if tensor.split in ("column", "vocab") else 1)
    )


def adapter_rows(
    shape: ModelShape, layers: Sequence[int], split: Split, plan: ServingPlan, adapted: Adapted = Adapted()
) -> Rows:
    """The bill's line of the plan's adapters; none without."""
    if not plan.max_loras:
        return ()
    if adapted.sharded:
        most = elements(shape, layers, Split(), adapted) / split.tp
    else:
        most = elements(shape, layers, split, adapted)
    each = int(2 * plan.max_lora_rank * most)
    return _row(plan, Span.exact(plan.max_loras * each), each)


def widest_rows(shape: ModelShape, layers: Sequence[int], split: Split, plan: ServingPlan) -> Rows:
    """TensorRT-LLM's cache of adapters: a slot for every rank, layer and module, as wide as the widest module. Low:
    with the attention's three inputs as the only modules."""
    if not plan.max_loras:
        return ()
    modules, widest = 0, 0.0
    for layer in layers[:1]:
        block = shape.blocks[shape.order[layer]]
        heads = block.kv_heads
        for t in block.tensors:
            if t.kind == "linear" and len(t.shape) == 2 and t.component != "experts":
                modules += t.copies
                widest = max(widest, _sides(t, shape, None, split, heads) / t.copies)
    each = int(2 * plan.max_lora_rank * len(layers) * modules * widest)
    span = Span(
        plan.max_loras * each, plan.max_loras * each * min(3, modules) // max(modules, 1), plan.max_loras * each
    )
    return _row(plan, span, each)


def _row(plan: ServingPlan, span: Span, each: int) -> Rows:
    formula = text("serving.item.lora", slots_count=plan.max_loras, rank=plan.max_lora_rank, adapter_bytes=each)
    return (("lora", Term(span, formula, "computed", SOURCES[plan.engine])),)
