"""Laws that hold whatever the numbers are."""

import gc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calculator.bill import Bill
from calculator.errors import PlanError
from calculator.model import read
from calculator.presets import preset
from calculator.training import bill, check, timeline
from calculator.training.holdings import units
from calculator.training.parallel import Degrees, parts_of
from calculator.training.step import step
from tests.training.shapes import A100, CONFIGS, plan, shape

names = st.sampled_from(sorted(CONFIGS))
plans = st.fixed_dictionaries({
    "method": st.sampled_from(["full", "lora"]),
    "precision": st.sampled_from(["bf16", "amp_bf16", "fp32", "mixed_bf16"]),
    "optimizer": st.sampled_from(["adamw_foreach", "adamw_fused", "adamw_8bit", "sgd", "adafactor", "lion", "muon"]),
    "checkpointing": st.sampled_from(["none", "full", "offloaded"]),
    "checkpointing_reentrant": st.booleans(),
    "attention": st.sampled_from(["sdpa", "flash", "eager"]),
    "micro_batch": st.integers(1, 4),
    "seq_len": st.sampled_from([64, 128, 256]),
    "grad_accum": st.integers(1, 2),
    "loss": st.sampled_from(["standard", "fused_ce", "fused_linear_ce", "chunked"]),
    "framework": st.sampled_from(["hf_trainer", "plain_torch", "torchtune", "litgpt"]),
})  # fmt: skip


def made(name: str, **changes: Any) -> Bill:
    return bill(shape(name), plan(**changes), A100)


@settings(deadline=None, max_examples=60)
@given(names, plans)
def test_items_add_up_and_nothing_is_negative(name: str, changes: dict[str, Any]) -> None:
    b = made(name, **changes)
    for phase in b.phases:
        assert sum(phase.items.values()) == phase.allocated_bytes
        assert all(size > 0 for size in phase.items.values())
    for item in b.items:
        assert 0 <= item.bytes <= item.max_bytes or item.layer != "tensor"
    peak = max(phase.allocated_bytes for phase in b.phases)
    assert b.allocated.value == peak
    points = timeline(shape(name), plan(**changes), A100)
    assert max(sum(point.items.values()) for point in points) == peak
    assert all(size >= 0 for point in points for size in point.items.values())
    highest: dict[str, int] = {}
    for point in points:
        highest[point.phase] = max(highest.get(point.phase, 0), sum(point.items.values()))
    assert highest == {phase.name: phase.allocated_bytes for phase in b.phases if phase.name != "end"}


@settings(deadline=None, max_examples=40)
@given(names, plans)
def test_every_tensor_that_a_step_makes_leaves_again(name: str, changes: dict[str, Any]) -> None:
    """After a step what is left is what was there before it, and gradients have gone."""
    program = step(shape(name), plan(**changes), A100).program
    left = dict(program.start)
    for stage in program.stages:
        for key, net in stage.events.net_by_key.items():
            left[key] = left.get(key, 0) + net
    grown = {key: size - program.start.get(key, 0) for key, size in left.items() if size != program.start.get(key, 0)}
    assert all(abs(size) <= 16 * 512 for size in grown.values()), grown


@pytest.mark.parametrize("key", ["nemotron-3-nano-30b", "granite-4.0-h-small", "qwen3-next-80b"])
def test_no_temporary_outlives_its_layer(key: str) -> None:
    """Nor does one wait for Python's garbage collector, which would make a recording a matter of chance."""
    gc.disable()
    try:
        program = step(read(preset(key).config()), plan(checkpointing="none", seq_len=777), A100).program
    finally:
        gc.enable()
    for stage in program.stages:
        if (stage.phase, stage.name) == ("forward", "layer"):
            assert not stage.events.net_by_key.get("live_layer"), stage.unit


@settings(deadline=None, max_examples=30)
@given(names, plans, st.sampled_from(["micro_batch", "seq_len"]))
def test_memory_does_not_fall_when_the_batch_grows(name: str, changes: dict[str, Any], field: str) -> None:
    more = changes | {field: changes[field] * 2}
    # One sequence may be viewed where several are copied; a length beyond the window switches kernels.
    if field == "micro_batch" and changes["micro_batch"] == 1:
        more = changes | {"micro_batch": 4}
    assert made(name, **more).allocated.value >= made(name, **changes).allocated.value


@pytest.mark.parametrize("rank", [4, 16, 64])
def test_memory_grows_with_the_adapters_rank(rank: int) -> None:
    low = made("llama", method="lora", adapter={"rank": rank})
    high = made("llama", method="lora", adapter={"rank": 2 * rank})
    assert high.allocated.value > low.allocated.value


