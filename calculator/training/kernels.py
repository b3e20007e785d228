"""Kernels that are one operation for autograd: attention, grouped products, cross entropy, dequantising products.

Sources: PyTorch 2.14 ``aten/src/ATen/native/transformers/cuda`` (flash and memory-efficient attention),
``aten/src/ATen/native/LossNLL.cpp`` and ``SoftMax.cpp``; flash-attention ``csrc/flash_attn/flash_api.cpp``.
"""

from __future__ import annotations

from calculator.training.ops import Grads, cast, like_of
from calculator.training.tape import ONE, TOKENS, Tape, Tensor

SEED_BYTES = 512
"""A random-number seed or offset: one 512-byte block each; attention kernels keep two a call."""


def fused_attention(
    tape: Tape,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    heads: int,
    head_dim: int,
    v_head_dim: int,
    *,
    flash: bool,
    dropout: float = 0.0,
    mask: Tensor | None = None,
    grouped: bool = False,
) -> Tensor:
    """Scaled dot-product attention in one kernel. Kept: q, k, v, the output, the log-sum-exp (fp32, one a head and
    token) and two seeds. The memory-efficient kernel also takes a mask, which it keeps.

    Backward first makes dq, dk and dv; flash's own scratch is an fp32 accumulator of dq (head size rounded up to 32),
    the row sums, and, with fewer key heads than query heads, dk and dv for all heads.
    """
    inputs = [q, k, v]
    saves = [q, k, v] + ([mask] if mask is not None else [])
    order = q.heads_first_memory

    def backward(saved: list[Tensor], g: Grads) -> Grads:
        assert g[0] is not None
        sq, sk, sv = saved[0], saved[1], saved[2]
        out: Grads = [like_of(tape, t) for t in (sq, sk, sv)]
        scratch = []
        if flash and tape.kernel_scratch:
            with tape.label("kernel_workspace"):
                rounded = -(-head_dim // 32) * 32 if head_dim <= 128 else -(-head_dim // 64) * 64
                scratch.append(tape.new(TOKENS, heads, "fp32"))
                scratch.append(tape.new(TOKENS, heads * rounded, "fp32"))
                if grouped:
                    scratch += [tape.new(TOKENS, heads * head_dim, sq.dtype) for _ in range(2)]
        del scratch
        return out

    node = tape.record("attention", inputs, backward, saves)
    out = tape.output(q.rows, heads * v_head_dim, q.dtype)
    out.heads_first, out.heads_first_memory = True, order if flash else False
    logsumexp = tape.output(TOKENS, heads, "fp32")
    seeds = [tape.output(ONE, SEED_BYTES, "int8") for _ in range(2)]
    tape.save(node, [out, logsumexp, *seeds])
    return tape.attach(out, node)


def biased_attention(tape: Tape, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, heads: int, head_dim: int) -> Tensor:
    """The memory-efficient kernel with an additive bias, which is kept and may need a gradient of its own."""
    shape = (bias.rows, bias.width, bias.dtype)

    def backward(saved: list[Tensor], g: Grads) -> Grads:
        assert node is not None
        assert g[0] is not None
        out: Grads = [like_of(tape, t) for t in saved[:3]]
        out.append(tape.new(*shape) if node.needs(3) else None)
        return out

    node = tape.record("attention", [q, k, v, bias], backward, [q, k, v, bias])
    out = tape.new(q.rows, heads * head_dim, q.dtype)
    out.heads_first = True
    logsumexp = tape.new(TOKENS, heads, "fp32")
    seeds = [tape.new(ONE, SEED_BYTES, "int8") for _ in range(2)]
    tape.save(node, [out, logsumexp, *seeds])
    return tape.attach(out, node)


def log_softmax(tape: Tape, x: Tensor) -> Tensor:
    """Kept: the result. Backward makes a tensor of the same size."""

    def backward(_: list[Tensor], g: Grads) -> Grads:
        assert g[0] is not None
        return [like_of(tape, g[0])]

    node = tape.record("log_softmax", [x], backward, [])
    out = like_of(tape, x)
    tape.save(node, [out])
    return tape.attach(out, node)


def nll(tape: Tape, x: Tensor, labels: Tensor) -> Tensor:
    """The mean of the picked log-probabilities, under autocast from an fp32 copy of them; backward makes a zero-filled
    tensor of the input's size."""
    if tape.autocast:
        x = cast(tape, x, "fp32")
    rows, width, dtype = x.rows, x.width, x.dtype
    node = tape.record("nll", [x], lambda _, g: [tape.new(rows, width, dtype)], [x, labels])
    out = tape.new(ONE, 1, dtype)
    total = tape.new(ONE, 1, dtype)
    tape.save(node, [total])
    return tape.attach(out, node)


def compiled_cross_entropy(tape: Tape, x: Tensor) -> Tensor:
    """Cross entropy through a compiler: cast, softmax and picking are one loop over the 16-bit logits, which are kept
    with a maximum and a sum for each row; backward writes the gradient beside them."""
    shape = (x.rows, x.width, x.dtype)
    node = tape.record("compiled_ce", [x], lambda _, __: [tape.new(*shape)], [x])
    highest, total = tape.new(x.rows, 1, "fp32"), tape.new(x.rows, 1, "fp32")
    tape.save(node, [highest, total])
    return tape.attach(tape.new(ONE, 1, "fp32"), node)


def fused_cross_entropy(tape: Tape, x: Tensor, labels: Tensor) -> Tensor:
    """One kernel over existing logits: a loss and a log-sum-exp per row.

    The kernel's own code writes the gradient over the logits. Reserved memory of eleven measured runs
    (fms-acceleration, Llama 3 and Mistral, A100) says that the gradient has a block of its own, so it has one here;
    allocated memory is the same either way.
    """
    shape = (x.rows, x.width, x.dtype)
    node = tape.record("fused_ce", [x], lambda _, __: [tape.new(*shape)], [x, labels])
    losses = tape.new(x.rows, 1, "fp32")
    logsumexp = tape.new(x.rows, 1, "fp32")
    tape.save(node, [logsumexp])
    del losses
    return tape.attach(tape.new(ONE, 1, "fp32"), node)
