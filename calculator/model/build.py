"""Builders: the tensors of attention, MLPs, experts and norms, under the names that checkpoints give them.

Every function returns tensors of one layer, shapes as (out, in). A family chooses names and switches; it does no
arithmetic of its own where a builder fits.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from calculator.model.shape import (
    Attention,
    Block,
    Component,
    DenseMlp,
    LatentAttention,
    Mixer,
    Mlp,
    MoeMlp,
    NormKind,
    Split,
    Sublayer,
    Tensor,
    TensorKind,
)

Tensors = tuple[Tensor, ...]


def linear(
    name: str,
    out: int,
    inn: int,
    component: Component,
    *,
    bias: bool = False,
    split: Split = "none",
    kind: TensorKind = "linear",
    copies: int = 1,
    fused: bool = False,
) -> Tensors:
    """A weight matrix ``name``.weight of (out, in), with its bias where it has one. A name that ends in "!" is the
    parameter's own name and gets no suffix."""
    bare = name.endswith("!")
    weight = name[:-1] if bare else f"{name}.weight"
    found: Tensors = (
        Tensor(name=weight, shape=(out, inn), component=component, kind=kind, split=split, copies=copies, fused=fused),
    )
    if bias:
        bias_name = f"{name[:-1]}_bias" if bare else f"{name}.bias"
        bias_split: Split = "none" if split == "row" else split
        found += (
            Tensor(
                name=bias_name,
                shape=(out,),
                component=component,
                kind="bias",
                split=bias_split,
                copies=copies,
                fused=fused,
            ),
        )
    return found


def vector(
    name: str,
    width: int,
    component: Component = "norm",
    *,
    kind: TensorKind = "norm",
    split: Split = "none",
    copies: int = 1,
) -> Tensor:
    """A parameter of one dimension under its own name."""
    return Tensor(name=name, shape=(width,), component=component, kind=kind, split=split, copies=copies)


def table(name: str, rows: int, width: int, *, split: Split = "vocab", component: Component = "embedding") -> Tensor:
    """An embedding table."""
    return Tensor(name=name, shape=(rows, width), component=component, kind="embedding", split=split)


def norm(name: str, width: int, kind: NormKind = "rms", *, bias: bool | None = None, copies: int = 1) -> Tensors:
    """A norm's weight, and its bias in a LayerNorm unless ``bias`` says otherwise."""
    if kind in ("none", "layer_no_affine"):
        return ()
    with_bias = kind == "layer" if bias is None else bias
    found: Tensors = (vector(f"{name}.weight", width, copies=copies),)
    if with_bias:
        found += (vector(f"{name}.bias", width, kind="bias", copies=copies),)
    return found


class AttentionNames(NamedTuple):
    """Module names inside a layer. With ``qkv`` set, one fused matrix stands for q, k and v. Without ``gate``, an
    output gate is the second half of q."""

    q: str = "self_attn.q_proj"
    k: str = "self_attn.k_proj"
    v: str = "self_attn.v_proj"
    o: str = "self_attn.o_proj"
    qkv: str = ""
    q_norm: str = "self_attn.q_norm"
    k_norm: str = "self_attn.k_norm"
    sinks: str = "self_attn.sinks"
    gate: str = ""


LLAMA_ATTENTION = AttentionNames()


def attention(
    a: Attention,
    hidden: int,
    names: AttentionNames = LLAMA_ATTENTION,
    *,
    bias: bool | None = None,
    out_bias: bool = False,
    norm_kind: NormKind = "rms",
    norm_bias: bool | None = None,
    kv_hidden: int | None = None,
    component: Component = "attention",
    no_kv: bool = False,
    gate_per_head: bool = False,
) -> Tensors:
    """The projections of softmax attention. ``bias`` is that of q, k and v (default: ``a.bias``). An output gate
    has one value per element, or one per head if ``gate_per_head``. ``kv_hidden`` is the width that k and v read (cross
    attention). ``no_kv``: the layer has no k and v of its own."""
    with_bias = a.bias if bias is None else bias
    source = kv_hidden or hidden
    q_width, k_width, v_width = a.heads * a.head_dim, a.kv_heads * a.head_dim, a.kv_heads * a.v_head_dim
    q_out = q_width * (2 if a.output_gate and not names.gate else 1)
    tensors: Tensors = ()
    if a.fused_qkv:
        tensors += linear(names.qkv, q_out + k_width + v_width, hidden, component, bias=with_bias, split="column")
    else:
        tensors += linear(names.q, q_out, hidden, component, bias=with_bias, split="column")
        if not no_kv:
            tensors += linear(names.k, k_width, source, component, bias=with_bias, split="kv")
            if not a.k_eq_v:
                tensors += linear(names.v, v_width, source, component, bias=with_bias, split="kv")
    tensors += linear(names.o, hidden, a.heads * a.v_head_dim, component, bias=out_bias, split="row")
    if a.output_gate and names.gate:
        tensors += linear(
            names.gate, a.heads if gate_per_head else a.heads * a.v_head_dim, hidden, component, split="column"
        )
    if a.sinks:
        tensors += (vector(names.sinks, a.heads, component, kind="other", split="column"),)
    if a.qk_norm != "none":
        tensors += norm(names.q_norm, a.head_dim if a.qk_norm == "head" else q_width, norm_kind, bias=norm_bias)
        if not no_kv:
            tensors += norm(names.k_norm, a.head_dim if a.qk_norm == "head" else k_width, norm_kind, bias=norm_bias)
    return tensors


