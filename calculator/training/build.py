"""From a model shape and a plan to the step's program on one rank."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from calculator.hardware import Gpu
from calculator.model.shape import Attention, Block, LatentAttention, ModelShape, MoeMlp
from calculator.training import seq2seq
from calculator.training.decoder import decoder
from calculator.training.dialect import dialect
from calculator.training.encoder import embed_encoder, encoder, masked_head
from calculator.training.layers import Layer, Shared
from calculator.training.numerics import Numerics
from calculator.training.optimizer import StepMemory
from calculator.training.parallel import Degrees, Part, degrees, local_block, share
from calculator.training.plan import TrainingPlan
from calculator.training.program import Program, Stage
from calculator.training.recipe import Recipe, adapted
from calculator.training.sharding import Edits
from calculator.training.stack import accumulates, adapter_dropout, chunk_form, liger_chunk, outputs_held, stack_of
from calculator.training.stretches import (
    HeadForm,
    additive_mask,
    boolean_mask,
    embed,
    head,
    position_ids,
    rotary_tables,
)
from calculator.training.tape import ONE, PADDED, ROW_KINDS, SCORES, SEQ, SHARD, TOKENS, Tape, Tensor
from calculator.training.holdings import Units, units
from calculator.training.template import BLOCK, Sized, Stretch, Template, edit, record, rounded, size

LINEAR_ROLES = frozenset({"q", "k", "v", "o", "gate", "up", "down"})


class Compiled:
    """A shape's recordings, made when first asked for and kept."""

    def __init__(self, shape: ModelShape) -> None:
        self.shape = shape
        self._templates: dict[Any, Template] = {}
        self._sized: OrderedDict[Any, Sized] = OrderedDict()
        self._adapters: dict[Any, tuple[tuple[int, ...], ...]] = {}
        self._units: dict[tuple[bool, bool, Degrees], Units] = {}
        self.transient: dict[int, frozenset[int]] = {}
        self.summands: dict[int, frozenset[int]] = {}
        self.holds_entry = len(shape.embedding) == 1 or shape.kind == "encoder"
        dim = max((rotary_dim(b) for b in shape.blocks), default=0)
        tables = 2 if shape.model_type in TWO_ROTARIES else 1
        self.buffers_bytes = 2 * tables * rounded(2 * dim) + (BLOCK if shape.embedding_scaled else 0)
        if shape.kind == "encoder" and len(shape.embedding) > 1:
            self.buffers_bytes += 2 * rounded(8 * shape.embedding[1].shape[0])

    def units_for(self, n: Numerics) -> Units:
        """The weights as the plan's code holds them: litgpt ties none, older transformers has an expert a module."""
        key = (n.code == "litgpt", n.experts == "modules", n.degrees)
        found = self._units.get(key)
        if found is None:
            litgpt, modules, cut = key
            shape = self.shape.model_copy(update={"tied": False}) if litgpt else self.shape
            found = self._units[key] = units(shape, modules=modules, packable_head=litgpt, degrees=cut)
        return found

    # ------------------------------------------------------------------------------------------------ recording
    def layer(self, index: int, n: Numerics, checkpoint: str, first: bool, boundary: str) -> Template:
        key = ("layer", index, n, checkpoint, first, boundary)
        found = self._templates.get(key)
        if found is None:
            found = self._templates[key] = self._record_layer(local_block(self.shape.blocks[index], n.degrees), n, checkpoint, first, boundary)
        return found

    def _record_layer(self, block: Block, n: Numerics, checkpoint: str, first: bool, boundary: str) -> Template:
        tape = Tape(autocast=n.autocast, kernel_scratch=n.scratch)
        layer = self._writer(tape, n, block)
        shared = shared_tensors(tape, self.shape, block, n)
        tensors = shared.rotary

        def run(box: list[Tensor]) -> list[Tensor]:
            def body(x: Tensor) -> Tensor:
                return (encoder if self.shape.kind == "encoder" else decoder)(layer, x, block, shared)

            if checkpoint == "reentrant":
                return [tape.checkpoint_reentrant(body, box[0])]
            return [tape.checkpoint(body, box[0]) if checkpoint else body(box[0])]

        return record(
            tape, run, (stream_rows(n), self.shape.hidden, n.residual), input_needs_grad=n.input_needs_grad, shared=tensors,
            hold_input=first and self.holds_entry, boundary=boundary,
        )

    def adapters(self, index: int, n: Numerics) -> tuple[tuple[int, ...], ...]:
        """Dimensions of the adapter matrices on a layer of a kind."""
        key = (index, n.rank, n.targets, n.code)
        found = self._adapters.get(key)
        if found is None:
            plain = Numerics(trainable=False, rank=n.rank, targets=n.targets, code=n.code)
            tape = Tape()
            layer = self._writer(tape, plain, self.shape.blocks[index])
            x = tape.leaf(tape.outside(TOKENS, self.shape.hidden, "bf16", ""))
            decoder(layer, x, self.shape.blocks[index], shared_tensors(tape, self.shape, self.shape.blocks[index], plain))
            found = tuple(p.dims for p in layer.params.values() if p.tensor.needs_grad)
            for storage in tape.storages:
                storage.tape = None
            self._adapters[key] = found
        return found

    def _writer(self, tape: Tape, n: Numerics, block: Block | None = None) -> Layer:
        layer = Layer(tape, n, self.shape.hidden, dialect=dialect(self.shape.model_type, n.code))
        if block is not None:
            layer.head_norm = "rms_unit_offset" if block.norm == "rms_unit_offset" else "rms"
            layer.output_bias = has_output_bias(block, self.shape.hidden)
        return layer

    def embedding(self, n: Numerics, boundary: str) -> Template:
        key = ("embedding", n, boundary)
        found = self._templates.get(key)
        if found is not None:
            return found
        tape = Tape(autocast=n.autocast, kernel_scratch=n.scratch)
        layer = self._writer(tape, n)
        shape = self.shape
        transient: list[int] = []
        always: list[int] = []
        learned = shape.embedding[1].shape[0] if len(shape.embedding) > 1 else 0

        def run(_: list[Tensor]) -> list[Tensor]:
            summands: list[Tensor] = []
            if shape.kind == "encoder":
                types = shape.embedding[2].shape[0] if len(shape.embedding) > 3 and shape.embedding[2].kind == "embedding" else 0
                x = embed_encoder(layer, shape.vocab, learned, types, shape.embedding_dropout)
            else:
                x, summands = embed(layer, share(shape.vocab, n.degrees.tensor), positions=learned, scaled=shape.embedding_scaled,
                                    norm=shape.embedding_norm, dropout=shape.embedding_dropout)
            if shape.tied and n.trainable and n.code == "transformers":
                param = layer.params["embedding"]
                param.waiting = tape.outside(ONE, param.tensor.width, n.small, role="gradients")
                param.adds_in_place = n.autocast is not None
            places = [] if learned or shape.kind == "encoder" else position_ids(tape)
            blocks = [shape.blocks[i] for i in sorted(set(shape.order))]
            masks = [additive_mask(tape, x.dtype) for _ in range(mask_kinds(shape))] if n.attention == "eager" and shape.kind == "decoder" else []
            if not masks and any(needs_mask(b, n) for b in blocks):
                masks = [boolean_mask(tape)]
            tables: list[Tensor] = []
            dim = max((rotary_dim(b) for b in blocks), default=0)
            for _ in range(rotary_kinds(shape) if dim else 0):
                tables += rotary_tables(tape, dim, x.dtype, layer.dialect)
            brief = [*summands, *places, *masks]
            transient.extend(t.storage.ident for t in brief)
            always.extend(t.storage.ident for t in summands)
            return [x, *brief, *tables]

        found = self._templates[key] = record(tape, run, boundary=boundary)
        self.transient[id(found)] = frozenset(transient)
        self.summands[id(found)] = frozenset(always)
        return found

    def head(self, n: Numerics, form: HeadForm, boundary: str) -> Template:
        key = ("head", n, form, boundary)
        found = self._templates.get(key)
        if found is not None:
            return found
        tape = Tape(autocast=n.autocast, kernel_scratch=n.scratch)
        if form.tied:
            n = n._replace(grads_exist=False)
        layer = self._writer(tape, n)
        held: list[Tensor] = []
        marks: dict[str, int] = {}
        whole = self.shape.kind != "encoder"

        def run(box: list[Tensor]) -> list[Tensor]:
            if whole:
                return [head(layer, box, form, held, marks)]
            return [masked_head(layer, box, form.vocab, held, marks)]

        found = record(
            tape, run, (stream_rows(n), self.shape.hidden, n.residual),
            held=None if form.outputs_held else held, marks=marks, boundary=boundary,
        )
        self._templates[key] = found
        return found

    def whole(self, n: Numerics, form: HeadForm, checkpoint: str) -> Template:
        """An encoder-decoder model in one recording."""
        key = ("whole", n, form, checkpoint)
        found = self._templates.get(key)
        if found is None:
            tape = Tape(autocast=n.autocast, kernel_scratch=n.scratch)
            held: list[Tensor] = []
            marks: dict[str, int] = {}
            found = self._templates[key] = record(
                tape, lambda _: [seq2seq.forward(tape, self.shape, n, checkpoint, held, marks)],
                held=None if form.outputs_held else held, marks=marks)
        return found

    def sized(self, template: Template, rows: tuple[int, ...]) -> Sized:
        key = (id(template), rows)
        found = self._sized.get(key)
        if found is None:
            found = self._sized[key] = size(template, rows)
            if len(self._sized) > 512:
                self._sized.popitem(last=False)
        return found


