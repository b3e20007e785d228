"""The model in one line and one strip: what was read, from where, and how the layers follow each other."""

from __future__ import annotations

from collections import Counter
from typing import Any

import streamlit as st

from calculator.errors import CalculatorError
from calculator.lookup import LoadedModel
from calculator.model.shape import Attention, Block, DenseMlp, LatentAttention, ModelShape, MoeMlp, StateMixer
from ui.components.mount import mount
from ui.i18n import Words
from ui.markdown import plain

MIXERS = ("full", "window", "chunk", "mla", "state", "none")
MLPS = ("dense", "moe", "none")


def model_card(model: LoadedModel | CalculatorError | None, words: Words) -> None:
    """The line of what was read and the strip of layers; nothing where there is no model."""
    if not isinstance(model, LoadedModel):
        return
    with st.container(gap="small"):
        st.caption(plain(card_line(model, words)))
        strip = strip_data(model.shape, words)
        if strip["layers"]:
            mount("layer_strip", strip, key="model.strip")


def card_line(model: LoadedModel, words: Words) -> str:
    shape, count = model.shape, model.shape.parameters
    parts = [words("ui.card.params", total_params=count.total)]
    if count.active < count.total:
        parts.append(words("ui.card.active", active_params=count.active))
    parts.append(words("ui.card.layers", layers_count=shape.layers))
    parts += _attention(shape, words)
    parts.append(words("ui.card.vocab", vocab_count=shape.vocab))
    return " · ".join((*parts, _origin(model, words)))


def _attention(shape: ModelShape, words: Words) -> list[str]:
    """The heads of each softmax mixer, once each: "GQA 32/8 × 128"."""
    found = []
    for mixer in (mixer for index in dict.fromkeys(shape.order) for mixer in shape.blocks[index].mixers):
        if isinstance(mixer, LatentAttention):
            found.append(words("ui.card.mla", heads=mixer.heads, rank=mixer.kv_lora_rank, rope=mixer.qk_rope_head_dim))
        elif isinstance(mixer, Attention):
            kind = "MHA" if mixer.kv_heads == mixer.heads else "MQA" if mixer.kv_heads == 1 else "GQA"
            found.append(f"{kind} {mixer.heads}/{mixer.kv_heads} × {mixer.head_dim}")
    return list(dict.fromkeys(found))[:3]


def _origin(model: LoadedModel, words: Words) -> str:
    commit = (model.commit or "")[:7]
    if model.origin == "hub" and model.gguf_file is not None:
        file, count = model.gguf_file.rpartition("/")[2], len(model.gguf_choices)
        named = "named" if model.gguf_named or count < 2 else "usual"
        return words(f"ui.card.from_gguf_{named}", file=file, commit=commit, files_count=count)
    if model.origin == "hub":
        by_headers = model.headers is not None and model.headers.origin == "headers"
        return words("ui.card.from_headers" if by_headers else "ui.card.from_config", commit=commit)
    return words(f"ui.card.from_{model.origin}")


def _mixer_kind(block: Block) -> str:
    mixer = block.mixer
    if isinstance(mixer, LatentAttention):
        return "mla"
    if isinstance(mixer, StateMixer):
        return "state"
    if isinstance(mixer, Attention):
        return "window" if mixer.window else "chunk" if mixer.chunk else "full"
    return "none"


def _mlp_kind(block: Block) -> str:
    return "moe" if isinstance(block.mlp, MoeMlp) else "dense" if isinstance(block.mlp, DenseMlp) else "none"


def strip_data(shape: ModelShape, words: Words) -> dict[str, Any]:
    """Layers from first to last as kinds of mixer and MLP, with the legend and the same in words."""
    blocks = [shape.blocks[index] for index in shape.order]
    kinds = [(_mixer_kind(block), _mlp_kind(block)) for block in blocks]
    mixers, mlps = Counter(m for m, _ in kinds), Counter(m for _, m in kinds)
    names = {kind: words(f"ui.strip.{kind}") for kind in {*mixers, *mlps}}
    counted = [(k, mixers[k]) for k in MIXERS if mixers[k] and k != "none"]
    counted += [(k, mlps[k]) for k in MLPS if mlps[k] and k != "none"]
    legend = [{"kind": kind, "name": f"{count} × {names[kind]}"} for kind, count in counted]
    return {
        "label": words("ui.strip.label", layers_count=len(kinds), kinds=", ".join(entry["name"] for entry in legend)),
        "layers": [
            {"mixer": mixer, "mlp": mlp, "title": f"{number}: {names[mixer]}, {names[mlp]}"}
            for number, (mixer, mlp) in enumerate(kinds)
        ],
        "legend": legend,
    }
