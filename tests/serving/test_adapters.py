"""LoRA adapters on the card: sums written out, laws, and each engine's own layout."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculator.bill import Item
from calculator.hardware import find
from calculator.model.shape import ModelShape
from calculator.serving import bill
from calculator.serving.plan import Engine, ServingPlan
from tests.serving.shapes import llama
from validation.models import shape_of

H100 = find("h100-80gb-sxm")
SHAPE = llama()
LINEAR = 2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336)
"""In + out of a layer's seven matrices."""
ENDS = 2 * (128256 + 4096)
"""Embedding and head."""
ENGINES: tuple[Engine, ...] = (
    "vllm", "sglang", "tensorrt_llm", "lmdeploy", "tgi", "llama_cpp", "ollama", "transformers",
)  # fmt: skip


def slots(engine: Engine, shape: ModelShape = SHAPE, **fields: object) -> Item | None:
    plan = ServingPlan.model_validate({"engine": engine, "max_model_len": 4096, "concurrency": 2, **fields})
    return next((i for i in bill(shape, plan, H100).items if i.key == "lora"), None)


@pytest.mark.parametrize("engine", ENGINES)
def test_none_without_adapters(engine: Engine) -> None:
    assert slots(engine) is None


@pytest.mark.parametrize("engine", ["sglang", "lmdeploy", "tgi", "llama_cpp", "ollama", "transformers"])
def test_adapters_of_all_linear_layers(engine: Engine) -> None:
    item = slots(engine, max_loras=3, max_lora_rank=16)
    assert item is not None
    assert item.bytes == 3 * 16 * 2 * 32 * LINEAR


@pytest.mark.parametrize(("version", "extra"), [("0.33.0", 0), ("0.10.2", 2 * 256)])
def test_vllm_has_slots_for_embedding_and_head_too(version: str, extra: int) -> None:
    item = slots("vllm", max_loras=3, max_lora_rank=16, engine_version=version)
    assert item is not None
    assert item.bytes == 3 * 16 * 2 * (32 * LINEAR + ENDS + extra)


def test_tensorrt_llm_keeps_slots_of_the_widest_module() -> None:
    item = slots("tensorrt_llm", max_loras=2, max_lora_rank=8)
    assert item is not None
    assert item.bytes == 2 * 8 * 32 * 7 * (4096 + 14336) * 2
    assert item.low == item.bytes * 3 // 7


@pytest.mark.parametrize("tp", [1, 2, 8, 16])
def test_one_half_is_divided_among_ranks(tp: int) -> None:
    item = slots("sglang", max_loras=1, max_lora_rank=32, tp=tp, n_gpus=tp)
    assert item is not None
    kv = 1024 // min(tp, 8)
    layer = (4096 + 4096 // tp) * 2 + 2 * (4096 + kv) + 3 * (4096 + 14336 // tp)
    assert item.bytes == 32 * 2 * 32 * layer


def test_tgi_divides_both_halves() -> None:
    one, four = (slots("tgi", max_loras=1, max_lora_rank=32, tp=tp, n_gpus=tp) for tp in (1, 4))
    assert one is not None
    assert four is not None
    assert four.bytes == one.bytes // 4


@pytest.mark.parametrize(("ep", "held"), [(1, 128), (4, 32)])
def test_experts_have_slots_each(ep: int, held: int) -> None:
    shape = shape_of("Qwen/Qwen3-30B-A3B")  # 48 layers, 128 experts of width 768, hidden 2048
    plan = {"max_loras": 1, "max_lora_rank": 16, "tp": 4, "n_gpus": 4, "ep": ep}
    now, before = (slots("vllm", shape, engine_version=v, **plan) for v in ("0.33.0", "0.11.0"))
    assert now is not None
    assert before is not None
    width = 768 // (1 if ep > 1 else 4)
    extra = 2 * 256 * 16 * 2
    assert now.bytes - before.bytes + extra == 48 * held * 3 * (2048 + width) * 16 * 2


@given(st.integers(1, 64), st.sampled_from([8, 16, 64]), st.sampled_from(ENGINES))
def test_slots_are_linear_in_number_and_rank(count: int, rank: int, engine: Engine) -> None:
    one, many = slots(engine, max_loras=1, max_lora_rank=8), slots(engine, max_loras=count, max_lora_rank=rank)
    assert one is not None
    assert many is not None
    assert many.bytes == one.bytes * count * rank // 8


@pytest.mark.parametrize("engine", ["vllm", "sglang", "lmdeploy"])
def test_slots_shrink_the_pool(engine: Engine) -> None:
    pools = []
    for count in (0, 8):
        plan = ServingPlan(engine=engine, max_model_len=4096, max_loras=count, max_lora_rank=64)
        figures = bill(SHAPE, plan, H100).serving
        assert figures is not None
        pools.append(figures.kv_pool_bytes)
    item = slots(engine, max_loras=8, max_lora_rank=64)
    assert item is not None
    share = 0.8 if engine == "lmdeploy" else 1
    assert pools[0] - pools[1] == pytest.approx(share * item.bytes, abs=2)