def latent_attention(
    m: LatentAttention,
    hidden: int,
    *,
    prefix: str = "self_attn.",
    bias: bool = False,
    indexer_bias: bool = True,
    indexer: bool = True,
) -> Tensors:
    """Multi-head latent attention: low-rank (or plain) q, the joint latent with the rotary key, and its expansion.

    The indexer, where there is one, has its own low-rank q, one shared key with a LayerNorm, and a weight per head.
    """
    head = m.qk_nope_head_dim + m.qk_rope_head_dim
    tensors: Tensors = ()
    if m.q_lora_rank is None:
        tensors += linear(f"{prefix}q_proj", m.heads * head, hidden, "attention", split="column")
    else:
        tensors += linear(f"{prefix}q_a_proj", m.q_lora_rank, hidden, "attention", bias=bias)
        tensors += norm(f"{prefix}q_a_layernorm", m.q_lora_rank)
        tensors += linear(f"{prefix}q_b_proj", m.heads * head, m.q_lora_rank, "attention", split="column")
    tensors += linear(
        f"{prefix}kv_a_proj_with_mqa", m.kv_lora_rank + m.qk_rope_head_dim, hidden, "attention", bias=bias
    )
    tensors += norm(f"{prefix}kv_a_layernorm", m.kv_lora_rank)
    tensors += linear(
        f"{prefix}kv_b_proj", m.heads * (m.qk_nope_head_dim + m.v_head_dim), m.kv_lora_rank, "attention", split="column"
    )
    tensors += linear(f"{prefix}o_proj", hidden, m.heads * m.v_head_dim, "attention", bias=bias, split="row")
    if m.indexer_heads and indexer:
        rank = m.q_lora_rank or hidden
        tensors += linear(f"{prefix}indexer.wq_b", m.indexer_heads * m.indexer_head_dim, rank, "attention")
        tensors += linear(f"{prefix}indexer.wk", m.indexer_head_dim, hidden, "attention")
        tensors += norm(f"{prefix}indexer.k_norm", m.indexer_head_dim, "layer")
        tensors += linear(f"{prefix}indexer.weights_proj", m.indexer_heads, hidden, "attention")
    return tensors


class MlpNames(NamedTuple):
    """Module names of a dense MLP inside a layer; ``gate_up`` is used where the two are one matrix."""

    gate: str = "mlp.gate_proj"
    up: str = "mlp.up_proj"
    down: str = "mlp.down_proj"
    gate_up: str = "mlp.gate_up_proj"


LLAMA_MLP = MlpNames()


def dense_mlp(
    m: DenseMlp,
    hidden: int,
    names: MlpNames = LLAMA_MLP,
    *,
    component: Component = "mlp",
    out_bias: bool | None = None,
    kind: TensorKind = "linear",
) -> Tensors:
    """A plain MLP (up, down) or a gated one (gate, up, down), fused if the shape says so."""
    bias_down = m.bias if out_bias is None else out_bias
    if m.gated and m.fused_gate_up:
        tensors = linear(names.gate_up, 2 * m.width, hidden, component, bias=m.bias, split="column", kind=kind)
    else:
        tensors = (
            linear(names.gate, m.width, hidden, component, bias=m.bias, split="column", kind=kind) if m.gated else ()
        )
        tensors += linear(names.up, m.width, hidden, component, bias=m.bias, split="column", kind=kind)
    return tensors + linear(names.down, hidden, m.width, component, bias=bias_down, split="row", kind=kind)


