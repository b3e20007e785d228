"""MobileNet V5, the convolutional tower of Gemma 3n.

Facts are those of timm 1.0.31, timm/models/mobilenetv5.py (``mobilenetv5_300m_enc``),
https://github.com/huggingface/pytorch-image-models.
"""

from __future__ import annotations

from calculator.model.shape import Tower
from calculator.model.towers.layers import Parts, tower

STEM = 64
SIDE = 768
"""Side of the pictures that the encoder takes."""
TOKENS_SIDE = 16
"""Side of the map of features that it makes of a picture, whatever the picture's size."""

WIDTHS = (128, 256, 640, 1280)
"""Channels of the four stages."""


def _inverted(parts: Parts, at: str, width: int, source: int, expansion: int, start: int, middle: int) -> None:
    """A universal inverted bottleneck: depthwise before and between, of these kernel sizes (0: none), and two pointwise
    convolutions."""
    wide = source * expansion
    if start:
        parts.conv(f"{at}dw_start.conv", source, 1, start, start, bias=False)
        parts.norm(f"{at}dw_start.bn", source, bias=False)
    parts.conv(f"{at}pw_exp.conv", wide, source, 1, 1, bias=False).norm(f"{at}pw_exp.bn", wide, bias=False)
    if middle:
        parts.conv(f"{at}dw_mid.conv", wide, 1, middle, middle, bias=False)
        parts.norm(f"{at}dw_mid.bn", wide, bias=False)
    parts.conv(f"{at}pw_proj.conv", width, wide, 1, 1, bias=False).norm(f"{at}pw_proj.bn", width, bias=False)
    parts.add(f"{at}layer_scale.gamma", width)


def _attention(parts: Parts, at: str, width: int, heads: int, head: int, *, strided: bool) -> None:
    """Multi-query attention over the map of features; ``strided``: keys and values from a map of half the side."""
    parts.norm(f"{at}norm", width, bias=False)
    parts.conv(f"{at}attn.query.proj", heads * head, width, 1, 1, bias=False)
    for part in ("key", "value"):
        if strided:
            parts.conv(f"{at}attn.{part}.down_conv", width, 1, 3, 3, bias=False)
            parts.norm(f"{at}attn.{part}.norm", width, bias=False)
        parts.conv(f"{at}attn.{part}.proj", head, width, 1, 1, bias=False)
    parts.conv(f"{at}attn.output.proj", width, heads * head, 1, 1, bias=False)
    parts.add(f"{at}layer_scale.gamma", width)


def mobilenet_v5(prefix: str, out: int) -> Tower:
    """The encoder of 300 million parameters, whose last two stages are joined into ``out`` channels."""
    parts = Parts("vision")
    parts.conv("conv_stem.conv", STEM, 3, 3, 3).norm("conv_stem.bn", STEM, bias=False)
    first, second, third, fourth = WIDTHS
    for number in range(3):
        source, wide = (STEM, 4 * STEM) if number == 0 else (first, 4 * first)
        at = f"blocks.0.{number}."
        parts.conv(f"{at}conv_exp", wide, source, 3, 3, bias=False).norm(f"{at}bn1", wide, bias=False)
        parts.conv(f"{at}conv_pwl", first, wide, 1, 1, bias=False).norm(f"{at}bn2", first, bias=False)
    _inverted(parts, "blocks.1.0.", second, first, 6, 3, 5)
    for number in range(1, 5):
        _inverted(parts, f"blocks.1.{number}.", second, second, 4, 5 if number % 2 else 3, 0)
    _inverted(parts, "blocks.2.0.", third, second, 6, 5, 5)
    for number in range(1, 8):
        _inverted(parts, f"blocks.2.{number}.", third, third, 4, 5, 0)
    _inverted(parts, "blocks.2.8.", third, third, 1, 0, 0)
    for number in range(9, 37, 2):
        _attention(parts, f"blocks.2.{number}.", third, 12, 64, strided=True)
        _inverted(parts, f"blocks.2.{number + 1}.", third, third, 2, 0, 0)
    _inverted(parts, "blocks.3.0.", fourth, third, 6, 5, 5)
    for number in range(1, 39, 2):
        _attention(parts, f"blocks.3.{number}.", fourth, 16, 96, strided=False)
        _inverted(parts, f"blocks.3.{number + 1}.", fourth, fourth, 2, 0, 0)
    joined = third + fourth
    parts.conv("msfa.ffn.pw_exp.conv", 2 * joined, joined, 1, 1, bias=False)
    parts.norm("msfa.ffn.pw_exp.bn", 2 * joined, bias=False)
    parts.conv("msfa.ffn.pw_proj.conv", out, 2 * joined, 1, 1, bias=False)
    parts.norm("msfa.ffn.pw_proj.bn", out, bias=False).norm("msfa.norm", out, bias=False)
    patch = SIDE // TOKENS_SIDE
    return tower(parts, "vision", prefix, out, 84, 16, patch=patch, image_size=SIDE)
