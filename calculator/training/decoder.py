"""The decoder layer: norms, a mixer, an MLP, residual sums.

Source: transformers 5.24.0 ``modeling_llama.py``, ``modeling_gemma3.py``, ``modeling_gpt_neox.py``,
``modeling_gpt2.py``.
"""

from __future__ import annotations

from calculator.errors import PlanError
from calculator.model.shape import Attention, Block, DenseMlp, LatentAttention, Mixer, Mlp, MoeMlp, StateMixer, Sublayer
from calculator.training import ops
from calculator.training.attention import attention
from calculator.training.experts import mixture
from calculator.training.feedforward import dense, plain
from calculator.training.latent import latent_attention
from calculator.training.layers import Layer, Shared
from calculator.training.state import state_mixer
from calculator.training.streams import altup, own_input
from calculator.training.tape import Tensor


def mix(layer: Layer, hidden: Tensor, block: Block, shared: Shared) -> Tensor:
    """The mixers; under sequence parallelism their input is gathered and their output scattered."""
    if not layer.numerics.sequence_parallel:
        return _mix(layer, hidden, block, shared)
    hidden = ops.gather_tokens(layer.tape, hidden)
    return ops.scatter_tokens(layer.tape, _mix(layer, hidden, block, shared))


def _mix(layer: Layer, hidden: Tensor, block: Block, shared: Shared) -> Tensor:
    if block.beside is None:
        return _one(layer, hidden, block.mixer, block, shared)
    sums = []
    for part, mixer in (("beside.", block.beside), ("", block.mixer)):
        layer.part = part
        scaled = ops.scale(layer.tape, hidden) if layer.dialect.inputs_scaled else hidden
        out = _one(layer, scaled, mixer, block, shared)
        sums.append(ops.scale(layer.tape, out) if layer.dialect.inputs_scaled else out)
        del scaled, out
    return ops.add(layer.tape, sums.pop(0), sums.pop())


def _one(layer: Layer, hidden: Tensor, mixer: Mixer, block: Block, shared: Shared) -> Tensor:
    if isinstance(mixer, Attention):
        return attention(layer, hidden, mixer, shared)
    if isinstance(mixer, LatentAttention):
        return latent_attention(layer, hidden, mixer, shared)
    if isinstance(mixer, StateMixer):
        return state_mixer(layer, hidden, mixer, block)
    raise PlanError("training.layer_unknown", field="model", kind=mixer.kind)


def feed(layer: Layer, hidden: Tensor, block: Block) -> Tensor:
    """The MLP, likewise."""
    if not layer.numerics.sequence_parallel:
        return _feed(layer, hidden, block)
    hidden = ops.gather_tokens(layer.tape, hidden)
    return ops.scatter_tokens(layer.tape, _feed(layer, hidden, block))


def _feed(layer: Layer, hidden: Tensor, block: Block) -> Tensor:
    return _feed_one(layer, hidden, block.mlp)


def _feed_one(layer: Layer, hidden: Tensor, mlp: Mlp) -> Tensor:
    if isinstance(mlp, DenseMlp):
        return dense(layer, hidden, mlp)
    if isinstance(mlp, MoeMlp):
        return mixture(layer, hidden, mlp)
    raise PlanError("training.layer_unknown", field="model", kind=mlp.kind)


def _joined(layer: Layer, hidden: Tensor, block: Block, before: Sublayer, shared: Shared) -> Tensor:
    """A shared layer over the stream beside the embedding's output, projected and added to the stream (Zamba)."""
    tape = layer.tape
    assert shared.original is not None
    layer.part, layer.shared = "before.", True
    x = layer.norm(ops.concat(tape, [hidden, shared.original]), block.norm, "norm0")
    x = _one(layer, x, before.mixer, block, shared)
    x = _feed_one(layer, layer.norm(x, block.norm, "norm1"), before.mlp)
    layer.part, layer.shared = "", False
    return ops.add(tape, hidden, layer.linear(x, "other", layer.hidden, name="linear"))


