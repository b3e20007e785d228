"""Host memory: what offload moves there, what loading takes, and that nothing is lost on the way."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculator.bill import Bill, HostBill
from calculator.hardware import resolve
from calculator.lookup import load_preset
from calculator.training import bill, timeline
from calculator.training.host import power_of_two
from calculator.training.plan import TrainingPlan
from tests.training.shapes import shape

LLAMA = load_preset("llama-3.1-8b").shape
PARAMS = LLAMA.parameters.total
GPU = resolve("h100-80gb-sxm")
ZERO = {"sharding": "zero3", "n_gpus": 8, "precision": "mixed_bf16", "framework": "deepspeed"}


def made(model: Any = LLAMA, **changes: Any) -> Bill:
    return bill(model, TrainingPlan.model_validate({"seq_len": 1024} | changes), GPU)


def host(model: Any = LLAMA, **changes: Any) -> HostBill:
    found = made(model, **changes).host
    assert found is not None
    return found


def held(found: HostBill) -> dict[str, int]:
    """Bytes of one process while it trains, roundings left out."""
    return {i.key: i.process.value for i in found.items if i.phase == "train" and not i.key.endswith("rounding")}


@pytest.mark.parametrize(
    ("sharding", "offload", "accumulated", "each"),
    [
        ("zero2", ["optimizer"], 1, 18),
        ("zero2", ["optimizer"], 4, 20),
        ("zero3", ["optimizer"], 1, 18),
        ("zero3", ["optimizer", "parameters"], 1, 20),
    ],
)
def test_zero_offload_bytes_a_parameter(sharding: str, offload: list[str], accumulated: int, each: int) -> None:
    """ZeRO-Offload's host side: master 4, moments 8, fp32 gradient 4, 16-bit buffer 2, parameters 2."""
    found = held(host(**ZERO | {"sharding": sharding}, offload=offload, grad_accum=accumulated))
    assert sum(found.values()) * 8 / PARAMS == pytest.approx(each, rel=2e-3)


@given(
    sharding=st.sampled_from(["zero1", "zero2", "zero3"]),
    optimizer=st.sampled_from(["adamw_fused", "adamw_loop", "sgd_momentum", "sgd", "adafactor", "muon"]),
    n_gpus=st.sampled_from([2, 8, 16]),
    name=st.sampled_from(["llama", "tied", "mixtral"]),
)
def test_states_are_on_one_side_or_the_other(sharding: str, optimizer: str, n_gpus: int, name: str) -> None:
    """What leaves the card arrives on the host, to the byte."""
    fields = ZERO | {"sharding": sharding, "optimizer": optimizer, "n_gpus": n_gpus}
    without, offloaded = made(shape(name), **fields), made(shape(name), **fields, offload=["optimizer"])
    card = {i.key: i.bytes for i in without.items}.get("optimizer_states", 0)
    assert "optimizer_states" not in {i.key for i in offloaded.items if i.bytes}
    assert offloaded.host is not None
    moved = held(offloaded.host)
    assert moved.get("optimizer_states", 0) + moved.get("master_weights", 0) == card
    assert not [i for i in (without.host.items if without.host else ()) if i.phase == "train"]


def test_offloaded_weights_are_those_of_the_shards() -> None:
    fsdp = {"sharding": "fsdp2", "n_gpus": 8, "precision": "fsdp_mixed_bf16"}
    card = {i.key: i.bytes for i in made(**fsdp).items}
    moved = held(host(**fsdp, offload=["parameters"]))
    assert moved["parameters"] == card["parameters"]
    assert moved["optimizer_states"] == card["optimizer_states"]
    assert moved["gradients"] == pytest.approx(4 * PARAMS / 8, rel=1e-3)
    assert moved == held(host(**fsdp, offload=["parameters", "optimizer"]))


@pytest.mark.parametrize("framework", ["unsloth", "torchtune", "llamafactory"])
def test_offloaded_checkpoints_are_those_that_left_the_card(framework: str) -> None:
    """All layers' inputs, 2048 tokens × 4096 × 2 bytes, but the first's, which the model holds, and the last's."""
    fields = {"framework": framework, "seq_len": 2048, "loss": "fused_linear_ce"}
    found = host(**fields, checkpointing="offloaded")
    moved = next(i for i in found.items if i.key == "activations")
    assert moved.process.value == 30 * 2048 * 4096 * 2
    assert moved.residence == ("pageable" if framework == "llamafactory" else "pinned")


def test_pinned_blocks_are_powers_of_two() -> None:
    assert [power_of_two(n) for n in (1, 2, 3, 4096, 4097)] == [1, 2, 4, 4096, 8192]
    even = host(framework="torchtune", checkpointing="offloaded", seq_len=2048)
    odd = host(framework="torchtune", checkpointing="offloaded", seq_len=2049)
    rounding = [next((i.process.value for i in b.items if i.key == "pinned_rounding"), 0) for b in (even, odd)]
    assert rounding == [0, 30 * (2 * 2048 * 8192 - 2049 * 8192)]


@given(seq_len=st.integers(1, 4096), longer=st.integers(0, 4096))
def test_longer_sequences_never_take_less(seq_len: int, longer: int) -> None:
    one, more = (
        host(shape("llama"), seq_len=n, checkpointing="offloaded", framework="unsloth")
        for n in (seq_len, seq_len + longer)
    )
    assert one.process.value <= more.process.value
    assert held(one).get("activations", 0) <= held(more).get("activations", 0)


