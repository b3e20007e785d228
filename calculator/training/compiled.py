"""A shape's recordings: embedding, layers, head, or a whole model, made when first asked for."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import Literal

from calculator.model.shape import Attention, Block, LatentAttention, ModelShape
from calculator.training import ops, seq2seq
from calculator.training.decoder import decoder
from calculator.training.dialect import dialect
from calculator.training.encoder import embed_encoder, encoder, masked_head
from calculator.training.holdings import Units, units
from calculator.training.layers import Layer, Shared
from calculator.training.numerics import Numerics
from calculator.training.parallel import local_block, share
from calculator.training.recent import Recent
from calculator.training.streams import gather, layer_inputs, spread
from calculator.training.stretches import (
    HeadForm,
    additive_mask,
    boolean_mask,
    embed,
    head,
    position_ids,
    rotary_tables,
)
from calculator.training.tape import ITEM_BYTES, ONE, SCORES, SEQ, SHARD, TOKENS, Tape, Tensor
from calculator.training.template import BLOCK, Template, record, rounded

RECORDINGS_KEPT, STEPS_KEPT = 512, 32


class Compiled:
    """A shape's recordings, made when first asked for and kept; and with them, in ``steps``, the steps that were put
    together from them last."""

    def __init__(self, shape: ModelShape) -> None:
        self.shape = shape
        self.kept = Recent(RECORDINGS_KEPT)
        self.steps = Recent(STEPS_KEPT)
        plain_entry = not shape.positions and shape.embedding_norm == "none"
        self.holds_entry = plain_entry or shape.kind == "encoder"
        self.stream_width = shape.hidden * shape.streams
        self.per_layer_width = max(block.per_layer_width for block in shape.blocks)
        self.rejoins = any(block.before is not None and block.before.joined for block in shape.blocks)
        self.beside_width = shape.hidden if self.rejoins else shape.layers * self.per_layer_width
        dim = max((rotary_dim(b) for b in shape.blocks), default=0)
        tables = rotary_kinds(shape)
        self.buffers_bytes = 2 * tables * rounded(2 * dim) + (BLOCK if shape.embedding_scaled else 0)
        if shape.kind == "encoder" and shape.positions:
            self.buffers_bytes += 2 * rounded(8 * shape.positions)

    def units_for(self, n: Numerics) -> Units:
        """The weights as the plan's code holds them: litgpt ties none, older transformers has an expert a module."""
        litgpt, modules = n.code == "litgpt", n.experts == "modules"

        def make() -> Units:
            shape = self.shape.model_copy(update={"tied": False}) if litgpt else self.shape
            return units(shape, modules=modules, packable_head=litgpt, degrees=n.degrees)

        return self.kept.ask(("units", litgpt, modules, n.degrees), make)

    # ------------------------------------------------------------------------------------------------ recording
    def layer(self, index: int, n: Numerics, checkpoint: str, first: bool, boundary: str) -> Template:
        return self.kept.ask(
            ("layer", index, n, checkpoint, first, boundary),
            lambda: self._record_layer(
                local_block(self.shape.blocks[index], n.degrees), n, checkpoint, first, boundary
            ),
        )

    def _record_layer(self, block: Block, n: Numerics, checkpoint: str, first: bool, boundary: str) -> Template:
        tape = tape_for(n)
        layer = self._writer(tape, n, block)
        shared = shared_tensors(tape, self.shape, block, n)
        tensors = shared.rotary

        def run(box: list[Tensor]) -> list[Tensor]:
            def body(x: Tensor) -> Tensor:
                return (encoder if self.shape.kind == "encoder" else decoder)(layer, x, block, shared)

            if checkpoint == "reentrant":
                return [tape.checkpoint_reentrant(body, box[0])]
            if checkpoint:
                return [tape.checkpoint(body, box[0], checkpoint if checkpoint != "plain" else "")]
            return [body(box[0])]

        return record(
            tape,
            run,
            (stream_rows(n), self.stream_width, n.residual),
            input_needs_grad=n.input_needs_grad,
            shared=tensors,
            hold_input=first and self.holds_entry,
            boundary=boundary,
        )

    def adapters(self, index: int, n: Numerics) -> tuple[tuple[int, ...], ...]:
        """Dimensions of the adapter matrices on a layer of a kind."""
        plain = Numerics(trainable=False, rank=n.rank, targets=n.targets, code=n.code)
        return self.kept.ask(("adapters", index, plain), lambda: self._adapters(self.shape.blocks[index], plain))

    def _adapters(self, block: Block, n: Numerics) -> tuple[tuple[int, ...], ...]:
        tape = Tape()
        layer = self._writer(tape, n, block)
        x = tape.leaf(tape.outside(TOKENS, self.stream_width, "bf16", ""))
        decoder(layer, x, block, shared_tensors(tape, self.shape, block, n))
        found = tuple(p.dims for p in layer.params.values() if p.tensor.needs_grad)
        for storage in tape.storages:
            storage.tape = None
        return found

    def shared_gradients(self, n: Numerics) -> int:
        """Bytes of the gradients of weights that several layers use, which one micro-batch's backward makes."""
        if not n.trainable or n.grads_exist:
            return 0
        item = ITEM_BYTES[n.weight]
        return sum(rounded(w.elements * item) for w in self.units_for(n).shared)

    def _writer(self, tape: Tape, n: Numerics, block: Block | None = None) -> Layer:
        layer = Layer(tape, n, self.shape.hidden, dialect=dialect(self.shape.model_type, n.code))
        if block is not None:
            layer.head_norm = "rms_unit_offset" if block.norm == "rms_unit_offset" else "rms"
            layer.output_bias = has_output_bias(block, self.shape.hidden)
            layer.low_rank = own_adapters(block)
            layer.gate = own_gate(block)
        return layer

    def embedding(self, n: Numerics, boundary: str) -> Template:
        return self.kept.ask(("embedding", n, boundary), lambda: self._record_embedding(n, boundary))

    def _record_embedding(self, n: Numerics, boundary: str) -> Template:
        tape = tape_for(n)
        layer = self._writer(tape, n)
        shape = self.shape
        transient: list[int] = []
        always: list[int] = []
        learned = shape.positions

        def run(_: list[Tensor]) -> list[Tensor]:
            summands: list[Tensor] = []
            if shape.kind == "encoder":
                types = (
                    shape.embedding[2].shape[0]
                    if len(shape.embedding) > 3 and shape.embedding[2].kind == "embedding"
                    else 0
                )
                x = embed_encoder(layer, shape.vocab, learned, types, shape.embedding_dropout)
            else:
                x, summands = embed(
                    layer,
                    share(shape.vocab, n.degrees.tensor),
                    positions=learned,
                    scaled=shape.embedding_scaled,
                    norm=shape.embedding_norm,
                    dropout=shape.embedding_dropout,
                )
            if shape.tied and n.trainable and n.code == "transformers":
                param = layer.params["embedding"]
                param.waiting = tape.outside(ONE, param.tensor.width, n.small, role="gradients")
                param.adds_in_place = n.autocast is not None
            places = [] if learned or shape.kind == "encoder" else position_ids(tape)
            blocks = [shape.blocks[i] for i in sorted(set(shape.order))]
            masks = (
                [additive_mask(tape, x.dtype) for _ in range(mask_kinds(shape))]
                if n.attention == "eager" and shape.kind == "decoder"
                else []
            )
            if not masks and any(needs_mask(b, n) for b in blocks):
                masks = [boolean_mask(tape)]
            tables: list[Tensor] = []
            dim = max((rotary_dim(b) for b in blocks), default=0)
            for _kind in range(rotary_kinds(shape) if dim else 0):
                tables += rotary_tables(tape, dim, x.dtype, layer.dialect)
            if self.rejoins:
                tables.append(tape.new(TOKENS, shape.hidden, x.dtype))
            if self.per_layer_width:
                rows = next(t.shape[0] for t in shape.embedding[1:] if t.kind == "embedding")
                source = x
                if shape.streams == 1:  # the layers' first input, which they keep themselves
                    source = tape.outside(TOKENS, shape.hidden, x.dtype, "activations")
                    source.storage.tape = None
                tables.append(layer_inputs(layer, source, rows, shape.layers, self.per_layer_width))
                del source
            if shape.streams > 1:
                x = spread(layer, x, shape.streams)
            if self.per_layer_width:
                x = ops.beside(tape, x, tables[-1])
            brief = [*summands, *places, *masks]
            transient.extend(t.storage.ident for t in brief)
            always.extend(t.storage.ident for t in summands)
            return [x, *brief, *tables]

        found = record(tape, run, boundary=boundary)
        return replace(found, transient=frozenset(transient), summands=frozenset(always))

    def head(self, n: Numerics, form: HeadForm, boundary: str) -> Template:
        return self.kept.ask(("head", n, form, boundary), lambda: self._record_head(n, form, boundary))

    def _record_head(self, n: Numerics, form: HeadForm, boundary: str) -> Template:
        tape = tape_for(n)
        if form.tied:
            n = n._replace(grads_exist=False)
        layer = self._writer(tape, n)
        held: list[Tensor] = []
        marks: dict[str, int] = {}
        whole = self.shape.kind != "encoder"

        def run(box: list[Tensor]) -> list[Tensor]:
            if whole:
                if self.shape.streams > 1:
                    box[0] = gather(layer, box[0], self.shape.streams)
                return [head(layer, box, form, held, marks)]
            return [masked_head(layer, box, form.vocab, held, marks)]

        return record(
            tape,
            run,
            (stream_rows(n), self.stream_width, n.residual),
            held=None if form.outputs_held else held,
            marks=marks,
            boundary=boundary,
        )

    def whole(self, n: Numerics, form: HeadForm, checkpoint: str) -> Template:
        """An encoder-decoder model in one recording."""
        return self.kept.ask(("whole", n, form, checkpoint), lambda: self._record_whole(n, form, checkpoint))

    def _record_whole(self, n: Numerics, form: HeadForm, checkpoint: str) -> Template:
        tape = tape_for(n)
        held: list[Tensor] = []
        marks: dict[str, int] = {}
        return record(
            tape,
            lambda _: [seq2seq.forward(tape, self.shape, n, checkpoint, held, marks)],
            held=None if form.outputs_held else held,
            marks=marks,
        )


