"""What llama.cpp's converter and quantiser call a tensor: the category on which its type depends."""

from __future__ import annotations

import re
from typing import Literal

from calculator.model.shape import Component, Tensor

Category = Literal[
    "token_embd",
    "output",
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_qkv",
    "attn_output",
    "ffn_up",
    "ffn_gate",
    "ffn_down",
    "other",
    "kept",
]
"""The quantiser's tensor categories, and ``kept``: what it leaves in the type that the converter wrote (fp32)."""

_RULES: tuple[tuple[Category, str], ...] = (
    ("attn_qkv", r"(qkv_proj|c_attn|query_key_value|Wqkv|wqkv|W_pack)"),
    ("attn_q", r"(q_proj|wq|query|q_lin|q)"),
    ("attn_k", r"(k_proj|wk|key|k_lin|k)"),
    ("attn_v", r"(v_proj|wv|value|v_lin|v)"),
    ("attn_output", r"(o_proj|out_proj|c_proj|[Ww]o|dense|out_lin|o)"),
)
_STATE_RULES: tuple[tuple[Category, str], ...] = (
    ("attn_qkv", r"in_proj_qkv|qkv_proj"),
    ("attn_q", r"q_proj"),
    ("attn_k", r"k_proj"),
    ("attn_v", r"v_proj"),
)
_ATTENTION = tuple((category, re.compile(pattern)) for category, pattern in _RULES)
_STATE = tuple((category, re.compile(pattern)) for category, pattern in _STATE_RULES)
_DOWN = re.compile(r"down_proj|c_proj|w2|fc2|fc_out|dense_4h_to_h|output_linear|lin2|wo")
_GATE = re.compile(r"gate_proj|w1|c_fc_0|linear_v")
_POSITION = re.compile(r"position|wpe|token_type")
_KEPT = re.compile(r"conv1d|A_log|dt_bias|altup|laurel|per_layer_model_proj|rel(ative)?_att\w*_bias")


def category(tensor: Tensor) -> Category:
    """The category of a tensor by its component and its module's last name.

    ``w2`` is the down projection in some families and the gate in others, so the way a dense MLP's matrix is split
    decides between down and the rest, and the name only where that says nothing.
    """
    if len(tensor.shape) < 2 or tensor.kind in ("norm", "bias", "router", "conv") or _KEPT.search(tensor.name):
        return "kept"
    if tensor.component == "embedding" or tensor.kind == "embedding":
        return "kept" if _POSITION.search(tensor.name) else "token_embd"
    if tensor.component == "head":
        return "output"
    last = re.sub(r"\.(weight|bias)$", "", tensor.name).rpartition(".")[2]
    if tensor.component in ("attention", "ssm"):
        rules = _ATTENTION if tensor.component == "attention" else _STATE
        return next((name for name, pattern in rules if pattern.fullmatch(last)), "other")
    if tensor.component in ("mlp", "experts", "shared_experts"):
        if tensor.split == "row" or (tensor.split != "column" and _DOWN.fullmatch(last)):
            return "ffn_down"
        return "ffn_gate" if _GATE.fullmatch(last) else "ffn_up"
    return "other"


def as_written(tensor: Tensor, qkv_rows: int) -> tuple[Tensor, ...]:
    """The tensors that the converter makes of one: Qwen3-Next's joint projection becomes the first ``qkv_rows`` rows
    and a gate."""
    if not tensor.name.endswith("in_proj_qkvz.weight"):
        return (tensor,)
    rows, columns = tensor.shape
    parts = (("in_proj_qkv", qkv_rows), ("in_proj_z", rows - qkv_rows))
    return tuple(
        tensor.model_copy(update={"name": tensor.name.replace("in_proj_qkvz", name), "shape": (count, columns)})
        for name, count in parts
    )


_PREDICTING: tuple[tuple[Component, str], ...] = (
    ("experts", r"\.experts\."),
    ("shared_experts", r"\.shared_experts?\."),
    ("mlp", r"\.mlp\."),
    ("attention", r"\.self_attn\."),
)


def as_layer(tensor: Tensor) -> Tensor:
    """A tensor of a prediction layer as one of an ordinary layer, which the quantiser takes it for. Its embedding and
    head are nothing special to it."""
    component = next((c for c, pattern in _PREDICTING if re.search(pattern, tensor.name)), "other")
    kind = "linear" if tensor.kind == "embedding" else tensor.kind
    return tensor.model_copy(update={"component": component, "kind": kind})
