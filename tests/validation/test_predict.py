"""From case to plan to scored values, with the calculator's answer replaced by a fixed bill."""

from __future__ import annotations

import pytest

from calculator.bill import Bill, Item, Phase, Range, ServingFigures
from calculator.errors import PlanError
from calculator.sources import Source
from calculator.text import text
from validation import facts, lab, run, serving, training
from validation.models import arch_class, shape_of
from validation.plans import serving_plan, training_plan
from validation.rows import Row, packaged


def made_bill(*, end: int | None = None, figures: ServingFigures | None = None) -> Bill:
    item = Item(
        key="parameters", bytes=10, max_bytes=10, low=10, high=10, phases=("forward",), formula=text("x"),
        basis="computed", source=Source(title="test"),
    )  # fmt: skip
    phases = [Phase(name="forward", allocated_bytes=9, items={}), Phase(name="optimizer", allocated_bytes=10, items={})]
    if end is not None:
        phases.append(Phase(name="end", allocated_bytes=end, items={}))
    return Bill(
        items=(item,), phases=tuple(phases), peak_phase="optimizer", allocated=Range.exact(10),
        reserved=Range(value=14, low=12, high=16), process=Range(value=20, low=18, high=25),
        need=Range(value=15, low=13, high=17), capacity_bytes=100, verdict="tight", serving=figures,
    )  # fmt: skip


CASE = {
    "id": "c", "source": "https://example.org/x", "source_group": "x", "model": "meta-llama/Llama-2-7b-hf",
    "framework": "hf_trainer", "framework_version": "transformers 4.45.2, torch 2.4.1", "method": "lora",
    "adapter": {"rank": 8, "targets": ["q", "v"], "train_embeddings": False}, "precision": "bf16",
    "optimizer": "adamw_foreach", "micro_batch": 2, "seq_len": 1024, "gpu": "a100-80gb",
    "gpu_capacity_bytes": 84_986_665_370, "n_gpus": 1, "sharding": "none", "fits": True, "complete": True,
    "measured": {"peak_allocated_bytes": 8, "peak_reserved_bytes": 15, "process_bytes": 30, "end_allocated_bytes": 4,
                 "unspecified_bytes": 28, "peak_active_bytes": 11},
    "score": ["peak_allocated_bytes", "peak_reserved_bytes", "process_bytes", "end_allocated_bytes",
              "unspecified_bytes", "peak_active_bytes"],
}  # fmt: skip


def row(**changes) -> Row:
    return Row(kind="training", id="c", data=CASE | changes)


@pytest.fixture
def fixed(monkeypatch):
    monkeypatch.setattr(training, "predicted_bill", lambda *_, **__: made_bill(end=5))


def test_each_reading_is_held_against_its_own_total(fixed):
    found = {v.key: (v.measured, v.predicted, v.low, v.high) for v in training.predict(row()).scored}
    assert found == {
        "peak_allocated_bytes": (8, 10, 10, 10),
        "peak_reserved_bytes": (15, 14, 12, 16),
        "process_bytes": (30, 20, 18, 25),
        "end_allocated_bytes": (4, 5, 5, 5),
        "unspecified_bytes": (28, 14, 10, 25),
        "peak_active_bytes": (11, 10, 10, 16),
    }


def test_the_verdict_is_kept_beside_what_happened(fixed):
    judged = training.predict(row(fits=False)).judged
    assert judged is not None
    assert (judged.ran, judged.verdict) == (False, "tight")
    assert training.predict(row(fits=None)).judged is None


def test_a_full_card_counts_for_the_verdict_only(fixed):
    outcome = training.predict(row(saturated=True))
    assert (outcome.wanted, outcome.scored) == (0, ())
    assert outcome.judged is not None


def test_a_key_without_a_figure_is_missed_alone(monkeypatch):
    monkeypatch.setattr(training, "predicted_bill", lambda *_, **__: made_bill())
    outcome = training.predict(row())
    assert [miss.key for miss in outcome.missed] == ["end_allocated_bytes"]
    assert len(outcome.scored) + len(outcome.missed) == outcome.wanted == 6


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": "nobody/knows-this"}, "validation.reason.model"),
        ({"model": None}, "validation.reason.no_model"),
        ({"seq_len": None}, "validation.reason.open"),
        ({"micro_batch": None}, "validation.reason.open"),
        ({"optimizer": "adamw_quantum"}, "validation.reason.plan"),
        ({"micro_batch": -1}, "validation.reason.plan"),
    ],
)
def test_what_cannot_be_predicted_is_listed_key_by_key_with_the_reason(fixed, changes, reason):
    outcome = training.predict(row(**changes))
    assert {miss.reason.id for miss in outcome.missed} == {reason}
    assert [miss.key for miss in outcome.missed] == CASE["score"]
    assert outcome.scored == ()


