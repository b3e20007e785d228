"""The step written out as single events: it is the program, event by event, and its replay agrees with nvidia-smi."""

from itertools import accumulate

import pytest

from calculator import hardware, model, presets
from calculator.bill import Range
from calculator.model.shape import ModelShape
from calculator.training import bill, overheads
from calculator.training.allocator import replay
from calculator.training.parts import parts
from calculator.training.plan import Adapter, TrainingPlan
from calculator.training.program import Program
from calculator.training.reserved import reserved, settings_of
from calculator.training.sequence import GATHERING, REDUCING, Event, divide, expand
from calculator.training.step import step
from calculator.training.vocabulary import enlarged
from validation.models import shape_of
from validation.plans import training_plan
from validation.rows import packaged

GIB = 1 << 30
ROUNDING = 4096
"""Single small tensors that a program counts with others."""

LORA = {"method": "lora", "adapter": Adapter(rank=8)}
PLANS = {
    "full": ("qwen2.5-0.5b", {"micro_batch": 2, "seq_len": 1024}),
    "full, nothing recomputed": ("qwen2.5-0.5b", {"micro_batch": 2, "seq_len": 1024, "checkpointing": "none"}),
    "accumulated": ("llama-3.2-1b", {"seq_len": 512, "grad_accum": 3}),
    "lora": ("llama-3.1-8b", {**LORA, "seq_len": 2048}),
    "qlora": ("llama-3.1-8b", {**LORA, "method": "qlora", "base_quant": "nf4_dq", "seq_len": 512}),
    "eager": ("gemma-2-9b", {**LORA, "attention": "eager", "seq_len": 512}),
    "reentrant, fused loss": (
        "mistral-7b-v0.3",
        {**LORA, "loss": "fused_ce", "transformers_version": "4.45.2", "checkpointing_reentrant": True},
    ),
    "experts": ("qwen3-30b-a3b", {**LORA, "seq_len": 512}),
    "fused optimizer": ("qwen2.5-0.5b", {"optimizer": "adamw_fused"}),
    "for-loop optimizer": ("qwen2.5-0.5b", {"optimizer": "adamw_loop", "precision": "fp32"}),
    "eight-bit optimizer": ("qwen2.5-1.5b", {"optimizer": "adamw_8bit"}),
    "zero-2": ("llama-3.1-8b", {"n_gpus": 8, "sharding": "zero2"}),
    "fsdp": ("llama-3.1-8b", {"n_gpus": 8, "sharding": "fsdp2", "precision": "fsdp_mixed_bf16"}),
    "single operations kept": ("llama-3.1-8b", {"framework": "torchtitan", "checkpointing": "selective"}),
}


def written(name: str) -> tuple[list[Program], list[Event]]:
    key, fields = PLANS[name]
    shape = model.read(presets.preset(key).config())
    plan = TrainingPlan(**fields)
    gpu = hardware.resolve(plan.gpu)
    steps = [step(shape, plan.model_copy(update={"first_step": first}), gpu).program for first in (True, False)]
    return steps, expand(steps, parts(shape, plan, gpu), sharding=plan.sharding).events


def levels(events: list[Event]) -> list[int]:
    """Bytes alive after every event; a tensor is made once, and released at most once, after it was made."""
    sizes: dict[int, int] = {}
    changes = []
    for ident, size in events:
        if size:
            assert ident not in sizes
            sizes[ident] = size
            changes.append(size)
        else:
            changes.append(-sizes[ident])
            sizes[ident] = 0
    return list(accumulate(changes))


@pytest.mark.parametrize("name", PLANS)
def test_the_sequence_is_the_program(name: str) -> None:
    """Its highest level is the program's peak, and what it leaves is what the second step began with."""
    programs, events = written(name)
    alive = levels(events)
    peak = max(moment.bytes for program in programs for moment in program.moments.values())
    assert max(alive) == pytest.approx(peak, abs=ROUNDING)
    left = programs[1].start_bytes - programs[1].start.get("inputs", 0)
    assert alive[-1] == pytest.approx(left, abs=ROUNDING)


