"""The operations that layers are described with: what each allocates, what it keeps for backward, and what its
backward allocates. Each follows PyTorch's own kernel and derivative (``derivatives.yaml``, ``FunctionsManual.cpp``).

Sizes are (rows, width) pairs as in ``calculator.training.tape``; dtypes follow PyTorch's promotion and autocast lists.
"""

from __future__ import annotations

from collections.abc import Sequence

from calculator.training.tape import ONE, SCORES, SHARD, TILE, TOKENS, Node, Param, Tape, Tensor

Grads = list[Tensor | None]
LONG = (SCORES, TOKENS, SHARD)


def _finish(tape: Tape, out: Tensor, node: Node | None) -> Tensor:
    return tape.attach(out, node)


def _like(tape: Tape, t: Tensor, dtype: str | None = None, width: int | None = None) -> Tensor:
    return tape.new(t.rows, t.width if width is None else width, dtype or t.dtype, like=t)


# ------------------------------------------------------------------------------------------------- elementwise
def cast(tape: Tape, x: Tensor, dtype: str) -> Tensor:
    """A copy in another type; the same tensor if the type is right already."""
    if x.dtype == dtype:
        return x
    source = x.dtype
    node = tape.record("cast", [x], lambda _, g: [g[0] and _like(tape, g[0], source)], [])
    return _finish(tape, _like(tape, x, dtype), node)


def _binary_dtype(x: Tensor, y: Tensor) -> str:
    if x.dtype == y.dtype:
        return x.dtype
    return "fp32" if "fp32" in (x.dtype, y.dtype) else x.dtype


def _bigger(x: Tensor, y: Tensor) -> Tensor:
    """Which operand has the broadcast shape. Rows ONE or a narrower width broadcast."""
    if x.rows == y.rows:
        return x if x.width >= y.width else y
    if x.rows in LONG and y.rows not in LONG:
        return x
    if y.rows in LONG and x.rows not in LONG:
        return y
    return x if x.rows == SCORES else y


def _reduce(tape: Tape, g: Tensor | None, shape: tuple[int, int, str]) -> Tensor | None:
    """What the engine does to a gradient of a broadcast operand: sum and cast to the operand's size and type."""
    if g is None:
        return None
    rows, width, dtype = shape
    if (g.rows, g.width) != (rows, width):
        g = tape.new(rows, width, g.dtype)
    if g.dtype != dtype:
        g = tape.new(rows, width, dtype, like=g)
    return g


def _shape(x: Tensor) -> tuple[int, int, str]:
    return x.rows, x.width, x.dtype


def add(tape: Tape, x: Tensor, y: Tensor) -> Tensor:
    """x + y; both gradients are the incoming one itself."""
    sx, sy = _shape(x), _shape(y)

    def backward(_: list[Tensor], g: Grads) -> Grads:
        return [_reduce(tape, g[0], sx) if node and node.needs(0) else None,
                _reduce(tape, g[0], sy) if node and node.needs(1) else None]

    node = tape.record("add", [x, y], backward, [])
    big = _bigger(x, y)
    return _finish(tape, tape.new(big.rows, big.width, _binary_dtype(x, y), like=x if big is x else big), node)


def mul(tape: Tape, x: Tensor, y: Tensor) -> Tensor:
    """x * y: each operand is kept if the other needs a gradient. Both products exist before a broadcast is summed."""
    sx, sy = _shape(x), _shape(y)
    saves = ([x] if y.needs_grad else []) + ([y] if x.needs_grad else [])
    dtype = _binary_dtype(x, y)

    def backward(_: list[Tensor], g: Grads) -> Grads:
        assert node is not None and g[0] is not None
        gx = _like(tape, g[0]) if node.needs(0) else None
        gy = _like(tape, g[0]) if node.needs(1) else None
        return [_reduce(tape, gx, sx), _reduce(tape, gy, sy)]

    node = tape.record("mul", [x, y], backward, saves)
    big = _bigger(x, y)
    return _finish(tape, tape.new(big.rows, big.width, dtype, like=x if big is x else big), node)


