"""Molmo and Molmo 2: a vision transformer whose tapped layers are pooled by attention, a gated projector.

Facts of Molmo are those of config_molmo.py and modeling_molmo.py in allenai/Molmo-7B-D-0924 on the Hugging Face Hub,
whose file leaves the tower out; those of Molmo 2 of src/transformers/models/molmo2 in the public transformers
repository, release 5.24.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from calculator.model.build import AttentionNames, MlpNames, attention, block, dense_mlp, table
from calculator.model.compose import Readers, compose, text_config
from calculator.model.config import Config
from calculator.model.decoder import activation, assemble, sizes, tied
from calculator.model.families.llama import POST, PRE
from calculator.model.shape import Attention, DenseMlp, ModelShape, Tower
from calculator.model.towers.layers import Layer, Parts, add_layers, tower
from calculator.model.towers.vit import MAX_TOWER_LAYERS

MORE_TOKENS = 128
"""Rows of the table of tokens that Molmo adds to its language model's."""


def molmo_text(cfg: Config) -> ModelShape:
    """OLMo's layout: fused q, k and v, gate and up in one matrix; ``intermediate_size`` is that of both together."""
    size = sizes(cfg, kv_required=True, head_dim=())
    kind = "layer" if cfg.string("layer_norm_type", default="rms") == "default" else "rms"
    after = cfg.flag("norm_after", silent=True)
    names = AttentionNames(qkv="att_proj", o="attn_out", q_norm="q_norm", k_norm="k_norm")
    mixer = Attention(
        heads=size.heads,
        kv_heads=size.kv_heads,
        head_dim=size.head_dim,
        v_head_dim=size.head_dim,
        bias=cfg.flag("qkv_bias", silent=True),
        fused_qkv=True,
        qk_norm="full" if cfg.flag("attention_layer_norm", silent=True) else "none",
    )
    width = cfg.divide("intermediate_size", cfg.integer("intermediate_size", low=2), 2)
    mlp = DenseMlp(width=width, gated=True, activation="silu", fused_gate_up=True)
    tensors = (
        *attention(mixer, size.hidden, names),
        *dense_mlp(mlp, size.hidden, MlpNames(gate_up="ff_proj", down="ff_out")),
    )
    norms = POST if after else ("attn_norm", "ff_norm")
    one = block(mixer, mlp, tensors, norms, size.hidden, kind)  # type: ignore[arg-type]
    cfg.ignore("embedding_size", "weight_tying")
    rows = cfg.integer("embedding_size", default=size.vocab, silent=True)
    size = size._replace(vocab=rows)
    return assemble(
        cfg,
        size,
        (one,),
        (0,) * size.layers,
        tie=tied(cfg, False, "weight_tying", "tie_word_embeddings"),
        final_norm="model.transformer.ln_f",
        embed="model.transformer.wte",
        head="model.transformer.ff_out",
        prefix="model.transformer.",
        layer_prefix="model.transformer.blocks.{i}.",
        extra_embedding=(table("model.transformer.wte.new_embedding", MORE_TOKENS, size.hidden, split="none"),),
    )


def _pooling(parts: Parts, at: str, names: tuple[str, ...], hidden: int, taps: int, *, source: int) -> None:
    """Attention of a patch's neighbours over the tapped layers, ``source`` wide each."""
    q, k, v, o = names
    for name in (q, k, v):
        parts.linear(f"{at}{name}", hidden, taps * source)
    parts.linear(f"{at}{o}", hidden, hidden)


CLIP = Layer(
    at="transformer.resblocks.{i}.",
    q="attention.wq",
    k="attention.wk",
    v="attention.wv",
    o="attention.wo",
    up="feed_forward.w1",
    down="feed_forward.w2",
    norms=("attention_norm", "ffn_norm"),
)
SIGLIP = Layer(at="layers.{i}.", o="self_attn.o_proj")


