"""A setting that an engine does not have is named, and really changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from calculator.errors import CalculatorError
from calculator.hardware import resolve
from calculator.lookup import load_preset
from calculator.serving import bill
from calculator.serving.plan import ServingPlan
from calculator.serving.unused import UNUSED

VALUES: dict[str, Any] = {
    "n_gpu_layers": 10, "n_ubatch": 64, "v_cache_dtype": "q4_0", "kv_unified": True, "flash_attn": True,
    "swa_full": True, "experts_on_cpu": True, "n_cpu_moe": 4, "fit": False,
    "fit_target_bytes": 1 << 30, "fit_min_context": 8192, "mmproj": "host",
    "tensor_split": (1.0,), "sampler": "torch", "runner": "v1",
    "hybrid_kv_cache_manager": False, "limit_mm_per_prompt": {"image": 0}, "free_memory_bytes": 10 << 30,
    "draft_bytes": 1 << 30, "speculative": "eagle3", "draft_model": "org/draft", "mla": False, "chunked_prefill": True,
    "chunked_prefill_size": 512, "memory_fraction": 0.5, "kv_cache_memory_bytes": 1 << 30, "block_size": 64, "dcp": 2,
    "dp": 2, "ep": 2, "dp_attention": True, "draft_tokens": 3,
    "cpu_offload_bytes": 1 << 30, "kv_offload_bytes": 1 << 30,
}  # fmt: skip
CASES = [(engine, name) for engine, names in UNUSED.items() for name in names]


@pytest.mark.parametrize(("engine", "name"), CASES)
def test_what_is_named_changes_nothing(engine: Any, name: str) -> None:
    shape, gpu = load_preset("llama-3.1-8b").shape, resolve("h100-80gb-sxm")
    plain = bill(shape, ServingPlan(engine=engine, max_model_len=8192), gpu)
    try:
        found = bill(shape, ServingPlan(engine=engine, max_model_len=8192, **{name: VALUES[name]}), gpu)
    except CalculatorError:
        return  # refused by name: not silent either
    assert {i.key: i.bytes for i in found.items} == {i.key: i.bytes for i in plain.items}
    assert found.need == plain.need
    assert any(a.id == "serving.assume.unused" and name in str(a.values["names"]) for a in found.assumptions)