def scale(tape: Tape, x: Tensor) -> Tensor:
    """x times a number, or divided by one: keeps nothing."""
    node = tape.record("scale", [x], lambda _, g: [g[0] and _like(tape, g[0])], [])
    return _finish(tape, _like(tape, x), node)


def shift(tape: Tape, x: Tensor) -> Tensor:
    """x plus a number: keeps nothing, and the gradient passes through."""
    node = tape.record("shift", [x], lambda _, g: [g[0]], [])
    return _finish(tape, _like(tape, x), node)


def negate(tape: Tape, x: Tensor) -> Tensor:
    return scale(tape, x)


def square(tape: Tape, x: Tensor) -> Tensor:
    """x ** 2; the derivative makes x ** 1, twice that, and the product, all alive together."""
    return power(tape, x)


def power(tape: Tape, x: Tensor) -> Tensor:
    if tape.autocast and x.dtype != "fp32":
        x = cast(tape, x, "fp32")

    def backward(_: list[Tensor], g: Grads) -> Grads:
        assert g[0] is not None
        one = _like(tape, g[0])
        two = _like(tape, g[0])
        product = _like(tape, g[0])
        del one, two
        return [product]

    node = tape.record("pow", [x], backward, [x])
    return _finish(tape, _like(tape, x), node)


def mean(tape: Tape, x: Tensor, groups: int = 1) -> Tensor:
    """Mean over the width, or over each of ``groups`` parts of it."""
    node = tape.record("mean", [x], lambda saved, g: [tape.new(*shape)], [])
    shape = _shape(x)
    return _finish(tape, tape.new(x.rows, groups, x.dtype), node)


def tanh_gelu(tape: Tape, x: Tensor) -> Tensor:
    """GELU's tanh form written out in Python (GPT-2): 0.5 x (1 + tanh(c (x + 0.044715 x^3)))."""
    half = scale(tape, x)
    return mul(tape, half, shift(tape, unary(tape, scale(tape, add(tape, x, scale(tape, power(tape, x)))), "output", "tanh")))


def rsqrt(tape: Tape, x: Tensor) -> Tensor:
    def backward(_: list[Tensor], g: Grads) -> Grads:
        assert g[0] is not None
        half = _like(tape, g[0])
        cube = _like(tape, g[0])
        product = _like(tape, g[0])
        del half, cube
        return [product]

    node = tape.record("rsqrt", [x], backward, [])
    out = _like(tape, x)
    tape.save(node, [out])
    return _finish(tape, out, node)


def unary(tape: Tape, x: Tensor, keep: str = "input", name: str = "unary", copies: int = 0) -> Tensor:
    """An activation with a fused derivative that keeps its input or its output; ``copies`` extra temporaries."""

    def backward(_: list[Tensor], g: Grads) -> Grads:
        assert g[0] is not None
        temporary = [_like(tape, g[0]) for _ in range(copies)]
        result = _like(tape, g[0])
        del temporary
        return [result]

    node = tape.record(name, [x], backward, [x] if keep == "input" else [])
    out = _like(tape, x)
    if keep == "output":
        tape.save(node, [out])
    return _finish(tape, out, node)


def relu(tape: Tape, x: Tensor, inplace: bool = False) -> Tensor:
    """relu keeps its output; in place it has no storage of its own."""

    def backward(_: list[Tensor], g: Grads) -> Grads:
        assert g[0] is not None
        return [_like(tape, g[0])]

    node = tape.record("relu", [x], backward, [])
    out = x.alias() if inplace else _like(tape, x)
    tape.save(node, [out])
    return _finish(tape, out, node)


def dropout(tape: Tape, x: Tensor, p: float) -> Tensor:
    """Keeps a mask of one byte an element."""
    if not p:
        return x
    node = tape.record("dropout", [x], lambda _, g: [g[0] and _like(tape, g[0])], [])
    out = _like(tape, x)
    mask = tape.new(x.rows, x.width, "bool")
    tape.save(node, [mask])
    return _finish(tape, out, node)


