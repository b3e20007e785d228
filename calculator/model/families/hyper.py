"""Decoders with hyper-connections: several residual streams that every sublayer reads and writes.

DeepSeek-V4, GLM-5 Next, Qwen4-Exp.

Facts are those of the modelling code in the public transformers repository, release 5.24
(src/transformers/models/<model_type>/modeling_<model_type>.py).
"""

from __future__ import annotations

from calculator.model.build import (
    Tensors,
    attention,
    block,
    dense_mlp,
    latent_attention,
    linear,
    moe_mlp,
    norm,
    stack,
    table,
    vector,
)
from calculator.model.config import MAX_LAYERS, Config
from calculator.model.decoder import activation, assemble, every, sizes, tied
from calculator.model.families.linear import LINEAR_WORDS
from calculator.model.families.llama import PRE
from calculator.model.families.moe import QWEN_NAMES, read_latent
from calculator.model.mtp import deepseek_mtp, joined_mtp, mtp_layers
from calculator.model.shape import Attention, Block, DenseMlp, Mixer, ModelShape, Tensor
from calculator.model.sparse import experts, sparse_layers
from calculator.model.state import delta_attention, delta_attention_mixer, gated_delta, read_gated_delta

OVERLAPPING = 4
"""The ratio whose blocks overlap and are chosen by an indexer."""


def _compress_ratios(cfg: Config, layers: int, spare: int) -> tuple[int, ...]:
    """How many tokens one compressed key stands for in each layer: a list, or in newer files words and their rates."""
    listed = cfg.ints("compress_ratios", high=65_536)
    if listed is not None:
        if not layers <= len(listed) <= layers + spare:
            raise cfg.bad("compress_ratios", "length")
        return listed[:layers]
    rates = cfg.sub("compress_rates")
    if rates is None:
        raise cfg.missing("compress_ratios", "compress_rates")
    words = {word: word for word in ("compressed_sparse_attention", "heavily_compressed_attention")}
    kinds = cfg.layer_kinds("layer_types", {**words, "sliding_attention": "window"}, layers, spare=spare)
    by_word = {word: rates.integer(word, high=65_536) for word in words}
    return tuple(by_word.get(kind, 0) for kind in kinds)