@pytest.mark.parametrize("name", ["llama", "neox", "mixtral"])
def test_memory_grows_with_layers(name: str) -> None:
    key = "num_hidden_layers"
    sizes = [bill(shape(name, **{key: count}), plan(), A100).allocated.value for count in (1, 2, 4, 8)]
    assert sizes == sorted(set(sizes))


SIZES_OF_ONE = {"tp": 1, "pp": 1, "vpp": 1, "cp": 1, "ep": 1, "expert_tp": 1, "n_gpus": 1}


@pytest.mark.parametrize(
    "sharding", ["ddp", "zero1", "zero2", "zero3", "fsdp1", "fsdp2", "hsdp", "distributed_optimizer"]
)
@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_sharding_over_one_rank_is_no_sharding(name: str, sharding: str) -> None:
    alone = made(name, grad_accum=2)
    degenerate = made(name, grad_accum=2, sharding=sharding, hsdp_shard_size=1, **SIZES_OF_ONE)
    assert {i.key: i.bytes for i in degenerate.items} == {i.key: i.bytes for i in alone.items}


@pytest.mark.parametrize("name", ["llama", "tied", "mixtral"])
@pytest.mark.parametrize("stages", [2])
def test_pipeline_stages_hold_the_whole_model(name: str, stages: int) -> None:
    p = plan(pp=stages, n_gpus=stages)
    parts = parts_of(shape(name), p)
    assert tuple(i for part in parts for i in part.layers) == shape(name).order
    assert [part.embedding for part in parts] == [True] + [False] * (stages - 1)
    assert [part.head for part in parts] == [False] * (stages - 1) + [True]


def elements(name: str, degrees: Degrees) -> int:
    found = units(shape(name), degrees=degrees)
    groups = [found.embedding, found.final, found.head, *(found.blocks[i] for i in shape(name).order)]
    return sum(w.elements for group in groups for w in group)


@pytest.mark.parametrize("name", ["llama", "mixtral"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_tensor_shards_add_up_to_the_whole(name: str, ranks: int) -> None:
    """All ranks together hold every split weight once and every unsplit one (norms, routers) once each."""
    whole, part = elements(name, Degrees()), elements(name, Degrees(ranks, 1, ranks))
    model = shape(name)
    unsplit = sum(t.elements for b in (model.blocks[i] for i in model.order) for t in b.tensors if t.split == "none")
    unsplit += sum(t.elements for t in model.final if t.split == "none")
    assert ranks * (part - unsplit) + unsplit == whole


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_expert_shards_add_up_to_the_whole(ranks: int) -> None:
    whole, part = elements("mixtral", Degrees()), elements("mixtral", Degrees(1, ranks, 1))
    model = shape("mixtral")
    experts = sum(t.elements for b in (model.blocks[i] for i in model.order) for t in b.tensors if t.split == "expert")
    assert part == whole - experts + experts // ranks


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("sharding", ["fsdp1", "fsdp2", "zero3"])
def test_sharded_weights_and_states_add_up(sharding: str, ranks: int) -> None:
    alone = {p.name: p.items for p in made("llama", optimizer="adamw_fused").phases}["load"]
    shard = {p.name: p.items for p in made("llama", optimizer="adamw_fused", sharding=sharding, n_gpus=ranks).phases}[
        "load"
    ]
    for key in ("parameters", "optimizer_states"):
        assert alone[key] <= ranks * shard[key] < alone[key] + 512 * ranks


def test_the_worst_rank_is_named() -> None:
    b = made("llama", pp=4, n_gpus=4, micro_batches=8, pp_schedule="1f1b", framework="megatron")
    assert set(b.rank_spread) == {"pp0", "pp1", "pp2", "pp3"}
    assert b.rank_spread[b.rank] == max(b.rank_spread.values()) == b.allocated.value


@pytest.mark.parametrize(("changes", "field"), [
    ({"base_quant": "nf4"}, "base_quant"), ({"method": "qlora"}, "base_quant"), ({"n_gpus": 3, "tp": 2}, "n_gpus"),
    ({"pp": 8, "n_gpus": 8}, "pp"), ({"ep": 2, "n_gpus": 2}, "ep"), ({"tp": 3, "n_gpus": 3}, "tp"),
    ({"offload": ["parameters"]}, "offload"),
    ({"sharding": "zero3", "pp": 2, "n_gpus": 4}, "sharding"), ({"cp": 3, "n_gpus": 3}, "cp"),
    ({"optimizer_in_backward": True, "grad_accum": 2}, "optimizer_in_backward"),
])  # fmt: skip
def test_an_impossible_plan_names_its_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(PlanError) as caught:
        check(shape("llama"), plan(**changes))
    assert caught.value.field == field