# ------------------------------------------------------------------------------------------------ shape changes
def transpose_heads(tape: Tape, x: Tensor) -> Tensor:
    """(batch, length, heads, dim) <-> (batch, heads, length, dim): a view."""

    def backward(_: list[Tensor], g: Grads) -> Grads:
        return [g[0] and g[0].alias(heads_first=not g[0].heads_first)]

    node = tape.record("transpose", [x], backward, [])
    return _finish(tape, x.alias(heads_first=not x.heads_first), node)


def contiguous(tape: Tape, x: Tensor) -> Tensor:
    """A copy in the order of the dimensions, where the bytes are in another."""
    if x.heads_first == x.heads_first_memory:
        return x

    node = tape.record("clone", [x], lambda _, g: [g[0]], [])
    out = tape.new(x.rows, x.width, x.dtype)
    out.heads_first = out.heads_first_memory = x.heads_first
    return _finish(tape, out, node)


def merge_heads(tape: Tape, x: Tensor) -> Tensor:
    """(batch, length, heads, dim) as (batch, length, width): a view, or a copy where the bytes are out of order."""

    def backward(_: list[Tensor], g: Grads) -> Grads:
        return [g[0]]

    if x.heads_first_memory:
        node = tape.record("reshape", [x], backward, [])
        return _finish(tape, tape.new(x.rows, x.width, x.dtype), node)
    node = tape.record("view", [x], backward, [])
    return _finish(tape, x.alias(), node)


def split_heads(tape: Tape, x: Tensor) -> Tensor:
    """(batch, length, width) as (batch, length, heads, dim). Its gradient comes back in that order: a copy if it does
    not lie so in memory."""

    def backward(_: list[Tensor], g: Grads) -> Grads:
        grad = g[0]
        if grad is not None and grad.heads_first_memory:
            return [tape.new(grad.rows, grad.width, grad.dtype)]
        return [grad and grad.alias()]

    node = tape.record("view", [x], backward, [])
    return _finish(tape, x.alias(), node)


def narrow(tape: Tape, x: Tensor, width: int) -> Tensor:
    """A slice along the width: a view, whose gradient is a zero-filled tensor of the whole size."""
    full = x.width

    def backward(_: list[Tensor], g: Grads) -> Grads:
        assert g[0] is not None
        out = tape.new(g[0].rows, full, g[0].dtype)
        out.heads_first = out.heads_first_memory = g[0].heads_first
        return [out]

    node = tape.record("slice", [x], backward, [])
    out = x.alias()
    out.width = width
    return _finish(tape, out, node)


def split(tape: Tape, x: Tensor, widths: Sequence[int]) -> list[Tensor]:
    """Views of consecutive parts; backward joins their gradients."""
    full, order = x.width, x.heads_first

    def backward(_: list[Tensor], g: Grads) -> Grads:
        known = next(t for t in g if t is not None)
        missing = [tape.new(known.rows, w, known.dtype) for t, w in zip(g, widths, strict=True) if t is None]
        out = tape.new(known.rows, full, known.dtype)
        out.heads_first = out.heads_first_memory = order
        del missing
        return [out]

    node = tape.record("split", [x], backward, [], outputs=len(widths))
    parts = []
    for slot, width in enumerate(widths):
        part = x.alias()
        part.width = width
        parts.append(tape.attach(part, node, slot))
    return parts


def shifted_rows(tape: Tape, x: Tensor, rows: int) -> Tensor:
    """All but the last position of every sequence, copied; the gradient is first of the slice, then of the whole."""
    full = x.rows

    def backward(_: list[Tensor], g: Grads) -> Grads:
        assert g[0] is not None
        return [tape.new(full, g[0].width, g[0].dtype)]

    node = tape.record("shift_rows", [x], backward, [])
    return _finish(tape, tape.new(rows, x.width, x.dtype), node)


def concat(tape: Tape, parts: Sequence[Tensor]) -> Tensor:
    """Join along the width. The result lies in the order of its dimensions; gradients are views."""
    widths = [p.width for p in parts]

    def backward(_: list[Tensor], g: Grads) -> Grads:
        assert g[0] is not None
        out: Grads = []
        for i, width in enumerate(widths):
            if node is not None and node.needs(i):
                view = g[0].alias()
                view.width = width
                out.append(view)
            else:
                out.append(None)
        return out

    node = tape.record("cat", list(parts), backward, [])
    out = tape.new(parts[0].rows, sum(widths), parts[0].dtype)
    out.heads_first = out.heads_first_memory = parts[0].heads_first
    return _finish(tape, out, node)


