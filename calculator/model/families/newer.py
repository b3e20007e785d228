"""Language models that appear inside composites, or that differ in more than switches: Llama 4, Llama 3.2 Vision,
MiniMax-M3, Step 3.5, Persimmon, GLM-5 Next, Qwen4-Exp.

Facts are those of the modelling code in the public transformers repository, release 5.24
(src/transformers/models/<model_type>/modeling_<model_type>.py).
"""

from __future__ import annotations

from math import isqrt

from calculator.model.build import (
    AttentionNames,
    MlpNames,
    MoeNames,
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
from calculator.model.decoder import LAYER_WORDS, activation, assemble, every, sizes, tied
from calculator.model.families.linear import LINEAR_WORDS
from calculator.model.families.llama import PRE
from calculator.model.families.moe import QWEN_NAMES, read_latent
from calculator.model.mtp import deepseek_mtp, joined_mtp, mtp_layers
from calculator.model.shape import Attention, Block, DenseMlp, Mixer, Mlp, ModelShape, NoMixer, Tensor
from calculator.model.sparse import experts, sparse_layers
from calculator.model.state import delta_attention, delta_attention_mixer, gated_delta, read_gated_delta
from calculator.text import text


def llama4(cfg: Config) -> ModelShape:
    """Chunked attention but for every fourth layer; experts in every n-th, one shared expert of the same width."""
    size = sizes(cfg, kv_required=True, head_dim_default=128)
    chunk = cfg.optional_int("attention_chunk_size")
    flags = cfg.ints("no_rope_layers", high=1)
    interval = cfg.integer("no_rope_layer_interval", "nope_layer_interval", default=4, high=MAX_LAYERS, silent=True)
    cfg.ignore("layer_types")
    if flags:
        if len(flags) != size.layers:
            raise cfg.bad("no_rope_layers", "length")
        kinds = tuple("full" if flag == 0 else "chunk" for flag in flags)
    else:
        kinds = every(interval, size.layers, "chunk", "full")
    listed = cfg.ints("moe_layers", high=size.layers - 1)
    step = cfg.integer("interleave_moe_layer_step", default=1, high=size.layers, silent=True)
    if listed is None:
        listed = tuple(range(step - 1, size.layers, step))
    bias = cfg.flag("attention_bias")
    act = activation(cfg, default="silu")
    moe = experts(cfg, act=act, keys=("num_local_experts",), width=("intermediate_size",))
    moe = moe.model_copy(update={"shared_experts": 1, "shared_width": moe.width})
    dense = DenseMlp(width=cfg.integer("intermediate_size_mlp"), gated=True, activation=act)
    names = MoeNames(
        router="feed_forward.router",
        gate_up="feed_forward.experts.gate_up_proj!",
        down="feed_forward.experts.down_proj!",
        shared="feed_forward.shared_expert",
    )
    mlp_names = MlpNames("feed_forward.gate_proj", "feed_forward.up_proj", "feed_forward.down_proj")

    def make(kind: str, is_sparse: bool) -> Block:
        mixer = Attention(
            heads=size.heads,
            kv_heads=size.kv_heads,
            head_dim=size.head_dim,
            v_head_dim=size.head_dim,
            bias=bias,
            chunk=chunk if kind == "chunk" else None,
            rotary="full" if kind == "chunk" else "none",
            dropout=cfg.number("attention_dropout", default=0.0, high=1.0),
        )
        mlp: Mlp = moe if is_sparse else dense
        tensors = attention(mixer, size.hidden, out_bias=bias)
        tensors += moe_mlp(moe, size.hidden, names) if is_sparse else dense_mlp(dense, size.hidden, mlp_names)
        return block(mixer, mlp, tensors, PRE, size.hidden)

    blocks, order = stack([(kind, i in listed) for i, kind in enumerate(kinds)], make)
    return assemble(cfg, size, blocks, order, tie=tied(cfg, False))


def mllama(cfg: Config) -> ModelShape:
    """Llama 3.1 with layers between that attend to the picture only: gated, and without a text cache."""
    size = sizes(cfg, kv_required=True)
    crossed = cfg.ints("cross_attention_layers", high=size.layers - 1)
    if crossed is None:
        raise cfg.missing("cross_attention_layers")
    mlp = DenseMlp(width=cfg.integer("intermediate_size"), gated=True, activation=activation(cfg, default="silu"))
    heads = {"heads": size.heads, "kv_heads": size.kv_heads, "head_dim": size.head_dim, "v_head_dim": size.head_dim}
    cross_names = AttentionNames(
        "cross_attn.q_proj",
        "cross_attn.k_proj",
        "cross_attn.v_proj",
        "cross_attn.o_proj",
        q_norm="cross_attn.q_norm",
        k_norm="cross_attn.k_norm",
    )

    def make(is_cross: bool) -> Block:
        if not is_cross:
            mixer = Attention.model_validate(heads)
            return block(mixer, mlp, (*attention(mixer, size.hidden), *dense_mlp(mlp, size.hidden)), PRE, size.hidden)
        cross = Attention.model_validate({**heads, "cross": True, "causal": False, "rotary": "none", "qk_norm": "head"})
        gates = tuple(vector(f"cross_attn_{part}_gate", 1, "attention", kind="other") for part in ("attn", "mlp"))
        tensors = (*attention(cross, size.hidden, cross_names), *dense_mlp(mlp, size.hidden), *gates)
        return block(NoMixer(), mlp, tensors, PRE, size.hidden, cross_attention=cross)

    blocks, order = stack([(i in crossed,) for i in range(size.layers)], make)
    shape = assemble(cfg, size, blocks, order, tie=tied(cfg, False))
    # eight more rows than the head: the tokens that stand for pictures
    wide = table(shape.embedding[0].name, size.vocab + 8, size.hidden)
    return shape.model_copy(update={"embedding": (wide,)})


def minimax_m3(cfg: Config) -> ModelShape:
    """Grouped attention with a block indexer in the sparse layers; experts and one shared expert."""
    size = sizes(cfg, kv_required=True)
    inner = cfg.require_sub("sparse_attention_config")
    flags = inner.ints("sparse_attention_freq", length=size.layers, high=1) or (0,) * size.layers
    heads = inner.integer("sparse_num_index_heads", high=65_536)
    width = inner.integer("sparse_index_dim")
    inner.ignore("use_sparse_attention")
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
            mixer,
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


def step3p5(cfg: Config) -> ModelShape:
    """Step 3.5 and 3.7: windows by ``layer_types``, a gate per head, experts after the first layers."""
    size = sizes(cfg, kv_required=True)
    words = {k: v for k, v in LAYER_WORDS.items() if v in ("full", "window")}
    kinds = cfg.layer_kinds(
        "layer_types",
        words,
        size.layers,
        spare=cfg.integer("num_nextn_predict_layers", default=0, low=0, high=64, silent=True),
    )
    window = cfg.integer("sliding_window")
    moe = experts(cfg, keys=("num_experts", "n_routed_experts"), shared_width=("share_expert_dim",))
    cfg.ignore("n_shared_experts")
    dense = DenseMlp(width=cfg.integer("intermediate_size"), gated=True, activation="silu")
    sparse = sparse_layers(cfg, size.layers)

    def make(kind: str, is_sparse: bool) -> Block:
        mixer = Attention(
            heads=size.heads,
            kv_heads=size.kv_heads,
            head_dim=size.head_dim,
            v_head_dim=size.head_dim,
            window=window if kind == "window" else None,
            qk_norm="head",
            output_gate=True,
        )
        tensors = attention(mixer, size.hidden, AttentionNames(gate="self_attn.g_proj"), gate_per_head=True)
        tensors += moe_mlp(moe, size.hidden) if is_sparse else dense_mlp(dense, size.hidden)
        return block(mixer, moe if is_sparse else dense, tensors, PRE, size.hidden)

    blocks, order = stack(list(zip(kinds, sparse, strict=True)), make)
    count = mtp_layers(cfg)
    mtp = deepseek_mtp(size, make("window", False), count) if count else ()
    return assemble(cfg, size, blocks, order, tie=tied(cfg, False), mtp=mtp, mtp_layers=count)


def persimmon(cfg: Config) -> ModelShape:
    size = sizes(cfg, kv=(), head_dim=())
    normed = cfg.flag("qk_layernorm", default=True)
    mixer = Attention(
        heads=size.heads,
        kv_heads=size.heads,
        head_dim=size.head_dim,
        v_head_dim=size.head_dim,
        bias=True,
        fused_qkv=True,
        rotary="partial",
        qk_norm="head" if normed else "none",
        dropout=cfg.number("attention_dropout", default=0.0, high=1.0),
    )
    mlp = DenseMlp(
        width=cfg.integer("intermediate_size"), gated=False, bias=True, activation=activation(cfg, default="relu2")
    )
    names = AttentionNames(
        qkv="self_attn.query_key_value",
        o="self_attn.dense",
        q_norm="self_attn.q_layernorm",
        k_norm="self_attn.k_layernorm",
    )
    tensors = (
        *attention(mixer, size.hidden, names, out_bias=True, norm_kind="layer"),
        *dense_mlp(mlp, size.hidden, MlpNames(up="mlp.dense_h_to_4h", down="mlp.dense_4h_to_h")),
    )
    one = block(
        mixer, mlp, tensors, PRE, size.hidden, "layer", dropout=cfg.number("hidden_dropout", default=0.0, high=1.0)
    )
    return assemble(
        cfg,
        size,
        (one,),
        (0,) * size.layers,
        tie=tied(cfg, False),
        norm_kind="layer",
        final_norm="model.final_layernorm",
    )


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
    cfg.ignore("num_key_value_heads", "head_dim", "mla_use_nope", "qk_head_dim")
    size = sizes(cfg, kv=(), head_dim=("v_head_dim",))
    count = mtp_layers(cfg)
    words = {"linear_attention": "linear", "deepseek_sparse_attention": "full", "full_attention": "full"}
    kinds = cfg.layer_kinds("layer_types", words, size.layers, spare=count)
    inner = cfg.require_sub("linear_attn_config")
    inner.ignore("kda_layers", "full_attn_layers")
    state = delta_attention_mixer(
        inner.integer("num_heads", high=65_536),
        inner.integer("head_dim", high=65_536),
        inner.integer("short_conv_kernel_size", default=4, high=1024),
    )
    latent = read_latent(cfg, size.heads, indexer=True)
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
        if value > 1 and all(value % d for d in range(2, isqrt(value) + 1)):
            found.append(value)
        value += 1
    return found


def blt(cfg: Config) -> ModelShape:
    """Byte latent transformer: a byte encoder, a global model over patches, a byte decoder with cross attention.

    The global model's layers are the shape's layers; encoder, decoder, patcher and the hashed n-gram table are counted
    apart. How many patches a text makes depends on the text, so the cache is refused.
    """
    parts = {name: cfg.require_sub(f"{name}_config") for name in ("patcher", "encoder", "global", "decoder")}
    vocab = cfg.integer("vocab_size")
    groups = cfg.ints("encoder_hash_byte_group_size", low=1)
    if groups is None:
        raise cfg.missing("encoder_hash_byte_group_size")
    rows = (
        cfg.integer("encoder_hash_byte_group_vocab")
        * len(groups)
        * cfg.integer("encoder_hash_byte_group_nb_functions", high=64)
    )
    for part in parts.values():
        part.ignore("vocab_size", "cross_attn_k", "hidden_size_global", "cross_attn_all_layers")
    cfg.ignore("cross_attn_k", "patch_size")

    def layer(part: Config) -> tuple[Block, int, int]:
        own = sizes(Config({**part.raw, "vocab_size": vocab}, part.path, part.notes))
        mixer = Attention(heads=own.heads, kv_heads=own.kv_heads, head_dim=own.head_dim, v_head_dim=own.head_dim)
        mlp = DenseMlp(width=part.integer("intermediate_size"), gated=True, activation="silu")
        tensors = (*attention(mixer, own.hidden), *dense_mlp(mlp, own.hidden))
        return block(mixer, mlp, tensors, PRE, own.hidden), own.layers, own.hidden

    def repeated(one: Block, count: int, prefix: str) -> Tensors:
        return tuple(t.model_copy(update={"name": prefix + t.name, "copies": count}) for t in one.tensors)

    def crossing(prefix: str, part: Config, hidden: int, count: int) -> Tensors:
        heads = part.integer("num_attention_heads", high=65_536)
        one = Attention(heads=heads, kv_heads=heads, head_dim=hidden // heads, v_head_dim=hidden // heads, cross=True)
        names = AttentionNames("q_proj", "k_proj", "v_proj", "o_proj")
        tensors = (*attention(one, hidden, names), *norm("q_norm", hidden), *norm("k_norm", hidden))
        return tuple(
            t.model_copy(update={"name": f"{prefix}cross_attn_layers.{{i}}.{t.name}", "copies": count}) for t in tensors
        )

    middle, count, wide = layer(parts["global"])
    first, first_count, narrow = layer(parts["encoder"])
    last, last_count, out = layer(parts["decoder"])
    judge, judge_count, judge_width = layer(parts["patcher"])
    crossed = parts["encoder"].flag("cross_attn_all_layers")
    k = cfg.integer("cross_attn_k", default=2, high=64)
    size = sizes(Config({**parts["global"].raw, "vocab_size": vocab}, parts["global"].path, cfg.notes))
    encoder, decoder, patcher = "model.local_encoder.", "model.local_decoder.", "model.patcher."
    embedding: Tensors = (
        table(f"{encoder}embed_tokens.weight", vocab, narrow),
        table("model.encoder_hash_tok_embedding.weight", rows, narrow),
        *repeated(first, first_count, f"{encoder}layers.{{i}}."),
        *linear(f"{encoder}patch_embedding_projection", narrow * k, narrow, "other"),
        *crossing(encoder, parts["encoder"], narrow, first_count if crossed else 1),
        *repeated(judge, judge_count, f"{patcher}layers.{{i}}."),
        table(f"{patcher}embed_tokens.weight", vocab, judge_width),
        *norm(f"{patcher}norm", judge_width),
        *linear(f"{patcher}lm_head", vocab, judge_width, "other"),
    )
    if narrow * k != wide:
        embedding += linear("model.global_transformer.token_embedding_projection", wide, narrow * k, "other")
    final = (
        *repeated(last, last_count, f"{decoder}layers.{{i}}."),
        *linear(f"{decoder}patch_embedding_projection", out * k, wide, "other"),
        *crossing(decoder, parts["decoder"], out, last_count),
        *norm(f"{decoder}norm", out),
    )
    shape = assemble(
        cfg,
        size,
        (middle,),
        (0,) * count,
        tie=tied(cfg, False),
        final_norm="",
        extra_final=final,
        prefix="model.global_transformer.",
        layer_prefix="model.global_transformer.layers.{i}.",
    )
    return shape.model_copy(
        update={
            "embedding": embedding,
            "head": linear("lm_head", vocab, out, "head", split="vocab"),
            "final_norm": "rms",
            "cache_refusal": text("shape.cache_refused", field=f"{cfg.path}patcher_config"),
        }
    )
