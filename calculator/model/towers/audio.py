"""Audio towers: Whisper's encoder and its kin, Qwen-Omni's, the Conformers of Granite Speech and Phi-4.

Facts are those of the modelling code in the public transformers repository, release 5.24
(src/transformers/models/{whisper,qwen2_audio,voxtral,qwen2_5_omni,qwen3_omni_moe,granite_speech,phi4_multimodal}).
"""

from __future__ import annotations

from calculator.model.build import Tensors
from calculator.model.config import Config
from calculator.model.shape import Tower
from calculator.model.towers.layers import Layer, Parts, add_layers, tower
from calculator.model.towers.vit import MAX_TOWER_LAYERS


def _whisper_layer(k_bias: bool) -> Layer:
    return Layer(
        at="layers.{i}.", k_bias=k_bias, up="fc1", down="fc2", norms=("self_attn_layer_norm", "final_layer_norm")
    )


def _sizes(cfg: Config) -> tuple[int, int, int, int]:
    cfg.ignore("num_key_value_heads", "head_dim")
    hidden = cfg.integer("d_model", "hidden_size", high=2**20)
    layers = cfg.integer("encoder_layers", "num_hidden_layers", high=MAX_TOWER_LAYERS)
    heads = cfg.integer("encoder_attention_heads", "num_attention_heads", high=65_536)
    return hidden, layers, heads, cfg.integer("encoder_ffn_dim", "intermediate_size")


def whisper(cfg: Config, prefix: str) -> Tower:
    """Two convolutions, a table of positions (stored, not computed), layers without a key bias."""
    hidden, layers, heads, width = _sizes(cfg)
    parts = Parts("audio")
    parts.conv("conv1", hidden, cfg.integer("num_mel_bins"), 3).conv("conv2", hidden, hidden, 3)
    parts.table("embed_positions.weight", cfg.integer("max_source_positions"), hidden)
    add_layers(parts, _whisper_layer(False), layers, hidden, width)
    parts.norm("layer_norm", hidden)
    return tower(parts, "audio", prefix, hidden, layers, heads)


def qwen2_5_omni(cfg: Config, prefix: str) -> Tower:
    """Whisper's layers with computed positions and a projection to the text's width."""
    hidden, layers, heads, width = _sizes(cfg)
    out = cfg.integer("output_dim", high=2**20)
    parts = Parts("audio")
    parts.conv("conv1", hidden, cfg.integer("num_mel_bins"), 3).conv("conv2", hidden, hidden, 3)
    parts.table("audio_bos_eos_token.weight", 2, out)
    add_layers(parts, _whisper_layer(False), layers, hidden, width)
    parts.norm("ln_post", hidden).linear("proj", out, hidden)
    return tower(parts, "audio", prefix, hidden, layers, heads)


def qwen3_omni(cfg: Config, prefix: str) -> Tower:
    """Three two-dimensional convolutions, then Whisper's layers with a key bias."""
    hidden, layers, heads, width = _sizes(cfg)
    out, narrow = cfg.integer("output_dim", high=2**20), cfg.integer("downsample_hidden_size")
    bins = cfg.integer("num_mel_bins")
    for _ in range(3):
        bins = (bins + 1) // 2
    parts = Parts("audio")
    parts.conv("conv2d1", narrow, 1, 3, 3).conv("conv2d2", narrow, narrow, 3, 3).conv("conv2d3", narrow, narrow, 3, 3)
    parts.linear("conv_out", hidden, narrow * bins, bias=False)
    add_layers(parts, _whisper_layer(True), layers, hidden, width)
    parts.norm("ln_post", hidden).linear("proj1", hidden, hidden).linear("proj2", out, hidden)
    return tower(parts, "audio", prefix, hidden, layers, heads)


def granite_speech(cfg: Config, prefix: str) -> Tower:
    """A Conformer with a mid-stack classifier that feeds back."""
    hidden, layers = cfg.integer("hidden_dim", high=2**20), cfg.integer("num_layers", high=MAX_TOWER_LAYERS)
    heads, head = cfg.integer("num_heads", high=65_536), cfg.integer("dim_head")
    width, out = cfg.integer("feedforward_mult", high=64) * hidden, cfg.integer("output_dim")
    inner = heads * head
    wide = cfg.integer("conv_expansion_factor", high=64) * hidden
    positions = 2 * cfg.integer("max_pos_emb") + 1
    parts, at, n = Parts("audio"), "layers.{i}.", layers
    parts.linear("input_linear", hidden, cfg.integer("input_dim"))
    for half in ("ff1", "ff2"):
        parts.norm(f"{at}{half}.pre_norm", hidden, copies=n)
        parts.linear(f"{at}{half}.up_proj", width, hidden, copies=n)
        parts.linear(f"{at}{half}.down_proj", hidden, width, copies=n)
    parts.norm(f"{at}attn.pre_norm", hidden, copies=n)
    parts.linear(f"{at}attn.to_q", inner, hidden, bias=False, copies=n)
    parts.linear(f"{at}attn.to_kv", 2 * inner, hidden, bias=False, copies=n)
    parts.linear(f"{at}attn.to_out", hidden, inner, copies=n)
    parts.table(f"{at}attn.rel_pos_emb.weight", positions, head, copies=n)
    parts.norm(f"{at}conv.norm", hidden, copies=n).conv(f"{at}conv.up_conv", 2 * wide, hidden, 1, copies=n)
    parts.conv(f"{at}conv.depth_conv.conv", wide, 1, cfg.integer("conv_kernel_size", high=1024), bias=False, copies=n)
    parts.norm(f"{at}conv.batch_norm", wide, copies=n).conv(f"{at}conv.down_conv", hidden, wide, 1, copies=n)
    parts.norm(f"{at}post_norm", hidden, copies=n)
    parts.linear("out", out, hidden).linear("out_mid", hidden, out)
    return tower(parts, "audio", prefix, hidden, layers, heads)