def test_a_refusal_of_the_calculator_is_a_reason_too(monkeypatch):
    def refuse(*_, **__):
        raise PlanError("training.refused", field="sharding")

    monkeypatch.setattr(training, "predicted_bill", refuse)
    assert {miss.reason.id for miss in training.predict(row()).missed} == {"validation.reason.refused"}


def test_a_row_that_breaks_everything_is_still_a_row():
    for data in ({"method": "full", "measured": 3}, CASE | {"adapter": 7, "score": 5}, CASE | {"measured": None}):
        outcome = run.predict(Row(kind="training", id="broken", data=dict(data)))
        assert outcome.missed or not outcome.wanted
    assert run.predict(Row(kind="unknown", id="u", data={})).missed[0].reason.id == "validation.reason.kind"


# --------------------------------------------------------------------------------------------------------- plans


def test_a_case_is_a_plan():
    plan = training_plan(CASE)
    assert (plan.method, plan.micro_batch, plan.seq_len, plan.adapter.targets) == ("lora", 2, 1024, ("q", "v"))
    assert (plan.transformers_version, plan.torch_version, plan.peft_version) == ("4.45.2", "2.4.1", None)
    assert (plan.gpu, plan.gpu_capacity_bytes) == ("a100-80gb-sxm4", 84_986_665_370)


def test_an_open_field_keeps_the_plans_default():
    plan = training_plan(CASE | {"loss": None, "adapter": {"rank": None, "targets": None, "train_embeddings": False}})
    assert plan.loss == "standard"
    assert plan.adapter.targets == ("all-linear",)


SERVER = {
    "engine": "vllm", "engine_version": "0.11.0", "engine_generation": "v1", "model": "Qwen/Qwen3-8B-FP8",
    "weights": "fp8", "kv_cache_dtype": "auto", "gpu": "h100-80gb", "gpu_total_bytes": 85_029_615_043, "n_gpus": 2,
    "tp": 2, "memory_fraction": 0.9, "max_model_len": 8192, "flags": {}, "observed": {}, "assumed": [],
    "measured": {}, "score": [],
}  # fmt: skip


def test_a_stored_format_is_kept_and_another_is_taken_at_load():
    stored = shape_of("Qwen/Qwen3-8B-FP8")
    plain = shape_of("Qwen/Qwen3-8B")
    assert serving_plan(SERVER, stored).weights is None
    assert serving_plan(SERVER, plain).weights == "fp8"
    assert serving_plan(SERVER | {"weights": "bf16"}, plain).weights == "bf16"
    assert serving_plan(SERVER | {"weights": "other"}, plain).weights is None


def test_a_rounded_fraction_is_replaced_by_the_exact_budget():
    shape = shape_of("Qwen/Qwen3-8B")
    observed = {"observed": {"budget_bytes": 70_000_000_000}}
    assert serving_plan(SERVER | observed, shape).memory_fraction == 0.9
    exact = serving_plan(SERVER | observed | {"assumed": ["memory_fraction"]}, shape).memory_fraction
    assert exact == pytest.approx(70_000_000_000 / 85_029_615_043)


def test_readings_over_all_devices_are_those_of_one_device():
    plan = serving_plan(SERVER | {"measured_scope": "all_gpus", "n_gpus": 8, "tp": 1}, shape_of("Qwen/Qwen3-8B"))
    assert (plan.n_gpus, plan.tp) == (1, 1)


# ------------------------------------------------------------------------------------------------------- serving

