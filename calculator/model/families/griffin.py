"""Griffin: gated linear recurrences among attention that sees a window (RecurrentGemma).

Facts are those of the modelling code in the public transformers repository, release 5.24; tensor names are those of the
published checkpoints.
"""

from __future__ import annotations

from calculator.model.build import AttentionNames, MlpNames, attention, block, dense_mlp, stack
from calculator.model.config import Config
from calculator.model.decoder import activation, assemble, sizes, tied
from calculator.model.shape import Attention, Block, DenseMlp, ModelShape
from calculator.model.state import rglru, rglru_mixer

ATTENTION = AttentionNames(*(f"temporal_block.{part}_proj" for part in "qkvo"))
MLP = MlpNames(*(f"mlp_block.{part}_proj" for part in ("gate", "up", "down")))

KINDS = ("recurrent", "recurrent", "attention")
"""The class's own pattern."""


def _kinds(cfg: Config, layers: int) -> tuple[str, ...]:
    """The pattern, repeated until every layer has its word. Published files spell the key with an underscore."""
    key = "block_types" if cfg.has("block_types") else "_block_types"
    words = cfg.strings(key)
    if words is None:
        cfg.notes.assume("assumption.layer_pattern", key=f"{cfg.path}block_types")
        words = KINDS
    if not words or set(words) - set(KINDS):
        raise cfg.bad(key, "choice")
    return tuple(words[i % len(words)] for i in range(layers))


def recurrent_gemma(cfg: Config) -> ModelShape:
    """Two recurrent layers for each with attention; ``intermediate_size`` is that of gate and up together."""
    size = sizes(cfg, kv_required=True)
    width = cfg.optional_int("lru_width")
    if width is None:
        width = size.hidden
        cfg.assume_default("lru_width", width)
    piece = cfg.divide("num_attention_heads", width, size.heads, of="lru_width")
    state = rglru_mixer(size.heads, piece, cfg.integer("conv1d_width", high=1024))
    mlp = DenseMlp(
        width=cfg.integer("intermediate_size", low=2) // 2,
        gated=True,
        activation=activation(cfg, "hidden_activation", default="gelu_tanh"),
        bias=True,
    )
    full = Attention(
        heads=size.heads,
        kv_heads=size.kv_heads,
        head_dim=size.head_dim,
        v_head_dim=size.head_dim,
        window=cfg.integer("attention_window_size", "sliding_window"),
        bias=cfg.flag("attention_bias"),
        rotary="partial",
        rotary_dim=int(size.head_dim * cfg.number("partial_rotary_factor", default=0.5, high=1.0)),
        dropout=cfg.number("attention_dropout", default=0.0, high=1.0),
    )

    def make(word: str) -> Block:
        tensors = (
            attention(full, size.hidden, ATTENTION, out_bias=True)
            if word == "attention"
            else rglru(state, size.hidden, prefix="temporal_block.")
        )
        return block(
            full if word == "attention" else state,
            mlp,
            (*tensors, *dense_mlp(mlp, size.hidden, MLP)),
            ("temporal_pre_norm", "channel_pre_norm"),
            size.hidden,
            "rms_unit_offset",
        )

    blocks, order = stack([(k,) for k in _kinds(cfg, size.layers)], make)
    return assemble(
        cfg,
        size,
        blocks,
        order,
        tie=tied(cfg, True),
        norm_kind="rms_unit_offset",
        final_norm="model.final_norm",
        final_softcap=True,
        embedding_scaled=True,
    )
