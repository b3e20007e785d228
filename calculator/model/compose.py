"""Composites: a language model with towers and a projector, each read from its sub-object."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from calculator.errors import UnknownFamilyError
from calculator.model.build import Tensors
from calculator.model.class_defaults import TEXT, TOWERS
from calculator.model.config import Config
from calculator.model.shape import ModelShape, Tensor, Tower

Reader = Callable[[Config], ModelShape]
Readers = dict[str, Reader]

ALWAYS_EXPLICIT = "tie_word_embeddings"


TOP_TIES = {"qwen3_vl_moe_text"}
"""Text classes whose own default (tied) is no model's: files that transformers 5 wrote carry it, the top is right."""


def text_config(cfg: Config, key: str = "text_config", default_type: str = "") -> Config:
    """The language model's object. Its own tying counts; where it is silent, the file's top does; where both are, the
    text family's default."""
    found = cfg.require_sub(key)
    family = found.string("model_type", default=default_type)
    if not family:
        raise found.missing("model_type")
    values: dict[str, Any] = dict(found.raw)
    top = cfg.get(ALWAYS_EXPLICIT)
    if top is not None and (values.get(ALWAYS_EXPLICIT) is None or family in TOP_TIES):
        values[ALWAYS_EXPLICIT] = top
    if not values.get("model_type"):
        values["model_type"] = family
    return Config(values, f"{cfg.path}{key}.", cfg.notes, TEXT.get(family))


def read_text(text: Config, readers: dict[str, Reader], aliases: dict[str, str] | None = None) -> ModelShape:
    """The language model by its own family's reader."""
    family = text.string("model_type", default="")
    name = (aliases or {}).get(family, family)
    if name not in readers:
        raise UnknownFamilyError("shape.unknown_family", field=f"{text.path}model_type", value=family)
    return readers[name](text)


def tower_config(cfg: Config, key: str, kind: str, *, optional: bool = False) -> Config | None:
    """A tower's object with its class's defaults; where the whole object is absent, the class stands for it, which is
    noted, unless the composite has no tower without one (``optional``)."""
    found = cfg.sub(key, TOWERS.get(kind))
    if found is not None:
        return found
    if optional:
        if key not in cfg.raw:
            cfg.notes.assume("assumption.no_tower", key=cfg.path + key)
        return None
    if kind not in TOWERS:
        raise cfg.missing(key)
    cfg.notes.assume("assumption.tower_absent", key=cfg.path + key)
    return Config({}, f"{cfg.path}{key}.", cfg.notes, TOWERS[kind])


def need_tower(cfg: Config, key: str, kind: str) -> Config:
    """The same for a tower that the composite always has."""
    found = tower_config(cfg, key, kind)
    assert found is not None
    return found


def relocate(shape: ModelShape, old: str, new: str) -> ModelShape:
    """The language model under another path of the checkpoint."""
    if old == new:
        return shape

    def move(tensors: Sequence[Tensor]) -> Tensors:
        return tuple(
            t.model_copy(update={"name": new + t.name.removeprefix(old)}) if t.name.startswith(old) else t
            for t in tensors
        )

    return shape.model_copy(
        update={
            "embedding": move(shape.embedding),
            "final": move(shape.final),
            "prefix": new + shape.prefix.removeprefix(old),
            "layer_prefix": new + shape.layer_prefix.removeprefix(old),
            "mtp": move(shape.mtp),
        }
    )


def compose(
    text: ModelShape,
    towers: Sequence[Tower],
    projector: Tensors = (),
    *,
    prefix: str = "language_model.model.",
    head: str = "language_model.lm_head.",
) -> ModelShape:
    """The language model moved to ``prefix``, with towers and projector beside it."""
    moved = relocate(text, text.prefix, prefix)
    heads = tuple(t.model_copy(update={"name": head + t.name.rsplit(".", 1)[-1]}) for t in moved.head)
    return moved.model_copy(update={"towers": tuple(towers), "projector": projector, "head": heads})