def deepseek_v4(cfg: Config) -> ModelShape:
    """Shared-key attention over a window and compressed blocks, hyper-connections, grouped output projection.

    ``compress_ratios``: 0 a window only, 4 overlapping blocks of four with an indexer, 128 long blocks; one more entry
    for each MTP layer. Tokens of a block that is not full yet are kept as values and gates; of overlapping blocks also
    those of the block before.
    """
    size = sizes(cfg, kv_required=True)
    window = cfg.integer("sliding_window")
    rank, out_rank = cfg.integer("q_lora_rank"), cfg.integer("o_lora_rank")
    groups = cfg.integer("o_groups", high=65_536)
    streams = cfg.integer("hc_mult", high=256)
    index_heads, index_dim = cfg.integer("index_n_heads", high=65_536), cfg.integer("index_head_dim", high=65_536)
    cfg.ignore("index_topk")
    count = mtp_layers(cfg)
    ratios = _compress_ratios(cfg, size.layers, count)
    cfg.ignore(
        "mlp_layer_types",
        "qk_rope_head_dim",
        "num_hash_layers",
        "expert_dtype",
        "compress_rope_theta",
        "hc_sinkhorn_iters",
    )
    moe = experts(cfg, act=activation(cfg, default="silu"), shared_count=("n_shared_experts",))
    inner = size.heads * size.head_dim
    inner_group = cfg.divide("o_groups", inner, groups)

    def softmax(ratio: int) -> Attention:
        indexed = index_dim if ratio == OVERLAPPING else 0
        rows = 2 if ratio == OVERLAPPING else 1
        overlap = 1 if ratio == OVERLAPPING else 0
        return Attention(
            heads=size.heads,
            kv_heads=1,
            head_dim=size.head_dim,
            v_head_dim=size.head_dim,
            window=window,
            k_eq_v=True,
            one_row=True,
            sinks=True,
            rotary="partial",
            compress=ratio,
            index_width=indexed,
            open_elements=2 * ratio * (rows + overlap) * (size.head_dim + indexed),
        )

    cfg.divide("num_key_value_heads", 1, size.kv_heads)

    def compressor(prefix: str, ratio: int, width: int) -> Tensors:
        """Blocks of four overlap and keep two rows for each."""
        rows = 2 * width if ratio == OVERLAPPING else width
        return (
            Tensor(name=f"{prefix}position_bias", shape=(ratio, rows), component="attention", kind="other"),
            *linear(f"{prefix}kv_proj", rows, size.hidden, "attention"),
            *linear(f"{prefix}gate_proj", rows, size.hidden, "attention"),
            *norm(f"{prefix}kv_norm", width),
        )

    def make(ratio: int) -> Block:
        at = "self_attn."
        tensors: Tensors = (
            *linear(f"{at}q_a_proj", rank, size.hidden, "attention"),
            *norm(f"{at}q_a_norm", rank),
            *linear(f"{at}q_b_proj", inner, rank, "attention", split="column"),
            *linear(f"{at}kv_proj", size.head_dim, size.hidden, "attention"),
            *norm(f"{at}kv_norm", size.head_dim),
            *linear(f"{at}o_a_proj", groups * out_rank, inner_group, "attention", split="column"),
            *linear(f"{at}o_b_proj", size.hidden, groups * out_rank, "attention", split="row"),
            vector(f"{at}sinks", size.heads, "attention", kind="other", split="column"),
        )
        if ratio:
            tensors += compressor(f"{at}compressor.", ratio, size.head_dim)
        if ratio == OVERLAPPING:
            deep = f"{at}compressor.indexer."
            tensors += compressor(deep, ratio, index_dim)
            tensors += linear(f"{deep}q_b_proj", index_heads * index_dim, rank, "attention")
            tensors += linear(f"{deep}scorer.weights_proj", index_heads, size.hidden, "attention")
        tensors += (
            moe_mlp(moe, size.hidden)
            + _streams("attn_hc", streams, size.hidden)
            + _streams("ffn_hc", streams, size.hidden)
        )
        return block(softmax(ratio), moe, tensors, PRE, size.hidden)

    blocks, order = stack([(ratio,) for ratio in ratios], make)
    ends = (
        Tensor(name="model.hc_head.hc_fn", shape=(streams, streams * size.hidden), component="other", kind="other"),
        vector("model.hc_head.hc_base", streams, "other", kind="other"),
        vector("model.hc_head.hc_scale", 1, "other", kind="other"),
    )
    mtp = deepseek_mtp(size, make(0), count, copies=False) if count else ()
    return assemble(cfg, size, blocks, order, tie=tied(cfg, False), extra_final=ends, mtp=mtp, mtp_layers=count)


def _streams(prefix: str, count: int, hidden: int) -> Tensors:
    """Manifold hyper-connections around a sublayer."""
    mixed = (2 + count) * count
    return (
        Tensor(name=f"{prefix}.fn", shape=(mixed, count * hidden), component="other", kind="other"),
        vector(f"{prefix}.base", mixed, "other", kind="other"),
        vector(f"{prefix}.scale", 3, "other", kind="other"),
    )


