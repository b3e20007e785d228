"""The weights that one rank holds: what is trained, what is frozen, and in which type or packing."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import NamedTuple

from calculator.model.shape import ModelShape, Tensor
from calculator.precision import weight_format
from calculator.training.dialect import dialect
from calculator.training.parallel import Degrees, local_tensor
from calculator.training.plan import TrainingPlan
from calculator.training.recipe import BYTES, Recipe, adapted
from calculator.training.template import rounded

PACKED = {
    "nf4": "nf4",
    "nf4_dq": "nf4_dq",
    "int8": "bnb_int8",
    "gptq_int4": "gptq",
    "awq_int4": "awq",
    "fp8": "fp8",
    "mxfp4": "mxfp4",
}
"""Plan's names of quantised bases as keys of ``calculator.precision``."""


class Weight(NamedTuple):
    """One parameter. ``packable``: a quantiser replaces it (a Linear's matrix inside a layer); ``wide``: held in fp32
    whatever the model's type; ``norm``: a norm's."""

    dims: tuple[int, ...]
    packable: bool
    expert: bool = False
    wide: bool = False
    norm: bool = False

    @property
    def elements(self) -> int:
        return prod(self.dims)


Weights = tuple[Weight, ...]


def weights_of(
    tensors: tuple[Tensor, ...], *, packable: bool, wide_router: bool = False, modules: bool = False
) -> Weights:
    found: list[Weight] = []
    for t in tensors:
        if t.fused and not modules:
            found.append(Weight((t.copies, *t.shape), False, t.component == "experts"))
        else:
            wide = wide_router and t.kind == "router"
            norm = t.kind == "norm" or t.component == "norm"
            found += [Weight(t.shape, packable and t.kind == "linear", t.component == "experts", wide, norm)] * t.copies
    return tuple(found)


ONE_GPU = Degrees()


class Units(NamedTuple):
    """Weights by unit of the model: ``blocks`` by kind of layer, ``extra`` towers and projectors, ``shared`` what
    several layers use."""

    embedding: Weights
    blocks: tuple[Weights, ...]
    final: Weights
    head: Weights
    extra: Weights
    shared: Weights


def units(
    shape: ModelShape, *, modules: bool = False, packable_head: bool = False, degrees: Degrees = ONE_GPU
) -> Units:
    """``modules``: experts are Linear layers of their own (transformers before 5), which a quantiser packs;
    ``packable_head``: so is the head (litgpt)."""
    wide = dialect(shape.model_type).router_fp32
    if degrees != ONE_GPU:
        shape = local_shape(shape, degrees)
    towers = tuple(w for tower in shape.towers for w in weights_of(tower.tensors, packable=False))
    return Units(
        embedding=weights_of(shape.embedding, packable=False),
        blocks=tuple(weights_of(b.tensors, packable=True, wide_router=wide, modules=modules) for b in shape.blocks),
        final=weights_of(shape.final, packable=False),
        head=weights_of(tuple(t for t in shape.head if not (shape.tied and is_tied(t, shape))), packable=packable_head),
        extra=towers + weights_of(shape.projector, packable=False),
        shared=weights_of(shape.shared, packable=True),
    )


@lru_cache(maxsize=4096)
def packed_bytes(base_quant: str, dims: tuple[int, ...], group: int | None = None) -> int:
    """``group``: weights that share a scale, -1 for a whole row; None for the format's usual number."""
    return rounded(weight_format(PACKED[base_quant], group_size=group).tensor_bytes(dims))


def local_shape(shape: ModelShape, degrees: Degrees) -> ModelShape:
    """A shape with every weight cut to one rank's part."""

    def cut(tensors: tuple[Tensor, ...], kv_heads: int = 0) -> tuple[Tensor, ...]:
        return tuple(local_tensor(t, degrees, kv_heads) for t in tensors)

    blocks = tuple(b.model_copy(update={"tensors": cut(b.tensors, b.kv_heads)}) for b in shape.blocks)
    kv_heads = max(b.kv_heads for b in shape.blocks)
    return shape.model_copy(
        update={
            "blocks": blocks,
            "shared": cut(shape.shared, kv_heads),
            "embedding": cut(shape.embedding),
            "final": cut(shape.final),
            "head": cut(shape.head),
        }
    )


def is_tied(tensor: Tensor, shape: ModelShape) -> bool:
    """Whether a head tensor is the token table itself."""
    return tensor.shape == shape.embedding[0].shape


def bytes_of(weights: Weights, plan: TrainingPlan, recipe: Recipe) -> int:
    """Resident bytes of a unit's weights, each parameter rounded up as the allocator does."""
    frozen = adapted(plan)
    item, small, norm = BYTES[recipe.weight], BYTES[recipe.small], BYTES[recipe.norm]
    total = 0
    for w in weights:
        if frozen and w.packable and plan.base_quant in PACKED:
            total += packed_bytes(plan.base_quant, w.dims, plan.base_quant_group)
        else:
            each = 4.0 if w.wide else norm if w.norm else item if w.packable or w.expert else small
            total += rounded(int(w.elements * each))
    return total


def statistics_of(weights: Weights, plan: TrainingPlan) -> int:
    """Bytes of block scales (and GPTQ's column order) beside 4-bit weights: they are buffers, no parameters, so every
    rank of a sharded job keeps them."""
    if not adapted(plan):
        return 0
    if plan.base_quant == "gptq_int4":
        group = plan.base_quant_group or 128
        return sum(
            2 * (w.elements // (group if group > 0 else w.dims[-1])) + 4 * w.dims[-1] for w in weights if w.packable
        )
    if plan.base_quant not in ("nf4", "nf4_dq"):
        return 0
    return sum(packed_bytes(plan.base_quant, w.dims) - w.elements // 2 for w in weights if w.packable)
