"""Encoder layers with the norm after each residual sum (BERT), their embedding and masked-language-model head.

Source: transformers 5.24.0 ``modeling_bert.py``.
"""

from __future__ import annotations

from calculator.model.shape import Block
from calculator.training import ops
from calculator.training.decoder import feed, mix
from calculator.training.kernels import log_softmax, nll
from calculator.training.layers import Layer, Shared
from calculator.training.tape import SEQ, TOKENS, Tensor


def encoder(layer: Layer, hidden: Tensor, block: Block, shared: Shared) -> Tensor:
    """Attention, sum, norm; MLP, sum, norm."""
    tape, n = layer.tape, layer.numerics
    p = block.dropout if n.dropout is None else n.dropout
    mixed = ops.dropout(tape, mix(layer, hidden, block, shared), p)
    mixed = layer.norm(ops.add(tape, mixed, hidden), block.norm, "norm0")
    fed = ops.dropout(tape, feed(layer, mixed, block), p)
    return layer.norm(ops.add(tape, fed, mixed), block.norm, "norm1")


def embed_encoder(layer: Layer, vocab: int, positions: int, types: int, dropout: float) -> Tensor:
    """Token, type and position rows added up, normed, dropped out."""
    tape, n, h = layer.tape, layer.numerics, layer.hidden
    index = tape.new(SEQ, 1, "int64") if types else None
    words = ops.embedding(tape, layer.param("embedding", vocab * h, n.small), h)
    x = words
    if types:
        kinds = ops.embedding(tape, layer.param("types", types * h, n.small), h, TOKENS, index)
        x = ops.add(tape, x, kinds)
    if positions:
        places = ops.embedding(tape, layer.param("positions", positions * h, n.small), h, SEQ)
        x = ops.add(tape, x, places)
    del index
    x = layer.norm(x, "layer", "embedding_norm")
    return ops.dropout(tape, x, dropout if n.dropout is None else n.dropout)


def masked_head(layer: Layer, box: list[Tensor], vocab: int, held: list[Tensor], marks: dict[str, int]) -> Tensor:
    """A square transform with its activation and norm, the vocabulary, and cross entropy in the logits' own type."""
    tape = layer.tape
    marks["returned"] = len(tape.events)
    with tape.label("logits_loss", backward=True):
        hidden = layer.linear(box[0], "head", layer.hidden, bias=True, name="transform")
        hidden = ops.unary(tape, hidden, "input", "gelu")
        hidden = layer.norm(hidden, "layer", "transform_norm")
        logits = layer.linear(hidden, "head", vocab, bias=True)
        del hidden
        marks["loss"] = len(tape.events)
        labels = tape.outside(TOKENS, 1, "int64", "inputs")
        labels.storage.tape = None
        loss = nll(tape, log_softmax(tape, logits), labels)
        marks["after_loss"] = len(tape.events)
        held.append(logits)
    return loss