def molmo(cfg: Config, readers: Readers) -> ModelShape:
    """CLIP's large tower at 336 pixels less its last layer, two layers tapped."""
    text = molmo_text(cfg)
    hidden, layers, width, patch, side, taps = 1024, 23, 4096, 14, 336, 2
    parts = Parts("vision").add("class_embedding", hidden)
    parts.table("positional_embedding", (side // patch) ** 2 + 1, hidden)
    parts.linear("patch_embedding", hidden, 3 * patch**2, bias=False).norm("pre_ln", hidden)
    add_layers(parts, CLIP, layers, hidden, width)
    at = "model.vision_backbone."
    built = tower(parts, "vision", f"{at}image_vit.", hidden, layers, 16, patch=patch, image_size=side, merge=2)
    mlp = next(b.mlp.width for b in text.blocks if isinstance(b.mlp, DenseMlp))
    joined = Parts("projector", at).add("pad_embed", 2, taps * hidden)
    _pooling(joined, "image_pooling_2d.", ("wq", "wk", "wv", "wo"), hidden, taps, source=hidden)
    joined.linear("image_projector.w1", mlp, hidden, bias=False).linear(
        "image_projector.w2", text.hidden, mlp, bias=False
    )
    joined.linear("image_projector.w3", mlp, hidden, bias=False)
    cfg.notes.assume("assumption.tower_absent", key="vision_config")
    return compose(text, (built,), joined.done(), prefix="model.transformer.", head="model.transformer.ff_out.")


def molmo2_text(cfg: Config) -> ModelShape:
    """Qwen 3's layer, and a table of further tokens that the head does not have."""
    size = sizes(cfg, kv_required=True, head_dim_default=128)
    bias = cfg.flag("qkv_bias", "attention_bias")
    normed = cfg.flag("use_qk_norm", default=True)
    kind = cfg.string("qk_norm_type", default="qwen3")
    after = cfg.flag("norm_after", silent=True)
    mixer = Attention(
        heads=size.heads,
        kv_heads=size.kv_heads,
        head_dim=size.head_dim,
        v_head_dim=size.head_dim,
        bias=bias,
        qk_norm="none" if not normed else "head" if kind == "qwen3" else "full",
        dropout=cfg.number("attention_dropout", default=0.0, high=1.0),
    )
    mlp = DenseMlp(width=cfg.integer("intermediate_size"), gated=True, activation=activation(cfg, default="silu"))

    tensors = (*attention(mixer, size.hidden), *dense_mlp(mlp, size.hidden))
    one = block(mixer, mlp, tensors, POST if after else PRE, size.hidden)
    more = cfg.integer("additional_vocab_size", default=MORE_TOKENS, low=0)
    extra = (table("model.new_embedding.weight", more, size.hidden, split="none"),) if more else ()
    return assemble(cfg, size, (one,), (0,) * size.layers, tie=tied(cfg, False), extra_embedding=extra)


def _molmo2_tower(cfg: Config, prefix: str, layers: int) -> Tower:
    hidden, heads = cfg.integer("hidden_size", high=2**20), cfg.integer("num_attention_heads", high=65_536)
    inner = heads * cfg.integer("head_dim", high=65_536)
    kv = cfg.integer("num_key_value_heads", default=heads, high=65_536, silent=True) * (inner // heads)
    patch = cfg.integer("patch_size", "image_patch_size", default=14)
    sides = (
        cfg.ints("image_default_input_size", length=2, low=1) or cfg.ints("image_size", length=2, low=1) or (378, 378)
    )
    places = cfg.optional_int("num_position_embeddings", "image_num_pos")
    cfg.notes.defaulted.discard(f"{cfg.path}num_position_embeddings")
    parts = Parts("vision").table("positional_embedding", places or (sides[0] // patch) * (sides[1] // patch), hidden)
    parts.linear("patch_embedding", hidden, cfg.integer("num_channels", default=3, silent=True) * patch**2)
    bias = cfg.flag("attention_bias", default=True, silent=True)
    layer = replace(SIGLIP, qkv_bias=bias, out_bias=bias)
    add_layers(parts, layer, layers, hidden, cfg.integer("intermediate_size"), inner=inner, kv_width=kv)
    return tower(parts, "vision", prefix, hidden, layers, heads, patch=patch, image_size=sides[0], merge=2)


def molmo2(cfg: Config, readers: Readers) -> ModelShape:
    """SigLIP's layers up to the deepest one tapped: published files of ``vit_config`` name more than they hold."""
    text = molmo2_text(text_config(cfg))
    adapter = cfg.require_sub("adapter_config")
    key = "vision_config" if cfg.has("vision_config") else "vit_config"
    vision = cfg.require_sub(key)
    total = vision.integer("num_hidden_layers", high=MAX_TOWER_LAYERS)
    name = "vit_layers" if adapter.has("vit_layers") else "vision_feature_layer"
    taps = adapter.ints(name, low=-total, high=total - 1)
    if taps is None:
        taps = (24, 18)
        adapter.assume_default("vision_feature_layer", "24, 18")
    layers = max(tap % total for tap in taps) + 1 if key == "vit_config" else total
    built = _molmo2_tower(vision, "model.vision_tower.", layers)
    hidden, width = adapter.integer("hidden_size", high=2**20), adapter.integer("intermediate_size")
    inner = adapter.integer("num_attention_heads", high=65_536) * adapter.integer("head_dim", high=65_536)
    if inner != hidden or adapter.integer("text_hidden_size", default=text.hidden, silent=True) != text.hidden:
        raise adapter.bad("head_dim" if inner != hidden else "text_hidden_size", "range")
    adapter.ignore("num_key_value_heads", "num_attention_heads")
    parts = Parts("projector", "model.multi_modal_projector.")
    names = tuple(f"{part}_proj" for part in "qkvo")
    _pooling(parts, "image_pooling_2d.", names, hidden, len(taps), source=built.hidden)
    for part, out, source in (("gate", width, hidden), ("up", width, hidden), ("down", text.hidden, width)):
        parts.linear(f"image_projector.{part}_proj", out, source, bias=False)
    return compose(text, (built,), parts.done(), prefix="model.language_model.", head="lm_head.")


MOLMO: dict[str, Callable[[Config, Readers], ModelShape]] = {"molmo": molmo, "molmo2": molmo2}
