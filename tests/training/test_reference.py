"""The program that is put together from recordings, against one recording of the whole model, unrolled."""

from itertools import accumulate
from typing import Any

import pytest

from calculator.training.bill import bill
from calculator.training.compiled import compiled, mask_kinds, needs_mask, rotary_dim
from calculator.training.decoder import decoder
from calculator.training.layers import Layer, Shared
from calculator.training.plan import TrainingPlan
from calculator.training.recipe import resolve
from calculator.training.settings import head_form, numerics, row_counts
from calculator.training.stretches import additive_mask, boolean_mask, embed, head, position_ids, rotary_tables
from calculator.training.tape import Tape, Tensor
from calculator.training.template import Stretch, record
from tests.training.shapes import A100, plan, shape


def unrolled(name: str, p: TrainingPlan) -> dict[str, int]:
    """Highest bytes over what is there before the step, in forward with loss and in backward, all layers on one
    tape."""
    model = shape(name)
    recipe = resolve(model, p)
    n = numerics(model, p, recipe, A100, scratch=False)
    tape = Tape(autocast=n.autocast, kernel_scratch=False)
    book = compiled(model)
    held: list[Tensor] = []
    marks: dict[str, int] = {}

    def run(_: list[Tensor]) -> list[Tensor]:
        owner = book._writer(tape, n)
        learned = model.embedding[1].shape[0] if len(model.embedding) > 1 else 0
        x, summands = embed(
            owner, model.vocab, positions=learned, scaled=model.embedding_scaled, dropout=model.embedding_dropout
        )
        places = [] if learned else position_ids(tape)
        blocks = [model.blocks[i] for i in model.order]
        masks = [additive_mask(tape, x.dtype) for _ in range(mask_kinds(model))] if n.attention == "eager" else []
        if not masks and any(needs_mask(b, n) for b in blocks):
            masks = [boolean_mask(tape)]
        dim = max(rotary_dim(b) for b in blocks)
        tables = rotary_tables(tape, dim, x.dtype, owner.dialect) if dim else ()
        entry = [] if learned else [x]
        for block in blocks:
            layer = book._writer(tape, n, block)
            shared = Shared(rotary=tables, mask=masks[0] if masks and needs_mask(block, n) else None)
            x = _checkpointed(tape, layer, x, block, shared, p)
            del shared, layer
        box = [x]
        del x
        loss = _head(owner, box, model, p, held, marks, [*places, *masks, *tables, *entry, *summands], entry)
        if model.tied:
            owner.params["embedding"].adds_in_place = n.autocast is not None
        return [loss]

    template = record(tape, run, held=held, marks=marks)
    rows = row_counts(model, p)
    forward, ending, backward = (levels(part, rows) for part in (template.forward, template.exit, template.backward))
    return {"forward": max(forward), "backward": forward[-1] + ending[-1] + max(backward)}


def levels(part: Stretch, rows: tuple[int, ...]) -> list[int]:
    """Bytes over the start after every event."""
    return list(accumulate((change.at(rows) for change in part.changes), initial=0))


def _checkpointed(tape: Tape, layer: Layer, x: Tensor, block: Any, shared: Shared, p: TrainingPlan) -> Tensor:
    if p.checkpointing == "none":
        return decoder(layer, x, block, shared)
    return tape.checkpoint(lambda t: decoder(layer, t, block, shared), x)


def _head(
    owner: Layer,
    box: list[Tensor],
    model: Any,
    p: TrainingPlan,
    held: list[Tensor],
    marks: dict[str, int],
    others: list[Tensor],
    entry: list[Tensor],
) -> Tensor:
    if model.tied:
        owner.params["head"] = owner.params["embedding"]
    form = head_form(model, p)
    loss = head(owner, box, form, held, marks)
    others.clear()
    entry.clear()
    return loss


@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize("precision", ["bf16", "amp_bf16", "fp32"])
@pytest.mark.parametrize("name", ["llama", "tied", "gpt2", "neox", "mixtral"])
def test_putting_recordings_together_changes_nothing(name: str, precision: str, checkpointing: str) -> None:
    """The same moment is the highest of backward. (Forward differs by what the model's own function still holds at its
    head, which the unrolled recording here lets go a moment later, so it bounds from above.)"""
    if name == "mixtral" and precision == "fp32":
        pytest.skip("grouped products are 16-bit kernels")
    p = plan(precision=precision, checkpointing=checkpointing, optimizer="none", checkpointing_reentrant=False)
    expected = unrolled(name, p)
    made = bill(shape(name), p, A100, tensors_only=True)
    phases = {phase.name: phase.allocated_bytes for phase in made.phases}
    base = phases["load"]
    assert phases["backward"] - base == pytest.approx(expected["backward"], rel=2e-3, abs=3 * 512)
    assert max(phases["forward"], phases["loss"]) - base <= expected["forward"] + 512