def copy_heads(tape: Tape, x: Tensor) -> Tensor:
    """A copy head by head."""
    node = tape.record("clone", [x], lambda _, g: [g[0]], [])
    out = tape.new(x.rows, x.width, x.dtype)
    out.heads_first = out.heads_first_memory = True
    return _finish(tape, out, node)


def clone(tape: Tape, x: Tensor) -> Tensor:
    node = tape.record("clone", [x], lambda _, g: [g[0]], [])
    return _finish(tape, tape.new(x.rows, x.width, x.dtype), node)


def where(tape: Tape, condition: Tensor, x: Tensor) -> Tensor:
    """x where the condition holds, a number elsewhere; the condition is kept."""
    node = tape.record("where", [x], lambda _, g: [g[0] and _like(tape, g[0])], [condition])
    return _finish(tape, _like(tape, x), node)


def repeat_heads(tape: Tape, x: Tensor, times: int) -> Tensor:
    """Key or value heads repeated to all query heads: a copy; backward sums it again."""
    if times == 1:
        return x
    small = x.width

    def backward(_: list[Tensor], g: Grads) -> Grads:
        assert g[0] is not None
        out = tape.new(g[0].rows, small, g[0].dtype)
        out.heads_first = out.heads_first_memory = g[0].heads_first
        return [out]

    node = tape.record("repeat", [x], backward, [])
    out = tape.new(x.rows, small * times, x.dtype)
    out.heads_first = out.heads_first_memory = x.heads_first
    return _finish(tape, out, node)


# -------------------------------------------------------------------------------------------------- products
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


def linear(tape: Tape, x: Tensor, weight: Param, width: int, bias: Param | None = None) -> Tensor:
    """x @ W.T: the input is kept for the weight's gradient, the weight for the input's."""
    w, b = weight.tensor, bias.tensor if bias is not None else None
    if tape.autocast:
        x = cast(tape, x, tape.autocast) if x.dtype == "fp32" else x
        w = autocast_weight(tape, w)
        b = autocast_weight(tape, b) if b is not None else None
    in_width, rows = x.width, x.rows
    elements = w.width
    regathered = x.origin is not None and w.needs_grad
    saves = ([x.origin or x] if w.needs_grad else []) + ([w] if x.needs_grad else [])
    inputs = [x, w] + ([b] if b is not None else [])

    def backward(_: list[Tensor], g: Grads) -> Grads:
        assert node is not None and g[0] is not None
        grad = g[0]
        out: Grads = [None, None]
        whole = tape.new(rows, in_width, grad.dtype) if regathered else None
        if node.needs(1):
            out[1] = tape.new(ONE, elements, grad.dtype)
        if node.needs(0):
            out[0] = tape.new(rows, in_width, grad.dtype)
        if len(inputs_needed) > 2:
            out.append(tape.new(ONE, grad.width, grad.dtype) if node.needs(2) else None)
        del whole
        return out

    inputs_needed = [t.needs_grad for t in inputs]
    node = tape.record("linear", inputs, backward, saves)
    del inputs, saves
    return _finish(tape, tape.new(rows, width, x.dtype), node)


def gather_tokens(tape: Tape, x: Tensor) -> Tensor:
    """A share of the tokens gathered from the tensor-parallel group; the gradient is reduced back to the share."""
    shape = _shape(x)
    node = tape.record("all_gather", [x], lambda _, g: [tape.new(*shape)], [])
    out = _finish(tape, tape.new(TOKENS, x.width, x.dtype), node)
    out.origin = x.alias()
    return out


def scatter_tokens(tape: Tape, x: Tensor) -> Tensor:
    """Partial sums of all tokens reduced to a share of them; the gradient is gathered."""
    shape = _shape(x)
    node = tape.record("reduce_scatter", [x], lambda _, g: [tape.new(*shape)], [])
    return _finish(tape, tape.new(SHARD, x.width, x.dtype), node)


