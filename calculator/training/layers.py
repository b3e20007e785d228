"""Decoder layers, written out as transformers' modelling code runs them, over ``calculator.training.ops``.

Every kind of layer is described here once. What it keeps, what is temporary, what backward makes and what
recomputation repeats all follow from the operations and from the life of the local names, as in the real code.

Source: transformers 5.24.0 ``modeling_*.py`` and ``integrations/sdpa_attention.py``; peft 0.21.2 ``lora/layer.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from calculator.model.shape import Attention, Block, DenseMlp, NoMlp
from calculator.training import ops
from calculator.training.kernels import fused_attention
from calculator.training.numerics import Numerics
from calculator.training.tape import SCORES, Param, Tape, Tensor


@dataclass
class Shared:
    """What all layers read: rotary tables (cos, sin; a second pair for windowed layers) and the attention mask."""

    rotary: tuple[Tensor, Tensor] | None = None
    mask: Tensor | None = None
    window_mask: Tensor | None = None


@dataclass
class Layer:
    """One layer being written down. ``params`` are made at first use and are the same in recomputation."""

    tape: Tape
    numerics: Numerics
    hidden: int
    params: dict[str, Param] = field(default_factory=dict)
    head_norm: str = "rms"
    output_bias: bool = False

    def param(
        self, name: str, elements: int, dtype: str, *, trainable: bool | None = None, dims: tuple[int, ...] = ()
    ) -> Param:
        found = self.params.get(name)
        if found is None:
            n = self.numerics
            found = Param(name, elements, dtype, n.trainable if trainable is None else trainable, n.grads_exist, dims)
            self.params[name] = found
        return found

    # ------------------------------------------------------------------------------------------- linear layers
    def linear(self, x: Tensor, role: str, width: int, *, bias: bool = False, name: str = "") -> Tensor:
        """A Linear layer of ``role`` (as in an adapter's target list), with its adapter and its stored format."""
        n, name = self.numerics, name or role
        if n.quantised and role != "head":
            result = self._quantised(x, name, width, bias)
        else:
            weight = self.param(name, x.width * width, n.weight)
            bias_param = self.param(f"{name}.bias", width, n.weight) if bias else None
            result = ops.linear(self.tape, x, weight, width, bias_param)
        if n.rank and role in n.targets:
            return self._adapted(x, result, name, width)
        return result

    def _quantised(self, x: Tensor, name: str, width: int, bias: bool) -> Tensor:
        """A frozen packed weight: dequantised to the compute type for the product, and again in backward."""
        n = self.numerics
        weight = self.param(name, x.width * width, n.compute, trainable=False)
        bias_param = self.param(f"{name}.bias", width, n.compute, trainable=False) if bias else None
        return ops.dequantising_linear(self.tape, x, weight, width, bias_param, n.compute, n.quantised)

    def _adapted(self, x: Tensor, result: Tensor, name: str, width: int) -> Tensor:
        tape, n = self.tape, self.numerics
        source = result.dtype
        if not (n.autocast and n.quantised):
            x = ops.cast(tape, x, n.adapter)
        a = self.param(f"{name}.A", x.width * n.rank, n.adapter, trainable=True, dims=(n.rank, x.width))
        b = self.param(f"{name}.B", n.rank * width, n.adapter, trainable=True, dims=(width, n.rank))
        result = ops.add(tape, result, ops.scale(tape, ops.linear(
            tape, ops.linear(tape, ops.dropout(tape, x, n.adapter_dropout), a, n.rank), b, width)))
        return ops.cast(tape, result, source)

    # --------------------------------------------------------------------------------------------------- norms
    def norm(self, x: Tensor, kind: str, name: str, groups: int = 1) -> Tensor:
        """A norm over the width, or over each of ``groups`` equal parts of it (per-head norms)."""
        tape, n = self.tape, self.numerics
        width = x.width // groups
        if kind == "none":
            return x
        if kind == "layer":
            return ops.layer_norm(tape, x, self.param(f"{name}.weight", width, n.small), self.param(f"{name}.bias", width, n.small))
        if kind == "layer_no_affine":
            return ops.layer_norm(tape, x, None, None)
        weight = self.param(f"{name}.weight", width, n.small)
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

    # ----------------------------------------------------------------------------------------------- attention
    def rotate_half(self, x: Tensor) -> Tensor:
        tape = self.tape
        first = ops.narrow(tape, x, x.width // 2)
        second = ops.narrow(tape, x, x.width // 2)
        return ops.concat(tape, [ops.negate(tape, second), first])

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        tape = self.tape
        return ops.add(tape, ops.mul(tape, x, cos), ops.mul(tape, self.rotate_half(x), sin))

    def rotate_part(self, x: Tensor, part: int, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotary embedding of the first ``part`` of the width; the rest is joined unchanged."""
        tape = self.tape
        turned, passed = ops.narrow(tape, x, part), ops.narrow(tape, x, x.width - part)
        return ops.concat(tape, [self.rotate(turned, cos, sin), passed])

    def rotary(self, q: Tensor, k: Tensor, mixer: Attention, shared: Shared) -> tuple[Tensor, Tensor]:
        if mixer.rotary == "none" or shared.rotary is None:
            return q, k
        cos, sin = shared.rotary
        if self.numerics.fused_rope:
            return ops.rewrite(self.tape, q), ops.rewrite(self.tape, k)
        if mixer.rotary == "partial":
            part = cos.width
            return (self.rotate_part(q, mixer.heads * part, cos, sin),
                    self.rotate_part(k, mixer.kv_heads * part, cos, sin))
        return self.rotate(q, cos, sin), self.rotate(k, cos, sin)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mixer: Attention, shared: Shared) -> Tensor:
        """The attention kernel; the result lies in the order (batch, length, heads, dim)."""
        tape, n = self.tape, self.numerics
        repeats = mixer.heads // mixer.kv_heads
        dropout = mixer.dropout if n.dropout is None else n.dropout
        if n.attention == "eager":
            return self._eager(q, k, v, mixer, shared, dropout)
        mask = shared.window_mask if mixer.window is not None and n.masked else shared.mask
        if (mask is not None or n.repeat_kv) and repeats > 1:
            k, v = ops.repeat_heads(tape, k, repeats), ops.repeat_heads(tape, v, repeats)
            repeats = 1
        if n.autocast:
            q, k, v = (ops.cast(tape, t, n.autocast) for t in (q, k, v))
        flash = n.attention == "flash" and mask is None
        if mask is not None:
            mask = tape.new(mask.rows, mask.width, q.dtype)
        out = fused_attention(tape, q, k, v, mixer.heads, mixer.head_dim, mixer.v_head_dim, flash=flash, mask=mask,
                              grouped=repeats > 1)
        del mask
        return ops.contiguous(tape, ops.transpose_heads(tape, out))

    def _eager(self, q: Tensor, k: Tensor, v: Tensor, mixer: Attention, shared: Shared, dropout: float) -> Tensor:
        tape, n = self.tape, self.numerics
        repeats = mixer.heads // mixer.kv_heads
        k_all, v_all = ops.repeat_heads(tape, k, repeats), ops.repeat_heads(tape, v, repeats)
        scores = ops.scale(tape, self._product(q, k_all, SCORES, mixer.heads))
        if mixer.softcap:
            scores = ops.scale(tape, scores)
            scores = ops.unary(tape, scores, "output", "tanh")
            scores = ops.scale(tape, scores)
        if shared.mask is not None:
            scores = ops.add(tape, scores, shared.mask)
        scores = ops.cast(tape, ops.softmax(tape, ops.cast(tape, scores, "fp32"), "fp32"), q.dtype)
        scores = ops.dropout(tape, scores, dropout)
        out = self._product(scores, v_all, q.rows, mixer.heads * mixer.v_head_dim)
        out = ops.contiguous(tape, ops.transpose_heads(tape, out))
        del n
        return out

    def _product(self, x: Tensor, y: Tensor, rows: int, width: int) -> Tensor:
        tape, n = self.tape, self.numerics
        if n.autocast:
            x, y = ops.cast(tape, x, n.autocast), ops.cast(tape, y, n.autocast)
        if not n.single:
            x, y = ops.contiguous(tape, x), ops.contiguous(tape, y)
        return ops.matmul(tape, x, y, rows, width)

    def attention(self, hidden: Tensor, mixer: Attention, shared: Shared) -> Tensor:
        tape = self.tape
        q_width, kv_width = mixer.heads * mixer.head_dim, mixer.kv_heads * mixer.head_dim
        v_width = mixer.kv_heads * mixer.v_head_dim

        def heads(x: Tensor) -> Tensor:
            return ops.transpose_heads(tape, ops.split_heads(tape, x))

        qkv = None
        if mixer.fused_qkv:
            qkv = self.linear(hidden, "q", q_width + kv_width + v_width, bias=mixer.bias, name="qkv")
            q, k, v = (heads(ops.narrow(tape, qkv, w)) for w in (q_width, kv_width, v_width))
        else:
            q = self.heads_of(hidden, "q", q_width, mixer)
            k = self.heads_of(hidden, "k", kv_width, mixer)
            v = heads(self.linear(hidden, "v", v_width, bias=mixer.bias))
        q, k = self.rotary(q, k, mixer, shared)
        out = self.attend(q, k, v, mixer, shared)
        out = ops.merge_heads(tape, out)
        out = self.linear(out, "o", self.hidden, bias=self.output_bias)
        del qkv
        return out

    def heads_of(self, hidden: Tensor, role: str, width: int, mixer: Attention) -> Tensor:
        """A query or key projection, normed per head or as a whole where the model does so."""
        tape = self.tape
        x = self.linear(hidden, role, width, bias=mixer.bias)
        if mixer.qk_norm == "full":
            x = self.norm(x, "rms", f"{role}_norm")
        x = ops.split_heads(tape, x)
        if mixer.qk_norm == "head":
            x = self.norm(x, self.head_norm, f"{role}_norm", groups=width // mixer.head_dim)
        return ops.transpose_heads(tape, x)

    # ------------------------------------------------------------------------------------------------------ MLP
    def activation(self, x: Tensor, kind: str) -> Tensor:
        tape = self.tape
        if kind == "gelu_new":
            return ops.tanh_gelu(tape, x)
        if kind == "relu":
            return ops.relu(tape, x)
        if kind == "relu2":
            return ops.square(tape, ops.relu(tape, x))
        return ops.unary(tape, x, "input", kind)

    def mlp(self, x: Tensor, mlp: DenseMlp) -> Tensor:
        tape, n = self.tape, self.numerics
        if mlp.gated and n.fused_mlp:
            gate = self.linear(x, "gate", mlp.width, bias=mlp.bias)
            up = self.linear(x, "up", mlp.width, bias=mlp.bias)
            return self.linear(ops.fused_glu(tape, gate, up), "down", self.hidden, bias=mlp.bias)
        if mlp.gated and mlp.fused_gate_up:
            up = self.linear(x, "gate", 2 * mlp.width, bias=mlp.bias, name="gate_up")
            gate, up = ops.split(tape, up, (mlp.width, mlp.width))
            up = ops.mul(tape, up, self.activation(gate, mlp.activation))
            return self.linear(up, "down", self.hidden, bias=mlp.bias)
        if mlp.gated:
            return self.linear(
                ops.mul(tape, self.activation(self.linear(x, "gate", mlp.width, bias=mlp.bias), mlp.activation),
                        self.linear(x, "up", mlp.width, bias=mlp.bias)),
                "down", self.hidden, bias=mlp.bias)
        x = self.linear(x, "up", mlp.width, bias=mlp.bias)
        x = self.activation(x, mlp.activation)
        return self.linear(x, "down", self.hidden, bias=mlp.bias)

    # ---------------------------------------------------------------------------------------------------- layers
    def decoder(self, hidden: Tensor, block: Block, shared: Shared) -> Tensor:
        """A pre-norm decoder layer; four norms (Gemma) put one after each branch too."""
        tape = self.tape
        mixer = block.mixer
        assert isinstance(mixer, Attention)
        sandwich = len(block.norms) == 4
        residual = hidden
        hidden = self.norm(hidden, block.norm, "norm0")
        hidden = self.attention(hidden, mixer, shared)
        if sandwich:
            hidden = self.norm(hidden, block.norm, "norm1")
        hidden = ops.add(tape, residual, hidden)
        if isinstance(block.mlp, NoMlp):
            return hidden
        residual = hidden
        hidden = self.norm(hidden, block.norm, "norm2")
        hidden = self.mlp(hidden, block.mlp)  # type: ignore[arg-type]
        if sandwich:
            hidden = self.norm(hidden, block.norm, "norm3")
        return ops.add(tape, residual, hidden)
