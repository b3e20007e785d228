"""What stands before and after the layers: embedding with rotary tables and masks, final norm, head and loss.

Source: transformers 5.24.0 ``modeling_llama.py``, ``modeling_rope_utils.py``, ``loss/loss_utils.py``; earlier releases
of the loss as named at ``LossForm``.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from calculator.training import ops
from calculator.training.dialect import Dialect
from calculator.training.kernels import compiled_cross_entropy, fused_cross_entropy, log_softmax, nll
from calculator.training.layers import Layer
from calculator.training.tape import CHUNK, ONE, PADDED, SCORES, SEQ, SHIFTED, TOKENS, Tape, Tensor

Era = Literal["padded", "shifted_held", "shifted_freed"]
"""How the library shifts labels against logits: since transformers 4.49 it pads the labels (``padded``); 4.46 to 4.48
copy the shifted fp32 logits and hold the 16-bit ones (``shifted_held``, also the form of model code of its own that
never casts them up); up to 4.45 the 16-bit ones are overwritten first (``shifted_freed``)."""


class HeadForm(NamedTuple):
    """Vocabulary, the norm before the head, and how logits become a loss."""

    vocab: int
    norm: str
    tied: bool
    head_bias: bool = False
    softcap: bool = False
    upcast: bool = True
    kernel: Literal["standard", "fused_ce", "fused_linear_ce", "chunked"] = "standard"
    era: Era = "padded"
    outputs_held: bool = False
    outputs_fp32: bool = False
    chunked: Literal["converted", "kept_32", "eager"] = "eager"
    compiled: bool = False


def rotary_tables(tape: Tape, dim: int, dtype: str, dialect: Dialect) -> tuple[Tensor, ...]:
    """cos and sin of (length, dim): angles in fp32, joined twice, then each function, its scaling and its cast; or, as
    complex numbers, one table of half the width."""
    position = tape.new(SEQ, 1, "fp32")
    angles = tape.new(SEQ, dim // 2, "fp32")
    del position
    if dialect.complex_rotary:
        ones = tape.new(SEQ, dim // 2, "fp32")
        polar = tape.new(SEQ, dim // 2, "complex64")
        del ones
        return (tape.new(SEQ, dim // 2, "complex64"), polar)[:1]
    both = tape.new(SEQ, dim, "fp32")
    tables = []
    for _ in range(2):
        function = tape.new(SEQ, dim, "fp32")
        tables.append(tape.new(SEQ, dim, "fp32"))
        del function
    cast = [tape.new(SEQ, dim, dtype) if dtype != "fp32" else t for t in tables]
    del tables, angles, both
    return tuple(cast)


def position_ids(tape: Tape) -> list[Tensor]:
    """Place numbers: a range and its shifted copy."""
    first = tape.new(SEQ, 1, "int64")
    places = tape.new(SEQ, 1, "int64")
    del first
    return [places]


def boolean_mask(tape: Tape) -> Tensor:
    """A causal or windowed mask of one byte a pair of tokens."""
    return tape.new(SCORES, 1, "bool")


def embed(
    layer: Layer, vocab: int, *, positions: int = 0, norm: str = "none", scaled: bool = False, dropout: float = 0.0
) -> tuple[Tensor, list[Tensor]]:
    """Token rows, plus learned positions, a scale (Gemma) or a norm (BERT) where the model has them; and the
    summands, which the model's forward holds to its end."""
    tape, n = layer.tape, layer.numerics
    x = ops.embedding(tape, layer.param("embedding", vocab * layer.hidden, n.small), layer.hidden)
    summands: list[Tensor] = []
    if scaled:
        x = ops.scale(tape, x)
    if layer.dialect.embedding_multiplied:
        if not n.trainable and n.input_needs_grad:
            summands = [x]
        x = ops.scale(tape, x)
    if positions:
        index, rows = place_numbers(tape, layer.dialect)
        table = layer.param("positions", positions * layer.hidden, n.small)
        place = ops.embedding(tape, table, layer.hidden, rows, index)
        del index
        summands = [x, place]
        x = ops.add(tape, x, place)
    x = layer.norm(x, norm, "embedding_norm")
    if n.sequence_parallel:
        x = ops.scatter_tokens(tape, x)
    return ops.dropout(tape, x, dropout if n.dropout is None else n.dropout), summands


def place_numbers(tape: Tape, dialect: Dialect) -> tuple[Tensor, int]:
    """Indices of learned positions: a range for all sequences, or (OPT) counted from a mask of each."""
    if not dialect.positions_mask:
        return position_ids(tape)[0], SEQ
    total = tape.new(TOKENS, 1, "fp32")
    places = tape.new(TOKENS, 1, "int64")
    del total
    shifted = tape.new(TOKENS, 1, "int64")
    del places
    return shifted, TOKENS