def exchange(tape: Tape, x: Tensor) -> Tensor:
    """A buffer for what another rank sends, of the same size; it leaves when the operation ends."""
    buffer = _like(tape, x)
    del buffer
    return x


def dequantising_linear(
    tape: Tape, x: Tensor, weight: Param, width: int, bias: Param | None, compute: str, stored: str
) -> Tensor:
    """A product with a packed frozen weight: the weight is unpacked to ``compute`` for the product and again in
    backward. The result has the input's type. ``int8`` (LLM.int8) also keeps its 16-bit input; the others keep no
    activation."""
    source = x.dtype
    x = cast(tape, x, compute)
    elements, in_width, rows = weight.tensor.width, x.width, x.rows

    def backward(_: list[Tensor], g: Grads) -> Grads:
        unpacked = tape.new(ONE, elements, compute)
        out = tape.new(rows, in_width, compute)
        del unpacked
        return [out]

    node = tape.record("dequantising_linear", [x], backward, [x] if stored in ("int8", "bnb4_input") else [])
    unpacked = tape.new(ONE, elements, compute) if stored != "int8" else None
    out = tape.new(rows, width, compute)
    del unpacked
    return cast(tape, _finish(tape, out, node), source)


def fused_adapter_linear(
    tape: Tape, x: Tensor, weight: Param, a: Param, b: Param, width: int, rank: int, compute: str, dropped: bool
) -> Tensor:
    """One kernel for a packed weight and its adapter (Unsloth's, also in fms-acceleration): keeps the input and the input
    after dropout, both in the compute type."""
    x = cast(tape, x, compute)
    rows, in_width, elements = x.rows, x.width, weight.tensor.width
    sizes = (a.tensor.width, b.tensor.width)
    dtype = a.tensor.dtype

    def backward(_: list[Tensor], g: Grads) -> Grads:
        assert node is not None
        grads: Grads = [tape.new(ONE, size, dtype) for size in sizes]
        unpacked = tape.new(ONE, elements, compute)
        gx = tape.new(rows, in_width, compute) if node.needs(0) else None
        del unpacked
        return [gx, *grads]

    after = _like(tape, x) if dropped else x
    node = tape.record("fused_adapter", [x, a.tensor, b.tensor], backward, [x, after])
    unpacked = tape.new(ONE, elements, compute)
    out = tape.new(rows, width, compute)
    del unpacked
    low = tape.new(rows, rank, compute)
    del low
    return _finish(tape, out, node)


def fused_rms_norm(tape: Tape, x: Tensor, weight: Param) -> Tensor:
    """A one-kernel RMSNorm: keeps its input and 1/rms; backward overwrites the incoming gradient."""
    node = tape.record("fused_norm", [x, weight.tensor], lambda _, g: [g[0], _weight_grad()], [x])

    def _weight_grad() -> Tensor | None:
        return tape.new(ONE, weight.tensor.width, weight.tensor.dtype) if node is not None and node.needs(1) else None

    out = _like(tape, x)
    inverse = tape.new(x.rows, 1, "fp32")
    tape.save(node, [inverse])
    return _finish(tape, out, node)


def fused_glu(tape: Tape, gate: Tensor, up: Tensor) -> Tensor:
    """A one-kernel gate: keeps gate and up and writes both gradients over them."""
    node = tape.record("fused_glu", [gate, up], lambda saved, _: [saved[0], saved[1]], [gate, up])
    return _finish(tape, _like(tape, gate), node)


def rewrite(tape: Tape, x: Tensor) -> Tensor:
    """A kernel that works in place and keeps nothing (rotary embedding)."""
    node = tape.record("rewrite", [x], lambda _, g: [g[0]], [])
    return _finish(tape, x.alias(), node)