_compiled: OrderedDict[int, Compiled] = OrderedDict()


def compiled(shape: ModelShape) -> Compiled:
    """The recordings of a shape; those of the last few shapes are kept."""
    found = _compiled.get(id(shape))
    if found is None or found.shape is not shape:
        found = _compiled[id(shape)] = Compiled(shape)
        while len(_compiled) > 16:
            _compiled.popitem(last=False)
    return found


def tape_for(n: Numerics) -> Tape:
    tape = Tape(autocast=n.autocast, kernel_scratch=n.scratch)
    tape.recording = not n.evaluating
    return tape


def stream_rows(n: Numerics) -> int:
    """The rows of the residual stream: all tokens, or a share of them."""
    return SHARD if n.sequence_parallel else TOKENS


def rotary_dim(block: Block) -> int:
    """Width of a layer's rotary tables: the head size, or the rotated part of it; 0 without rotary embedding."""
    for mixer in block.mixers:
        if isinstance(mixer, LatentAttention):
            return mixer.qk_rope_head_dim
        if isinstance(mixer, Attention) and mixer.rotary != "none":
            return mixer.rotary_dim or mixer.head_dim
    return 0


def needs_mask(block: Block, n: Numerics) -> bool:
    return any(
        (n.attention == "eager" and (not isinstance(mixer, Attention) or mixer.causal))
        or (n.masked and isinstance(mixer, Attention) and mixer.window is not None)
        for mixer in block.mixers
    )


