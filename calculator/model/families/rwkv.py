"""RWKV-4, 5 and 6: time mixing and channel mixing in place of attention and MLP.

Facts are those of src/transformers/models/rwkv in the public transformers repository, release 5.24, and for versions 5
and 6 of the modeling files in RWKV/rwkv-5-world-1b5 and RWKV/rwkv-6-world-1b6 on the Hugging Face Hub; Peng et al. 2023
(arXiv 2305.13048) and 2024 (arXiv 2404.05892).
"""

from __future__ import annotations

from calculator.model.build import Tensors, block, linear, stack, vector
from calculator.model.config import MAX_LAYERS, Config
from calculator.model.decoder import Sizes, assemble, context, tied
from calculator.model.shape import Block, DenseMlp, ModelShape, StateMixer, Tensor

ATTENTION = ("receptance", "key", "value")
WIDE = 4096
"""Hidden size from which version 6 doubles the ranks of its low-rank blends."""


def _plain(name: str, *shape: int) -> Tensor:
    return Tensor(name=name, shape=shape, component="ssm", kind="other")


def _blends(prefix: str, hidden: int, *parts: str) -> Tensors:
    """How much of a token and of the one before goes into a projection, element by element."""
    return tuple(_plain(f"{prefix}.{part}", 1, 1, hidden) for part in parts)


def _time_mixing(hidden: int, inner: int, parts: tuple[str, ...]) -> Tensors:
    found: Tensors = ()
    for part in parts:
        found += linear(f"attention.{part}", inner, hidden, "ssm", split="column")
    return found + linear("attention.output", hidden, inner, "ssm", split="row")


def _channel_mixing(hidden: int, width: int, blends: tuple[str, ...]) -> Tensors:
    """A plain MLP of squared ReLU whose output a second projection of the input gates."""
    return (
        *_blends("feed_forward", hidden, *blends),
        *linear("feed_forward.key", width, hidden, "mlp", split="column"),
        *linear("feed_forward.receptance", hidden, hidden, "mlp"),
        *linear("feed_forward.value", hidden, width, "mlp", split="row"),
    )


def _assembled(cfg: Config, size: Sizes, mixer: StateMixer, width: int, tensors: Tensors, *, tie: bool) -> ModelShape:
    """All layers alike, with one more norm before the first."""
    mlp = DenseMlp(width=width, gated=False, activation="relu2", receptance=True)

    def make(first: bool) -> Block:
        names = ("pre_ln", "ln1", "ln2") if first else ("ln1", "ln2")
        return block(mixer, mlp, tensors, names, size.hidden, "layer")

    blocks, order = stack([(i == 0,) for i in range(size.layers)], make)
    return assemble(
        cfg,
        size,
        blocks,
        order,
        tie=tie,
        norm_kind="layer",
        final_norm="rwkv.ln_out",
        embed="rwkv.embeddings",
        head="head",
        prefix="rwkv.",
        layer_prefix="rwkv.blocks.{i}.",
    )


def _sizes(cfg: Config) -> Sizes:
    hidden = cfg.integer("hidden_size", high=2**20)
    layers = cfg.integer("num_hidden_layers", high=MAX_LAYERS)
    return Sizes(hidden, layers, 1, 1, 1, cfg.integer("vocab_size"), context(cfg, "context_length"))


def rwkv4(cfg: Config) -> ModelShape:
    """The state is three attention rows and two rows of the token before."""
    size = _sizes(cfg)
    hidden, attended = size.hidden, cfg.optional_int("attention_hidden_size") or size.hidden
    width = cfg.optional_int("intermediate_size") or 4 * hidden
    mixer = StateMixer(variant="rwkv", state_elements=3 * attended + 2 * hidden, inner=attended)
    tensors = (
        vector("attention.time_decay", attended, "ssm", kind="other"),
        vector("attention.time_first", attended, "ssm", kind="other"),
        *_blends("attention", hidden, *(f"time_mix_{part}" for part in ATTENTION)),
        *_time_mixing(hidden, attended, ATTENTION),
        *_channel_mixing(hidden, width, ("time_mix_key", "time_mix_receptance")),
    )
    return _assembled(cfg, size, mixer, width, tensors, tie=tied(cfg, False))


def _headed(cfg: Config, size: Sizes) -> tuple[StateMixer, int]:
    """The mixer of versions 5 and 6, a square state for each head, and the width of channel mixing."""
    inner = cfg.optional_int("attention_hidden_size") or size.hidden
    head = cfg.integer("head_size", default=64, high=65_536)
    heads = cfg.divide("head_size", inner, head, of="attention_hidden_size")
    cfg.ignore("num_attention_heads", "head_size_divisor", "model_version")
    # the files hold embedding and head, whatever they say of tying
    cfg.ignore("tie_word_embeddings")
    width = cfg.optional_int("intermediate_size") or size.hidden * 7 // 2 // 32 * 32
    mixer = StateMixer(
        variant="rwkv",
        state_elements=inner * head + 2 * size.hidden,
        heads=heads,
        head_dim=head,
        inner=inner,
    )
    return mixer, width


def rwkv5(cfg: Config) -> ModelShape:
    """Heads, an output gate and a norm of each head's output."""
    size = _sizes(cfg)
    mixer, width = _headed(cfg, size)
    tensors = (
        _plain("attention.time_decay", mixer.heads, mixer.head_dim),
        _plain("attention.time_faaaa", mixer.heads, mixer.head_dim),
        *_blends("attention", size.hidden, *(f"time_mix_{part}" for part in (*ATTENTION, "gate"))),
        *_time_mixing(size.hidden, mixer.inner, (*ATTENTION, "gate")),
        vector("attention.ln_x.weight", mixer.inner, "ssm"),
        vector("attention.ln_x.bias", mixer.inner, "ssm", kind="bias"),
        *_channel_mixing(size.hidden, width, ("time_mix_key", "time_mix_receptance")),
    )
    return _assembled(cfg, size, mixer, width, tensors, tie=False)


def rwkv6(cfg: Config) -> ModelShape:
    """Blends and decay depend on the token, through low-rank matrices."""
    size = _sizes(cfg)
    mixer, width = _headed(cfg, size)
    hidden, inner = size.hidden, mixer.inner
    rank, decay = (64, 128) if hidden >= WIDE else (32, 64)
    tensors = (
        *_blends("attention", hidden, *(f"time_maa_{part}" for part in "xwkvrg")),
        _plain("attention.time_maa_w1", hidden, 5 * rank),
        _plain("attention.time_maa_w2", 5, rank, hidden),
        _plain("attention.time_decay", 1, 1, inner),
        _plain("attention.time_decay_w1", hidden, decay),
        _plain("attention.time_decay_w2", decay, inner),
        _plain("attention.time_faaaa", mixer.heads, mixer.head_dim),
        *_time_mixing(hidden, inner, (*ATTENTION, "gate")),
        vector("attention.ln_x.weight", inner, "ssm"),
        vector("attention.ln_x.bias", inner, "ssm", kind="bias"),
        *_channel_mixing(hidden, width, ("time_maa_k", "time_maa_r")),
    )
    return _assembled(cfg, size, mixer, width, tensors, tie=False)