def matmul(tape: Tape, x: Tensor, y: Tensor, rows: int, width: int) -> Tensor:
    """A batched product of two activations; both are kept."""
    sx, sy = _shape(x), _shape(y)
    saves = ([x] if y.needs_grad else []) + ([y] if x.needs_grad else [])

    def backward(_: list[Tensor], g: Grads) -> Grads:
        assert node is not None and g[0] is not None
        gx = tape.new(*sx) if node.needs(0) else None
        gy = tape.new(*sy) if node.needs(1) else None
        for t in (gx, gy):
            if t is not None:
                t.heads_first = t.heads_first_memory = True
        return [gx, gy]

    node = tape.record("bmm", [x, y], backward, saves)
    out = tape.new(rows, width, x.dtype)
    out.heads_first = out.heads_first_memory = True
    return _finish(tape, out, node)


def softmax(tape: Tape, x: Tensor, dtype: str) -> Tensor:
    """Softmax that computes and returns ``dtype``; the result is kept. The CUDA kernel of its backward first makes the
    product of gradient and result (``softmax_backward_cuda_out`` in ATen/native/cuda/SoftMax.cu)."""
    source = x.dtype

    def backward(_: list[Tensor], g: Grads) -> Grads:
        assert g[0] is not None
        out = _like(tape, g[0], source)
        if tape.kernel_scratch:
            with tape.label("kernel_workspace"):
                product = _like(tape, g[0])
            del product
        return [out]

    node = tape.record("softmax", [x], backward, [])
    out = _like(tape, x, dtype)
    tape.save(node, [out])
    return _finish(tape, out, node)


def layer_norm(tape: Tape, x: Tensor, weight: Param | None, bias: Param | None) -> Tensor:
    """PyTorch's fused LayerNorm: keeps its input, mean and 1/std."""
    if tape.autocast and x.dtype != "fp32":
        x = cast(tape, x, "fp32")
    params = [p.tensor for p in (weight, bias) if p is not None]
    shape = _shape(x)

    def backward(_: list[Tensor], g: Grads) -> Grads:
        assert node is not None
        out: Grads = [tape.new(*shape) if node.needs(0) else None]
        for i, size in enumerate(sizes):
            out.append(tape.new(ONE, size, shape[2]) if node.needs(i + 1) else None)
        return out

    sizes = [p.width for p in params]
    node = tape.record("layer_norm", [x, *params], backward, [x, *params[:1]])
    del params
    out = _like(tape, x)
    mean_ = tape.new(x.rows, 1, "fp32")
    rstd = tape.new(x.rows, 1, "fp32")
    tape.save(node, [mean_, rstd])
    return _finish(tape, out, node)


def embedding(tape: Tape, table: Param, width: int, rows: int = TOKENS, index: Tensor | None = None) -> Tensor:
    """Rows of a table; its gradient is dense. ``index``: place numbers made for it, which are kept."""
    elements = table.tensor.width

    def backward(_: list[Tensor], g: Grads) -> Grads:
        assert g[0] is not None
        return [tape.new(ONE, elements, g[0].dtype)]

    node = tape.record("embedding", [table.tensor], backward, [index] if index is not None else [])
    return _finish(tape, tape.new(rows, width, table.tensor.dtype), node)