FIGURES = ServingFigures(
    weights_bytes=100, activation_bytes=20, non_torch_bytes=3, cuda_graph_bytes=5, kv_pool_bytes=400, kv_tokens=40,
    max_concurrency=4.0, bytes_per_token=10, state_bytes_per_sequence=0, budget_bytes=500, needed_pool_bytes=100,
    wished_requests=1, ranges={"kv_pool_bytes": Range(value=400, low=380, high=430)},
)  # fmt: skip


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(serving, "bill", lambda *_: made_bill(figures=FIGURES))
    monkeypatch.setattr(serving, "geometry", lambda shape, plan, gpu, pool: (pool // 10, pool / 100))


def serving_row(**changes) -> Row:
    return Row(kind="serving", id="s", data=SERVER | {"model": "Qwen/Qwen3-8B", "complete": True} | changes)


def test_geometry_divides_the_measured_pool_and_end_to_end_the_predicted_one(server):
    outcome = serving.predict(
        serving_row(
            measured={"kv_pool_bytes": 500, "kv_tokens": 51, "max_concurrency": 5.1},
            score=["kv_pool_bytes", "kv_tokens", "max_concurrency"],
        )
    )
    found = {v.key: (v.measured, v.predicted) for v in outcome.scored}
    assert found == {
        "kv_pool_bytes": (500, 400),
        "kv_tokens": (51, 50),
        "kv_tokens_end_to_end": (51, 40),
        "max_concurrency": (5.1, 5.0),
        "max_concurrency_end_to_end": (5.1, 4.0),
    }
    pool = outcome.scored[0]
    assert (pool.low, pool.high) == (380, 430)


def test_without_a_measured_pool_tokens_are_end_to_end(server):
    outcome = serving.predict(serving_row(measured={"kv_tokens": 51}, score=["kv_tokens"]))
    assert {v.key: v.predicted for v in outcome.scored} == {"kv_tokens": 40, "kv_tokens_end_to_end": 40}


def test_a_pool_on_an_unknown_card_is_not_guessed(server):
    outcome = serving.predict(
        serving_row(gpu=None, gpu_total_bytes=None, measured={"weights_bytes": 100, "kv_pool_bytes": 5},
                    score=["weights_bytes", "kv_pool_bytes"])
    )  # fmt: skip
    assert [v.key for v in outcome.scored] == ["weights_bytes"]
    assert [(m.key, m.reason.id) for m in outcome.missed] == [("kv_pool_bytes", "validation.reason.no_card")]


def test_llama_cpp_needs_no_card(server):
    outcome = serving.predict(
        serving_row(engine="llama_cpp", engine_version=None, engine_generation=None, weights="gguf:Q4_K_M", gpu=None,
                    gpu_total_bytes=None, memory_fraction=None, measured={"kv_pool_bytes": 5}, score=["kv_pool_bytes"])
    )  # fmt: skip
    assert [v.key for v in outcome.scored] == ["kv_pool_bytes"]


# --------------------------------------------------------------------------------------------------- lab and facts


def test_a_lab_step_is_a_plan():
    case = {
        "model": "llama-3.2-1b", "seq": 512, "batch": 4, "precision": "autocast", "optim": "sgd_momentum", "ckpt": True,
        "attn": "eager", "flow": "loop", "lora": {"r": 8, "targets": ["q_proj", "down_proj"]},
    }  # fmt: skip
    plan = lab.lab_plan(case, {"torch": "2.14.1+cu130", "transformers": "5.24.0"})
    assert (plan.method, plan.precision, plan.optimizer, plan.micro_batch, plan.seq_len) == (
        "lora", "amp_bf16", "sgd_momentum", 4, 512,
    )  # fmt: skip
    assert (plan.checkpointing, plan.checkpointing_reentrant, plan.attention) == ("full", False, "eager")
    assert (plan.outputs_held, plan.adapter.targets, plan.adapter_dtype) == (True, ("q", "down"), "fp32")
    assert (plan.torch_version, plan.transformers_version) == ("2.14.1", "5.24.0")


def test_lab_readings_are_those_of_the_phases():
    data = packaged("lab")[0].data
    found = lab.readings(data)
    assert found["peak"] == max(v for k, v in found.items() if k.startswith("peak_"))
    assert set(found) == set(lab.KEYS)


def test_lab_predictions_take_the_highest_phase():
    assert lab.predictions(made_bill(end=99), 7) == {
        "peak": 10, "peak_forward": 9, "peak_optimizer": 10, "saved_layers": 7,
    }  # fmt: skip


def test_a_models_own_cache_counts_windows_at_their_width():
    gemma = shape_of("google/gemma-2-2b")
    # 26 layers, every second one a window of 4096; 4 KV heads of 256, keys and values, 2 bytes
    layer = 4 * 256 * 2 * 2
    assert facts.own_cache_bytes(gemma, 8192, {"dtype": "bf16"}) == 13 * 8192 * layer + 13 * 4096 * layer


def test_a_bare_shape_has_the_parameters_of_its_sizes():
    shape = facts._bare_shape({"hidden": 1024, "layers": 2, "vocab": 1000, "intermediate": 4096, "kv_ratio": 1})
    layer = 4 * 1024 * 1024 + 3 * 1024 * 4096 + 2 * 1024
    assert shape.parameters.total == 2 * layer + 2 * 1000 * 1024 + 1024


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("meta-llama/Llama-2-7b-hf", "mha"),
        ("Qwen/Qwen3-8B", "dense_gqa"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "moe"),
        ("google/gemma-2-2b", "swa"),
        ("deepseek-ai/DeepSeek-V2-Lite-Chat", "mla"),
        ("ibm-granite/granite-4.0-tiny-preview", "hybrid"),
    ],
)
def test_architecture_classes(model, expected):
    assert arch_class(shape_of(model)) == expected
