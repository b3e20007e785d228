"""What all decoders share: their sizes, the layer patterns, and the assembly of a shape from its layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, get_args

from calculator.model.build import Tensors, linear, norm, table
from calculator.model.config import MAX_LAYERS, Config, bad_value
from calculator.model.shape import Activation, Block, ModelShape, NormKind, Tensor

ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "swiglu": "silu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "quick_gelu": "gelu",
    "geglu": "gelu",
    "gelu_new": "gelu_new",
    "gelu_fast": "gelu_new",
    "gelu_accurate": "gelu_new",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
    "relu_squared": "relu2",
    "xielu": "xielu",
    "swigluoai": "swiglu_oai",
}

DTYPES = ("bfloat16", "float16", "float32", "float8_e4m3fn")


class Sizes(NamedTuple):
    """The numbers that nearly every decoder states."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int | None


CONTEXT_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_sequence_length",
    "n_ctx",
)


def context(cfg: Config, *keys: str) -> int | None:
    """The longest context the file states; None where it does not say."""
    keys = keys or CONTEXT_KEYS
    found = cfg.optional_int(*keys, high=10**12)
    cfg.notes.defaulted.discard(cfg.path + keys[0])
    return found


def sizes(
    cfg: Config,
    *,
    hidden: Sequence[str] = ("hidden_size",),
    layers: Sequence[str] = ("num_hidden_layers",),
    heads: Sequence[str] = ("num_attention_heads",),
    kv: Sequence[str] = ("num_key_value_heads",),
    head_dim: Sequence[str] = ("head_dim",),
    vocab: Sequence[str] = ("vocab_size",),
    kv_required: bool = False,
    head_dim_default: int | None = None,
) -> Sizes:
    """Read the sizes. KV heads null: as many as heads; absent: the same, unless ``kv_required``. Head size absent: the
    class's own default, else hidden / heads, which must come out even."""
    width = cfg.integer(*hidden, high=2**20)
    count = cfg.integer(*layers, high=MAX_LAYERS)
    query = cfg.integer(*heads, high=65_536)
    grouped = cfg.optional_int(*kv, high=65_536) if kv else query
    if grouped is None and kv_required and not any(k in cfg.raw for k in kv):
        raise cfg.missing(*kv)
    if grouped is None:
        grouped = query
        cfg.notes.assume("assumption.kv_heads", key=cfg.path + kv[0], value=query)
    if kv:
        cfg.divide(next((k for k in kv if cfg.has(k)), kv[0]), query, grouped, of=heads[0])
    size = cfg.optional_int(*head_dim, high=65_536) if head_dim else None
    if size is None:
        if head_dim_default is not None and not any(k in cfg.raw for k in head_dim):
            size = cfg.integer(head_dim[0], default=head_dim_default)
        else:
            size = cfg.divide(next((k for k in heads if cfg.has(k)), heads[0]), width, query, of=hidden[0])
            if head_dim:
                cfg.notes.assume("assumption.head_dim", key=cfg.path + head_dim[0], value=size)
    return Sizes(width, count, query, grouped, size, cfg.integer(*vocab), context(cfg))


def activation(cfg: Config, *keys: str, default: Activation) -> Activation:
    """The MLP's activation function in the calculator's names."""
    keys = keys or ("hidden_act",)
    name = cfg.string(*keys, default="")
    if not name:
        return default
    if name in get_args(Activation):
        return name  # type: ignore[return-value]
    if name not in ACTIVATIONS:
        raise bad_value(cfg.path + next(k for k in keys if cfg.has(k)), name, "choice")
    return ACTIVATIONS[name]


def tied(cfg: Config, default: bool, *keys: str) -> bool:
    """Whether the head is the embedding. Absent: the family's default, which is noted."""
    keys = keys or ("tie_word_embeddings",)
    value = cfg.optional_flag(*keys)
    if value is None:
        cfg.notes.assume("assumption.tied" if default else "assumption.untied", key=cfg.path + keys[0])
        return default
    return value


def every(interval: int, layers: int, inside: str, at: str, *, offset: int = 0) -> tuple[str, ...]:
    """``at`` for each layer i with (i + 1 + offset) % interval == 0, ``inside`` for the others."""
    return tuple(at if (i + 1 + offset) % interval == 0 else inside for i in range(layers))


LAYER_WORDS = {
    "full_attention": "full",
    "attention": "full",
    "global_attention": "full",
    "global": "full",
    "indexed_attention": "full",
    "deepseek_sparse_attention": "full",
    "sliding_attention": "window",
    "local_attention": "window",
    "local": "window",
    "chunked_attention": "chunk",
    "linear_attention": "linear",
    "mamba": "mamba",
    "mamba2": "mamba",
    "conv": "conv",
}


def assemble(
    cfg: Config,
    size: Sizes,
    blocks: tuple[Block, ...],
    order: tuple[int, ...],
    *,
    tie: bool,
    norm_kind: NormKind = "rms",
    norm_bias: bool | None = None,
    final_norm: str = "model.norm",
    embed: str = "model.embed_tokens",
    head: str = "lm_head",
    head_bias: bool = False,
    prefix: str = "model.",
    layer_prefix: str = "model.layers.{i}.",
    extra_embedding: Sequence[Tensor] = (),
    extra_final: Sequence[Tensor] = (),
    embed_width: int | None = None,
    final_softcap: bool = False,
    embedding_dropout: float = 0.0,
    embedding_scaled: bool = False,
    loss_upcast: bool = True,
    shared: Tensors = (),
    mtp: Tensors = (),
    mtp_layers: int = 0,
) -> ModelShape:
    """A decoder from its layers: token table, final norm and head by their checkpoint names."""
    width = embed_width or size.hidden
    final = norm(final_norm, size.hidden, norm_kind, bias=norm_bias) if final_norm else ()
    return ModelShape(
        model_type=cfg.string("model_type", default=""),
        architecture="",
        hidden=size.hidden,
        vocab=size.vocab,
        max_context=size.context,
        blocks=blocks,
        order=order,
        embedding=(table(f"{embed}.weight", size.vocab, width), *extra_embedding),
        final=(*final, *extra_final),
        head=linear(head, size.vocab, width, "head", bias=head_bias, split="vocab") if head else (),
        tied=tie,
        final_norm=norm_kind if final_norm else "none",
        final_softcap=final_softcap,
        embedding_dropout=embedding_dropout,
        embedding_scaled=embedding_scaled,
        loss_upcast=loss_upcast,
        shared=shared,
        prefix=prefix,
        layer_prefix=layer_prefix,
        mtp=mtp,
        mtp_layers=mtp_layers,
    )