def head(layer: Layer, box: list[Tensor], form: HeadForm, held: list[Tensor], marks: dict[str, int]) -> Tensor:
    """Final norm, head and loss. ``box`` gives its input away; ``held`` keeps what the caller's result keeps; ``marks``
    are filled with the places of the loss among the events."""
    tape = layer.tape
    hidden = layer.norm(box[0], form.norm, "final_norm")
    box.clear()
    marks["returned"] = len(tape.events)
    if layer.numerics.sequence_parallel:
        hidden = ops.gather_tokens(tape, hidden)
    with tape.label("logits_loss", backward=True):
        if form.kernel == "fused_linear_ce":
            return fused_linear_loss(layer, hidden, form, marks)
        if form.kernel == "chunked" and form.chunked == "eager":
            return chunked_loss(layer, hidden, form, marks)
        if layer.dialect.normalised_head == form.vocab:
            logits = normalised_head(layer, hidden, form.vocab)
        else:
            logits = layer.linear(hidden, "head", form.vocab, bias=form.head_bias)
        if layer.dialect.logits_scaled:
            logits = ops.scale(tape, logits)
        if form.softcap:
            logits = ops.scale(tape, logits)
            logits = ops.unary(tape, logits, "output", "tanh")
            logits = ops.scale(tape, logits)
        marks["loss"] = len(tape.events)
        if form.compiled:
            loss = compiled_cross_entropy(tape, logits)
            marks["after_loss"] = len(tape.events)
            held.append(logits)
            return loss
        if form.era == "shifted_freed":
            logits = ops.cast(tape, logits, "fp32")
        elif form.kernel == "chunked" and form.chunked == "converted":
            logits = converted(tape, logits)
        loss = causal_loss(tape, logits, form, single=layer.numerics.single)
        marks["after_loss"] = len(tape.events)
        held.append(logits)
        del logits, hidden
        if form.outputs_fp32 and held[0].dtype != "fp32":
            held[0] = ops.cast(tape, held[0], "fp32")
    return loss


def causal_loss(tape: Tape, logits: Tensor, form: HeadForm, *, single: bool) -> Tensor:
    """Logits to fp32, labels shifted, log-softmax, negative log-likelihood."""
    if form.kernel == "chunked":
        return pieces_loss(tape, logits, form)
    if form.upcast:
        logits = ops.cast(tape, logits, "fp32")
    if form.era == "padded":
        labels = tape.new(PADDED, 1, "int64")
        if not single:
            labels = [labels, tape.new(TOKENS, 1, "int64")][1]
        scores = logits
    else:
        scores = ops.shifted_rows(tape, logits, SHIFTED, single=single)
        labels = tape.new(SHIFTED, 1, "int64")
    if form.kernel == "fused_ce":
        return fused_cross_entropy(tape, scores, labels)
    return nll(tape, log_softmax(tape, scores), labels)


def normalised_head(layer: Layer, hidden: Tensor, vocab: int) -> Tensor:
    """A head whose rows are divided by their length in every forward (``NormHead`` of Baichuan 2). Under autocast the
    lengths are fp32, so the quotient is too, and its 16-bit cast is what the gradient of the hidden states keeps."""
    tape, n = layer.tape, layer.numerics
    weight = layer.param("head", hidden.width * vocab, n.small).tensor
    elements, dtype = weight.width, weight.dtype
    node = tape.record("normalise", [weight], lambda _, g: [g[0] and tape.new(ONE, elements, dtype)], [])
    quotient = tape.attach(tape.new(ONE, elements, "fp32" if tape.autocast else dtype), node)
    return ops.linear(tape, hidden, ops.cast(tape, quotient, tape.autocast or dtype), vocab)


