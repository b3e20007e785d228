"""VQ-GAN, which turns pictures into tokens and back: an encoder and a decoder of residual convolutions (Janus).

Facts are those of src/transformers/models/janus/modeling_janus.py in the public transformers repository, release 5.24.
"""

from __future__ import annotations

from typing import NamedTuple

from calculator.model.towers.layers import Parts


class VqSizes(NamedTuple):
    """``channels`` at full size, times each of ``steps`` as the map is halved; ``latent`` channels in between, which
    ``codes`` vectors of ``code_width`` stand for."""

    codes: int = 16_384
    code_width: int = 8
    latent: int = 256
    channels: int = 128
    steps: tuple[int, ...] = (1, 1, 2, 2, 4)
    blocks: int = 2
    double: bool = False


def _residual(parts: Parts, at: str, source: int, out: int) -> None:
    parts.norm(f"{at}norm1", source).conv(f"{at}conv1", out, source, 3, 3)
    parts.norm(f"{at}norm2", out).conv(f"{at}conv2", out, out, 3, 3)
    if source != out:
        parts.conv(f"{at}nin_shortcut", out, source, 1, 1)


def _attention(parts: Parts, at: str, width: int) -> None:
    parts.norm(f"{at}norm", width)
    for name in ("q", "k", "v", "proj_out"):
        parts.conv(f"{at}{name}", width, width, 1, 1)


def _middle(parts: Parts, at: str, width: int) -> None:
    _residual(parts, f"{at}mid.block_1.", width, width)
    _attention(parts, f"{at}mid.attn_1.", width)
    _residual(parts, f"{at}mid.block_2.", width, width)


def add_vq(parts: Parts, at: str, s: VqSizes) -> None:
    """Encoder, table of codes, decoder."""
    last = len(s.steps) - 1
    parts.conv(f"{at}encoder.conv_in", s.channels, 3, 3, 3)
    width = s.channels
    for level, step in enumerate(s.steps):
        for number in range(s.blocks):
            _residual(parts, f"{at}encoder.down.{level}.block.{number}.", width, s.channels * step)
            width = s.channels * step
            if level == last:
                _attention(parts, f"{at}encoder.down.{level}.attn.{number}.", width)
        if level != last:
            parts.conv(f"{at}encoder.down.{level}.downsample.conv", width, width, 3, 3)
    _middle(parts, f"{at}encoder.", width)
    parts.norm(f"{at}encoder.norm_out", width)
    parts.conv(f"{at}encoder.conv_out", s.latent * (2 if s.double else 1), width, 3, 3)
    parts.table(f"{at}quantize.embedding.weight", s.codes, s.code_width)
    parts.conv(f"{at}quant_conv", s.code_width, s.latent, 1, 1)
    parts.conv(f"{at}post_quant_conv", s.latent, s.code_width, 1, 1)
    parts.conv(f"{at}decoder.conv_in", width, s.latent, 3, 3)
    _middle(parts, f"{at}decoder.", width)
    for place, level in enumerate(reversed(range(last + 1))):
        for number in range(s.blocks + 1):
            _residual(parts, f"{at}decoder.up.{place}.block.{number}.", width, s.channels * s.steps[level])
            width = s.channels * s.steps[level]
            if level == last:
                _attention(parts, f"{at}decoder.up.{place}.attn.{number}.", width)
        if level:
            parts.conv(f"{at}decoder.up.{place}.upsample.conv", width, width, 3, 3)
    parts.norm(f"{at}decoder.norm_out", width).conv(f"{at}decoder.conv_out", 3, width, 3, 3)
