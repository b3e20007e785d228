"""What makes Qwen-Omni speak: the talker (a language model of codec tokens) and the vocoder behind it.

Facts are those of the modelling code in the public transformers repository, release 5.24
(src/transformers/models/{qwen2_5_omni,qwen3_omni_moe}).
"""

from __future__ import annotations

from collections import Counter

from calculator.model.build import Tensors
from calculator.model.config import Config
from calculator.model.shape import ModelShape, Tower
from calculator.model.towers.layers import Layer, Parts, add_layers, tower
from calculator.model.towers.vit import MAX_TOWER_LAYERS


def flatten(shape: ModelShape, prefix: str, *, head: bool = True) -> Tensors:
    """A language model's tensors as those of an audio part, repeated over its layers."""
    found = [*shape.embedding, *shape.final, *(shape.head if head and not shape.tied else ())]
    for index, times in Counter(shape.order).items():
        found += [
            t.model_copy(update={"name": f"layers.{{i}}.{t.name}", "copies": t.copies * times})
            for t in shape.blocks[index].tensors
        ]
    return tuple(t.model_copy(update={"name": prefix + t.name, "component": "audio", "split": "none"}) for t in found)


def talker_tower(parts: Parts, inner: Tensors, shape: ModelShape) -> Tower:
    heads = next((b.mixer.heads for b in shape.blocks if b.mixer.kind == "attention"), 0)
    built = tower(parts, "audio", "talker.", shape.hidden, shape.layers, heads)
    return built.model_copy(update={"tensors": (*built.tensors, *inner)})


def token2wav(cfg: Config) -> Tower:
    """Qwen2.5-Omni: a diffusion transformer from codes to mel bands, and BigVGAN from those to sound."""
    dit, vocoder = cfg.require_sub("dit_config"), cfg.require_sub("bigvgan_config")
    parts = Parts("audio")
    hidden, layers, heads = _diffusion(parts, dit)
    _vocoder(parts, vocoder)
    return tower(parts, "audio", "token2wav.", hidden, layers, heads)


def _diffusion(parts: Parts, cfg: Config) -> tuple[int, int, int]:
    parts.prefix = "code2wav_dit_model."
    hidden = cfg.integer("dim", "hidden_size", default=1024, high=2**20)
    layers = cfg.integer("depth", "num_hidden_layers", default=22, high=MAX_TOWER_LAYERS)
    heads = cfg.integer("heads", "num_attention_heads", default=16, high=65_536)
    inner = heads * cfg.integer("head_dim", default=64, high=65_536)
    width = cfg.integer("ff_mult", default=2, high=64) * hidden
    mel, codes = cfg.integer("mel_dim", default=80), cfg.integer("num_embeds", default=8193)
    code, speaker = cfg.integer("emb_dim", default=512), cfg.integer("enc_dim", default=128)
    speaker_in = cfg.integer("enc_emb_dim", default=192)
    parts.linear("time_embed.time_mlp.0", hidden, 256).linear("time_embed.time_mlp.2", hidden, hidden)
    parts.table("text_embed.codec_embed.weight", codes + 1, code)
    parts.linear("input_embed.proj", hidden, mel + speaker + speaker_in + code)
    _speaker_encoder(parts, cfg, mel, speaker)
    parts.linear("transformer_blocks.{i}.attn_norm.linear", 6 * hidden, hidden, copies=layers)
    for name in ("to_q", "to_k", "to_v"):
        parts.linear(f"transformer_blocks.{{i}}.attn.{name}", inner, hidden, copies=layers)
    parts.linear("transformer_blocks.{i}.attn.to_out.0", hidden, inner, copies=layers)
    parts.linear("transformer_blocks.{i}.ff.ff.0", width, hidden, copies=layers)
    parts.linear("transformer_blocks.{i}.ff.ff.3", hidden, width, copies=layers)
    parts.linear("norm_out.linear", 2 * hidden, hidden).linear("proj_out", mel, hidden)
    return hidden, layers, heads


def _speaker_encoder(parts: Parts, cfg: Config, mel: int, out: int) -> None:
    """ECAPA-TDNN."""
    channels = cfg.ints("enc_channels", low=1, at_most=16) or (256, 256, 256, 256, 768)
    kernels = cfg.ints("enc_kernel_sizes", length=len(channels), low=1, high=1024) or (5, 3, 3, 3, 1)
    scale = cfg.integer("enc_res2net_scale", default=2, high=64)
    squeeze = cfg.integer("enc_se_channels", default=64)
    attend = cfg.integer("enc_attention_channels", default=64)
    at = "input_embed.spk_encoder."
    parts.conv(f"{at}blocks.0.conv", channels[0], mel, kernels[0])
    for number in range(1, len(channels) - 1):
        wide, into, block = channels[number], channels[number - 1], f"{at}blocks.{number}."
        part = wide // scale
        parts.conv(f"{block}tdnn1.conv", wide, into, 1).conv(f"{block}tdnn2.conv", wide, wide, 1)
        parts.conv(f"{block}res2net_block.blocks.{{i}}.conv", part, part, kernels[number], copies=scale - 1)
        parts.conv(f"{block}se_block.conv1", squeeze, wide, 1).conv(f"{block}se_block.conv2", wide, squeeze, 1)
    last = channels[-1]
    parts.conv(f"{at}mfa.conv", last, sum(channels[1:-1]), kernels[-1])
    parts.conv(f"{at}asp.tdnn.conv", attend, 3 * last, 1).conv(f"{at}asp.conv", last, attend, 1)
    parts.conv(f"{at}fc", out, 2 * last, 1)


