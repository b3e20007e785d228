"""Pictures and videos in vLLM: printed budgets and items, measured peaks, and what is refused."""

from typing import Any

import pytest

from calculator.bill import Bill
from calculator.errors import PlanError
from calculator.hardware import find, resolve
from calculator.model.shape import ModelShape
from calculator.serving import bill
from calculator.serving.command import parse_command
from calculator.serving.engines.vllm_multimodal import items, limits
from calculator.serving.plan import ServingPlan
from tests.serving.shapes import llama
from validation.models import shape_of

GIB = 2**30
QWEN = shape_of("Qwen/Qwen2.5-VL-7B-Instruct")
GEMMA = shape_of("google/gemma-4-31B")


def plan_for(version: str = "0.22.0", **fields: Any) -> ServingPlan:
    return ServingPlan(engine_version=version, **fields)


# Start-ups print "Encoder cache will be initialized with a budget of {} tokens, and profiled with {} {} items".
@pytest.mark.parametrize(
    ("shape", "limit", "context", "tokens", "expected"),
    [
        (QWEN, None, 131_072, 2048, (114_688, 1, "video")),  # vLLM 0.22 on an A100
        (QWEN, None, 128_000, 8192, (98_304, 1, "video")),  # vLLM 0.8, six pairs of frames beside a picture
        (QWEN, {"video": 0}, 2048, 2048, (16_384, 1, "image")),  # vLLM 0.9.0.1 on an L4
        (GEMMA, None, 131_072, 8192, (8192, 3, "video")),
        (GEMMA, {"image": 8, "video": 0}, 131_072, 8192, (8192, 29, "image")),
        (GEMMA, None, 131_072, 16_384, (16_384, 6, "video")),
        (GEMMA, None, 131_072, 2048, (2496, 1, "video")),
    ],
)
def test_budgets_and_items_as_printed(
    shape: ModelShape, limit: dict[str, int] | None, context: int, tokens: int, expected: tuple[int, int, str]
) -> None:
    allowed = limits(shape, plan_for(limit_mm_per_prompt=limit), "v1")
    found = items(shape, allowed, seqs=256, tokens=tokens, context=context)
    assert found is not None
    assert (found.budget, found.count, found.modality) == expected


def peak(result: Bill) -> int:
    assert result.serving is not None
    return result.serving.activation_bytes + result.serving.non_torch_bytes


def test_a_long_video_takes_what_a_start_printed() -> None:
    # A100 80 GB at 0.22 of 79.25 GiB: weights 15.67, graphs 0.53, pool -14.28, which leaves 15.51 GiB.
    plan = plan_for(
        max_model_len=128_000 + 16_384, longer_context=True, max_num_batched_tokens=2048, memory_fraction=0.22
    )
    result = bill(QWEN, plan, resolve("a100-80gb-sxm4", int(79.25 * GIB)))
    assert peak(result) / GIB == pytest.approx(15.51, rel=0.05)
    cache = next(i for i in result.items if i.key == "encoder_cache")
    assert cache.bytes == 2 * 3584 * 114_688


def test_forbidding_videos_and_pictures_gives_the_memory_back() -> None:
    card = find("h100-80gb-sxm")
    pools, weights = [], []
    for limit in (None, {"video": 0}, {"image": 0, "video": 0}):
        figures = bill(QWEN, plan_for("0.33.0", max_model_len=128_000, limit_mm_per_prompt=limit), card).serving
        assert figures is not None
        pools.append(figures.kv_pool_bytes)
        weights.append(figures.weights_bytes)
    assert pools[0] < pools[1] < pools[2]
    assert weights[0] == weights[1]
    tower = 2 * (sum(t.elements for v in QWEN.towers for t in v.tensors) + sum(t.elements for t in QWEN.projector))
    assert weights[1] - weights[2] == pytest.approx(tower, rel=0.01)


@pytest.mark.parametrize(("limit", "key"), [
    ({"pictures": 1}, "serving.mm_modality"), ({"image": -1}, "serving.mm_count"), ({"": 0}, "serving.mm_modality"),
])  # fmt: skip
@pytest.mark.parametrize("shape", [QWEN, llama()])
def test_junk_is_refused_by_name(limit: dict[str, int], key: str, shape: ModelShape) -> None:
    with pytest.raises(PlanError) as caught:
        bill(shape, plan_for(limit_mm_per_prompt=limit, max_model_len=8192), find("h100-80gb-sxm"))
    assert caught.value.key == key
    assert caught.value.field == "limit_mm_per_prompt"


def test_more_items_than_a_step_holds_change_nothing() -> None:
    allowed = limits(GEMMA, plan_for(limit_mm_per_prompt={"image": 500}), "v1")
    one = limits(GEMMA, plan_for(limit_mm_per_prompt={"image": 1}), "v1")
    found = [items(GEMMA, a, seqs=256, tokens=8192, context=8192) for a in (allowed, one)]
    assert found[0] == found[1]
    # Few sequences of one picture each do not fill the budget.
    few = items(GEMMA, {"image": 1}, seqs=4, tokens=8192, context=8192)
    assert few is not None
    assert few.count == 4


def test_options_beside_a_count_are_read() -> None:
    read = parse_command(
        """vllm serve m --limit-mm-per-prompt '{"image": 2, "video": {"count": 1, "num_frames": 8}}'"""
    )
    assert read.plan().limit_mm_per_prompt == {"image": 2, "video": 1}