def _first_half(layer: Layer, hidden: Tensor, block: Block, before: Sublayer, shared: Shared) -> tuple[Tensor, Tensor]:
    """A mixer and an MLP with their residual sums, and what the experts make of the MLP's input (LongCat-Flash)."""
    tape = layer.tape
    layer.part = "before."
    hidden = ops.add(tape, hidden, _one(layer, layer.norm(hidden, block.norm, "norm0"), before.mixer, block, shared))
    fed = layer.norm(hidden, block.norm, "norm1")
    assert before.shortcut is not None
    shortcut = mixture(layer, fed, before.shortcut)
    hidden = ops.add(tape, hidden, _feed_one(layer, fed, before.mlp))
    layer.part = ""
    return hidden, shortcut


def decoder(layer: Layer, hidden: Tensor, block: Block, shared: Shared) -> Tensor:
    """A pre-norm layer. Four norms (Gemma) put one after each branch too; two that come after (OLMo 2) only there; in
    a parallel layer both branches read the layer's input."""
    tape, n = layer.tape, layer.numerics
    p = block.dropout if n.dropout is None else n.dropout
    if block.laurel_rank:
        return altup(layer, hidden, block, shared, mix, lambda at, x, one, _: feed(at, x, one))
    if block.parallel:
        return _parallel(layer, hidden, block, shared, p)
    residual, shortcut = hidden, None
    if block.before is not None and block.before.joined:
        hidden = _joined(layer, hidden, block, block.before, shared)
    elif block.before is not None:
        hidden, shortcut = _first_half(layer, hidden, block, block.before, shared)
        residual = hidden
    if block.mixer.kind == "none":
        return ops.add(tape, residual, feed(layer, layer.norm(residual, block.norm, "norm0"), block))
    sandwich = len(block.norms) == 4 and block.before is None
    after = block.norms[:1] == ("post_attention",)
    if not after:
        hidden = layer.norm(hidden, block.norm, "norm0")
    hidden = mix(layer, hidden, block, shared)
    hidden = ops.dropout(tape, hidden, p)
    if after:
        hidden = layer.norm(hidden, block.norm, "norm0")
    if sandwich:
        hidden = layer.norm(hidden, block.norm, "norm1")
    if layer.dialect.branch_scaled:
        hidden = ops.add(tape, residual, ops.scale(tape, hidden))
    else:
        hidden = ops.add(tape, hidden, residual) if layer.dialect.branch_first else ops.add(tape, residual, hidden)
    if block.mlp.kind == "none":
        return hidden
    residual = hidden
    if not after:
        hidden = layer.norm(hidden, block.norm, "norm2")
    if layer.dialect.inline_mlp and isinstance(block.mlp, DenseMlp) and not n.sequence_parallel:
        box = [hidden]
        del hidden
        hidden = plain(layer, box, block.mlp)
    else:
        hidden = feed(layer, hidden, block)
    hidden = ops.dropout(tape, hidden, p)
    if sandwich or after:
        hidden = layer.norm(hidden, block.norm, "norm3")
    if layer.dialect.branch_scaled:
        return ops.add(tape, residual, ops.scale(tape, hidden))
    hidden = ops.add(tape, residual, hidden)
    if block.per_layer_width:
        hidden = ops.add(tape, hidden, own_input(layer, hidden, block, shared))
    return hidden if shortcut is None else ops.add(tape, hidden, shortcut)


def _parallel(layer: Layer, hidden: Tensor, block: Block, shared: Shared, p: float) -> Tensor:
    tape = layer.tape
    if len(block.norms) == 1:
        residual = hidden
        hidden = layer.norm(hidden, block.norm, "norm0")
        mixed = ops.dropout(tape, mix(layer, hidden, block, shared), p)
        fed = ops.dropout(tape, feed(layer, hidden, block), p)
        return ops.add(tape, ops.add(tape, mixed, fed), residual)
    mixed = mix(layer, layer.norm(hidden, block.norm, "norm0"), block, shared)
    mixed = ops.dropout(tape, mixed, p)
    fed = feed(layer, layer.norm(hidden, block.norm, "norm1"), block)
    fed = ops.dropout(tape, fed, p)
    return ops.add(tape, ops.add(tape, fed, mixed), hidden)