def _vocoder(parts: Parts, cfg: Config) -> None:
    parts.prefix = "code2wav_bigvgan_model."
    mel, width = cfg.integer("mel_dim", default=80), cfg.integer("upsample_initial_channel", default=1536)
    kernels = cfg.ints("upsample_kernel_sizes", low=1, high=1024, at_most=16) or (11, 7, 4, 4, 4, 4)
    blocks = cfg.ints("resblock_kernel_sizes", low=1, high=1024, at_most=16) or (3, 7, 11)
    parts.conv("conv_pre", width, mel, 7)
    for number, kernel in enumerate(kernels):
        before, width = width, width // 2
        parts.add(f"ups.{number}.0.weight", before, width, kernel, kind="conv")
        parts.add(f"ups.{number}.0.bias", width, kind="bias")
        for place, size in enumerate(blocks):
            at = f"resblocks.{number * len(blocks) + place}."
            for group in ("convs1", "convs2"):
                parts.conv(f"{at}{group}.{{i}}", width, width, size, copies=3)
            parts.add(f"{at}activations.{{i}}.act.alpha", width, copies=6)
            parts.add(f"{at}activations.{{i}}.act.beta", width, copies=6)
    parts.add("activation_post.act.alpha", width).add("activation_post.act.beta", width)
    parts.conv("conv_post", 1, width, 7, bias=False)


def code2wav(cfg: Config) -> Tower:
    """Qwen3-Omni: a small transformer over the codes' sum, upsampling, and a convolutional decoder."""
    hidden, layers = cfg.integer("hidden_size", high=2**20), cfg.integer("num_hidden_layers", high=MAX_TOWER_LAYERS)
    heads, width = cfg.integer("num_attention_heads", high=65_536), cfg.integer("intermediate_size")
    cfg.divide("num_attention_heads", hidden, heads)
    cfg.ignore("sliding_window", "num_key_value_heads", "codebook_dim", "vector_quantization_hidden_dimension")
    parts = Parts("audio")
    layer = Layer(
        at="pre_transformer.layers.{i}.",
        o="self_attn.o_proj",
        qkv_bias=cfg.flag("attention_bias"),
        out_bias=False,
        gated=True,
        up="mlp.up_proj",
        down="mlp.down_proj",
        mlp_bias=False,
        norms=("input_layernorm", "post_attention_layernorm"),
        norm_bias=False,
        scales=("self_attn_layer_scale.scale", "mlp_layer_scale.scale"),
    )
    add_layers(parts, layer, layers, hidden, width)
    parts.norm("pre_transformer.norm", hidden, bias=False)
    codes = cfg.integer("codebook_size") * cfg.integer("num_quantizers", high=1024)
    parts.table("code_embedding.weight", codes, hidden)
    for number, ratio in enumerate(cfg.ints("upsampling_ratios", low=1, high=1024, at_most=16) or (2, 2)):
        at = f"upsample.{number}."
        parts.conv(f"{at}0.conv", hidden, hidden, ratio).add(f"{at}1.gamma", hidden)
        parts.conv(f"{at}1.dwconv.conv", hidden, 1, 7).norm(f"{at}1.norm", hidden)
        parts.linear(f"{at}1.pwconv1", 4 * hidden, hidden).linear(f"{at}1.pwconv2", hidden, 4 * hidden)
    wide = cfg.integer("decoder_dim")
    parts.conv("decoder.0.conv", wide, hidden, 7)
    rates = cfg.ints("upsample_rates", low=1, high=1024, at_most=16) or (8, 5, 4, 3)
    for number, rate in enumerate(rates, start=1):
        before, wide, at = wide, wide // 2, f"decoder.{number}.block."
        parts.add(f"{at}0.alpha", before).add(f"{at}0.beta", before)
        parts.add(f"{at}1.conv.weight", before, wide, 2 * rate, kind="conv").add(f"{at}1.conv.bias", wide, kind="bias")
        for act in ("act1", "act2"):
            parts.add(f"{at}{{i}}.{act}.alpha", wide, copies=3).add(f"{at}{{i}}.{act}.beta", wide, copies=3)
        parts.conv(f"{at}{{i}}.conv1.conv", wide, wide, 7, copies=3)
        parts.conv(f"{at}{{i}}.conv2.conv", wide, wide, 1, copies=3)
    end = len(rates) + 1
    parts.add(f"decoder.{end}.alpha", wide).add(f"decoder.{end}.beta", wide)
    parts.conv(f"decoder.{end + 1}.conv", 1, wide, 7)
    return tower(parts, "audio", "code2wav.", hidden, layers, heads)
