"""What every layer is written with: Linear layers with adapters and packed weights, norms; and the decoder layer.

Every kind of layer is described once, as transformers' modelling code runs it. What it keeps, what is temporary, what
backward makes and what recomputation repeats all follow from the operations and from the life of the local names.

Source: transformers 5.24.0 ``modeling_*.py`` and ``integrations/sdpa_attention.py``; peft 0.21.2 ``lora/layer.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from calculator.training import ops
from calculator.training.dialect import Dialect
from calculator.training.numerics import Numerics
from calculator.training.tape import Param, Tape, Tensor


@dataclass
class Shared:
    """What all layers read: rotary tables (cos and sin, or one complex table), the attention mask, and where layers
    go back to it the embedding's output; inputs of the single layers; keys and values that another layer made."""

    rotary: tuple[Tensor, ...] = ()
    mask: Tensor | None = None
    original: Tensor | None = None
    per_layer: Tensor | None = None
    kv: tuple[Tensor, ...] = ()


@dataclass
class Layer:
    """One layer being written down. ``params`` are made at first use and are the same in recomputation. ``part`` tells
    the parameters of a layer's several mixers and MLPs apart; ``shared`` while those of several layers are used, whose
    gradients are there already; ``low_rank`` are ranks of the model's own adapters by module; ``gate`` is the form of
    an output gate with a matrix of its own."""

    tape: Tape
    numerics: Numerics
    hidden: int
    params: dict[str, Param] = field(default_factory=dict)
    head_norm: str = "rms"
    output_bias: bool = False
    dialect: Dialect = field(default_factory=Dialect)
    part: str = ""
    shared: bool = False
    low_rank: dict[str, int] = field(default_factory=dict)
    gate: str = ""

    def param(
        self, name: str, elements: int, dtype: str, *, trainable: bool | None = None, dims: tuple[int, ...] = ()
    ) -> Param:
        found = self.params.get(self.part + name)
        if found is None:
            n = self.numerics
            if trainable is None:
                trainable = n.trainable or (n.train_embeddings and name in ("embedding", "head"))
            found = Param(name, elements, dtype, trainable, n.grads_exist or (self.shared and n.trainable), dims)
            self.params[self.part + name] = found
        return found

    # ------------------------------------------------------------------------------------------- linear layers
    def linear(
        self, x: Tensor, role: str, width: int, *, bias: bool = False, name: str = "", parts: tuple[int, ...] = ()
    ) -> Tensor:
        """A Linear layer of ``role`` (as in an adapter's target list, "other" where only a list of all names it), with
        its adapter and its stored format. ``parts``: widths of the query, key and value of a fused projection."""
        result = self._linear(x, role, width, bias=bias, name=name or role, parts=parts)
        rank = self.low_rank.get(name or role)
        if rank is None:
            return result
        common, self.shared = self.shared, False  # adapters are each use's own
        narrow = self._linear(x, "other", rank, bias=False, name=f"{name or role}.down", parts=())
        wide = self._linear(narrow, "other", width, bias=False, name=f"{name or role}.up", parts=())
        self.shared = common
        return ops.add(self.tape, result, wide)

    def _linear(self, x: Tensor, role: str, width: int, *, bias: bool, name: str, parts: tuple[int, ...]) -> Tensor:
        n = self.numerics
        adapted = bool(n.rank) and role in n.targets
        rank, covered = n.rank, width
        if name == "qkv" and self.dialect.always_fused:
            widths = [part for one, part in zip("qkv", parts, strict=True) if one in n.targets]
            adapted, rank, covered = bool(n.rank) and bool(widths), n.rank * len(widths), sum(widths)
        if n.quantised and adapted and n.fused_adapters:
            weight = self.param(name, x.width * width, n.compute, trainable=False)
            a = self.param(f"{name}.A", x.width * n.rank, n.adapter, trainable=True, dims=(n.rank, x.width))
            b = self.param(f"{name}.B", n.rank * width, n.adapter, trainable=True, dims=(width, n.rank))
            return ops.fused_adapter_linear(
                self.tape, x, weight, a, b, width, n.rank, n.compute, bool(n.adapter_dropout)
            )
        if n.quantised and (role != "head" or n.code == "litgpt"):
            result = self._quantised(x, name, width, bias)
        else:
            weight = self.param(name, x.width * width, n.small if role == "head" else n.weight)
            bias_param = self.param(f"{name}.bias", width, n.weight) if bias else None
            result = ops.linear(self.tape, x, weight, width, bias_param, n.fp8 if role != "head" else "")
        if adapted:
            return self._adapted(x, result, name, covered, rank)
        return result

    def router(self, x: Tensor, experts: int) -> Tensor:
        """The router's logits; some models keep its weight, and compute, in fp32."""
        n = self.numerics
        dtype = "fp32" if self.dialect.router_fp32 else n.weight
        weight = self.param("router", x.width * experts, dtype)
        if self.dialect.router_fp32:
            x = ops.cast(self.tape, x, "fp32")
        return ops.linear(self.tape, x, weight, experts)

    def experts(self, name: str, count: int, out: int, inn: int) -> Param:
        """A fused 3-D expert parameter."""
        return self.param(f"experts.{name}", count * out * inn, self.numerics.weight)

    def _quantised(self, x: Tensor, name: str, width: int, bias: bool) -> Tensor:
        """A frozen packed weight: dequantised to the compute type for the product, and again in backward."""
        n = self.numerics
        weight = self.param(name, x.width * width, n.compute, trainable=False)
        bias_param = self.param(f"{name}.bias", width, n.compute, trainable=False) if bias else None
        in_pieces = name == "head" and n.code == "litgpt"
        return ops.dequantising_linear(
            self.tape, x, weight, width, bias_param, n.packed_compute, n.quantised, in_pieces=in_pieces
        )

    def _adapted(self, x: Tensor, result: Tensor, name: str, width: int, rank: int) -> Tensor:
        tape, n = self.tape, self.numerics
        source = result.dtype
        if not (n.autocast and n.quantised):
            x = ops.cast(tape, x, n.adapter)
        a = self.param(f"{name}.A", x.width * rank, n.adapter, trainable=True, dims=(rank, x.width))
        b = self.param(f"{name}.B", n.rank * width, n.adapter, trainable=True, dims=(width, n.rank))
        if width < result.width:
            delta = ops.linear(tape, ops.linear(tape, ops.dropout(tape, x, n.adapter_dropout), a, rank), b, width)
            return ops.cast(tape, ops.add(tape, result, ops.scale(tape, ops.padded(tape, delta, result.width))), source)
        if n.dora:
            delta = ops.linear(tape, ops.linear(tape, ops.dropout(tape, x, n.adapter_dropout), a, rank), b, width)
            scale = self.param(f"{name}.magnitude", width, n.adapter, trainable=True)
            result = ops.magnitude(tape, result, delta, scale, self.params[self.part + name], width)
            return ops.cast(tape, result, source)
        result = ops.add(
            tape,
            result,
            ops.scale(
                tape, ops.linear(tape, ops.linear(tape, ops.dropout(tape, x, n.adapter_dropout), a, rank), b, width)
            ),
        )
        return ops.cast(tape, result, source)

    # --------------------------------------------------------------------------------------------------- norms
    def norm(self, x: Tensor, kind: str, name: str, groups: int = 1) -> Tensor:
        """A norm over the width, or over each of ``groups`` equal parts of it (per-head norms)."""
        tape, n = self.tape, self.numerics
        width = x.width // groups
        if kind == "none":
            return x
        if kind == "layer":
            return ops.layer_norm(
                tape, x, self.param(f"{name}.weight", width, n.norm), self.param(f"{name}.bias", width, n.norm)
            )
        if kind == "layer_no_affine":
            return ops.layer_norm(tape, x, None, None)
        weight = self.param(f"{name}.weight", width, n.norm)
        if n.fused_norm and groups == 1:
            return ops.fused_rms_norm(tape, x, weight)
        dtype = x.dtype
        if kind == "rms_unit_offset":
            y = ops.cast(tape, x, "fp32")
            y = ops.mul(tape, y, ops.rsqrt(tape, ops.shift(tape, ops.mean(tape, ops.square(tape, y), groups))))
            y = ops.mul(tape, y, ops.shift(tape, ops.cast(tape, weight.tensor, "fp32")))
            return ops.cast(tape, y, dtype)
        y = ops.cast(tape, x, "fp32")
        variance = ops.mean(tape, ops.square(tape, y), groups)
        y = ops.mul(tape, y, ops.rsqrt(tape, ops.shift(tape, variance)))
        return ops.mul(tape, weight.tensor, ops.cast(tape, y, dtype))
