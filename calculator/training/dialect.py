"""Habits of a family's modelling code that change memory without changing a single weight."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Dialect(NamedTuple):
    """``softmax_fp32``: eager attention computes softmax in fp32 and casts back. ``fused_split``: how a fused
    projection is taken apart: ``slices`` (each view's gradient is a zero-filled whole), ``parts`` (one joint
    gradient) or ``per_head`` (query, key and value lie head by head), ``grouped`` (the same, then copied to all heads
    where heads are shared). ``always_fused``: query, key and value are one projection with one adapter.
    ``query_scaled``: queries are multiplied by the scale beforehand. ``normalised``: the chosen experts' weights are
    divided by their sum; ``router``: type of the routing weights; ``router_fp32``: the router's weight and input are
    fp32. ``mlp_dropout``: dropout also after the MLP's last matrix. ``branch_first``: attention's output stands first
    in the residual sum. ``positions_mask``: learned positions are counted from a mask. ``complex_rotary``: rotary
    embedding as a complex product. ``logits_scaled``, ``branch_scaled``, ``embedding_multiplied``: logits, each
    branch before its residual sum, and the embedding's output are multiplied by a constant; ``inputs_scaled``: so are
    what each of a layer's two mixers reads and what it makes. ``inline_mlp``: the layer calls the MLP's matrices
    itself, so the norm's output is gone once the first has read it. ``logits_upcast``: the model casts its logits to
    fp32; else autocast does so with their log-softmax. ``normalised_head``: the vocabulary of a model that divides the
    rows of its head by their length in every forward, 0 for none."""

    softmax_fp32: bool = True
    fused_split: Literal["slices", "parts", "per_head", "grouped"] = "slices"
    always_fused: bool = False
    query_scaled: bool = False
    normalised: bool = True
    router: Literal["compute", "fp32"] = "compute"
    router_fp32: bool = False
    branch_first: bool = False
    positions_mask: bool = False
    complex_rotary: bool = False
    logits_scaled: bool = False
    branch_scaled: bool = False
    embedding_multiplied: bool = False
    inline_mlp: bool = False
    inputs_scaled: bool = False
    logits_upcast: bool = True
    normalised_head: int = 0


BAICHUAN_2 = 125_696
"""Vocabulary of Baichuan 2, which shares its model_type with the first Baichuan (64,000 entries, a plain head)."""

_DIALECTS = {
    "gpt2": Dialect(softmax_fp32=False, fused_split="parts", branch_first=True),
    "gpt_neox": Dialect(fused_split="per_head"),
    "bert": Dialect(softmax_fp32=False),
    "roberta": Dialect(softmax_fp32=False),
    "opt": Dialect(query_scaled=True, positions_mask=True, inline_mlp=True),
    "granite": Dialect(logits_scaled=True, branch_scaled=True, embedding_multiplied=True),
    "falcon_h1": Dialect(logits_scaled=True, embedding_multiplied=True, inputs_scaled=True),
    "granitemoe": Dialect(logits_scaled=True, branch_scaled=True, embedding_multiplied=True),
    "granitemoeshared": Dialect(logits_scaled=True, branch_scaled=True, embedding_multiplied=True),
    "granitemoehybrid": Dialect(logits_scaled=True, branch_scaled=True, embedding_multiplied=True),
    "mixtral": Dialect(router="fp32"),
    "olmoe": Dialect(normalised=False),
    "baichuan": Dialect(logits_upcast=False, normalised_head=BAICHUAN_2),
    "deepseek_v2": Dialect(normalised=False, router="fp32", router_fp32=True, complex_rotary=True),
}


LITGPT = Dialect(fused_split="grouped", always_fused=True)
"""litgpt's own model code, one for all families (``litgpt/model.py`` and ``lora.py``)."""


def dialect(model_type: str, code: str = "transformers") -> Dialect:
    """The habits of a family's code in transformers, Llama's where none are known; or of another library's own code."""
    return LITGPT if code == "litgpt" else _DIALECTS.get(model_type, Dialect())