# ------------------------------------------------------------------------------------------------ routed experts
def top_k(tape: Tape, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The largest ``k`` of the width and their places; backward scatters into a zero-filled tensor."""
    shape = _shape(x)
    node = tape.record("topk", [x], lambda _, g: [tape.new(*shape)], [])
    values, index = tape.new(x.rows, k, x.dtype), tape.new(x.rows, k, "int64")
    tape.save(node, [index])
    return _finish(tape, values, node), index


def divide_by_sum(tape: Tape, x: Tensor) -> Tensor:
    """x /= x.sum(): in place, so the original that the derivative needs is cloned first."""
    width = x.width
    total_node = tape.record("sum", [x], lambda _, g: [g[0] and tape.new(x_rows, width, x_dtype)], [])
    x_rows, x_dtype = x.rows, x.dtype
    total = _finish(tape, tape.new(x.rows, 1, x.dtype), total_node)

    def backward(_: list[Tensor], g: Grads) -> Grads:
        assert g[0] is not None
        gx = _like(tape, g[0])
        gy = _like(tape, g[0])
        return [gx, _reduce(tape, gy, (g[0].rows, 1, g[0].dtype))]

    original = _like(tape, x) if x.needs_grad and tape.recording else None
    node = tape.record("div", [x, total], backward, [t for t in (original, total) if t is not None])
    out = x.alias()
    return _finish(tape, out, node)


def gather_rows(tape: Tape, x: Tensor, index: Tensor, rows: int, width: int, second: Tensor | None = None) -> Tensor:
    """Rows picked by an index tensor, which is kept; backward adds into a zero-filled tensor of the input's size."""
    shape = _shape(x)
    node = tape.record("index", [x], lambda _, g: [tape.new(*shape)], [index] + ([second] if second is not None else []))
    return _finish(tape, tape.new(rows, width, x.dtype), node)


def grouped_linear(tape: Tape, x: Tensor, weight: Param, offsets: Tensor, width: int) -> Tensor:
    """One product per expert over sorted rows: keeps its input, the offsets and the weight."""
    w = autocast_weight(tape, weight.tensor)
    x = cast(tape, x, w.dtype)
    elements, rows, in_width = w.width, x.rows, x.width

    def backward(_: list[Tensor], g: Grads) -> Grads:
        assert node is not None and g[0] is not None
        gx = tape.new(rows, in_width, g[0].dtype) if node.needs(0) else None
        gw = tape.new(ONE, elements, g[0].dtype) if node.needs(1) else None
        return [gx, gw]

    node = tape.record("grouped_mm", [x, w], backward, ([x] if w.needs_grad else []) + [w, offsets])
    return _finish(tape, tape.new(rows, width, x.dtype), node)


def sum_parts(tape: Tape, x: Tensor, width: int) -> Tensor:
    """(rows, parts, width) summed over the parts; the view before it makes its gradient a whole copy."""
    shape = _shape(x)
    node = tape.record("sum", [x], lambda _, g: [tape.new(*shape)], [])
    return _finish(tape, tape.new(x.rows, width, x.dtype), node)


def expert_linear(tape: Tape, x: Tensor, weight: Param, experts: int, width: int) -> Tensor:
    """A product with one expert's slice of a fused parameter; the slice's gradient is put into a zero-filled tensor of
    the whole parameter's size."""
    w = weight.tensor
    elements, rows, in_width = w.width, x.rows, x.width
    select = tape.record("select", [w], lambda _, g: [tape.new(ONE, elements, g[0].dtype)] if g[0] else [None], [])
    part = _finish(tape, Tensor(w.storage, ONE, elements // experts, w.dtype), select)

    def backward(_: list[Tensor], g: Grads) -> Grads:
        assert node is not None and g[0] is not None
        gw = tape.new(ONE, elements // experts, g[0].dtype) if node.needs(1) else None
        gx = tape.new(rows, in_width, g[0].dtype) if node.needs(0) else None
        return [gx, gw]

    node = tape.record("linear", [x, part], backward, ([x] if part.needs_grad else []) + [part])
    return _finish(tape, tape.new(rows, width, x.dtype), node)


def add_rows(tape: Tape, x: Tensor, y: Tensor, index: Tensor) -> Tensor:
    """index_add in place; keeps the added rows' index, and backward picks their gradient."""
    shape = _shape(y)
    node = tape.record("index_add", [x, y], lambda _, g: [g[0], tape.new(*shape)], [index, y])
    return _finish(tape, x.alias(), node)


def repeat_rows(tape: Tape, x: Tensor, times: int) -> Tensor:
    """Every row ``times`` times over; backward adds up."""
    shape = _shape(x)
    node = tape.record("repeat_interleave", [x], lambda _, g: [tape.new(*shape)], [])
    return _finish(tape, tape.new(x.rows, x.width * times, x.dtype), node)


def gather_param(tape: Tape, weight: Param, index: Tensor, width: int) -> Tensor:
    """Whole matrices of a parameter picked per token; backward adds into a zero-filled parameter."""
    w = autocast_weight(tape, weight.tensor)
    elements, dtype = w.width, w.dtype
    node = tape.record("index", [w], lambda _, g: [tape.new(ONE, elements, dtype)], [index])
    return _finish(tape, tape.new(TOKENS, width, dtype), node)


def batched_linear(tape: Tape, matrices: Tensor, x: Tensor, width: int) -> Tensor:
    sm, sx = _shape(matrices), _shape(x)

    def backward(_: list[Tensor], g: Grads) -> Grads:
        assert node is not None
        return [tape.new(*sm) if node.needs(0) else None, tape.new(*sx) if node.needs(1) else None]

    node = tape.record("bmm", [matrices, x], backward, [matrices, x])
    return _finish(tape, tape.new(x.rows, width, x.dtype), node)


def assemble(tape: Tape, parts: Sequence[Tensor], width: int) -> Tensor:
    """Parts copied into slices of a new tensor; backward of each copy clones the whole gradient and its slice."""
    shapes = [_shape(p) for p in parts]
    whole = tape.new(parts[0].rows, width, parts[0].dtype)
    whole.heads_first = whole.heads_first_memory = True
    order = parts[0].heads_first

    def one(index: int) -> None:
        rows, own, dtype = shapes[index]

        def backward(_: list[Tensor], g: Grads) -> Grads:
            assert g[0] is not None
            rest = _like(tape, g[0])
            piece = tape.new(rows, width - widths[1 - index] if index == 0 else width - widths[0], dtype)
            piece.heads_first = piece.heads_first_memory = order
            return [rest, _reduce(tape, piece, (rows, own, dtype))]

        nonlocal whole
        node = tape.record("copy_slice", [whole, parts[index]], backward, [])
        following = whole.alias()
        whole = _finish(tape, following, node)

    widths = [parts[0].width, width - parts[0].width]
    one(0)
    one(1)
    return whole


def scan(tape: Tape, streams: Sequence[Tensor], width: int) -> Tensor:
    """A recurrence in one kernel: keeps what enters it; backward makes a gradient of each stream."""
    shapes = [_shape(t) for t in streams]
    node = tape.record("scan", list(streams), lambda _, g: [tape.new(*shape) for shape in shapes], list(streams))
    return _finish(tape, tape.new(streams[0].rows, width, streams[0].dtype), node)


def magnitude(tape: Tape, base: Tensor, delta: Tensor, scale_: Param, weight: Param, width: int) -> Tensor:
    """DoRA: base and adapter output scaled by a trained vector over the norm of the summed weight, which takes an identity
    through the adapter, the full delta and its sum with the (unpacked) weight; both outputs are kept."""
    in_width = weight.tensor.width // width
    dtype = delta.dtype
    identity = tape.new(ONE, in_width * in_width, dtype)
    full = tape.new(ONE, weight.tensor.width, dtype)
    del identity
    wide = tape.new(ONE, weight.tensor.width, dtype)
    total = tape.new(ONE, weight.tensor.width, dtype)
    del full, wide, total
    shapes = _shape(base), _shape(delta)

    def backward(_: list[Tensor], g: Grads) -> Grads:
        assert node is not None and g[0] is not None
        return [tape.new(*shapes[0]) if node.needs(0) else None, tape.new(*shapes[1]) if node.needs(1) else None,
                tape.new(ONE, width, dtype)]

    node = tape.record("dora", [base, delta, scale_.tensor], backward, [base, delta])
    return _finish(tape, tape.new(base.rows, width, _binary_dtype(base, delta)), node)


def tiled(tape: Tape, x: Tensor, params: Sequence[Param], widths: Sequence[int], out_width: int) -> Tensor:
    """An MLP in tiles of as many tokens as the model is wide, run again tile by tile in backward: it keeps its input."""
    rows, in_width, dtype = x.rows, x.width, x.dtype
    inputs = [x, *(p.tensor for p in params)]

    def once() -> None:
        held = [tape.new(TILE, w, dtype) for w in widths]
        held.clear()

    def backward(_: list[Tensor], g: Grads) -> Grads:
        assert node is not None
        out: Grads = [tape.new(rows, in_width, dtype) if node.needs(0) else None]
        once()
        once()
        out += [tape.new(ONE, p.tensor.width, dtype) if node.needs(i + 1) else None for i, p in enumerate(params)]
        return out

    node = tape.record("tiled_mlp", inputs, backward, [x])
    once()
    return _finish(tape, tape.new(rows, out_width, dtype), node)