def fused_linear_loss(layer: Layer, hidden: Tensor, form: HeadForm, marks: dict[str, int]) -> Tensor:
    """Logits in chunks of tokens that never exist together (Liger): forward already makes the gradient of the hidden
    states and of the head, chunk by chunk in fp32, and backward hands them on."""
    tape, n = layer.tape, layer.numerics
    weight = layer.param("head", hidden.width * form.vocab, n.small if not n.trainable else n.weight)
    if form.era != "padded":  # the hidden states are shifted against the labels, by a copy
        hidden = ops.shifted_rows(tape, hidden, SHIFTED)
    marks["loss"] = len(tape.events)
    shape = (hidden.rows, hidden.width, hidden.dtype)

    def backward(saved: list[Tensor], _: ops.Grads) -> ops.Grads:
        grads: ops.Grads = [saved[0]]
        if weight.tensor.needs_grad:
            grads.append(saved[1])
        return grads

    inputs = [hidden] + ([weight.tensor] if weight.tensor.needs_grad else [])
    node = tape.record("fused_linear_ce", inputs, backward, [])
    head_gradient = tape.new(ONE, weight.tensor.width, weight.tensor.dtype) if weight.tensor.needs_grad else None
    gradient = tape.new(*shape)
    losses = tape.new(TOKENS, 1, "fp32")
    chunk = tape.new(CHUNK, form.vocab, hidden.dtype)
    wide = tape.new(CHUNK, form.vocab, "fp32")
    del chunk
    narrow = tape.new(CHUNK, form.vocab, hidden.dtype)
    del wide
    scaled = tape.new(CHUNK, form.vocab, hidden.dtype)
    part = tape.new(CHUNK, hidden.width, hidden.dtype)
    del narrow, scaled, part
    loss = tape.new(ONE, 1, "fp32")
    del losses
    tape.save(node, [gradient] + ([head_gradient] if head_gradient is not None else []))
    marks["after_loss"] = len(tape.events)
    return tape.attach(loss, node)


def additive_mask(tape: Tape, dtype: str) -> Tensor:
    """The causal mask as (batch, 1, length, length)."""
    return tape.new(SCORES, 1, dtype)


def converted(tape: Tape, logits: Tensor) -> Tensor:
    """Pieces of logits, each cast to fp32; backward casts and drops one piece's gradient after the other."""
    rows, width, dtype = logits.rows, logits.width, logits.dtype

    def backward(_: list[Tensor], g: ops.Grads) -> ops.Grads:
        piece = tape.new(CHUNK, width, dtype)
        g[0] = None
        del piece
        return [tape.new(rows, width, dtype)]

    node = tape.record("converted", [logits], backward, [])
    return tape.attach(tape.new(rows, width, "fp32"), node)


def pieces_loss(tape: Tape, logits: Tensor, form: HeadForm) -> Tensor:
    """Cross entropy piece by piece over logits that exist whole: every piece's log-probabilities wait for backward,
    whose own tensors are those of one piece."""
    dtype = "fp32"
    shape = (logits.rows, logits.width, logits.dtype)

    def backward(saved: list[Tensor], _: ops.Grads) -> ops.Grads:
        in_turn = form.chunked == "converted"  # each piece's gradient takes the place of its log-probabilities
        out = saved[0] if in_turn else tape.new(*shape)
        picked = tape.new(CHUNK, shape[1], dtype)
        piece = tape.new(CHUNK, shape[1], dtype)
        del picked, piece
        return [out]

    node = tape.record("pieces", [logits], backward, [])
    wide = tape.new(CHUNK, logits.width, dtype) if dtype != logits.dtype else None
    kept = tape.new(logits.rows, logits.width, dtype)
    del wide
    tape.save(node, [kept])
    return tape.attach(tape.new(ONE, 1, dtype), node)


def chunked_loss(layer: Layer, hidden: Tensor, form: HeadForm, marks: dict[str, int]) -> Tensor:
    """Head and cross entropy on a piece of the tokens at a time, each with its own backward at once (TRL,
    torchtitan): forward leaves the gradient of the hidden states, and the head's where it is trained."""
    tape, n = layer.tape, layer.numerics
    weight = layer.param("head", hidden.width * form.vocab, n.weight)
    marks["loss"] = len(tape.events)
    trained = weight.tensor.needs_grad
    inputs = [hidden] + ([weight.tensor] if trained else [])
    node = tape.record("chunked_ce", inputs, lambda saved, _: [saved[0], *saved[1:]], [])
    gradient = tape.new(hidden.rows, hidden.width, hidden.dtype)
    head_gradient = tape.new(ONE, weight.tensor.width, weight.tensor.dtype) if trained else None
    logits = tape.new(CHUNK, form.vocab, hidden.dtype)
    wide = tape.new(CHUNK, form.vocab, "fp32")
    scores = tape.new(CHUNK, form.vocab, "fp32")
    del wide, logits
    picked = tape.new(CHUNK, form.vocab, "fp32")
    back = tape.new(CHUNK, form.vocab, "fp32")
    del scores, picked
    narrow = tape.new(CHUNK, form.vocab, hidden.dtype)
    del back
    product = tape.new(ONE, weight.tensor.width, weight.tensor.dtype) if trained else None
    del narrow, product
    tape.save(node, [gradient] + ([head_gradient] if head_gradient is not None else []))
    del gradient, head_gradient
    marks["after_loss"] = len(tape.events)
    return tape.attach(tape.new(ONE, 1, "fp32"), node)
