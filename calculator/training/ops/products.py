"""Products with weights and between activations, norms, embeddings, exchanges between ranks.

Each follows PyTorch's own kernel and derivative (``derivatives.yaml``, ``FunctionsManual.cpp``).
"""

from __future__ import annotations

from collections.abc import Sequence

from calculator.training.ops.base import Grads, finish, like_of, shape_of
from calculator.training.ops.elementwise import cast
from calculator.training.tape import ONE, SHARD, TOKENS, Param, Tape, Tensor


def autocast_weight(tape: Tape, weight: Tensor) -> Tensor:
    """The 16-bit cast of a weight under autocast; casts of trainable leaves are cached to the end of the block."""
    if not tape.autocast or weight.dtype != "fp32":
        return weight
    param = weight.param
    if param is not None and id(param) in tape.cast_cache:
        return tape.cast_cache[id(param)]
    with tape.label("casts"):
        copy = cast(tape, weight, tape.autocast)
    if param is not None and weight.needs_grad:
        tape.cast_cache[id(param)] = copy
    return copy


def narrowed(tape: Tape, x: Tensor) -> Tensor:
    """The 8-bit cast of a product's input, made once."""
    if x.narrow is None:
        x.narrow = tape.new(x.rows, x.width, "int8", like=x)
    return x.narrow


def linear(
    tape: Tape, x: Tensor, weight: Param | Tensor, width: int, bias: Param | None = None, fp8: str = ""
) -> Tensor:
    """x @ W.T: the input is kept for the weight's gradient, the weight for the input's. ``fp8``: the product runs in
    8 bits; TransformerEngine ("te") then keeps the input's cast, torchao casts input and weight for each product."""
    w, b = weight.tensor if isinstance(weight, Param) else weight, bias.tensor if bias is not None else None
    if tape.autocast:
        x = cast(tape, x, tape.autocast) if x.dtype == "fp32" else x
        w = autocast_weight(tape, w)
        b = autocast_weight(tape, b) if b is not None else None
    in_width, rows = x.width, x.rows
    elements = w.width
    regathered = x.origin is not None and w.needs_grad
    kept = x.origin or x
    casts = [narrowed(tape, kept)] if fp8 == "te" else []
    if fp8 == "torchao":
        casts = [tape.new(rows, in_width, "int8"), tape.new(ONE, elements, "int8")]
    saves = ([casts[0] if fp8 == "te" else kept] if w.needs_grad else []) + ([w] if x.needs_grad else [])
    del kept
    inputs = [x, w] + ([b] if b is not None else [])

    def backward(_: list[Tensor], g: Grads) -> Grads:
        assert node is not None
        assert g[0] is not None
        grad = g[0]
        out: Grads = [None, None]
        whole = tape.new(rows, in_width, "int8" if fp8 == "te" else grad.dtype) if regathered else None
        narrow = [tape.new(rows, grad.width, "int8") for _ in range(2)] if fp8 else []
        if node.needs(1):
            out[1] = tape.new(ONE, elements, grad.dtype)
        if node.needs(0):
            out[0] = tape.new(rows, in_width, grad.dtype)
        if len(inputs_needed) > 2:
            out.append(tape.new(ONE, grad.width, grad.dtype) if node.needs(2) else None)
        del whole, narrow
        return out

    inputs_needed = [t.needs_grad for t in inputs]
    node = tape.record("linear", inputs, backward, saves)
    del inputs, saves, casts
    return finish(tape, tape.output(rows, width, x.dtype, product=True), node)


def gather_tokens(tape: Tape, x: Tensor) -> Tensor:
    """A share of the tokens gathered from the tensor-parallel group; the gradient is reduced back to the share."""
    shape = shape_of(x)
    node = tape.record("all_gather", [x], lambda _, g: [tape.new(*shape)], [])
    out = finish(tape, tape.new(TOKENS, x.width, x.dtype), node)
    out.origin = x.alias()
    return out


def scatter_tokens(tape: Tape, x: Tensor) -> Tensor:
    """Partial sums of all tokens reduced to a share of them; the gradient is gathered."""
    shape = shape_of(x)
    node = tape.record("reduce_scatter", [x], lambda _, g: [tape.new(*shape)], [])
    return finish(tape, tape.new(SHARD, x.width, x.dtype), node)


