"""MiniMax: Text-01 and M1 with lightning attention, M2 with softmax attention only, M3 with an indexer of blocks.

Facts are those of the modelling code in the public transformers repository, release 5.24; tensor names are those of the
published checkpoints.
"""

from __future__ import annotations

from dataclasses import replace

from calculator.model.build import MoeNames, Tensors, attention, block, dense_mlp, linear, moe_mlp, norm, stack
from calculator.model.config import Config
from calculator.model.decoder import activation, assemble, sizes, tied
from calculator.model.families.linear import LINEAR_WORDS
from calculator.model.families.llama import PRE
from calculator.model.families.moe import MIXTRAL, MIXTRAL_NAMES, read_mixture
from calculator.model.shape import Attention, Block, DenseMlp, ModelShape
from calculator.model.sparse import experts, sparse_layers
from calculator.model.state import lightning
from calculator.model.windows import no_window


def minimax(cfg: Config) -> ModelShape:
    """MiniMax-Text-01 and M1: lightning attention with softmax attention at every eighth layer, experts in all."""
    size = sizes(cfg, kv_required=True)
    listed = cfg.ints("attn_type_list", length=size.layers, high=1)
    if listed is not None:
        kinds = tuple("full" if value else "linear" for value in listed)
        cfg.ignore("layer_types")
    else:
        kinds = cfg.layer_kinds("layer_types", LINEAR_WORDS, size.layers)
    moe = experts(
        cfg,
        act=activation(cfg, default="silu"),
        width=("intermediate_size",),
        shared_width=("shared_intermediate_size",),
    )
    if moe.shared_width:
        raise cfg.bad("shared_intermediate_size", "choice")
    cfg.ignore("sliding_window")
    full = Attention(
        heads=size.heads,
        kv_heads=size.kv_heads,
        head_dim=size.head_dim,
        v_head_dim=size.head_dim,
        rotary="partial" if cfg.has("rotary_dim") else "full",
    )
    state, state_tensors = lightning(size.heads, size.head_dim, size.hidden)

    def make(word: str) -> Block:
        tensors = attention(full, size.hidden) if word == "full" else state_tensors
        return block(
            full if word == "full" else state,
            moe,
            (*tensors, *moe_mlp(moe, size.hidden, MIXTRAL_NAMES)),
            PRE,
            size.hidden,
        )

    blocks, order = stack([(k,) for k in kinds], make)
    return assemble(cfg, size, blocks, order, tie=tied(cfg, False))


MINIMAX_M2 = replace(
    MIXTRAL, head_dim=128, qk_norm="full", qk_norm_key="use_qk_norm", partial_rotary=True, windows=no_window
)


def minimax_m2(cfg: Config) -> ModelShape:
    """MiniMax-M2: softmax attention in all layers, although the file keeps the list of its hybrid ancestor."""
    kinds = cfg.ints("attn_type_list", high=1)
    if kinds is not None and (0 in kinds or len(kinds) != cfg.integer("num_hidden_layers", high=4096)):
        raise cfg.bad("attn_type_list", "length" if 0 not in kinds else "choice")
    if cfg.integer("shared_intermediate_size", default=0, low=0, silent=True):
        raise cfg.bad("shared_intermediate_size", "choice")
    modules = cfg.integer("num_mtp_modules", default=0, low=0, high=64, silent=True)
    if modules and cfg.flag("use_mtp"):
        # published totals equal the layers, embeddings and router biases to the unit
        cfg.notes.assume("assumption.mtp_not_stored", key=cfg.path + "num_mtp_modules", value=modules)
    cfg.ignore("mtp_transformer_layers", "use_mtp", "mlp_intermediate_size")
    return read_mixture(cfg, MINIMAX_M2)


def _block_indexer(cfg: Config, layers: int) -> tuple[tuple[int, ...], int, int]:
    """Which layers have an indexer, its heads and their width: in a sub-object, or in newer files at the top."""
    inner = cfg.sub("sparse_attention_config")
    if inner is None and cfg.has("index_n_heads"):
        words = {"full_attention": "full", "minimax_m3_sparse": "sparse"}
        kinds = cfg.layer_kinds("layer_types", words, layers)
        flags = tuple(int(kind == "sparse") for kind in kinds)
        return flags, cfg.integer("index_n_heads", high=65_536), cfg.integer("index_head_dim")
    if inner is None:
        raise cfg.missing("sparse_attention_config", "index_n_heads")
    listed = inner.ints("sparse_attention_freq", length=layers, high=1)
    if listed is None:
        raise inner.missing("sparse_attention_freq")
    inner.ignore("use_sparse_attention")
    return listed, inner.integer("sparse_num_index_heads", high=65_536), inner.integer("sparse_index_dim")


def minimax_m3(cfg: Config) -> ModelShape:
    """Grouped attention with a block indexer in the sparse layers; experts and one shared expert."""
    size = sizes(cfg, kv_required=True)
    flags, heads, width = _block_indexer(cfg, size.layers)
    act = activation(cfg, default="silu")
    sparse = sparse_layers(cfg, size.layers)
    count = cfg.integer("n_shared_experts", default=0, low=0, high=64, silent=True)
    moe = experts(
        cfg,
        act=act,
        width=("moe_intermediate_size", "intermediate_size"),
        shared_width=("shared_intermediate_size",) if count else (),
    )
    dense = DenseMlp(width=cfg.integer("dense_intermediate_size"), gated=True, activation=act)
    kind = "rms_unit_offset" if cfg.flag("use_gemma_norm") else "rms"
    cfg.ignore(
        "rotary_dim", "num_mtp_modules", "num_nextn_predict_layers", "intermediate_size", "first_k_dense_replace"
    )
    mixer = Attention(
        heads=size.heads,
        kv_heads=size.kv_heads,
        head_dim=size.head_dim,
        v_head_dim=size.head_dim,
        qk_norm="head" if cfg.flag("use_qk_norm") else "none",
        rotary="partial",
        output_gate=cfg.flag("attention_output_gate"),
    )
    indexing = mixer.model_copy(update={"index_width": width})
    names = MoeNames(
        router="block_sparse_moe.gate",
        gate="block_sparse_moe.experts.{e}.w1",
        up="block_sparse_moe.experts.{e}.w3",
        down="block_sparse_moe.experts.{e}.w2",
        shared="block_sparse_moe.shared_experts",
    )

    def make(indexed: int, is_sparse: bool) -> Block:
        tensors: Tensors = attention(mixer, size.hidden)
        if indexed:
            tensors += linear("self_attn.indexer.q_proj", heads * width, size.hidden, "attention")
            tensors += linear("self_attn.indexer.k_proj", width, size.hidden, "attention")
            tensors += norm("self_attn.indexer.q_norm", width) + norm("self_attn.indexer.k_norm", width)
        tensors += moe_mlp(moe, size.hidden, names) if is_sparse else dense_mlp(dense, size.hidden)
        return block(
            indexing if indexed else mixer,
            moe if is_sparse else dense,
            tensors,
            PRE,
            size.hidden,
            "rms_unit_offset" if kind == "rms_unit_offset" else "rms",
        )

    blocks, order = stack(list(zip(flags, sparse, strict=True)), make)
    return assemble(
        cfg,
        size,
        blocks,
        order,
        tie=tied(cfg, False),
        norm_kind="rms_unit_offset" if kind == "rms_unit_offset" else "rms",
    )