def glm5_next(cfg: Config) -> ModelShape:
    """Kimi delta attention with sparse latent attention between, hyper-connections, experts."""
    cfg.ignore("num_key_value_heads", "head_dim", "mla_use_nope", "qk_head_dim", "linear_head_dim", "linear_num_heads")
    cfg.ignore("indexer_types")
    size = sizes(cfg, kv=(), head_dim=("v_head_dim",))
    count = mtp_layers(cfg)
    words = {
        "linear_attention": "linear",
        "deepseek_sparse_attention": "full",
        "indexed_attention": "full",
        "full_attention": "full",
    }
    kinds = cfg.layer_kinds("layer_types", words, size.layers, spare=count)
    inner = cfg.require_sub("linear_attn_config")
    inner.ignore("kda_layers", "full_attn_layers")
    state = delta_attention_mixer(
        inner.integer("num_heads", high=65_536),
        inner.integer("head_dim", high=65_536),
        inner.integer("short_conv_kernel_size", default=4, high=1024),
    )
    latent = read_latent(cfg, size.heads, indexer=True)
    latent = latent.model_copy(update={"indexer_extra": latent.indexer_head_dim + 1})
    pool = cfg.integer("index_kpool", default=16, high=4096)
    streams = cfg.integer("hc_mult", high=256)
    act = activation(cfg, default="silu")
    sparse = sparse_layers(cfg, size.layers)
    moe = experts(cfg, act=act, shared_count=("n_shared_experts",))
    dense = DenseMlp(width=cfg.integer("intermediate_size"), gated=True, activation=act)

    def make(kind: str, is_sparse: bool) -> Block:
        if kind == "linear":
            mixer: Mixer = state
            tensors = delta_attention(state, size.hidden)
        else:
            mixer = latent
            tensors = latent_attention(latent, size.hidden)
            at, width = "self_attn.indexer.", latent.indexer_head_dim
            tensors += (
                Tensor(name=f"{at}index_kpool_compress_ape", shape=(pool, width), component="attention", kind="other"),
                Tensor(
                    name=f"{at}index_kpool_compress_gate",
                    shape=(width, size.hidden),
                    component="attention",
                    kind="other",
                ),
            )
        tensors += moe_mlp(moe, size.hidden) if is_sparse else dense_mlp(dense, size.hidden)
        tensors += _streams("attn_hc", streams, size.hidden) + _streams("ffn_hc", streams, size.hidden)
        return block(mixer, moe if is_sparse else dense, tensors, PRE, size.hidden)

    blocks, order = stack(list(zip(kinds, sparse, strict=True)), make)
    mtp = deepseek_mtp(size, make("full", True), count, copies=False) if count else ()
    return assemble(cfg, size, blocks, order, tie=tied(cfg, False), mtp=mtp, mtp_layers=count)


