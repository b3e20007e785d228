"""The loading phase: what stands on the host before the weights are on the card, and beside them on the card.

Sources: transformers 4.31 to 5.24 ``modeling_utils.py`` and ``quantizers``, accelerate 1.14 ``utils/fsdp_utils.py``,
DeepSpeed 0.19 ``zero/partition_parameters.py``, torchtitan and Megatron-LM (weights made on the card), peft 0.20
``utils/other.py`` prepare_model_for_kbit_training.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from calculator.bill import HostItem, Range
from calculator.model.shape import ModelShape
from calculator.sources import Source
from calculator.text import text
from calculator.training.holdings import Weights, bytes_of
from calculator.training.plan import TrainingPlan
from calculator.training.recipe import BYTES, CAST_BACK, Recipe, adapted
from calculator.training.sharding import FSDP
from calculator.training.stack import HUGGING_FACE, before
from calculator.training.statics import Statics

FROM_PRETRAINED = Source(
    title="transformers, modeling_utils.py: from_pretrained with and without a device map, on the fly quantisation",
    url="https://github.com/huggingface/transformers/blob/main/src/transformers/modeling_utils.py",
    checked_on="2026-11-29",
    versions="transformers 4.31 - 5.24",
)
PACKED_LOADING = Source(
    title="transformers, quantizer_bnb_4bit.py, and peft, prepare_model_for_kbit_training: one tensor at a time",
    url="https://github.com/huggingface/peft/blob/main/src/peft/utils/other.py",
    checked_on="2026-11-29",
    versions="transformers 4.31 - 5.24, peft 0.4 - 0.20",
)
SHARDED_LOADING = Source(
    title="accelerate, fsdp_utils.py: RAM-efficient loading from rank 0, else every rank loads the whole model",
    url="https://github.com/huggingface/accelerate/blob/main/src/accelerate/utils/fsdp_utils.py",
    checked_on="2026-11-29",
    versions="accelerate 0.24 - 1.14",
)
ZERO_INIT = Source(
    title="transformers under DeepSpeed ZeRO-3: rank 0 reads checkpoint files one by one, zero.Init partitions at once",
    url="https://github.com/huggingface/transformers/blob/main/src/transformers/integrations/deepspeed.py",
    checked_on="2026-11-29",
    versions="transformers 4.31 - 5.24",
)
FILE_BYTES = 5 * 10**9
"""transformers 4 saves checkpoint files of at most 5 GB (``max_shard_size``)."""
ON_CARD = ("megatron", "torchtitan")
"""Frameworks that make the weights on the card and read a distributed checkpoint into them."""
PACKS = ("nf4", "nf4_dq", "int8")
"""Bases that are packed on the fly, on the card, tensor by tensor."""


def host_items(
    made: Statics, shape: ModelShape, plan: TrainingPlan, recipe: Recipe, processes: int
) -> Iterator[HostItem]:
    """Copies of the weights in host memory while the model loads; files mapped into memory are the system's cache and
    not counted."""
    if plan.framework in ON_CARD:
        return
    each = BYTES[recipe.weight]
    whole, tensor = int(each * shape.parameters.total), int(each * largest_tensor(shape))
    if adapted(plan) and plan.base_quant in PACKS and plan.sharding not in FSDP:
        one = Range(value=tensor, low=0, high=max(tensor, min(whole, FILE_BYTES)))
        yield _item("loading_tensor", one, one * processes, FROM_PRETRAINED, each, shape)
    elif plan.sharding == "zero3":
        file = min(whole, FILE_BYTES)
        first = Range(value=file, low=tensor, high=max(file, tensor))
        yield _item("loading_file", first, first, ZERO_INIT, each, shape)
    elif plan.sharding in FSDP:
        # Loading in 16 bit is a choice; what is sharded in fp32 may have been loaded so.
        first = Range(value=whole, low=whole, high=max(whole, made.parameters + made.expert_parameters))
        node = Range(value=whole * processes, low=whole, high=first.high * processes)
        yield _item("loading_ranks", first, node, SHARDED_LOADING, each, shape)
    elif plan.base_quant != "none" or plan.framework not in HUGGING_FACE or plan.framework == "unsloth":
        one = Range(value=min(whole, FILE_BYTES), low=min(tensor, whole), high=whole)
        yield _item("loading_map", one, one * processes, FROM_PRETRAINED, each, shape)
    else:
        beside = min(whole, FILE_BYTES) if before(plan.transformers_version, 5) else 0
        one = Range(value=whole, low=tensor, high=whole + beside)
        yield _item("loading_whole", one, one * processes, FROM_PRETRAINED, each, shape)


def card_copies(
    groups: Sequence[Weights], head: Weights, buffers: int, plan: TrainingPlan, recipe: Recipe
) -> dict[str, int]:
    """Bytes by item at loading's own highest instant on the card, where it holds more than the weights: a base that is
    packed on the fly. The last layers' largest matrix stands in 16 bit beside what is packed; PEFT's k-bit preparation
    then casts whatever is not packed to fp32, tensor by tensor, the head last. Empty elsewhere."""
    if not adapted(plan) or plan.base_quant not in PACKS or plan.sharding in FSDP or plan.sharding == "zero3":
        return {}
    as_loaded = recipe._replace(small=recipe.weight, norm=recipe.weight, held=recipe.weight)
    loaded = buffers + sum(bytes_of(group, plan, as_loaded) for group in groups)
    half = int(BYTES[recipe.weight])
    beside = max((half * w.elements for group in groups for w in group if w.packable), default=0)
    if plan.kbit_prepared and plan.framework not in CAST_BACK:
        wide = buffers + sum(bytes_of(group, plan, as_loaded._replace(small="fp32", norm="fp32")) for group in groups)
        left = max((half * w.elements for w in head if not w.packable), default=0)
        first = max((4 * w.elements for w in groups[0]), default=0)
        beside = max(beside, first, wide + left - loaded)
    return {"parameters": loaded, "loading_copies": beside}


def largest_tensor(shape: ModelShape) -> int:
    """Elements of the largest single weight."""
    groups = (shape.embedding, shape.head, shape.shared, *(block.tensors for block in shape.blocks))
    return max(t.elements // t.copies if not t.fused else t.elements for group in groups for t in group)


def _item(key: str, process: Range, node: Range, source: Source, each: float, shape: ModelShape) -> HostItem:
    values = {"model_params": shape.parameters.total, "each": each, "total_bytes": process.value}
    return HostItem(
        key=key,
        process=process,
        node=node,
        residence="pageable",
        phase="load",
        formula=text(f"training.host.{key}", **values),
        basis="assumed",
        source=source,
    )