def exchange(tape: Tape, x: Tensor) -> Tensor:
    """A buffer for what another rank sends, of the same size; it leaves when the operation ends."""
    buffer = like_of(tape, x)
    del buffer
    return x


def matmul(tape: Tape, x: Tensor, y: Tensor, rows: int, width: int) -> Tensor:
    """A batched product of two activations; both are kept."""
    sx, sy = shape_of(x), shape_of(y)
    saves = ([x] if y.needs_grad else []) + ([y] if x.needs_grad else [])

    def backward(_: list[Tensor], g: Grads) -> Grads:
        assert node is not None
        assert g[0] is not None
        gx = tape.new(*sx) if node.needs(0) else None
        gy = tape.new(*sy) if node.needs(1) else None
        for t in (gx, gy):
            if t is not None:
                t.heads_first = t.heads_first_memory = True
        return [gx, gy]

    node = tape.record("bmm", [x, y], backward, saves)
    out = tape.new(rows, width, x.dtype)
    out.heads_first = out.heads_first_memory = True
    return finish(tape, out, node)


def softmax(tape: Tape, x: Tensor, dtype: str) -> Tensor:
    """Softmax that computes and returns ``dtype``; the result is kept. The CUDA kernel of its backward first makes the
    product of gradient and result (``softmax_backward_cuda_out`` in ATen/native/cuda/SoftMax.cu)."""
    source = x.dtype

    def backward(_: list[Tensor], g: Grads) -> Grads:
        assert g[0] is not None
        out = like_of(tape, g[0], source)
        if tape.kernel_scratch:
            with tape.label("kernel_workspace"):
                product = like_of(tape, g[0])
            del product
        return [out]

    node = tape.record("softmax", [x], backward, [])
    out = like_of(tape, x, dtype)
    tape.save(node, [out])
    return finish(tape, out, node)


def layer_norm(tape: Tape, x: Tensor, weight: Param | None, bias: Param | None) -> Tensor:
    """PyTorch's fused LayerNorm: keeps its input, mean and 1/std."""
    if tape.autocast and x.dtype != "fp32":
        x = cast(tape, x, "fp32")
    params = [p.tensor for p in (weight, bias) if p is not None]
    shape = shape_of(x)

    def backward(_: list[Tensor], g: Grads) -> Grads:
        assert node is not None
        out: Grads = [tape.new(*shape) if node.needs(0) else None]
        for i, size in enumerate(sizes):
            out.append(tape.new(ONE, size, shape[2]) if node.needs(i + 1) else None)
        return out

    sizes = [p.width for p in params]
    node = tape.record("layer_norm", [x, *params], backward, [x, *params[:1]])
    del params
    out = like_of(tape, x)
    mean_ = tape.new(x.rows, 1, "fp32")
    rstd = tape.new(x.rows, 1, "fp32")
    tape.save(node, [mean_, rstd])
    return finish(tape, out, node)


def embedding(tape: Tape, table: Param, width: int, rows: int = TOKENS, index: Tensor | None = None) -> Tensor:
    """Rows of a table; its gradient is dense. ``index``: place numbers made for it, which are kept."""
    elements = table.tensor.width

    def backward(_: list[Tensor], g: Grads) -> Grads:
        assert g[0] is not None
        return [tape.new(ONE, elements, g[0].dtype)]

    node = tape.record("embedding", [table.tensor], backward, [index] if index is not None else [])
    return finish(tape, tape.new(rows, width, table.tensor.dtype), node)


def scan(tape: Tape, streams: Sequence[Tensor], width: int, weights: Sequence[Param] = ()) -> Tensor:
    """A recurrence in one kernel: keeps what enters it; backward makes a gradient of each stream and of each of the
    kernel's own weights."""
    shapes = [shape_of(t) for t in streams]
    inputs = [*streams, *(weight.tensor for weight in weights)]

    def backward(_: list[Tensor], g: Grads) -> Grads:
        assert node is not None
        grads: Grads = [tape.new(*shape) for shape in shapes]
        for place, size in enumerate(sizes, start=len(shapes)):
            grads.append(tape.new(ONE, size, dtypes[place - len(shapes)]) if node.needs(place) else None)
        return grads

    sizes, dtypes = [w.tensor.width for w in weights], [w.tensor.dtype for w in weights]
    node = tape.record("scan", inputs, backward, list(streams))
    del inputs
    return finish(tape, tape.new(streams[0].rows, width, streams[0].dtype), node)
