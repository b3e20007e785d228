"""Bytes of a model's weights: as its files store them, or as a format's own tools would.

Every number is a sum over the shape's tensors. A tensor is stored in the base format, in the format that its own rule
names, or in 16 bit, depending on what kind of tensor it is and on what the checkpoint excludes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Protocol

from calculator.gguf.components import component_of
from calculator.gguf.mixes import Mix, mix_name, mix_weights
from calculator.model.patterns import matcher
from calculator.model.quantization import format_of
from calculator.model.shape import ModelShape, Quantization, Tensor
from calculator.model.stored import StoredWeights
from calculator.precision import Format, dtype_bytes, weight_format
from calculator.sources import Source

__all__ = [
    "HeaderSummary", "StoredWeights", "WeightLayout", "every_tensor", "layout_of", "stored_weights", "tensor_bytes",
    "tensors_with_layers", "weights_in_format",
]  # fmt: skip

HEADER_SOURCE = Source(
    title="safetensors file headers", url="https://github.com/huggingface/safetensors#format", checked_on="2026-11-29"
)

_TOWER_COMPONENTS = ("vision", "audio", "projector")
_LANGUAGE_ONLY = ("awq", "gptq", "auto_round", "exl2", "exl3", "bitnet", "mxfp4")
"""Formats whose tools pack the language model's layers only, whether or not a checkpoint says so."""


class HeaderGroup(Protocol):
    """Stored tensors that differ in layer or expert number only; ``bytes`` is that of all of them."""

    @property
    def name(self) -> str: ...
    @property
    def bytes(self) -> int: ...


class HeaderSummary(Protocol):
    """What the headers of all weight files say."""

    @property
    def total_bytes(self) -> int: ...
    @property
    def bytes_by_dtype(self) -> dict[str, int]: ...
    @property
    def tensors(self) -> Sequence[HeaderGroup]: ...


class WeightLayout:
    """Which format each tensor of a shape takes.

    ``chosen`` None: as the checkpoint stores it. Otherwise as the tools of that format would produce it from an
    unquantised model.
    """

    def __init__(self, shape: ModelShape, chosen: Format | None = None) -> None:
        self.shape = shape
        stored_plain = weight_format("bf16" if dtype_bytes(_known(shape.dtype)) < 4 else "fp32")
        self.plain = chosen if chosen is not None and chosen.plain else stored_plain
        self._chosen = chosen
        stored = shape.quantization if chosen is None else None
        self._base = format_of(stored) if stored else None
        rules = stored or Quantization(format="bf16", bits=16)
        self._excluded = matcher(rules.excluded)
        self._only = matcher(rules.only) if rules.only else None
        self._per_module = [(matcher((p,)), weight_format(spec)) for p, spec in rules.per_module.items()]
        self._experts = any(t.component == "experts" for b in shape.blocks for t in b.tensors)
        self.by_layer = any(re.search(r"\d", p) for p in (*rules.excluded, *rules.only, *rules.per_module))

    def tensor_bytes(self, tensor: Tensor, layer: int | None = None) -> int:
        """Bytes of all copies of a tensor of layer ``layer`` (None: outside the layers)."""
        return tensor_bytes(tensor, self.format(tensor, layer))

    def format(self, tensor: Tensor, layer: int | None = None) -> Format:
        if len(tensor.shape) < 2 or tensor.kind in ("norm", "bias", "conv", "other"):
            return self.plain
        if self._chosen is not None:
            return self._produced(tensor, self._chosen)
        return self._stored(tensor, self.path(tensor, layer)) if self._base is not None else self.plain

    def path(self, tensor: Tensor, layer: int | None) -> str:
        """The tensor's module in the checkpoint; one expert stands for all."""
        inside = self.shape.layer_prefix.replace("{i}", str(layer)) if layer is not None else ""
        name = (inside + tensor.name).replace("{e}", "0").replace("{i}", "0")
        return re.sub(r"\.(weight|bias)$", "", name)

    def _stored(self, tensor: Tensor, path: str) -> Format:
        assert self._base is not None
        for pattern, other in self._per_module:
            if pattern.fullmatch(path):
                return other
        if self._excluded.fullmatch(path) or (self._only is not None and not self._only.fullmatch(path)):
            return self.plain
        scope = self._base.scope
        if tensor.component == "head":
            return self._base if scope == "linear_and_embedding" else self.plain
        if tensor.component in _TOWER_COMPONENTS and self._base.key in _LANGUAGE_ONLY:
            return self.plain
        return self._base if _packs(tensor, scope) and _divides(tensor, self._base) else self.plain

    def _produced(self, tensor: Tensor, chosen: Format) -> Format:
        if chosen.scope == "all":
            return chosen
        if tensor.component == "head":
            if chosen.head_bits is not None:
                return weight_format(chosen.key, bits=chosen.head_bits)
            return chosen if chosen.scope == "linear_and_embedding" else self.plain
        if tensor.component in _TOWER_COMPONENTS and chosen.scope in ("linear_no_tower", "experts"):
            return self.plain
        if chosen.scope == "experts" and self._experts and tensor.component != "experts":
            return self.plain
        if chosen.scope == "linear" and tensor.fused:
            return self.plain  # these tools replace linear modules, and fused experts are none
        return chosen if _packs(tensor, chosen.scope) and _divides(tensor, chosen) else self.plain


def _packs(tensor: Tensor, scope: str) -> bool:
    if scope == "linear_and_embedding":
        return tensor.kind in ("linear", "embedding", "router")
    return tensor.kind == "linear"