class MoeNames(NamedTuple):
    """Module names of an expert layer. "{e}" is the expert's number; without it the checkpoint keeps all experts in
    one 3-D parameter. ``gate_up`` non-empty: gate and up are one matrix."""

    router: str = "mlp.gate"
    gate: str = "mlp.experts.{e}.gate_proj"
    up: str = "mlp.experts.{e}.up_proj"
    down: str = "mlp.experts.{e}.down_proj"
    gate_up: str = ""
    shared: str = "mlp.shared_experts"
    shared_gate: str = "mlp.shared_expert_gate"


DEEPSEEK_MOE = MoeNames()


def moe_mlp(
    m: MoeMlp,
    hidden: int,
    names: MoeNames = DEEPSEEK_MOE,
    *,
    router_bias: bool = False,
    bias: bool = False,
    shared_names: MlpNames | None = None,
    shared_fused: bool = False,
    fused: bool = True,
) -> Tensors:
    """Router, routed experts, and the shared expert of ``shared_width`` (the sum where there are several).

    ``fused``: the modelling code keeps the experts as 3-D parameters whatever the checkpoint does.
    """
    inner = m.latent or hidden

    def expert(name: str, out: int, inn: int) -> Tensors:
        return linear(name, out, inn, "experts", bias=bias, split="expert", copies=m.experts, fused=fused)

    tensors = linear(names.router, m.experts + m.zero_experts, hidden, "router", bias=router_bias, kind="router")
    if m.gated and names.gate_up:
        tensors += expert(names.gate_up, 2 * m.width, inner)
    else:
        tensors += expert(names.gate, m.width, inner) if m.gated else ()
        tensors += expert(names.up, m.width, inner)
    tensors += expert(names.down, inner, m.width)
    if m.shared_width:
        shared = DenseMlp(width=m.shared_width, gated=m.gated, activation=m.activation, fused_gate_up=shared_fused)
        inside = shared_names or MlpNames(
            *(f"{names.shared}.{part}" for part in ("gate_proj", "up_proj", "down_proj", "gate_up_proj"))
        )
        tensors += dense_mlp(shared, hidden, inside, component="shared_experts")
    if m.shared_gate:
        tensors += linear(names.shared_gate, 1, hidden, "shared_experts", kind="router")
    return tensors


def norms(names: Sequence[str], hidden: int, kind: NormKind, *, bias: bool | None = None) -> Tensors:
    """The hidden-wide norms of a layer, by their checkpoint names."""
    return tuple(t for name in names for t in norm(name, hidden, kind, bias=bias))


def short_norm_name(name: str) -> str:
    """The name that bills show: "post_attention_layernorm" gives "post_attention"."""
    for tail in ("_layernorm", "_layer_norm", ".layer_norm", ".LayerNorm", "_norm", ".norm"):
        if name.endswith(tail):
            return name[: -len(tail)].replace(".", "_")
    return name.replace(".", "_")


def block(
    mixer: Mixer,
    mlp: Mlp,
    tensors: Sequence[Tensor],
    norm_names: Sequence[str],
    hidden: int,
    kind: NormKind = "rms",
    *,
    parallel: bool = False,
    dropout: float = 0.0,
    norm_bias: bool | None = None,
    cross_attention: Attention | None = None,
    beside: Mixer | None = None,
    before: Sublayer | None = None,
    per_layer_width: int = 0,
    laurel_rank: int = 0,
) -> Block:
    """A layer from its parts; adds the hidden-wide norms to the tensors."""
    return Block(
        mixer=mixer,
        mlp=mlp,
        tensors=(*tensors, *norms(norm_names, hidden, kind, bias=norm_bias)),
        norm=kind,
        norms=tuple(short_norm_name(n) for n in norm_names),
        parallel=parallel,
        dropout=dropout,
        cross_attention=cross_attention,
        beside=beside,
        before=before,
        per_layer_width=per_layer_width,
        laurel_rank=laurel_rank,
    )


def stack(kinds: Sequence[Hashable], make: Callable[..., Block]) -> tuple[tuple[Block, ...], tuple[int, ...]]:
    """Blocks and order from one hashable kind per layer; ``make(*kind)`` is called once for each distinct tuple."""
    index: dict[Hashable, int] = {}
    blocks: list[Block] = []
    order: list[int] = []
    for kind in kinds:
        if kind not in index:
            index[kind] = len(blocks)
            blocks.append(make(*kind) if isinstance(kind, tuple) else make(kind))
        order.append(index[kind])
    return tuple(blocks), tuple(order)