def shared_tensors(tape: Tape, shape: ModelShape, block: Block, n: Numerics) -> Shared:
    """The tables and the mask that a layer reads, made by the embedding stretch."""
    shared = Shared()
    dim = rotary_dim(block)
    if dim and dialect(shape.model_type, n.code).complex_rotary:
        shared.rotary = (tape.outside(SEQ, dim // 2, "complex64", "activations"),)
    elif dim:
        dtype = n.small
        shared.rotary = (tape.outside(SEQ, dim, dtype, "activations"), tape.outside(SEQ, dim, dtype, "activations"))
    if block.before is not None and block.before.joined:
        shared.original = tape.outside(stream_rows(n), shape.hidden, n.residual, "activations")
    if block.per_layer_width:
        shared.per_layer = tape.outside(TOKENS, shape.layers * block.per_layer_width, n.small, "activations")
    mixer = block.mixer
    if isinstance(mixer, Attention) and mixer.shares_kv:
        width = mixer.kv_heads * mixer.head_dim
        shared.kv = tuple(tape.outside(TOKENS, width, n.residual, "activations") for _ in "kv")
        for tensor in shared.kv:
            tensor.heads_first = True
    if needs_mask(block, n):
        shared.mask = tape.outside(SCORES, 1, n.small if n.attention == "eager" else "bool", "activations")
    return shared


def mask_kinds(shape: ModelShape) -> int:
    """How many masks a model makes: one, or one for windowed and one for full layers."""
    return 2 if shape.model_type in TWO_MASKS else 1


TWO_MASKS = ("gemma2", "gemma3_text", "gemma3", "gemma3n", "gemma3n_text", "gpt_oss", "cohere2")


def rotary_kinds(shape: ModelShape) -> int:
    """How many pairs of rotary tables a model makes: one, or one for windowed and one for full layers (Gemma 3)."""
    if shape.model_type not in TWO_ROTARIES:
        return 1
    windows = {
        mixer.window is not None
        for i in set(shape.order)
        for mixer in shape.blocks[i].mixers
        if isinstance(mixer, Attention)
    }
    return len(windows)


TWO_ROTARIES = ("gemma3_text", "gemma3", "gemma3n", "gemma3n_text")


def own_adapters(block: Block) -> dict[str, int]:
    """Ranks of the adapters that the model itself has on shared projections (Zamba 2), by module."""
    found = {}
    for tensor in block.tensors:
        if "_adapter_list." in tensor.name and tensor.name.endswith(".0.weight"):
            module = tensor.name.split("_adapter_list.")[0].rsplit(".", 1)[-1]
            found[module.removeprefix("linear_").removesuffix("_proj")] = tensor.out_features
    return found


def own_gate(block: Block) -> Literal["", "head", "element"]:
    """Whether an output gate has a matrix of its own, with a value for each head or for each element; "" where it is
    the second half of the query's."""
    for tensor in block.tensors:
        if tensor.component == "attention" and tensor.name.endswith((".g_proj.weight", ".gate_proj.weight")):
            heads = next(m.heads for m in block.mixers if isinstance(m, Attention))
            return "head" if tensor.out_features == heads else "element"
    return ""


def has_output_bias(block: Block, hidden: int) -> bool:
    """Whether attention's output projection has a bias: what the query, key and value biases leave over."""
    mixer = next((m for m in block.mixers if isinstance(m, Attention)), None)
    if mixer is None:
        return False
    biases = sum(t.elements for t in block.tensors if t.component == "attention" and t.kind == "bias")
    inner = mixer.heads * mixer.head_dim + mixer.kv_heads * (mixer.head_dim + mixer.v_head_dim)
    return biases in (hidden, hidden + inner)
