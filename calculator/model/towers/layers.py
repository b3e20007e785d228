"""The layer of an encoder tower: attention and an MLP between norms, by the switches that towers differ in."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

from calculator.model.build import Tensors
from calculator.model.shape import Component, Tensor, TensorKind, Tower


class Parts:
    """Collects the tensors of one component; ``layers`` repeats a tensor over "{i}"."""

    def __init__(self, component: Component, prefix: str = "") -> None:
        self.component = component
        self.prefix = prefix
        self.tensors: list[Tensor] = []

    def add(self, name: str, *shape: int, kind: TensorKind = "other", copies: int = 1) -> Parts:
        self.tensors.append(
            Tensor(name=self.prefix + name, shape=shape, component=self.component, kind=kind, copies=copies)
        )
        return self

    def linear(self, name: str, out: int, inn: int, *, bias: bool = True, copies: int = 1) -> Parts:
        self.add(f"{name}.weight", out, inn, kind="linear", copies=copies)
        return self.add(f"{name}.bias", out, kind="bias", copies=copies) if bias else self

    def conv(self, name: str, out: int, *rest: int, bias: bool = True, copies: int = 1) -> Parts:
        self.add(f"{name}.weight", out, *rest, kind="conv", copies=copies)
        return self.add(f"{name}.bias", out, kind="bias", copies=copies) if bias else self

    def norm(self, name: str, width: int, *, bias: bool = True, copies: int = 1) -> Parts:
        self.add(f"{name}.weight", width, kind="norm", copies=copies)
        return self.add(f"{name}.bias", width, kind="bias", copies=copies) if bias else self

    def table(self, name: str, rows: int, width: int, *, copies: int = 1) -> Parts:
        return self.add(name, rows, width, kind="embedding", copies=copies)

    def done(self) -> Tensors:
        return tuple(self.tensors)

    @property
    def elements(self) -> int:
        return sum(prod(t.shape) * t.copies for t in self.tensors)


@dataclass(frozen=True)
class Layer:
    """Names and switches of a tower's layer. ``qkv`` non-empty: one fused matrix."""

    at: str
    q: str = "self_attn.q_proj"
    k: str = "self_attn.k_proj"
    v: str = "self_attn.v_proj"
    qkv: str = ""
    o: str = "self_attn.out_proj"
    qkv_bias: bool = True
    k_bias: bool = True
    out_bias: bool = True
    qk_norm: Literal["none", "head"] = "none"
    gated: bool = False
    gate: str = "mlp.gate_proj"
    up: str = "mlp.fc1"
    down: str = "mlp.fc2"
    mlp_bias: bool = True
    norms: tuple[str, ...] = ("layer_norm1", "layer_norm2")
    norm_bias: bool = True
    scales: tuple[str, ...] = ()


def add_layers(
    parts: Parts,
    layer: Layer,
    layers: int,
    hidden: int,
    width: int,
    *,
    kv_width: int | None = None,
    head_dim: int = 0,
    inner: int | None = None,
) -> None:
    """Append ``layers`` copies of the layer. ``inner`` is the width of attention where it is not the hidden one."""
    at, n = layer.at, layers
    q_width = inner or hidden
    kv = kv_width or q_width
    if layer.qkv:
        parts.linear(at + layer.qkv, q_width + 2 * kv, hidden, bias=layer.qkv_bias, copies=n)
    else:
        parts.linear(at + layer.q, q_width, hidden, bias=layer.qkv_bias, copies=n)
        parts.linear(at + layer.k, kv, hidden, bias=layer.qkv_bias and layer.k_bias, copies=n)
        parts.linear(at + layer.v, kv, hidden, bias=layer.qkv_bias, copies=n)
    parts.linear(at + layer.o, hidden, q_width, bias=layer.out_bias, copies=n)
    if layer.qk_norm == "head":
        base = layer.o.rsplit(".", 1)[0]
        parts.norm(f"{at}{base}.q_norm", head_dim, bias=False, copies=n)
        parts.norm(f"{at}{base}.k_norm", head_dim, bias=False, copies=n)
    if layer.gated:
        parts.linear(at + layer.gate, width, hidden, bias=layer.mlp_bias, copies=n)
    parts.linear(at + layer.up, width, hidden, bias=layer.mlp_bias, copies=n)
    parts.linear(at + layer.down, hidden, width, bias=layer.mlp_bias, copies=n)
    for name in layer.norms:
        parts.norm(at + name, hidden, bias=layer.norm_bias, copies=n)
    for name in layer.scales:
        parts.add(at + name, hidden, copies=n)


def tower(
    parts: Parts,
    modality: Literal["vision", "audio"],
    prefix: str,
    hidden: int,
    layers: int,
    heads: int,
    *,
    patch: int = 0,
    image_size: int = 0,
    merge: int = 1,
) -> Tower:
    return Tower(
        modality=modality,
        prefix=prefix,
        hidden=hidden,
        layers=layers,
        heads=heads,
        tensors=parts.done(),
        patch=patch,
        image_size=image_size,
        merge=merge,
    )