@pytest.mark.parametrize("optimizer", ["paged_adamw_8bit", "paged_adamw_32bit"])
def test_paged_states_may_be_on_either_side(optimizer: str) -> None:
    found = next(i for i in host(method="full", optimizer=optimizer).items if i.key == "paged_states")
    each = {"paged_adamw_8bit": 2, "paged_adamw_32bit": 8}[optimizer]
    assert found.residence == "managed"
    assert (found.process.low, found.process.high) == (0, found.process.value)
    # transformers gives embeddings fp32 states.
    assert found.process.value == pytest.approx(each * PARAMS, rel=0.4 if each == 2 else 1e-3)


# ---------------------------------------------------------------------------------------------------- loading


def test_without_offload_there_is_the_loading_copy_alone() -> None:
    plain = made()
    assert plain.host is not None
    assert [i.phase for i in plain.host.items] == ["load"]
    assert plain.host.process.value == 2 * PARAMS
    assert not plain.host.notable(plain.capacity_bytes)


def test_every_rank_loads_the_whole_model_unless_told_otherwise() -> None:
    found = host(sharding="fsdp2", n_gpus=64)
    assert (found.processes, found.process.value, found.node.value) == (8, 2 * PARAMS, 16 * PARAMS)
    assert found.node.low == 2 * PARAMS
    seventy = made(load_preset("llama-3.1-70b").shape, sharding="fsdp2", n_gpus=8)
    assert seventy.host is not None
    assert seventy.host.notable(seventy.capacity_bytes)  # 1.1 TB on a node whose cards hold 0.64


@pytest.mark.parametrize("n_gpus", [2, 8, 32])
def test_under_zero_3_one_process_reads_one_file(n_gpus: int) -> None:
    found = host(**ZERO | {"n_gpus": n_gpus})
    assert found.process == found.node
    assert found.process.value == 5 * 10**9


def test_a_base_packed_on_the_fly_is_never_whole_on_the_host() -> None:
    found = host(method="qlora", base_quant="nf4")
    assert found.process.value == 2 * 128_256 * 4096


@pytest.mark.parametrize("framework", ["megatron", "torchtitan"])
def test_weights_made_on_the_card_are_not_on_the_host(framework: str) -> None:
    assert made(framework=framework).host is None


@pytest.mark.parametrize("n_gpus", [1, 2, 8, 64])
def test_a_node_has_as_many_processes_as_cards(n_gpus: int) -> None:
    found = host(n_gpus=n_gpus, sharding="ddp" if n_gpus > 1 else "none", offload=["optimizer"])
    assert found.processes == min(8, n_gpus)
    assert all(i.node.value == found.processes * i.process.value for i in found.items)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        ZERO | {"offload": ["optimizer", "parameters"]},
        {"sharding": "fsdp1", "n_gpus": 2, "offload": ["parameters"]},
        {"optimizer": "paged_adamw_8bit"},
        {"checkpointing": "offloaded", "framework": "unsloth"},
    ],
)
def test_totals_are_those_of_the_fuller_phase(changes: dict[str, Any]) -> None:
    found = host(**changes)
    sums = {p: sum(i.node.value for i in found.items if i.phase == p) for p in ("load", "train")}
    assert found.node.value == max(sums.values()) == sums[found.peak_phase]
    assert all(i.process.low <= i.process.value <= i.process.high <= i.node.high for i in found.items)


# ------------------------------------------------------------------------------------------- loading on the card

EMBEDDING, LINEAR = 128_256 * 4096, 32 * (4096 * (2 * 4096 + 2 * 1024 + 3 * 14336))


def loading_peak(**changes: Any) -> dict[str, int]:
    found = made(**{"method": "qlora", "base_quant": "nf4", "seq_len": 128, "loss": "fused_linear_ce"} | changes)
    return dict(next(p for p in found.phases if p.name == "load").items)


def test_kbit_preparation_casts_what_is_not_packed() -> None:
    """Packed base, embedding, head and norms in 16 bit; then all those in fp32 with the head's 16 bits still there."""
    items = loading_peak(kbit_prepared=True)
    norms = 65 * 4096
    packed = LINEAR // 2 + LINEAR // 64 * 4
    assert items["parameters"] == pytest.approx(packed + 2 * (2 * EMBEDDING + norms), rel=1e-3)
    assert items["loading_copies"] == 2 * (2 * EMBEDDING + norms) + 2 * EMBEDDING
    assert set(items) == {"parameters", "loading_copies"}


def test_loading_can_be_the_peak_of_a_short_run() -> None:
    short = {"method": "qlora", "base_quant": "nf4", "kbit_prepared": True, "seq_len": 128, "loss": "fused_linear_ce"}
    found = made(**short)
    assert found.peak_phase == "load"
    assert found.allocated.value == sum(loading_peak(kbit_prepared=True).values())
    points = timeline(LLAMA, TrainingPlan.model_validate(short), GPU)
    assert sum(points[0].items.values()) == max(sum(p.items.values()) for p in points) == found.allocated.value
    long = made(**short | {"seq_len": 8192, "micro_batch": 8})
    assert long.peak_phase != "load"


def test_packing_on_the_fly_needs_one_matrix_more() -> None:
    """It is below what waits at a step's beginning (states, adapters) unless those are small."""
    small = {"adapter": {"rank": 1, "targets": ["q"]}, "adapter_dtype": "bf16"}
    assert loading_peak(**small)["loading_copies"] == 2 * 4096 * 14336


@pytest.mark.parametrize("changes", [{}, {"method": "lora"}, {"sharding": "fsdp2", "n_gpus": 8}])
def test_plain_loading_is_no_more_than_the_weights(changes: dict[str, Any]) -> None:
    assert "loading_copies" not in {i.key for i in made(**changes).items}