@pytest.mark.parametrize("name", ["full", "lora", "qlora"])
def test_the_replay_sees_the_same_tensors(name: str) -> None:
    """The allocator counts a large tensor with the rest of its block, up to 1 MiB, as allocated: so a little more."""
    _, events = written(name)
    alive = max(levels(events))
    stats = replay(events)
    assert alive <= stats.allocated_peak_bytes <= alive * 1.005
    assert stats.reserved_peak_bytes >= stats.allocated_peak_bytes


@pytest.mark.parametrize("sharding", ["fsdp1", "fsdp2"])
def test_gathered_weights_have_a_stream_of_their_own(sharding: str) -> None:
    """FSDP1: embedding, head and two layers, one of them still in use; FSDP2: the buffer of one layer."""
    shape = model.read(presets.preset("llama-3.1-8b").config())
    plan = TrainingPlan(n_gpus=8, sharding=sharding, precision="fsdp_mixed_bf16", seq_len=512)  # type: ignore[arg-type]
    gpu = hardware.resolve(plan.gpu)
    program = step(shape, plan, gpu).program
    found = expand([program], parts(shape, plan, gpu), sharding=sharding)
    peak, now, sizes = 0, 0, dict[int, int]()
    for ident, size in found.events:
        if found.streams.get(ident) == GATHERING:
            now += size or -sizes[ident]
            sizes[ident] = size
            peak = max(peak, now)
    layer, ends = 2 * 218_112_000, 2 * 2 * 128_256 * 4096
    assert peak == pytest.approx({"fsdp1": ends + 2 * layer, "fsdp2": layer}[sharding], rel=0.001)


def test_reduced_gradients_wait_in_the_blocks_of_their_stream() -> None:
    """An eighth of the gradients in fp32, which no freed activation makes room for."""
    shape = model.read(presets.preset("llama-3.1-8b").config())
    plan = TrainingPlan(n_gpus=8, sharding="fsdp2", precision="fsdp_mixed_bf16", seq_len=512)
    gpu = hardware.resolve(plan.gpu)
    found = expand([step(shape, plan, gpu).program], parts(shape, plan, gpu), sharding="fsdp2")
    reduced = sum(size for ident, size in found.events if found.streams.get(ident) == REDUCING)
    assert reduced == pytest.approx(4 * shape.parameters.total / 8, rel=0.001)


@pytest.mark.parametrize("name", ["lora", "full", "full, nothing recomputed", "eager"])
def test_a_brief_sequence_reserves_the_same(name: str) -> None:
    """Layers that repeat another leave out what they free themselves: the same tensors at the end, and nearly the same
    bytes reserved."""
    key, fields = PLANS[name]
    shape = model.read(presets.preset(key).config())
    plan = TrainingPlan(**fields)
    gpu = hardware.resolve(plan.gpu)
    steps = [step(shape, plan.model_copy(update={"first_step": first}), gpu).program for first in (True, False)]
    whole, brief = (expand(steps, parts(shape, plan, gpu), brief=b).events for b in (False, True))
    assert len(brief) < len(whole) / 2
    assert levels(brief)[-1] == levels(whole)[-1]
    assert replay(brief).reserved_peak_bytes == pytest.approx(replay(whole).reserved_peak_bytes, rel=0.03)


@pytest.mark.parametrize(
    ("total", "sizes", "cut"),
    [
        (0, (512,), []),
        (2048, (), [2048]),
        (1536, (512, 1024), [512, 1024]),
        (1536, (1024, 0, 512), [1024, 512]),
        (2048, (512, 1024), [512, 1024, 512]),
        (1536, (1024, 2048), [512, 1024]),
        (1537, (2048, 2048), [512, 512, 513]),
    ],
)
def test_a_sum_is_cut_into_its_parts(total: int, sizes: tuple[int, ...], cut: list[int]) -> None:
    assert divide(total, sizes) == cut