def phi4(cfg: Config, prefix: str) -> Tower:
    """A Conformer behind strided convolutions: two gated half feed-forwards, one table of relative positions for all
    layers, a gated convolution."""
    hidden, layers = cfg.integer("hidden_size", high=2**20), cfg.integer("num_blocks", high=MAX_TOWER_LAYERS)
    heads, width = cfg.integer("num_attention_heads", high=65_536), cfg.integer("intermediate_size")
    cfg.divide("num_attention_heads", hidden, heads, of="hidden_size")
    wide, out = cfg.integer("ext_pw_out_channel"), cfg.integer("depthwise_separable_out_channel")
    deep = hidden * cfg.integer("depthwise_multiplier", high=1024)
    distance = cfg.integer("bias_max_distance") * (1 if cfg.flag("bias_symmetric") else 2)
    channels, bins = cfg.integer("nemo_conv_channels"), cfg.integer("input_size")
    halvings = cfg.integer("time_reduction", low=2, high=1024).bit_length() - 1
    parts, at, n = Parts("audio"), "encoders.{i}.", layers
    parts.conv("embed.conv.0", channels, 1, 3, 3)
    for number in range(1, halvings):
        place = 3 * number - 1
        parts.conv(f"embed.conv.{place}", channels, 1, 3, 3).conv(f"embed.conv.{place + 1}", channels, channels, 1, 1)
    for _ in range(halvings):
        bins = (bins + 1) // 2
    parts.linear("embed.out", hidden, channels * bins)
    parts.table("relative_attention_bias_layer.bias_values.weight", distance, heads)
    for half in ("feed_forward_in", "feed_forward_out"):
        parts.norm(f"{at}{half}.layer_norm", hidden, copies=n)
        parts.linear(f"{at}{half}.gate_up_proj", 2 * width, hidden, copies=n)
        parts.linear(f"{at}{half}.down_proj", hidden, width, copies=n)
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        parts.linear(f"{at}self_attn.{name}", hidden, hidden, copies=n)
    parts.norm(f"{at}conv.layer_norm", hidden, copies=n)
    parts.add(f"{at}conv.glu.b1", 1, wide, 1, copies=n).add(f"{at}conv.glu.b2", 1, wide, 1, copies=n)
    parts.conv(f"{at}conv.glu.ext_pw_conv_1d", 2 * wide, hidden, 1, copies=n)
    parts.conv(f"{at}conv.dw_sep_conv_1d.dw_conv", deep, 1, cfg.integer("kernel_size", high=1024), copies=n)
    parts.conv(f"{at}conv.dw_sep_conv_1d.pw_conv", out, deep, 1, copies=n)
    parts.conv(f"{at}conv.ext_pw_conv_1d", wide, hidden, 1, copies=n)
    parts.norm(f"{at}layer_norm_att", hidden, copies=n).norm(f"{at}layer_norm", hidden, copies=n)
    return tower(parts, "audio", prefix, hidden, layers, heads)


def qformer(cfg: Config, queries: int, text: int, prefix: str) -> Tensors:
    """Granite Speech's projector: BLIP-2's querying transformer, every n-th layer with cross attention."""
    hidden, layers = cfg.integer("hidden_size", high=2**20), cfg.integer("num_hidden_layers", high=MAX_TOWER_LAYERS)
    width, source = cfg.integer("intermediate_size"), cfg.integer("encoder_hidden_size", high=2**20)
    step = cfg.integer("cross_attention_frequency", default=2, high=MAX_TOWER_LAYERS)
    crossed = sum(1 for i in range(layers) if i % step == 0)
    parts = Parts("projector", prefix)
    parts.add("query", 1, queries, hidden).norm("qformer.layernorm", hidden)
    at = "qformer.encoder.layer.{i}."
    for name, width_in, count in (("attention", hidden, layers), ("crossattention", source, crossed)):
        parts.linear(f"{at}{name}.attention.query", hidden, hidden, copies=count)
        parts.linear(f"{at}{name}.attention.key", hidden, width_in, copies=count)
        parts.linear(f"{at}{name}.attention.value", hidden, width_in, copies=count)
        parts.linear(f"{at}{name}.output.dense", hidden, hidden, copies=count)
        parts.norm(f"{at}{name}.output.LayerNorm", hidden, copies=count)
    parts.linear(f"{at}intermediate_query.dense", width, hidden, copies=layers)
    parts.linear(f"{at}output_query.dense", hidden, width, copies=layers)
    parts.norm(f"{at}output_query.LayerNorm", hidden, copies=layers)
    return parts.linear("linear", text, hidden).done()
