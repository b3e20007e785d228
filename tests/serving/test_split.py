"""Which divisions of a model are possible, and what each rank gets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculator.errors import PlanError
from calculator.serving.plan import ServingPlan
from calculator.serving.split import Split, kv_heads_per_rank, split_of, stages
from tests.serving.shapes import llama


@given(st.integers(1, 200), st.integers(1, 16))
def test_stages_cover_every_layer_once_and_differ_by_one(layers: int, pp: int) -> None:
    pp = min(pp, layers)
    spans = stages(layers, pp)
    assert [layer for span in spans for layer in span] == list(range(layers))
    sizes = [len(span) for span in spans]
    assert max(sizes) - min(sizes) <= 1


def test_the_remainder_goes_to_the_stages_before_the_last() -> None:
    # vllm/distributed/utils.py, get_pp_indices (0.19.1).
    assert [len(span) for span in stages(38, 4)] == [9, 10, 10, 9]
    assert [len(span) for span in stages(36, 8)] == [4, 4, 4, 5, 5, 5, 5, 4]
    assert [len(span) for span in stages(61, 4)] == [15, 15, 16, 15]


def test_a_partition_replaces_the_even_split() -> None:
    assert [len(span) for span in stages(48, 2, (16, 32))] == [16, 32]
    for wrong in [(16, 31), (48,), (0, 48), (16, 16, 16)]:
        with pytest.raises(PlanError) as caught:
            stages(48, 2, wrong)
        assert caught.value.field == "pp_layer_partition"


@pytest.mark.parametrize(("kv_heads", "tp", "expected"), [(8, 1, 8), (8, 2, 4), (8, 8, 1), (4, 8, 1), (1, 8, 1)])
def test_kv_heads_are_copied_where_ranks_outnumber_them(kv_heads: int, tp: int, expected: int) -> None:
    assert kv_heads_per_rank(kv_heads, tp) == expected


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"tp": 3, "n_gpus": 3}, "tp"),
        ({"tp": 64, "n_gpus": 64}, "tp"),
        ({"pp": 33, "n_gpus": 33}, "pp"),
        ({"tp": 4, "n_gpus": 2}, "n_gpus"),
        ({"tp": 4, "dcp": 3, "n_gpus": 4}, "dcp"),
        ({"ep": 2, "tp": 2, "n_gpus": 2}, "ep"),
        ({"engine": "sglang", "ep": 2, "tp": 2, "n_gpus": 2}, "ep"),
        ({"engine": "tgi", "pp": 2, "n_gpus": 2}, "pp"),
        ({"engine": "lmdeploy", "pp": 2, "n_gpus": 2}, "pp"),
        ({"engine": "sglang", "dp": 2, "dp_attention": True, "n_gpus": 2}, "dp"),
        ({"engine": "tensorrt_llm", "tp": 4, "dp": 2, "dp_attention": True, "n_gpus": 8}, "dp"),
    ],
)
def test_impossible_divisions_name_the_degree(fields: dict[str, int], field: str) -> None:
    with pytest.raises(PlanError) as caught:
        split_of(ServingPlan(**fields), llama())
    assert caught.value.field == field


def test_heads_that_do_not_divide_say_which_degrees_do() -> None:
    with pytest.raises(PlanError) as caught:
        split_of(ServingPlan(tp=8, n_gpus=8), llama(num_attention_heads=28, num_key_value_heads=4, hidden_size=3584))
    assert caught.value.message.values["legal"] == "1, 2, 4"


def test_data_parallelism_divides_nothing_in_a_dense_model() -> None:
    assert split_of(ServingPlan(dp=4, tp=2, n_gpus=8), llama()) == Split(tp=2)
