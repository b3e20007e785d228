"""Key and value cache formats: bytes of one head's vector of one token."""

from __future__ import annotations

from types import MappingProxyType

from calculator.base import Frozen
from calculator.errors import PlanError
from calculator.precision.ggml import GGML_SOURCE, GGML_TYPES
from calculator.precision.packing import ceil_div
from calculator.sources import Source


class KvFormat(Frozen):
    """``block`` consecutive elements take ``block_bytes``; ``vector_extra_bytes`` come with each head's vector (a scale
    and a zero point kept per token and head). Scales kept per tensor or per layer are engine state and not counted.
    """

    key: str
    block: int
    block_bytes: int
    vector_extra_bytes: int = 0
    source: Source

    def vector_bytes(self, elements: int) -> int:
        """Bytes of one vector (one head's key or value of one token, or a latent), whole blocks."""
        if elements <= 0:
            return 0
        return ceil_div(elements, self.block) * self.block_bytes + self.vector_extra_bytes

    @property
    def bits(self) -> float:
        return 8 * self.block_bytes / self.block


_PLAIN = Source(title="the element size")
_LMDEPLOY = Source(
    title="LMDeploy, KV cache quantisation: per head and token, 16-bit scale and zero point",
    url="https://lmdeploy.readthedocs.io/en/latest/quantization/kv_quant.html",
    checked_on="2026-11-29",
)


def _from_ggml(name: str) -> KvFormat:
    kind = GGML_TYPES[name]
    return KvFormat(key=name.lower(), block=kind.block, block_bytes=kind.block_bytes, source=GGML_SOURCE)


KV_FORMATS = MappingProxyType(
    {
        f.key: f
        for f in (
            KvFormat(key="fp32", block=1, block_bytes=4, source=_PLAIN),
            KvFormat(key="bf16", block=1, block_bytes=2, source=_PLAIN),
            KvFormat(key="fp16", block=1, block_bytes=2, source=_PLAIN),
            KvFormat(key="fp8", block=1, block_bytes=1, source=_PLAIN),
            KvFormat(key="int8", block=1, block_bytes=1, vector_extra_bytes=4, source=_LMDEPLOY),
            KvFormat(key="int4", block=2, block_bytes=1, vector_extra_bytes=4, source=_LMDEPLOY),
            # 16 elements share one fp8 scale (OCP-like NVFP4 blocks).
            KvFormat(key="nvfp4", block=16, block_bytes=9, source=_PLAIN),
            *(_from_ggml(name) for name in ("Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0", "IQ4_NL")),
        )
    }
)
_ALIASES = {"bfloat16": "bf16", "float16": "fp16", "f16": "fp16", "float32": "fp32", "f32": "fp32"}


def kv_format(key: str) -> KvFormat:
    """The format of a plan's value ("fp8", "q8_0", "bf16"; any fp8 variant is "fp8"), never of "auto", which the
    engine decides. Raises ``PlanError`` ("format.unknown_kv")."""
    name = key.strip().lower()
    name = _ALIASES.get(name, "fp8" if name.startswith(("fp8", "float8")) else name)
    found = KV_FORMATS.get(name)
    if found is None:
        raise PlanError("format.unknown_kv", field="kv_cache_dtype", text=key[:40], candidates=", ".join(KV_FORMATS))
    return found