_compiled: OrderedDict[int, Compiled] = OrderedDict()


def compiled(shape: ModelShape) -> Compiled:
    """The recordings of a shape; those of the last few shapes are kept."""
    found = _compiled.get(id(shape))
    if found is None or found.shape is not shape:
        found = _compiled[id(shape)] = Compiled(shape)
        while len(_compiled) > 16:
            _compiled.popitem(last=False)
    return found


def stream_rows(n: Numerics) -> int:
    """The rows of the residual stream: all tokens, or a share of them."""
    return SHARD if n.sequence_parallel else TOKENS


def rotary_dim(block: Block) -> int:
    """Width of a layer's rotary tables: the head size, or the rotated part of it; 0 without rotary embedding."""
    mixer = block.mixer
    if isinstance(mixer, LatentAttention):
        return mixer.qk_rope_head_dim
    if isinstance(mixer, Attention) and mixer.rotary != "none":
        return mixer.rotary_dim or mixer.head_dim
    return 0


def needs_mask(block: Block, n: Numerics) -> bool:
    mixer = block.mixer
    return (n.attention == "eager" and (not isinstance(mixer, Attention) or mixer.causal)) or (n.masked and isinstance(mixer, Attention) and mixer.window is not None)


def shared_tensors(tape: Tape, shape: ModelShape, block: Block, n: Numerics) -> Shared:
    """The tables and the mask that a layer reads, made by the embedding stretch."""
    shared = Shared()
    dim = rotary_dim(block)
    if dim and dialect(shape.model_type, n.code).complex_rotary:
        shared.rotary = (tape.outside(SEQ, dim // 2, "complex64", "activations"),)
    elif dim:
        dtype = n.small
        shared.rotary = (tape.outside(SEQ, dim, dtype, "activations"), tape.outside(SEQ, dim, dtype, "activations"))
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
    windows = {b.mixer.window is not None for i in set(shape.order) if isinstance((b := shape.blocks[i]).mixer, Attention)}
    return len(windows)


TWO_ROTARIES = ("gemma3_text", "gemma3", "gemma3n", "gemma3n_text")


def has_output_bias(block: Block, hidden: int) -> bool:
    """Whether attention's output projection has a bias: what the query, key and value biases leave over."""
    mixer = block.mixer
    if not isinstance(mixer, Attention):
        return False
    biases = sum(t.elements for t in block.tensors if t.component == "attention" and t.kind == "bias")
    inner = mixer.heads * mixer.head_dim + mixer.kv_heads * (mixer.head_dim + mixer.v_head_dim)
    return biases in (hidden, hidden + inner)


def row_counts(shape: ModelShape, plan: TrainingPlan) -> tuple[int, ...]:
    """The row counts of ``tape`` for a plan's micro-batch and length."""
    b, s = plan.micro_batch, share(plan.seq_len, plan.cp)
    moe = next((block.mlp for block in shape.blocks if isinstance(block.mlp, MoeMlp)), None)
    routed = max(1, b * s * moe.top_k // moe.experts) if moe is not None else 0
    chunk = loss_chunk(shape, plan)
    rows = [
        1, s, b * s, b * s * plan.seq_len, s * s, b, b * (s + 1), b * max(0, s - 1), share(b * s, plan.tp), chunk, routed,
        min(b * s, shape.hidden)]
    assert len(rows) == ROW_KINDS and rows[PADDED] == b * (s + 1)
    return tuple(rows)


def loss_chunk(shape: ModelShape, plan: TrainingPlan) -> int:
    """Tokens whose logits exist at once in a loss that works in pieces."""
    tokens = plan.micro_batch * share(plan.seq_len, plan.cp)
    if plan.loss == "fused_linear_ce":
        return min(tokens, liger_chunk(tokens, shape.vocab, shape.hidden))
    return min(tokens, 128) if plan.framework == "litgpt" else -(-tokens // 8)


def numerics(shape: ModelShape, plan: TrainingPlan, recipe: Recipe, gpu: Gpu, *, scratch: bool) -> Numerics:
    """What of the plan the recordings depend on."""
    stack = stack_of(plan, shape.model_type)
    lora = adapted(plan)
    targets: frozenset[str] = frozenset()
    rank = 0
    if lora:
        adapter = plan.adapter
        names = adapter.targets if adapter is not None else ("all-linear",)
        targets = LINEAR_ROLES if "all-linear" in names else frozenset(names)
        rank = adapter.rank if adapter is not None else 16
    attention = plan.attention if plan.attention == "eager" else "flash"
    if attention == "flash" and recipe.compute == "fp32":
        attention = "efficient"
    windowed = any(isinstance(b.mixer, Attention) and b.mixer.window is not None and b.mixer.window < plan.seq_len
                   for b in shape.blocks)
    quantised = {"none": "", "nf4": "bnb4", "nf4_dq": "bnb4", "int8": "int8"}.get(plan.base_quant, "packed")
    packed_compute = recipe.compute
    if quantised == "bnb4" and plan.framework == "litgpt":
        quantised = "bnb4_input"
        packed_compute = recipe.weight if "2023" in (plan.framework_version or "") else "fp32"
    return Numerics(
        code="litgpt" if plan.framework == "litgpt" else "transformers", weight=recipe.weight, small=recipe.small, norm=recipe.norm, autocast=recipe.autocast, trainable=not lora, rank=rank,
        targets=targets, adapter=recipe.adapter, adapter_dropout=adapter_dropout(plan),
        fused_adapters=stack.kernels in ("unsloth", "triton") and plan.base_quant != "none", dora=plan.method == "dora",
        quantised=quantised, packed_compute=packed_compute, attention=attention, masked=windowed and plan.attention == "sdpa",
        dropout=plan.dropout, experts=stack.experts,
        repeat_kv=stack.repeat_kv, fused_norm=stack.kernels != "written_out", fused_rope=stack.kernels != "written_out",
        fused_mlp=stack.kernels in ("liger", "unsloth"),
        cudnn=gpu.vendor == "NVIDIA" and float(gpu.compute_capability or 0) >= 9, single=plan.micro_batch == 1, scratch=scratch,
        tiled_mlp=plan.tiled_mlp, train_embeddings=bool(plan.adapter and plan.adapter.train_embeddings),
        degrees=degrees(plan), sequence_parallel=plan.sequence_parallel and plan.tp > 1, exchanged=plan.cp > 1,
    )


def head_form(shape: ModelShape, plan: TrainingPlan) -> HeadForm:
    return HeadForm(
        vocab=share(shape.vocab, plan.tp), norm=shape.final_norm, tied=shape.tied and plan.framework != "litgpt", softcap=shape.final_softcap, upcast=shape.loss_upcast,
        kernel=plan.loss, chunked=chunk_form(plan), era=stack_of(plan).era, outputs_held=outputs_held(plan), outputs_fp32=plan.convert_outputs_fp32,
    )


def checkpoint_form(plan: TrainingPlan) -> str:
    """"" for none, else the form. Selective recomputation of attention's core changes nothing where a fused kernel keeps no
    scores; torchtitan's selects whole blocks."""
    if plan.checkpointing == "none" or (plan.checkpointing == "selective" and plan.framework != "torchtitan"):
        return ""
    return "reentrant" if stack_of(plan).reentrant else "plain"


def checkpoint_every(plan: TrainingPlan) -> int:
    """Every how many layers one is checkpointed; torchtitan's selective mode takes every second."""
    if plan.checkpointing == "selective" and plan.framework == "torchtitan":
        return max(2, plan.checkpoint_every)
    return plan.checkpoint_every


class MicroStep:
    """Forward and backward of one micro-batch on one part of the model, with a framework's edits around each unit."""

    def __init__(self, shape: ModelShape, plan: TrainingPlan, n: Numerics, form: HeadForm, part: Part, edits: Edits) -> None:
        self.plan, self.edits, self.part = plan, edits, part
        self.offloads = plan.checkpointing == "offloaded" or "activations" in plan.offload
        self.book, rows = compiled(shape), row_counts(shape, plan)
        self.checkpoint = checkpoint_form(plan)
        self.boundary = "checkpoints" if self.checkpoint else "activations"
        book, checkpoint = self.book, self.checkpoint
        frozen_entry = not n.trainable and not checkpoint
        self.embedding = book.sized(book.embedding(n, self.boundary), rows)
        self.layers: list[Sized] = []
        residual = self.embedding.template.dtype
        known: dict[tuple[int, bool, str, bool], Sized] = {}
        every = checkpoint_every(plan)
        for i, index in enumerate(part.layers):
            first, again = i == 0 and part.embedding, i % every == 0
            unit = known.get((index, first, residual, again))
            if unit is None:
                wants = n._replace(input_needs_grad=not (first and frozen_entry), residual=residual)
                template = book.layer(index, wants, checkpoint if again else "", first, self.boundary)
                unit = known[index, first, residual, again] = book.sized(template, rows)
            self.layers.append(unit)
            residual = unit.template.dtype
        self.last = book.sized(book.head(n._replace(residual=residual), form, self.boundary), rows)
        self.count = len(part.layers)
        gradients = [u.backward.net_by_key.get("gradients", 0) for u in (self.embedding, *self.layers, self.last)]
        self.gradients = [gradients[0] * part.embedding, *gradients[1:-1], gradients[-1] * part.head]

    # ------------------------------------------------------------------------------------------------- pieces
    def _edit(self, phase: str, name: str, unit: int, events: Stretch | None) -> list[Stage]:
        return [] if events is None else [Stage(phase, name, unit, events)]

    def _gone(self, some: Iterable[int]) -> Stretch:
        entry = self.embedding
        return edit(*((entry.template.storages[i][2], -entry.sizes[i]) for i in some))

    def _tables(self) -> tuple[list[int], list[int]]:
        """Tensors made beside the embedding that leave when the model's forward returns, and those that stay to the end."""
        template, book = self.embedding.template, self.book
        brief, summands = book.transient[id(template)], book.summands[id(template)]
        kept = bool(self.checkpoint) or any(unit.template.keeps_shared for unit in self.layers)
        early = [i for i in template.extras if i in summands or (not self.checkpoint and (i in brief or not kept))]
        return early, [i for i in template.extras if i not in early]

    def forward(self) -> list[Stage]:
        e, count = self.edits, self.count
        stages = self._edit("forward", "gather", 0, e.start())
        if self.part.embedding:
            stages += self._edit("forward", "gather", 0, e.before_forward(0))
            stages.append(Stage("forward", "embedding", 0, self.embedding.forward))
            stages += self._edit("forward", "release", 0, e.after_forward(0))
        else:
            stages.append(Stage("forward", "receive", 0, self._received()))
        for i, unit in enumerate(self.layers):
            stages += self._edit("forward", "gather", i + 1, e.before_forward(i + 1))
            stages.append(Stage("forward", "layer", i + 1, unit.forward))
            stages += self._edit("forward", "offload", i + 1, self._moved(i, -1))
            stages += self._edit("forward", "release", i + 1, e.after_forward(i + 1))
        stages += self._tail() if self.part.head else [Stage("forward", "send", count + 1, self._sent())]
        for i, unit in enumerate(self._units()):
            if unit.exit.deltas:
                stages.append(Stage("forward", "exit", i, unit.exit))
        if accumulates(self.plan):
            stages.append(Stage("forward", "outputs", count + 1, edit(("logits_loss", BLOCK))))
        return stages

    def _units(self) -> list[Sized]:
        return [*([self.embedding] if self.part.embedding else []), *self.layers, *([self.last] if self.part.head else [])]

    def _moved(self, index: int, sign: int) -> Stretch | None:
        """What a layer keeps, moved to the host after its forward and fetched back before its backward; the last layer's stays."""
        if not self.offloads or index == self.count - 1:
            return None
        return edit(*((key, sign * size) for key, size in self.kept(index).items()))

    def kept(self, index: int) -> dict[str, int]:
        """What a layer keeps for backward, by item; its input among it if nobody else holds that."""
        unit = self.layers[index]
        template, found = unit.template, dict(unit.forward.net_by_key)
        found[self.boundary] = found.get(self.boundary, 0) - unit.sizes[template.leaving]
        if template.keeps_input and (index or not self.part.embedding):
            found[self.boundary] += unit.sizes[template.entering]
        elif not template.keeps_input and (index or not self.book.holds_entry):
            found[self.boundary] += unit.sizes[template.entering]
        return {key: size for key, size in found.items() if size > 0 and key in ("activations", "checkpoints")}

    @property
    def offloaded_bytes(self) -> int:
        return sum(sum(self.kept(i).values()) for i in range(self.count - 1)) if self.offloads else 0

    def _stepped(self, unit: int) -> Stretch | None:
        """An optimizer that runs inside backward frees a unit's gradients as soon as they have been used."""
        if not self.plan.optimizer_in_backward or not self.gradients[unit]:
            return None
        return edit(("gradients", -self.gradients[unit]))

    def _received(self) -> Stretch:
        """What a later pipeline stage is sent, and the tables that it makes for itself."""
        first, entry = self.layers[0], self.embedding
        early, late = self._tables()
        summands = self.book.summands[id(entry.template)]
        tables = [(entry.template.storages[i][2], entry.sizes[i]) for i in (*early, *late) if i not in summands]
        return edit((self.boundary, first.sizes[first.template.entering]), *tables)

    def _sent(self) -> Stretch:
        """The output leaves for the next stage; tensors beside the layers leave where nothing keeps them."""
        last, entry = self.layers[-1], self.embedding
        early, _ = self._tables()
        summands = self.book.summands[id(entry.template)]
        changes = [(entry.template.storages[i][2], -entry.sizes[i]) for i in early if self.part.embedding or i not in summands]
        if self.part.embedding and self.book.holds_entry and not self.layers[0].template.keeps_input:
            changes.append((self.boundary, -entry.sizes[entry.template.leaving]))
        return edit((self.boundary, -last.sizes[last.template.leaving]), *changes)

    def _tail(self) -> list[Stage]:
        """Final norm, head and loss."""
        e, count, last = self.edits, self.count, self.last
        stages = self._edit("forward", "gather", count + 1, e.before_forward(count + 1))
        stages.append(Stage("forward", "final_norm", count + 1, last.between("", "returned")))
        if self.part.embedding and self.book.holds_entry and not self.layers[0].template.keeps_input:
            entry = self.embedding.sizes[self.embedding.template.leaving]
            stages.append(Stage("forward", "entry", count + 1, edit((self.boundary, -entry))))
        early, _ = self._tables()
        if not self.part.embedding:
            early = [i for i in early if i not in self.book.summands[id(self.embedding.template)]]
        if early:
            stages.append(Stage("forward", "tables", count + 1, self._gone(early)))
        stages.append(Stage("forward", "head", count + 1, last.between("returned", "loss")))
        stages.append(Stage("loss", "loss", count + 1, last.between("loss", "after_loss")))
        stages.append(Stage("forward", "outputs", count + 1, last.between("after_loss", "")))
        stages += self._edit("forward", "release", count + 1, e.after_forward(count + 1))
        return stages

    def backward(self, gradients: list[int] | None) -> list[Stage]:
        """``gradients``: bytes of each unit's whole gradients, to be reduced after its backward; None leaves them."""
        e, count = self.edits, self.count

        def done(unit: int) -> Stretch | None:
            return e.after_backward(unit, gradients[unit] if gradients is not None else 0)

        stages = [Stage("backward", "start", count + 1, edit(("backward_temporary", 2 * BLOCK)))]
        if self.part.head:
            stages += self._edit("backward", "gather", count + 1, e.before_backward(count + 1))
            stages.append(Stage("backward", "head", count + 1, self.last.backward))
            stages += self._edit("backward", "reduce", count + 1, done(count + 1))
            stages += self._edit("backward", "step", count + 1, self._stepped(count + 1))
        else:
            top = self.layers[-1]
            received = top.sizes[top.template.gradient_in] if top.template.gradient_in >= 0 else 0
            stages = [Stage("backward", "receive", count + 1, edit(("backward_temporary", received + BLOCK)))]
        retained = 0
        for i in range(count - 1, -1, -1):
            unit = self.layers[i]
            stages += self._edit("backward", "gather", i + 1, e.before_backward(i + 1))
            stages += self._edit("backward", "fetch", i + 1, self._moved(i, 1))
            stages.append(Stage("backward", "layer", i + 1, unit.backward))
            if e.keeps_layer_inputs:
                more = unit.sizes[unit.template.entering]
                more += unit.sizes[unit.template.gradient_in] if i < count - 1 else 0
                stages.append(Stage("backward", "retain", i + 1, edit(("checkpoints", more))))
                retained += more
            stages += self._edit("backward", "reduce", i + 1, done(i + 1))
            stages += self._edit("backward", "step", i + 1, self._stepped(i + 1))
        _, late = self._tables()
        if late:
            stages.append(Stage("backward", "tables", 1, self._gone(late)))
        first = self.layers[0]
        if self.part.embedding:
            stages += self._edit("backward", "gather", 0, e.before_backward(0))
        if self.part.embedding and self.embedding.backward.deltas:
            stages.append(Stage("backward", "embedding", 0, self.embedding.backward))
        elif first.template.gradient_out >= 0:
            stages.append(Stage("backward", "entry_gradient", 0, edit(
                ("backward_temporary", -first.sizes[first.template.gradient_out]))))
        if self.part.embedding:
            stages += self._edit("backward", "reduce", 0, done(0))
            stages += self._edit("backward", "step", 0, self._stepped(0))
        ended = [("backward_temporary", -BLOCK)] + ([("logits_loss", -BLOCK)] if accumulates(self.plan) else [])
        if retained:
            ended.append(("checkpoints", -retained))
        stages.append(Stage("backward", "end", 0, edit(*ended)))
        stages += self._edit("backward", "release", 0, e.end())
        return stages


def whole_step(shape: ModelShape, plan: TrainingPlan, n: Numerics, form: HeadForm) -> list[Stage]:
    """Forward and backward of an encoder-decoder model."""
    book = compiled(shape)
    unit = book.sized(book.whole(n, form, checkpoint_form(plan)), row_counts(shape, plan))
    return [
        Stage("forward", "layers", 0, unit.between("", "loss"), unit.template.marks), Stage("loss", "loss", 0, unit.between("loss", "after_loss")),
        Stage("forward", "outputs", 0, unit.between("after_loss", "")), Stage("forward", "exit", 0, unit.exit),
        Stage("backward", "start", 0, edit(("backward_temporary", 2 * BLOCK))),
        Stage("backward", "layers", 0, unit.backward), Stage("backward", "end", 0, edit(("backward_temporary", -BLOCK))),
    ]


def build_program(
    start: dict[str, int], shape: ModelShape, plan: TrainingPlan, n: Numerics, form: HeadForm, memory: StepMemory,
    part: Part, edits: Edits, *, buffered: bool = False,
) -> Program:
    """All of a step: micro-batches, then the optimizer. ``buffered``: gradients are added into buffers of their own, which
    ``start`` holds, and leave as soon as they are added."""
    kept = n._replace(grads_exist=True)
    if shape.kind == "encoder_decoder":
        stages = whole_step(shape, plan, kept if plan.gradients_kept else n, form)
        if accumulates(plan):
            stages += whole_step(shape, plan, kept, form)
        gradients = sum(stage.events.net_by_key.get("gradients", 0) for stage in stages)
        return Program(start, (*stages, *optimizer_stages(plan, memory, gradients)))
    first = MicroStep(shape, plan, kept if plan.gradients_kept or buffered else n, form, part, edits)
    accumulating = accumulates(plan)
    going = first.forward()
    start = with_waiting(start, going, part.in_flight)
    stages = going + first.backward(None if accumulating and edits.waits_for_last else first.gradients)
    if accumulating:
        again = MicroStep(shape, plan, kept if edits.waits_for_last or buffered else n, form, part, edits)
        stages += again.forward() + again.backward(first.gradients)
    gradients = sum(stage.events.net_by_key.get("gradients", 0) for stage in stages)
    if plan.gradients_kept:
        start = start | {"gradients": memory.gradients}
    stages += optimizer_stages(plan, memory, 0 if plan.gradients_kept or buffered else gradients)
    return Program(start, tuple(stages))


def with_waiting(start: dict[str, int], forward: list[Stage], in_flight: float) -> dict[str, int]:
    """``start`` with what the other micro-batches of a pipeline keep, each as much as one forward leaves."""
    if in_flight <= 1:
        return start
    kept: dict[str, int] = {}
    for stage in forward:
        for key, net in stage.events.net_by_key.items():
            kept[key] = kept.get(key, 0) + net
    more = {key: start.get(key, 0) + int((in_flight - 1) * net) for key, net in kept.items() if net > 0 and key in WAITING}
    return start | more


WAITING = ("activations", "checkpoints", "logits_loss", "casts")


def optimizer_stages(plan: TrainingPlan, memory: StepMemory, gradients: int) -> list[Stage]:
    """The step: states at the first one, gradients swapped for fp32 ones under a master copy, temporaries."""
    changes: list[tuple[str, int]] = []
    if plan.first_step:
        changes.append(("optimizer_states", memory.states - memory.master))
    if memory.wide_gradients:
        changes += [("gradients", memory.wide_gradients), ("gradients", -gradients)]
        gradients = memory.wide_gradients
    if memory.temporary:
        changes += [("optimizer_temporary", memory.temporary), ("optimizer_temporary", -memory.temporary)]
    changes.append(("gradients", -gradients))
    return [Stage("optimizer", "step", -1, edit(*changes))]


def saved_layers(program: Program) -> int:
    """Bytes that the layers' own tensors hold at the end of forward, weight casts left out."""
    total = 0
    for stage in program.stages:
        if stage.phase == "loss":
            break
        if stage.name == "layers":
            total += _saved_in(stage)
        if stage.name not in ("layer", "final_norm"):
            continue
        first = stage.name == "layer" and stage.unit == 1
        for delta, key, storage in zip(stage.events.deltas, stage.events.keys, stage.events.storages, strict=True):
            if stage.name == "layer" and key != "casts" and not (first and storage == 0):
                total += delta
            elif stage.name == "final_norm" and storage == 0:
                total += delta
    return total


def _saved_in(stage: Stage) -> int:
    """The same within a model recorded whole, by the ranges of storages that its blocks made."""
    marks = stage.marks
    ranges = [(marks[key], marks["end" + key[5:]]) for key in marks if key.startswith("block")]
    return sum(
        delta for delta, key, storage in zip(stage.events.deltas, stage.events.keys, stage.events.storages, strict=True)
        if key != "casts" and any(low <= storage < high for low, high in ranges))
