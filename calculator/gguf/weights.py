"""Weights as GGUF files hold them, by component, from the files' own tables."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from calculator.gguf.header import GgufHeader
from calculator.model.shape import Component
from calculator.model.stored import StoredWeights
from calculator.sources import Source

GGUF_SOURCE = Source(
    title="GGUF file header", url="https://github.com/ggml-org/ggml/blob/master/docs/gguf.md", checked_on="2026-11-29"
)

_RULES: tuple[tuple[Component, str], ...] = (
    ("mtp", r"\.nextn\."),
    ("projector", r"^mm\."),
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


def weights_of(headers: Sequence[GgufHeader]) -> StoredWeights:
    """The weights in one or several files (the parts of a model, or a model and its projector), exactly."""
    by_component: Counter[str] = Counter()
    by_type: Counter[str] = Counter()
    for header in headers:
        for tensor in header.tensors:
            by_component[component_of(tensor.name)] += tensor.bytes
            by_type[tensor.type] += tensor.bytes
    return StoredWeights(
        total_bytes=by_component.total(),
        by_component=dict(by_component),
        by_format=dict(by_type),
        basis="header",
        source=GGUF_SOURCE,
    )