def measured_runs() -> list[dict[str, object]]:
    """Single-card runs on 16-bit weights, full and LoRA, of one release of the libraries."""
    return [
        row.data
        for row in packaged("training")
        if row.data["source_group"] == "fms"
        and row.data["n_gpus"] == 1
        and row.data["base_quant"] == "none"
        and "transformers 4.45.2" in row.data["framework_version"]
        and ("Llama-3" in row.data["model"] or "Mistral" in row.data["model"])
        and row.data["measured"].get("process_bytes")
    ]


@pytest.mark.parametrize("case", measured_runs(), ids=lambda case: str(case["id"]))
def test_it_agrees_with_nvidia_smi(case: dict[str, object]) -> None:
    """Published readings of fms-acceleration's benchmarks on one A100; reserved is 1 to 41 % over allocated in them."""
    shape, plan = shape_of(case["model"]), training_plan(case)
    gpu = hardware.resolve(plan.gpu, plan.gpu_capacity_bytes)
    process = reserved(shape, plan, gpu) + overheads.context(gpu)
    assert process.value == pytest.approx(case["measured"]["process_bytes"], rel=0.005)


def test_there_are_measured_runs() -> None:
    assert len(measured_runs()) >= 17


def test_added_tokens_lengthen_embedding_and_head() -> None:
    shape = shape_7b()
    more = enlarged(shape, 3)
    assert more.parameters.total == shape.parameters.total + 2 * 3 * shape.hidden
    assert more.vocab == shape.vocab + 3
    assert enlarged(shape, 3) is more
    assert enlarged(shape, 0) is shape
    tied = model.read(presets.preset("qwen2.5-0.5b").config())
    assert enlarged(tied, 1).parameters.total == tied.parameters.total + tied.hidden


def shape_7b() -> ModelShape:
    return model.read(presets.preset("qwen2.5-7b").config())


def test_need_and_verdict_do_not_depend_on_the_replay() -> None:
    plan = TrainingPlan(**LORA, micro_batch=2, seq_len=2048)
    gpu = hardware.resolve(plan.gpu)
    quick, full = bill(shape_7b(), plan, gpu), bill(shape_7b(), plan, gpu, replay=True)
    assert (quick.need, quick.verdict, quick.allocated) == (full.need, full.verdict, full.allocated)
    assert full.reserved != quick.reserved
    assert full.reserved.high - full.reserved.low < quick.reserved.high - quick.reserved.low


def test_a_step_that_does_not_fit_is_replayed_without_end() -> None:
    plan = TrainingPlan(micro_batch=1, seq_len=1024, gpu="rtx-4090-24gb")
    gpu = hardware.resolve(plan.gpu)
    held = reserved(shape_7b(), plan, gpu)
    assert held.value > gpu.total_bytes
    roomy = plan.model_copy(update={"gpu_capacity_bytes": 10 * gpu.total_bytes})
    assert held == reserved(shape_7b(), roomy, gpu)


def test_torchtitan_runs_with_expandable_segments_unless_told_otherwise() -> None:
    assert settings_of(TrainingPlan(framework="torchtitan")).expandable_segments
    assert not settings_of(TrainingPlan(framework="torchtitan", allocator="default")).expandable_segments
    assert not settings_of(TrainingPlan()).expandable_segments


def test_a_published_torchtitan_step() -> None:
    """Pull request 996 of torchtitan, Llama 3 8B, one sequence of 8192 on each of 8 H100s, nothing compiled: 49.58 GiB
    reserved."""
    shape = model.read(presets.preset("llama-3.1-8b").config())
    plan = TrainingPlan(
        framework="torchtitan", checkpointing="selective", precision="fsdp_mixed_bf16", seq_len=8192, n_gpus=8,
        sharding="fsdp2",
    )  # fmt: skip
    found = bill(shape, plan, hardware.resolve(plan.gpu), replay=True)
    assert found.reserved.value / GIB == pytest.approx(49.58, rel=0.07)


def test_expandable_segments_hold_less() -> None:
    plan = TrainingPlan(**LORA, micro_batch=4, seq_len=4096)
    gpu = hardware.resolve(plan.gpu)
    default = reserved(shape_7b(), plan, gpu)
    expandable: Range = reserved(shape_7b(), plan.model_copy(update={"allocator": "expandable"}), gpu)
    assert expandable.value < 0.95 * default.value
