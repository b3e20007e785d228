"""One colour for each item of a bill, the same in every chart and table of the app.

Hues start from Okabe and Ito's palette for colour-blind readers (https://jfly.uni-koeln.de/color/) and are spread in
lightness, so that items that stand side by side differ in more than hue and each is seen on white and on near-black.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

COLOURS: Mapping[str, str] = MappingProxyType({
    # training, in the order of its bill
    "parameters": "#2f4bc7",
    "adapter_parameters": "#8ea6ff",
    "gradients": "#f2c14e",
    "optimizer_states": "#c4620a",
    "optimizer_temporary": "#f5a97a",
    "checkpoints": "#0b6b50",
    "activations": "#2fb088",
    "live_layer": "#97dcc2",
    "logits_loss": "#b0307e",
    "backward_temporary": "#f19ac6",
    "casts": "#7a4fc0",
    "gathered_parameters": "#5fc3ef",
    "comm_buffers": "#4f3a8c",
    "predictions": "#6d1f4f",
    "loading_copies": "#b7c4ff",
    "inputs": "#c9b18a",
    "kernel_workspace": "#8a5a44",
    "slack": "#a9b1c0",
    # both
    "context": "#5d6677",
    "nccl": "#c3a6e8",
    # serving
    "weights": "#2f4bc7",
    "mmproj": "#8ea6ff",
    "mmproj_compute": "#f5a97a",
    "kv_cache": "#2fb088",
    "state": "#0b6b50",
    "draft": "#7a4fc0",
    "lora": "#b0307e",
    "encoder_cache": "#c9b18a",
    "activation": "#f2c14e",
    "cuda_graphs": "#c4620a",
    "non_torch": "#c3a6e8",
    "workspace": "#f2c14e",
    "runtime_buffers": "#c4620a",
})  # fmt: skip

UNKNOWN = "#8a94a6"
FREE = "rgba(138, 148, 166, 0.22)"


def colour(key: str) -> str:
    """The colour of an item key."""
    return COLOURS.get(key, UNKNOWN)


def ink(background: str) -> str:
    """Black or white, whichever is read better on ``background`` ("#rrggbb"); relative luminance as WCAG 2 has it."""
    if not background.startswith("#"):
        return "#1a1d29"
    channels = (int(background[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return "#ffffff" if 1.05 / (luminance + 0.05) >= (luminance + 0.05) / 0.05 else "#111318"
