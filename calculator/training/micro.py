"""Forward and backward of one micro-batch on one rank's part of the model, with a framework's edits."""

from __future__ import annotations

from collections.abc import Iterable

from calculator.model.shape import ModelShape
from calculator.training.compiled import compiled
from calculator.training.forms import NOTHING, Form
from calculator.training.numerics import Numerics
from calculator.training.parallel import Part
from calculator.training.pattern import Stage
from calculator.training.plan import TrainingPlan
from calculator.training.settings import checkpoint_every, checkpoint_form
from calculator.training.sharding import Edits
from calculator.training.stack import accumulates, longest_first
from calculator.training.stretches import HeadForm
from calculator.training.template import BLOCK, Stretch, Template, edit


class MicroStep:
    """Forward and backward of one micro-batch on one part of the model, with a framework's edits around each unit."""

    def __init__(
        self, shape: ModelShape, plan: TrainingPlan, n: Numerics, form: HeadForm, part: Part, edits: Edits
    ) -> None:
        self.plan, self.edits, self.part = plan, edits, part
        self.offloads = plan.checkpointing == "offloaded" or "activations" in plan.offload
        self.book = compiled(shape)
        self.checkpoint = checkpoint_form(plan)
        self.boundary = "checkpoints" if self.checkpoint else "activations"
        book, checkpoint = self.book, self.checkpoint
        frozen_entry = not n.trainable and not checkpoint
        self.embedding = book.embedding(n, self.boundary)
        self.layers: list[Template] = []
        residual = self.embedding.dtype
        known: dict[tuple[int, bool, str, bool], Template] = {}
        every = checkpoint_every(plan)
        for i, index in enumerate(part.layers):
            first, again = i == 0 and part.embedding, i % every == 0
            unit = known.get((index, first, residual, again))
            if unit is None:
                wants = n._replace(input_needs_grad=not (first and frozen_entry), residual=residual)
                unit = book.layer(index, wants, checkpoint if again else "", first, self.boundary)
                known[index, first, residual, again] = unit
            self.layers.append(unit)
            residual = unit.dtype
        self.last = book.head(n._replace(residual=residual), form, self.boundary)
        self.count = len(part.layers)
        gradients = [u.backward.net_by_key.get("gradients", NOTHING) for u in (self.embedding, *self.layers, self.last)]
        self.shared = book.shared_gradients(n)
        self.gradients = [gradients[0] * part.embedding + self.shared, *gradients[1:-1], gradients[-1] * part.head]
        blocks = book.shape.blocks
        reading = [i for i, k in enumerate(part.layers) if blocks[k].before or blocks[k].per_layer_width]
        rejoining = reading if book.beside_width else []
        self.last_rejoining = max(rejoining, default=-1) if n.trainable else -1

        self.outputs = self._outputs() if form.outputs_held and part.head else {}
        self.outputs_drop = "loss" if plan.framework == "litgpt" else "outputs"

    def _outputs(self) -> dict[str, Form]:
        """What a loop that keeps the model's outputs keeps beyond backward, until the next forward's are there: the
        logits, and through them the graph, with what its nodes hold as attributes."""
        last = self.last
        nets = [stretch.net_by_key.get("logits_loss", NOTHING) for stretch in (last.forward, last.exit, last.backward)]
        found = {"logits_loss": sum(nets, NOTHING), "activations": NOTHING}
        if not self.checkpoint and not longest_first(self.plan):
            found["activations"] = sum((unit.sizes[i] for unit in self._units() for i in unit.node_held), NOTHING)
        return {key: size for key, size in found.items() if size}

    # ------------------------------------------------------------------------------------------------- pieces
    def _edit(self, phase: str, name: str, unit: int, events: Stretch | None) -> list[Stage]:
        return [] if events is None else [Stage(phase, name, unit, events)]

    def _gone(self, some: Iterable[int]) -> Stretch:
        entry = self.embedding
        return edit(*((entry.storages[i][2], -entry.sizes[i]) for i in some))

    def _tables(self) -> tuple[list[int], list[int]]:
        """Tensors made beside the embedding that leave when the model's forward returns, and those that stay to the
        end."""
        entry = self.embedding
        kept = bool(self.checkpoint) or any(unit.keeps_shared for unit in self.layers)
        early = [
            i
            for i in entry.extras
            if i in entry.summands or (not self.checkpoint and (i in entry.transient or not kept))
        ]
        return early, [i for i in entry.extras if i not in early]

    def forward(self, *, previous: bool = False) -> list[Stage]:
        """``previous``: the outputs of the micro-batch before are still there, and leave when this one's are."""
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
        stages += self._tail(previous) if self.part.head else [Stage("forward", "send", count + 1, self._sent())]
        for i, unit in enumerate(self._units()):
            if unit.exit.changes:
                stages.append(Stage("forward", "exit", i, unit.exit))
        if accumulates(self.plan):
            stages.append(Stage("forward", "outputs", count + 1, edit(("logits_loss", BLOCK))))
        return stages

    def _units(self) -> list[Template]:
        return [
            *([self.embedding] if self.part.embedding else []),
            *self.layers,
            *([self.last] if self.part.head else []),
        ]

    def _moved(self, index: int, sign: int) -> Stretch | None:
        """What a layer keeps, moved to the host after its forward and fetched back before its backward; the last
        layer's stays."""
        if not self.offloads or index == self.count - 1:
            return None
        return edit(*((key, sign * size) for key, size in self.kept(index).items()))

    def kept(self, index: int) -> dict[str, Form]:
        """What a layer keeps for backward, by item; its input among it if nobody else holds that."""
        unit = self.layers[index]
        found = dict(unit.forward.net_by_key)
        found[self.boundary] = found.get(self.boundary, NOTHING) - unit.sizes[unit.leaving]
        if (unit.keeps_input and (index or not self.part.embedding)) or (
            not unit.keeps_input and (index or not self.book.holds_entry)
        ):
            found[self.boundary] += unit.sizes[unit.entering]
        return {key: size for key, size in found.items() if size and key in ("activations", "checkpoints")}

    def _stepped(self, unit: int) -> Stretch | None:
        """An optimizer that runs inside backward frees a unit's gradients as soon as they have been used."""
        if not self.plan.optimizer_in_backward or not self.gradients[unit]:
            return None
        return edit(("gradients", -self.gradients[unit]))

    def _received(self) -> Stretch:
        """What a later pipeline stage is sent, and the tables that it makes for itself."""
        first, entry = self.layers[0], self.embedding
        early, late = self._tables()
        tables = [(entry.storages[i][2], entry.sizes[i]) for i in (*early, *late) if i not in entry.summands]
        return edit((self.boundary, first.sizes[first.entering]), *tables)

    def _sent(self) -> Stretch:
        """The output leaves for the next stage; tensors beside the layers leave where nothing keeps them."""
        last, entry = self.layers[-1], self.embedding
        early, _ = self._tables()
        changes = [
            (entry.storages[i][2], -entry.sizes[i]) for i in early if self.part.embedding or i not in entry.summands
        ]
        if self.part.embedding and self.book.holds_entry and not self.layers[0].keeps_input:
            changes.append((self.boundary, -entry.sizes[entry.leaving]))
        return edit((self.boundary, -last.sizes[last.leaving]), *changes)

    def _tail(self, previous: bool) -> list[Stage]:
        """Final norm, head and loss."""
        gone = {}
        if previous:
            gone[self.outputs_drop] = edit(*((key, -size) for key, size in self.outputs.items()))
        e, count, last = self.edits, self.count, self.last
        stages = self._edit("forward", "gather", count + 1, e.before_forward(count + 1))
        stages.append(Stage("forward", "final_norm", count + 1, last.between("", "returned")))
        if self.part.embedding and self.book.holds_entry and not self.layers[0].keeps_input:
            entry = self.embedding.sizes[self.embedding.leaving]
            stages.append(Stage("forward", "entry", count + 1, edit((self.boundary, -entry))))
        early, _ = self._tables()
        if not self.part.embedding:
            early = [i for i in early if i not in self.embedding.summands]
        if early:
            stages.append(Stage("forward", "tables", count + 1, self._gone(early)))
        stages.append(Stage("forward", "head", count + 1, last.between("returned", "loss")))
        stages += self._edit("forward", "outputs", count + 1, gone.get("loss"))
        stages.append(Stage("loss", "loss", count + 1, last.between("loss", "after_loss")))
        stages += self._edit("forward", "outputs", count + 1, gone.get("outputs"))
        stages.append(Stage("forward", "outputs", count + 1, last.between("after_loss", "")))
        stages += self._edit("forward", "release", count + 1, e.after_forward(count + 1))
        return stages

    def backward(self, gradients: list[Form] | None) -> list[Stage]:
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
            received = top.sizes[top.gradient_in] if top.gradient_in >= 0 else NOTHING
            stages = [Stage("backward", "receive", count + 1, edit(("backward_temporary", received + BLOCK)))]
        if self.shared:
            stages.append(Stage("backward", "start", count + 1, edit(("gradients", self.shared))))
        retained = original = NOTHING
        for i in range(count - 1, -1, -1):
            unit = self.layers[i]
            stages += self._edit("backward", "gather", i + 1, e.before_backward(i + 1))
            stages += self._edit("backward", "fetch", i + 1, self._moved(i, 1))
            stages.append(Stage("backward", "layer", i + 1, unit.backward))
            if e.keeps_layer_inputs:
                more = unit.sizes[unit.entering]
                more += unit.sizes[unit.gradient_in] if i < count - 1 else NOTHING
                stages.append(Stage("backward", "retain", i + 1, edit(("checkpoints", more))))
                retained += more
            if i == self.last_rejoining:  # what the embedding made beside its output has a gradient from here on
                rows, width, _ = unit.storages[unit.entering]
                original = Form.allocation(rows, width * self.book.beside_width // self.book.stream_width)
                stages.append(Stage("backward", "entry_gradient", i + 1, edit(("backward_temporary", original))))
            stages += self._edit("backward", "reduce", i + 1, done(i + 1))
            stages += self._edit("backward", "step", i + 1, self._stepped(i + 1))
        if original:
            stages.append(Stage("backward", "entry_gradient", 1, edit(("backward_temporary", -original))))
        _, late = self._tables()
        if late:
            stages.append(Stage("backward", "tables", 1, self._gone(late)))
        first = self.layers[0]
        if self.part.embedding:
            stages += self._edit("backward", "gather", 0, e.before_backward(0))
        if self.part.embedding and self.embedding.backward.changes:
            stages.append(Stage("backward", "embedding", 0, self.embedding.backward))
        elif first.gradient_out >= 0:
            stages.append(
                Stage(
                    "backward",
                    "entry_gradient",
                    0,
                    edit(("backward_temporary", -first.sizes[first.gradient_out])),
                )
            )
        if self.part.embedding:
            stages += self._edit("backward", "reduce", 0, done(0))
            stages += self._edit("backward", "step", 0, self._stepped(0))
        ended: list[tuple[str, Form | int]] = [("backward_temporary", -BLOCK)]
        if accumulates(self.plan):
            ended.append(("logits_loss", -BLOCK))
        if retained:
            ended.append(("checkpoints", -retained))
        if "activations" in self.outputs:
            ended.append(("activations", self.outputs["activations"]))
        stages.append(Stage("backward", "end", 0, edit(*ended)))
        stages += self._edit("backward", "release", 0, e.end())
        return stages


def whole_step(shape: ModelShape, plan: TrainingPlan, n: Numerics, form: HeadForm) -> list[Stage]:
    """Forward and backward of an encoder-decoder model."""
    book = compiled(shape)
    unit = book.whole(n, form, checkpoint_form(plan))
    return [
        *forward_of(unit),
        Stage("backward", "start", 0, edit(("backward_temporary", 2 * BLOCK))),
        Stage("backward", "layers", 0, unit.backward),
        Stage("backward", "end", 0, edit(("backward_temporary", -BLOCK))),
    ]


def forward_of(unit: Template) -> list[Stage]:
    """The forward of an encoder-decoder model's recording."""
    return [
        Stage("forward", "layers", 0, unit.between("", "loss"), unit.marks),
        Stage("loss", "loss", 0, unit.between("loss", "after_loss")),
        Stage("forward", "outputs", 0, unit.between("after_loss", "")),
        Stage("forward", "exit", 0, unit.exit),
    ]
