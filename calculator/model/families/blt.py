"""The byte latent transformer.

Facts are those of the modelling code in the public transformers repository, release 5.24
(src/transformers/models/<model_type>/modeling_<model_type>.py).
"""

from __future__ import annotations

from calculator.model.build import (
    AttentionNames,
    Tensors,
    attention,
    block,
    dense_mlp,
    linear,
    norm,
    table,
)
from calculator.model.config import Config
from calculator.model.decoder import assemble, sizes, tied
from calculator.model.families.llama import PRE
from calculator.model.shape import Attention, Block, DenseMlp, ModelShape
from calculator.text import text


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
