"""Weight bytes of each rank: what tensor, expert and pipeline parallelism leave on one GPU."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from threading import Lock

from calculator.model.shape import ModelShape, Tensor
from calculator.serving.split import Split, kv_heads_per_rank, round_up, stages

VOCAB_PADDING = 64
"""Rows to which vLLM rounds embedding and head before dividing them (vllm/model_executor/layers/
vocab_parallel_embedding.py)."""

_WITH_ATTENTION = ("attention", "ssm", "embedding")
"""Components that are divided like attention where that has replicas of its own (SGLang's VocabParallelEmbedding with
``use_attn_tp_group``, python/sglang/srt/layers/vocab_parallel_embedding.py)."""

Bytes = Callable[[Tensor, int | None], float]
"""Stored bytes of a whole tensor, given its layer (None outside the layers)."""


@dataclass(frozen=True, slots=True)
class RankWeights:
    """Weight bytes of one GPU of every pipeline stage, and the layers of each stage."""

    stages: tuple[int, ...]
    layers: tuple[range, ...]

    @property
    def largest(self) -> int:
        return max(self.stages)


def share(tensor: Tensor, split: Split, kv_heads: int, vocab_padding: int = VOCAB_PADDING, experts: int = 0) -> float:
    """The part of a tensor that the fullest rank holds.

    Heads, widths and vocabulary rows are divided by the tensor-parallel degree of their part of the model, KV
    projections in whole heads, experts by the ranks that share them; norms, routers and latent projections are held
    whole.
    """
    tp = split.heads_tp if tensor.component in _WITH_ATTENTION else split.width_tp
    if tensor.split == "expert" or tensor.component == "experts":
        return split.expert_share(experts)
    if tensor.split in ("column", "row"):
        return 1 / tp
    if tensor.split == "kv":
        return kv_heads_per_rank(kv_heads, tp) / kv_heads if kv_heads else 1.0
    if tensor.split == "vocab":
        rows = tensor.shape[0]
        padded = round_up(rows, vocab_padding)
        if padded % tp:
            padded = round_up(rows, vocab_padding * tp)
        return padded / tp / rows
    return 1.0


def rank_weights(
    shape: ModelShape,
    split: Split,
    size: Bytes,
    *,
    by_layer: bool,
    padding: int,
    mtp: bool = False,
    partition: tuple[int, ...] | None = None,
) -> RankWeights:
    """Bytes of each stage. ``by_layer``: layers of one kind may be stored in different formats, so each is asked for;
    otherwise one of a kind stands for all. ``mtp`` loads the multi-token-prediction layers on the last stage;
    ``partition`` replaces the engine's own distribution of layers."""
    kinds: dict[int, float] = {}

    def layer(number: int) -> float:
        index = shape.order[number]
        if not by_layer and index in kinds:
            return kinds[index]
        block = shape.blocks[index]
        experts = block.mixture.experts if block.mixture else 0
        total = sum(size(t, number) * share(t, split, block.kv_heads, padding, experts) for t in block.tensors)
        kinds[index] = total
        return total

    def outside(tensors: Iterable[Tensor]) -> float:
        return sum(size(t, None) * share(t, split, 0, padding) for t in tensors)

    spans = stages(shape.layers, split.pp, partition)
    towers = [t.model_copy(update={"name": v.prefix + t.name}) for v in shape.towers for t in v.tensors]
    towers += shape.projector
    first = outside(shape.embedding) + outside(towers) + _encoder(shape, split, size, padding)
    last = outside(shape.final) + (_drafting(shape, split, size, padding) if mtp else 0.0)
    if not shape.tied:
        last += outside(shape.head)
    elif split.pp > 1:
        # A tied matrix stands on the first and on the last stage (vllm/model_executor/models/llama.py, 0.33.0).
        last += outside(t for t in shape.embedding if t.split == "vocab")
    totals = [sum(layer(number) for number in (span[:1] if shape.shared_layers else span)) for span in spans]
    totals[0] += first
    totals[-1] += last
    if shape.shared:  # every stage has layers that use them
        heads = max(block.kv_heads for block in shape.blocks)
        own = sum(size(t, None) * share(t, split, heads, padding) for t in shape.shared)
        totals = [total + own for total in totals]
    return RankWeights(tuple(round(total) for total in totals), spans)


def _drafting(shape: ModelShape, split: Split, size: Bytes, padding: int) -> float:
    """Layers for multi-token prediction. The copies of embedding and head that DeepSeek's files hold are given up for
    the model's own, the embedding's only where both stand on one stage (vllm/v1/spec_decode/eagle.py)."""
    heads = max((block.kv_heads for block in shape.blocks), default=0)
    total = 0.0
    for tensor in shape.mtp:
        copied = tensor.name.endswith("shared_head.head.weight")
        copied |= split.pp == 1 and tensor.name.endswith("embed_tokens.weight") and ".layers." in tensor.name
        total += 0.0 if copied else size(tensor, None) * share(tensor, split, heads, padding)
    return total


def _encoder(shape: ModelShape, split: Split, size: Bytes, padding: int) -> float:
    blocks = (shape.blocks[index] for index in shape.encoder_order)
    return sum(size(t, None) * share(t, split, b.kv_heads, padding) for b in blocks for t in b.tensors)


class Recent:
    """The last few results by key, each holding on to the shape that it was computed from, so that the identity of a
    shape can stand for its content: hashing a whole model costs more than the bill."""

    def __init__(self, size: int = 64) -> None:
        self._size = size
        self._entries: OrderedDict[tuple[object, ...], tuple[ModelShape, object]] = OrderedDict()
        self._lock = Lock()

    def get(self, shape: ModelShape, key: tuple[object, ...], make: Callable[[], object]) -> object:
        full = (id(shape), *key)
        with self._lock:
            entry = self._entries.get(full)
            if entry is not None:
                self._entries.move_to_end(full)
                return entry[1]
        made = make()
        with self._lock:
            self._entries[full] = (shape, made)
            while len(self._entries) > self._size:
                self._entries.popitem(last=False)
        return made
