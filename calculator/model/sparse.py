"""Which layers hold experts, how many, and how wide: the key dialects of mixtures of experts."""

from __future__ import annotations

from collections.abc import Sequence

from calculator.model.config import Config
from calculator.model.shape import Activation, MoeMlp

MAX_EXPERTS = 65_536

EXPERT_KEYS = ("num_experts", "n_routed_experts", "num_local_experts")


def sparse_layers(cfg: Config, layers: int, *, required: str = "") -> tuple[bool, ...]:
    """True for each layer with experts, by whichever of the key dialects the file uses; all layers if by none.

    ``mlp_layer_types``: a list of words. ``moe_layer_freq`` as a list: 0 or 1 per layer. ``first_k_dense_replace``
    with ``moe_layer_freq`` as a number: from the first k on, every n-th. ``num_dense_layers``: the first ones.
    ``decoder_sparse_step`` with ``mlp_only_layers``: every n-th but those. ``moe_layer_start_index`` to
    ``moe_layer_end_index`` by ``moe_layer_interval``: ERNIE's. ``required``: the key that the family's
    files always hold, unless they list the layers.
    """
    by_list = cfg.has("mlp_layer_types") or isinstance(cfg.get("moe_layer_freq"), list)
    if required and not cfg.has(required) and not by_list:
        raise cfg.missing(required)
    words = {"dense": "dense", "sparse": "sparse"}
    first = cfg.integer("first_k_dense_replace", "num_dense_layers", default=0, low=0, high=layers, silent=True)
    if cfg.has("mlp_layer_types"):
        spare = cfg.integer("num_nextn_predict_layers", default=0, low=0, high=64, silent=True)
        cfg.ignore("moe_layer_freq")
        kinds = cfg.layer_kinds("mlp_layer_types", words, layers, spare=spare)
        return tuple(kind == "sparse" for kind in kinds)
    if isinstance(cfg.get("moe_layer_freq"), list):
        listed = cfg.ints("moe_layer_freq", length=layers, high=1) or ()
        return tuple(bool(value) for value in listed)
    if cfg.has("moe_layer_start_index"):
        start = cfg.integer("moe_layer_start_index", low=0, high=layers)
        end = cfg.integer("moe_layer_end_index", default=layers - 1, low=-1, high=layers)
        interval = cfg.integer("moe_layer_interval", default=1, high=layers)
        last = layers - 1 if end < 0 else end
        return tuple(start <= i <= last and (i + 1) % interval == 0 for i in range(layers))
    step = cfg.integer("moe_layer_freq", "decoder_sparse_step", default=1, high=layers, silent=True)
    only = set(cfg.ints("mlp_only_layers", high=layers - 1) or ())
    if cfg.has("decoder_sparse_step"):
        return tuple(i not in only and (i + 1) % step == 0 for i in range(layers))
    return tuple(i >= first and i % step == 0 and i not in only for i in range(layers))


def _shared(cfg: Config, keys: Sequence[str], default: int | None) -> int:
    """How many shared experts. Null means none; absent means the class's default, or is an error."""
    if not keys:
        return 0
    if any(key in cfg.raw for key in keys):
        return cfg.integer(*keys, default=0, low=0, high=4096, silent=True)
    if default is None:
        raise cfg.missing(*keys)
    return cfg.integer(*keys, default=default, low=0, high=4096)


def experts(
    cfg: Config,
    *,
    act: Activation = "silu",
    gated: bool = True,
    keys: Sequence[str] = EXPERT_KEYS,
    top_k: Sequence[str] = ("num_experts_per_tok",),
    width: Sequence[str] = ("moe_intermediate_size",),
    shared_count: Sequence[str] = (),
    shared_width: Sequence[str] = (),
    shared_gate: bool = False,
    default_shared: int | None = None,
) -> MoeMlp:
    """The experts of a layer. Shared experts are given by number (each as wide as a routed one) or by total width."""
    count = cfg.integer(*keys, high=MAX_EXPERTS)
    used = cfg.integer(*top_k, high=MAX_EXPERTS)
    if used > count:
        raise cfg.bad(next(k for k in top_k if cfg.has(k)), "range")
    size = cfg.integer(*width)
    number = _shared(cfg, shared_count, default_shared)
    total = number * size
    if shared_width:
        total = cfg.integer(*shared_width, low=0)
        number = 1 if total else 0
    return MoeMlp(
        experts=count,
        top_k=used,
        width=size,
        gated=gated,
        activation=act,
        shared_experts=number,
        shared_width=total,
        shared_gate=shared_gate and total > 0,
    )
