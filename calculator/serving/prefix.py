"""A prefix that all requests share: cached once and computed once, where the engine shares it."""

from __future__ import annotations

from dataclasses import dataclass

from calculator.hardware import Gpu
from calculator.model.shape import Attention, ModelShape, StateMixer
from calculator.serving.engines import sglang, tensorrt_llm, tgi, vllm_rules
from calculator.serving.engines.lmdeploy import source as lmdeploy_source
from calculator.serving.plan import ServingPlan
from calculator.serving.start import Cache, Start
from calculator.serving.versions import Rule, Version, at, parse

NEWEST: Version = (10**6, 0, 0)
"""What a release counts as where none is named."""
VLLM_STATES: Version = (0, 16, 0)
"""From here on models with states share prefixes too."""
VLLM_SOURCE = vllm_rules.source("vllm/engine/arg_utils.py, vllm/config/cache.py: off in V0, on in V1", "0.4 to 0.33")
DEFAULTS: dict[str, tuple[Rule[bool], ...]] = {
    "sglang": (Rule((0, 0, 0), True, sglang.source("server_args.py, disable_radix_cache")),),
    "tensorrt_llm": (
        Rule((0, 0, 0), False, tensorrt_llm.source("cpp/include/tensorrt_llm/executor/executor.h, KvCacheConfig")),
        Rule((1, 0, 0), True, tensorrt_llm.source("tensorrt_llm/llmapi/llm_args.py, enable_block_reuse")),
    ),
    "lmdeploy": (Rule((0, 0, 0), False, lmdeploy_source("lmdeploy/messages.py, enable_prefix_caching")),),
    "tgi": (
        Rule((0, 0, 0), False, tgi.source("launcher/src/main.rs")),
        Rule((3, 0, 0), True, tgi.source("launcher/src/main.rs, resolve_attention", "3.0 and later")),
    ),
}
"""By engine; vLLM's follows from its runner. The others hold every request's tokens apart."""
TGI_HEAD_DIMS = (64, 128, 256)
"""Head sizes of the back end that shares prefixes."""


def shares_prefixes(shape: ModelShape, plan: ServingPlan, gpu: Gpu) -> bool:
    """What the plan says, else the engine's default for its release, the model and the card. Raises ``PlanError`` for
    a release that cannot be read."""
    if plan.engine != "vllm" and plan.engine not in DEFAULTS:
        return False
    if plan.prefix_caching is not None:
        return plan.prefix_caching
    version = NEWEST if plan.engine_version is None else parse(plan.engine_version)
    if plan.engine == "vllm":
        runner = plan.runner or vllm_rules.default_runner(version, shape)
        states = any(isinstance(mixer, StateMixer) for block in shape.blocks for mixer in block.mixers)
        return runner != "v0" and shape.kind == "decoder" and (not states or version >= VLLM_STATES)
    default = at(DEFAULTS[plan.engine], version).value
    return default and (plan.engine != "tgi" or _tgi(shape, plan, gpu))


def _tgi(shape: ModelShape, plan: ServingPlan, gpu: Gpu) -> bool:
    """Off for towers, adapters, other head sizes and cards before Ampere (launcher/src/main.rs, resolve_attention)."""
    sizes = {m.head_dim for block in shape.blocks for m in block.mixers if isinstance(m, Attention)}
    old = gpu.vendor == "NVIDIA" and 0 < vllm_rules.capability_of(gpu) < 8
    plain = not shape.towers and shape.kind == "decoder" and not plan.max_loras and not old
    return plain and bool(sizes) and sizes <= set(TGI_HEAD_DIMS)


def cached_tokens(plan: ServingPlan, begun: Start, prompt: int) -> int:
    """Tokens of a prompt that need not be computed again: whole blocks, and never the last token, whose logits are
    wanted. None where the engine keeps nothing for other requests."""
    cache = begun.cache
    if not begun.shares_prefixes:
        return 0
    whole = min(plan.shared_prefix_tokens, prompt - 1) // cache.block_size * cache.block_size
    return whole if whole > 0 and cache.shared_bytes(whole) else 0


def held(cache: Cache, pool_bytes: int, context: int, cached: int) -> float:
    """Requests of ``context`` tokens that a pool holds where all but the first save the ``cached`` ones."""
    shared = cache.shared_bytes(cached)
    if not shared:
        return cache.concurrency(pool_bytes, context)
    return max(pool_bytes - shared, 0) / max(cache.needed(1, context) - shared, 1)


@dataclass(frozen=True, slots=True)
class Beside:
    """What requests take of a cache beside the ``cached`` first tokens that it holds for all of them."""

    cache: Cache
    cached: int

    @property
    def block_size(self) -> int:
        return self.cache.block_size

    def needed(self, requests: int, context: int) -> int:
        """Bytes of so many requests of ``context`` tokens, without the prefix itself."""
        shared = self.cache.shared_bytes(min(self.cached, context))
        return requests * max(self.cache.needed(1, context) - shared, 0)
