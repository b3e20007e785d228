"""Which part of a model a tensor belongs to, by llama.cpp's name for it (``gguf-py/gguf/constants.py`` lists them)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from calculator.model.shape import Component

_RULES: tuple[tuple[Component, str], ...] = (
    ("mtp", r"\.nextn\."),
    ("projector", r"^(mm|resampler)\."),
    ("vision", r"^v\."),
    ("audio", r"^a\."),
    ("norm", r"_norm(_\w+)?\.(weight|bias)$"),
    ("head", r"^output\.(weight|bias)$"),
    ("embedding", r"^(token_embd|position_embd|token_types|per_layer_token_embd|per_layer_model_proj)\."),
    ("router", r"ffn_gate_inp|exp_probs_b"),
    ("experts", r"ffn_\w+_exps?\."),
    ("shared_experts", r"ffn_\w+_shexp\."),
    ("mlp", r"\.ffn_"),
    ("ssm", r"\.(ssm_|shortconv|time_mix|channel_mix)"),
    ("attention", r"\.(attn_|indexer|cross_attn_)"),
)
_COMPILED = tuple((component, re.compile(pattern)) for component, pattern in _RULES)


def component_of(name: str) -> Component:
    """The component of a tensor by llama.cpp's name for it."""
    return next((component for component, pattern in _COMPILED if pattern.search(name)), "other")


def components_of(names: Iterable[str]) -> dict[str, Component]:
    """The same for all tensors of a model. A prediction layer is a layer as any other with a few tensors more, by which
    it is known."""
    listed = list(names)
    predicting = tuple(name.partition("nextn.")[0] for name in listed if ".nextn." in name)
    return {name: "mtp" if name.startswith(predicting) else component_of(name) for name in listed}
