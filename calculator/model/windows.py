"""Which layers look at a window only, and how wide it is, by the key dialects of the families."""

from __future__ import annotations

from collections.abc import Callable

from calculator.model.config import MAX_SIZE, Config
from calculator.model.decoder import LAYER_WORDS, every

Windows = Callable[[Config, int], tuple[int | None, ...]]
"""From the config and the layer count to one window per layer (None: full)."""


def no_window(cfg: Config, layers: int) -> tuple[int | None, ...]:
    return (None,) * layers


def _width(cfg: Config) -> int | None:
    return cfg.optional_int("sliding_window", high=MAX_SIZE)


def from_types(cfg: Config, layers: int, window: int | None, *, spare: int = 0) -> tuple[int | None, ...] | None:
    """Windows from ``layer_types``, None where the key is absent."""
    if not cfg.has("layer_types"):
        return None
    words = {k: v for k, v in LAYER_WORDS.items() if v in ("full", "window")}
    kinds = cfg.layer_kinds("layer_types", words, layers, spare=spare)
    if window is None and "window" in kinds:
        raise cfg.missing("sliding_window")
    return tuple(window if kind == "window" else None for kind in kinds)


def all_layers(cfg: Config, layers: int) -> tuple[int | None, ...]:
    """``sliding_window`` holds for every layer (Mistral, Phi-3), unless ``layer_types`` says otherwise."""
    window = _width(cfg)
    return from_types(cfg, layers, window) or (window,) * layers


def qwen(cfg: Config, layers: int) -> tuple[int | None, ...]:
    """Qwen2 and Qwen3: off unless ``use_sliding_window``; the first ``max_window_layers`` layers stay full."""
    window = _width(cfg)
    on = cfg.flag("use_sliding_window")
    first = cfg.optional_int("max_window_layers", low=0)
    if not on or window is None:
        cfg.ignore("layer_types")
        return (None,) * layers
    found = from_types(cfg, layers, window)
    if found is not None:
        return found
    if first is None:
        raise cfg.missing("max_window_layers")
    return tuple(None if i < first else window for i in range(layers))


def pattern(interval: int, *keys: str) -> Windows:
    """Every ``interval``-th layer is full and the others are windowed; ``keys`` may state another interval."""

    def windows(cfg: Config, layers: int) -> tuple[int | None, ...]:
        window = _width(cfg)
        step = cfg.int(*keys, default=interval, high=4096, silent=True) if keys else interval
        found = from_types(cfg, layers, window)
        if found is not None:
            return found
        if window is None:
            return (None,) * layers
        return tuple(window if kind == "window" else None for kind in every(step, layers, "window", "full"))

    return windows
