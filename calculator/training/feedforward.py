"""Dense MLPs.

Source: transformers 5.24.0 ``modeling_*.py`` and ``activations.py``.
"""

from __future__ import annotations

from calculator.model.shape import DenseMlp
from calculator.training import ops
from calculator.training.layers import Layer
from calculator.training.tape import Tensor


def activation(layer: Layer, x: Tensor, kind: str) -> Tensor:
    tape = layer.tape
    if kind == "gelu_new" and layer.numerics.code == "transformers":
        return ops.tanh_gelu(tape, x)
    if kind == "relu":
        return ops.relu(tape, x)
    if kind == "relu2":
        return ops.square(tape, ops.relu(tape, x))
    return ops.unary(tape, x, "input", kind)


def dense(layer: Layer, x: Tensor, mlp: DenseMlp, prefix: str = "") -> Tensor:
    """A plain or gated MLP. ``prefix`` names a second one in the same layer."""
    tape, n, b = layer.tape, layer.numerics, mlp.bias
    names = {role: prefix + role for role in ("gate", "up", "down")}
    if n.tiled_mlp and not n.rank and not n.quantised:
        return _tiled(layer, x, mlp, names)
    if mlp.gated and mlp.fused_gate_up:
        up = layer.linear(x, "gate", 2 * mlp.width, bias=b, name=f"{prefix}gate_up")
        gate, up = ops.split(tape, up, (mlp.width, mlp.width))
        up = ops.mul(tape, up, activation(layer, gate, mlp.activation))
        return layer.linear(up, "down", layer.hidden, bias=b, name=names["down"])
    if mlp.gated and n.fused_mlp:
        gate = layer.linear(x, "gate", mlp.width, bias=b, name=names["gate"])
        up = layer.linear(x, "up", mlp.width, bias=b, name=names["up"])
        return layer.linear(ops.fused_glu(tape, gate, up), "down", layer.hidden, bias=b, name=names["down"])
    if mlp.gated:
        return layer.linear(
            ops.mul(
                tape,
                activation(layer, _gate(layer, x, mlp, names["gate"]), mlp.activation),
                layer.linear(x, "up", mlp.width, bias=b, name=names["up"]),
            ),
            "down",
            layer.hidden,
            bias=b,
            name=names["down"],
        )
    if mlp.receptance:
        gate = layer.linear(x, "other", layer.hidden, name=f"{prefix}receptance")
        return ops.mul(tape, ops.unary(tape, gate, "output", "sigmoid"), plain(layer, [x], mlp, prefix))
    box = [x]
    del x
    return plain(layer, box, mlp, prefix)


def _gate(layer: Layer, x: Tensor, mlp: DenseMlp, name: str) -> Tensor:
    """The gate's projection; where it is sparse, less a cut-off by its mean and deviation, which keep it, and ReLU."""
    gate = layer.linear(x, "gate", mlp.width, bias=mlp.bias, name=name)
    return ops.relu(layer.tape, ops.unary(layer.tape, gate, "input", "cut_off")) if mlp.sparse else gate


def plain(layer: Layer, box: list[Tensor], mlp: DenseMlp, prefix: str = "") -> Tensor:
    """Two matrices with an activation between. ``box`` gives its input away: once the first matrix has read it, only
    a caller or the graph still holds it."""
    x = layer.linear(box.pop(), "up", mlp.width, bias=mlp.bias, name=prefix + "up")
    x = activation(layer, x, mlp.activation)
    return layer.linear(x, "down", layer.hidden, bias=mlp.bias, name=prefix + "down")


def _tiled(layer: Layer, x: Tensor, mlp: DenseMlp, names: dict[str, str]) -> Tensor:
    """The MLP over tiles of tokens; its weights' gradients are those of the whole."""
    n, h = layer.numerics, layer.hidden
    roles = ("gate", "up", "down") if mlp.gated else ("up", "down")
    params = [layer.param(names[role], h * mlp.width, n.weight) for role in roles]
    return ops.tiled(layer.tape, x, params, (mlp.width,) * (4 if mlp.gated else 2), h)