def _divides(tensor: Tensor, format_: Format) -> bool:
    """Whether the group size goes into the columns; tools that group along a row leave the others alone."""
    by_row = format_.packing.scales == "group"
    return not by_row or not format_.group_size or tensor.in_features % format_.group_size == 0


def _known(dtype: str) -> str:
    return dtype if dtype in ("float32", "fp32") else "bfloat16"


def tensor_bytes(tensor: Tensor, format_: Format) -> int:
    """Bytes of all copies of a tensor in a format."""
    return tensor.copies * format_.tensor_bytes(tensor.shape)


def tensors_with_layers(shape: ModelShape) -> Iterator[tuple[Tensor, int | None, int, bool]]:
    """All tensors as (tensor, a layer that holds it, how many such layers, whether it is an MTP tensor).

    Layers of one kind come together; a caller whose formats differ by layer asks ``every_tensor`` instead.
    """
    for index, times in Counter(shape.order).items():
        for tensor in shape.blocks[index].tensors:
            yield tensor, shape.order.index(index), times, False
    yield from _outside(shape)


def every_tensor(shape: ModelShape) -> Iterator[tuple[Tensor, int | None, int, bool]]:
    """The same with each layer on its own."""
    for layer, index in enumerate(shape.order):
        for tensor in shape.blocks[index].tensors:
            yield tensor, layer, 1, False
    yield from _outside(shape)


def _outside(shape: ModelShape) -> Iterator[tuple[Tensor, int | None, int, bool]]:
    for index, times in Counter(shape.encoder_order).items():
        for tensor in shape.blocks[index].tensors:
            yield tensor, None, times, False
    head = [t for t in shape.head if not shape.tied or t.kind == "bias"]
    towers = [t.model_copy(update={"name": tower.prefix + t.name}) for tower in shape.towers for t in tower.tensors]
    for tensor in (*shape.embedding, *shape.shared, *shape.final, *head, *towers, *shape.projector):
        yield tensor, None, 1, False
    for tensor in shape.mtp:
        yield tensor, None, 1, True


def stored_weights(shape: ModelShape, headers: HeaderSummary | None = None) -> StoredWeights:
    """The weights as the repository stores them: read from its files' headers where there are any, else computed from
    the shape and its quantisation."""
    if headers is not None:
        return _from_headers(shape, headers)
    return _computed(shape, WeightLayout(shape))


def weights_in_format(shape: ModelShape, format_: str, *, imatrix: bool = False) -> StoredWeights:
    """The weights as the tools of a format would write them from an unquantised model.

    ``format_`` is a key of ``calculator.precision`` ("awq", "mlx:bits=6,group=32") or "gguf:" and a mix
    ("gguf:Q4_K_M", for which ``imatrix`` says whether an importance matrix was used).

    Raises ``PlanError`` ("format.unknown", "format.bad_parameter", "gguf.unknown_mix").
    """
    if format_.strip().lower().startswith("gguf:"):
        return mix_weights(shape, format_, imatrix=imatrix)
    return _computed(shape, WeightLayout(shape, weight_format(format_)))


def layout_of(shape: ModelShape, format_: str | None = None) -> WeightLayout | Mix:
    """Who answers ``tensor_bytes(tensor, layer)`` for a shape: in its stored format when ``format_`` is None, else in
    the named one. ``by_layer`` says whether layers of one kind may differ."""
    if format_ is None:
        return WeightLayout(shape)
    if format_.strip().lower().startswith("gguf:"):
        return Mix(shape, mix_name(format_))
    return WeightLayout(shape, weight_format(format_))


def _computed(shape: ModelShape, layout: WeightLayout) -> StoredWeights:
    tensors = every_tensor(shape) if layout.by_layer else tensors_with_layers(shape)
    source = layout.plain.source
    parts = []
    for tensor, layer, times, mtp in tensors:
        form = layout.format(tensor, layer)
        parts.append(("mtp" if mtp else tensor.component, form.key, times * tensor_bytes(tensor, form)))
        source = source if form.plain else form.source
    return StoredWeights.summed(parts, basis="computed", source=source)


_STORED_SUFFIX = re.compile(
    r"[._](weight|bias|qweight|qzeros|scales|biases|g_idx|weight_packed|weight_scale(_inv|_2)?|weight_zero_point|"
    r"weight_shape|weight_g_idx|input_scale|blocks|absmax|nested_absmax|quant_map|nested_quant_map|SCB|"
    r"quant_state\.bitsandbytes__\w+|k_scale|v_scale)$"
)
_WRAPPER = re.compile(r"^(?:(?:model|language_model|text_model)\.)+")


def _from_headers(shape: ModelShape, headers: HeaderSummary) -> StoredWeights:
    components = {_template(t.name): "head" for t in shape.head}
    for tensor, layer, _, mtp in tensors_with_layers(shape):
        prefix = shape.layer_prefix if layer is not None else ""
        components[_template(prefix + tensor.name)] = "mtp" if mtp else tensor.component
    by_component: Counter[str] = Counter()
    for group in headers.tensors:
        by_component[components.get(_template(group.name)) or component_of(group.name)] += group.bytes
    rest = headers.total_bytes - by_component.total()
    if rest:
        by_component["other"] += rest
    return StoredWeights(
        total_bytes=headers.total_bytes,
        by_component=dict(by_component),
        by_format=dict(headers.bytes_by_dtype),
        basis="header",
        source=HEADER_SOURCE,
        tied_copy_bytes=by_component["head"] if shape.tied else 0,
    )


def _template(name: str) -> str:
    bare = name
    while (shorter := _STORED_SUFFIX.sub("", bare)) != bare:
        bare = shorter
    return re.sub(r"(?<![^.])(\d+|\{[ie]\})(?![^.])", "#", _WRAPPER.sub("", bare))