def qwen4_exp(cfg: Config) -> ModelShape:
    """Qwen3.5's layers in several residual streams, an indexer in the full ones, and a table of hashed n-grams."""
    size = sizes(cfg, kv_required=True, head_dim_default=256)
    interval = cfg.integer("full_attention_interval", default=4, high=MAX_LAYERS, silent=True)
    kinds = cfg.layer_kinds(
        "layer_types", LINEAR_WORDS, size.layers, default=every(interval, size.layers, "linear", "full")
    )
    state = read_gated_delta(cfg)
    moe = experts(
        cfg, act=activation(cfg, default="silu"), shared_width=("shared_expert_intermediate_size",), shared_gate=True
    )
    streams, rank = cfg.integer("hc_count", high=256), cfg.integer("hc_lowrank")
    index_heads, index_dim = cfg.integer("indexer_n_heads", high=65_536), cfg.integer("indexer_head_dim")
    index_kv = cfg.integer("indexer_kv_heads", default=1, high=65_536)
    cfg.ignore("indexer_budget", "indexer_compress_ratio", "split_ngram_parts")
    places = cfg.ints("ple_layer_ids", high=size.layers)
    if places is None:
        raise cfg.missing("ple_layer_ids")
    full = Attention(
        heads=size.heads,
        kv_heads=size.kv_heads,
        head_dim=size.head_dim,
        v_head_dim=size.head_dim,
        qk_norm="head",
        output_gate=True,
        rotary="partial",
    )
    wide = streams * size.hidden

    def connection(prefix: str, *, inject: bool = True) -> Tensors:
        found = (
            *norm(f"{prefix}.hc_norm", wide),
            *linear(f"{prefix}.input_mix_weight_down", rank, wide, "other"),
            *linear(f"{prefix}.input_mix_weight_up", wide, rank, "other"),
        )
        return (*found, *linear(f"{prefix}.block_inject_weight", streams, wide, "other")) if inject else found

    def make(kind: str, place: int) -> Block:
        if kind == "full":
            tensors = attention(full, size.hidden)
            tensors += linear(
                "self_attn.indexer.index_qk_proj", (index_heads + index_kv) * index_dim, size.hidden, "attention"
            )
            tensors += norm("self_attn.indexer.q_layernorm", index_dim)
            tensors += norm("self_attn.indexer.k_layernorm", index_dim)
        else:
            tensors = gated_delta(state, size.hidden, joined=False)
        tensors += moe_mlp(moe, size.hidden, QWEN_NAMES)
        tensors += connection("attn_hyper_connection") + connection("mlp_hyper_connection")
        if place >= 0:
            tensors += _ngram_tensors(cfg, size.hidden, wide, place)
        return block(full if kind == "full" else state, moe, tensors, (), size.hidden, "rms")

    places_of = {layer: number for number, layer in enumerate(sorted(places))}
    blocks, order = stack([(kind, places_of.get(i, -1)) for i, kind in enumerate(kinds)], make)
    count = mtp_layers(cfg, "mtp_num_hidden_layers")
    mtp = joined_mtp(size, make("full", -1), count) if count else ()
    shape = assemble(
        cfg,
        size,
        blocks,
        order,
        tie=tied(cfg, False),
        final_norm="",
        mtp=mtp,
        mtp_layers=count,
        extra_final=connection("model.hyper_connection_mixer", inject=False),
    )
    return shape.model_copy(update={"final_norm": "rms"})


def _ngram_tensors(cfg: Config, hidden: int, wide: int, place: int) -> Tensors:
    """A table with a prime number of rows for each n-gram head, and what mixes its rows into the streams."""
    width, kernel = cfg.integer("ple_embed_dim"), cfg.integer("ple_conv_kernel_size", high=1024)
    heads = (cfg.integer("ngram_size", low=2, high=16) - 1) * cfg.integer("heads_per_ngram", high=64)
    start = cfg.integer("ngram_vocab_size_base")
    multiple = cfg.integer("make_ngram_vocab_size_divisible_by")
    rows = sum(_primes_from(start, (place + 1) * heads)[place * heads :])
    rows = -(-rows // multiple) * multiple
    return (
        table("ple.ple_embedding.ngram_embedding.weight", rows, width // heads),
        *linear("ple.key_proj", wide, width, "other"),
        *linear("ple.value_proj", hidden, width, "other"),
        *norm("ple.norm_key", wide),
        *norm("ple.norm_query", wide),
        *norm("ple.norm_conv", wide),
        Tensor(name="ple.conv1d.weight", shape=(wide, 1, kernel), component="other", kind="conv"),
    )


def _primes_from(start: int, count: int) -> list[int]:
    """The first ``count`` primes at or above ``start``."""
    found: list[int] = []
    value = start
    while len(found) < count:
        if _is_prime(value):
            found.append(value)
        value += 1
    return found


def _is_prime(value: int) -> bool:
    """Miller-Rabin with the bases 2, 3, 5 and 7, which decide every number below 3,215,031,751 (Pomerance, Selfridge
    and Wagstaff, Mathematics of Computation 35, 1980)."""
    if value < 11:
        return value in (2, 3, 5, 7)
    odd, twos = value - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in (2, 3, 5, 7):
        power = pow(base, odd, value)
        if power in (1, value - 1):
            continue
        for _ in range(twos - 1):
            power = power * power % value
            if power == value - 1:
                break
        else:
            return False
    return True
