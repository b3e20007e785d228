"""Weight bytes per rank: shards add up to the whole plus what is held more than once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculator.model.shape import ModelShape, Tensor
from calculator.model.weights import stored_weights
from calculator.serving.loaded import load
from calculator.serving.plan import ServingPlan
from calculator.serving.split import Split
from calculator.serving.weights import rank_weights, share
from tests.serving.shapes import llama
from validation.models import shape_of


def _all(shape: ModelShape) -> list[Tensor]:
    inside = [t for index in shape.order for t in shape.blocks[index].tensors]
    return [*inside, *shape.embedding, *shape.final, *(() if shape.tied else shape.head)]


def test_one_rank_holds_the_stored_bytes_and_the_padded_vocabulary() -> None:
    shape = llama(vocab_size=32001)
    padding = 2 * (32064 - 32001) * 4096 * 2
    assert load(shape, ServingPlan(), Split()).largest == stored_weights(shape).total_bytes + padding


@given(
    tp=st.sampled_from([1, 2, 4, 8, 16, 32]), pp=st.integers(1, 8), kv_heads=st.sampled_from([1, 2, 4, 8, 32]),
    tied=st.booleans(),
)  # fmt: skip
def test_shards_of_all_ranks_add_up_to_the_whole_and_the_copies(tp: int, pp: int, kv_heads: int, tied: bool) -> None:
    shape = llama(num_key_value_heads=kv_heads, tie_word_embeddings=tied, num_hidden_layers=10)
    found = load(shape, ServingPlan(), Split(tp=tp, pp=pp))
    copies = 0.0
    for tensor in _all(shape):
        size = 2 * tensor.elements
        if tensor.split == "none":
            copies += (tp - 1) * size
        elif tensor.split == "kv":
            copies += (max(tp // kv_heads, 1) - 1) * size
    if tied and pp > 1:
        copies += sum(2 * t.elements for t in shape.embedding)
    whole = sum(2 * t.elements for t in _all(shape))
    assert tp * sum(found.stages) == pytest.approx(whole + copies, abs=tp * pp)


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8]))
def test_expert_ranks_share_experts_whichever_way_they_are_cut(tp: int, dp: int) -> None:
    shape = shape_of("Qwen/Qwen3-30B-A3B")
    by_width, by_expert = Split(tp=tp, dp=dp), Split(tp=tp, dp=dp, ep=tp * dp)
    experts = [t for index in shape.order for t in shape.blocks[index].tensors if t.component == "experts"]
    assert experts
    for split in (by_width, by_expert):
        assert {share(t, split, 4) for t in experts} == {1 / (tp * dp)}


def test_layers_of_different_formats_are_asked_one_by_one() -> None:
    shape = llama(num_hidden_layers=4)

    def size(tensor: Tensor, layer: int | None) -> float:
        return 0.0 if layer is None else tensor.elements * (4 if layer == 0 else 1)

    found = rank_weights(shape, Split(pp=4), size, by_layer=True, padding=64)
    assert found.stages[0] == 4 * found.stages[1]


def test_headers_replace_computed_bytes_by_component() -> None:
    shape = llama()
    plain = stored_weights(shape)
    doubled = plain.model_copy(
        update={
            "basis": "header", "by_component": {**plain.by_component, "mlp": 2 * plain.by_component["mlp"]},
            "total_bytes": plain.total_bytes + plain.by_component["mlp"],
        }
    )  # fmt: skip
    assert load(shape, ServingPlan(), Split(), doubled).largest == doubled.total_bytes


# Printed by vLLM 0.11 and 0.19 as "Model loading took", in GiB, on H100
# (https://github.com/llm-d-incubation/llm-d-planner; blog and issue figures for gpt-oss on Marlin).
LOADED = [
    ("meta-llama/Llama-3.1-8B-Instruct", {"tp": 1}, 14.99),
    ("meta-llama/Llama-3.1-8B-Instruct", {"tp": 2}, 7.51),
    ("meta-llama/Llama-3.1-8B-Instruct", {"tp": 4}, 3.77),
    ("meta-llama/Llama-3.1-8B-Instruct", {"pp": 4}, 4.26),
    ("meta-llama/Llama-3.1-8B-Instruct", {"weights": "fp32"}, 29.98),
    ("meta-llama/Llama-3.1-8B-Instruct", {"weights": "fp8"}, 8.49),
    ("Qwen/Qwen3-8B", {"pp": 3}, 5.48),
    ("Qwen/Qwen3-32B", {"tp": 2}, 30.59),
    ("Qwen/Qwen3-0.6B", {}, 1.12),
    ("openai/gpt-oss-20b", {}, 13.47),
    ("openai/gpt-oss-120b", {}, 64.38),
    ("openai/gpt-oss-120b", {"kernel": "marlin"}, 65.97),
]


@pytest.mark.parametrize(("model", "fields", "printed_gib"), LOADED)
def test_loaded_weights_as_printed(model: str, fields: dict[str, object], printed_gib: float) -> None:
    from calculator.hardware import find
    from calculator.serving import bill

    plan = ServingPlan.model_validate({"engine_version": "0.19.0", "n_gpus": 8, "max_model_len": 8192, **fields})
    serving = bill(shape_of(model), plan, find("h100-80gb-sxm")).serving
    assert serving is not None
    assert serving.weights_bytes / 2**30 == pytest.approx(printed_gib, rel=0.005)
