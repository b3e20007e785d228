"""Which layers look at a window only, and how wide it is, by the key dialects of the families."""

from __future__ import annotations

from collections.abc import Callable

from calculator.model.config import MAX_SIZE, Config
from calculator.model.decoder import LAYER_WORDS, every

Windows = Callable[[Config, int], tuple[int | None, ...]]
"""From the config and the layer count to one window per layer (None: full)."""


def no_window(cfg: Config, layers: int) -> tuple[int | None, ...]:
    """Full attention everywhere; a list of layer types may say so too."""
    if cfg.has("layer_types"):
        full = {word: kind for word, kind in LAYER_WORDS.items() if kind == "full"}
        cfg.layer_kinds("layer_types", full, layers, spare=mtp_spare(cfg))
    return (None,) * layers


def mtp_spare(cfg: Config) -> int:
    """How many prediction layers a list of layers may name beside the model's own."""
    return cfg.integer("num_nextn_predict_layers", default=0, low=0, high=64, silent=True)


def window_width(cfg: Config, default: int | None = None) -> int | None:
    """``sliding_window``: null switches it off, absent means the class's default."""
    if "sliding_window" not in cfg.raw:
        if default is None:
            cfg.notes.assume("assumption.no_window", key=f"{cfg.path}sliding_window")
            return None
        return cfg.integer("sliding_window", default=default)
    return cfg.optional_int("sliding_window", high=MAX_SIZE)


def from_types(cfg: Config, layers: int, window: int | None, *, spare: int = 0) -> tuple[int | None, ...] | None:
    """Windows from ``layer_types``, None where the key is absent."""
    if not cfg.has("layer_types"):
        cfg.notes.defaulted.add(f"{cfg.path}layer_types")
        return None
    words = {k: v for k, v in LAYER_WORDS.items() if v in ("full", "window")}
    kinds = cfg.layer_kinds("layer_types", words, layers, spare=spare)
    if window is None and "window" in kinds:
        raise cfg.missing("sliding_window")
    return tuple(window if kind == "window" else None for kind in kinds)


def all_layers(default: int | None) -> Windows:
    """``sliding_window`` (class default ``default``) holds for every layer, unless ``layer_types`` says otherwise."""

    def windows(cfg: Config, layers: int) -> tuple[int | None, ...]:
        window = window_width(cfg, default)
        found = from_types(cfg, layers, window)
        if found is None and window is not None:
            cfg.notes.assume("assumption.layer_pattern", key=f"{cfg.path}layer_types")
        return found or (window,) * layers

    return windows


def qwen(cfg: Config, layers: int) -> tuple[int | None, ...]:
    """Qwen2 and Qwen3: off unless ``use_sliding_window``; the first ``max_window_layers`` layers stay full."""
    on = cfg.flag("use_sliding_window", silent=True)
    window = cfg.optional_int("sliding_window", low=1 if on else 0, high=MAX_SIZE)
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


def pattern(interval: int, *keys: str, default: int | None = 4096) -> Windows:
    """Every ``interval``-th layer is full and the others are windowed; ``keys`` may state another interval, as a
    number or as letters ("LLLG": local, local, local, global)."""

    def windows(cfg: Config, layers: int) -> tuple[int | None, ...]:
        window = window_width(cfg, default)
        kinds = interval_kinds(cfg, interval, keys, layers)
        found = from_types(
            cfg, layers, window, spare=cfg.integer("num_nextn_predict_layers", default=0, low=0, high=64, silent=True)
        )
        if found is not None:
            return found
        if window is None:
            return (None,) * layers
        return tuple(window if kind == "window" else None for kind in kinds)

    return windows


def interval_kinds(cfg: Config, interval: int, keys: tuple[str, ...], layers: int) -> tuple[str, ...]:
    """ "window" or "full" for each layer, from an interval or a string of L and G."""
    for key in keys:
        value = cfg.get(key)
        if isinstance(value, str):
            if not 0 < len(value) <= layers or set(value) - {"L", "G"}:
                raise cfg.bad(key, "choice")
            return tuple("full" if value[i % len(value)] == "G" else "window" for i in range(layers))
    step = cfg.integer(*keys, default=interval, high=4096, silent=True) if keys else interval
    return every(step, layers, "window", "full")
