"""Tables that papers print, rebuilt from the bill. Sources stand with each test."""

from __future__ import annotations

import pytest

from calculator.bill import Bill
from calculator.hardware import resolve
from calculator.lookup import load_preset
from calculator.model import read
from calculator.training import bill
from calculator.training.build import saved_layers
from calculator.training.plan import TrainingPlan
from calculator.training.step import step

GPU = resolve("h100-80gb-sxm")


def decoder(**changes) -> dict:
    """A GPT-NeoX style decoder; the sizes are the test's."""
    return {
        "model_type": "gpt_neox", "vocab_size": 50304, "hidden_size": 4096, "intermediate_size": 16384,
        "num_hidden_layers": 35, "num_attention_heads": 32, "rotary_pct": 0.25, "max_position_embeddings": 2048,
        "use_parallel_residual": True, "tie_word_embeddings": False,
    } | changes  # fmt: skip


def states(bill_: Bill, phase: str) -> float:
    """Parameters, gradients and optimizer states alive at the highest instant of a phase, in units of 10^9 bytes."""
    items = next(p for p in bill_.phases if p.name == phase).items
    return sum(items.get(key, 0) for key in ("parameters", "gradients", "optimizer_states")) / 1e9


# Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models (arXiv:1910.02054), table 1:
# model states of a 7.5 B model per device, in GB, for P_os, P_os+g and P_os+g+p.
ZERO = {4: (52.5, 41.3, 30.0), 16: (35.6, 21.6, 7.5), 64: (31.4, 16.6, 1.88), 256: (30.4, 15.4, 0.47)}


@pytest.mark.parametrize("degree", ZERO)
@pytest.mark.parametrize(("column", "stage"), [(0, "zero1"), (1, "zero2"), (2, "zero3")])
def test_zero_table_1(degree: int, column: int, stage: str):
    shape = read(decoder())
    assert shape.parameters.total == pytest.approx(7.5e9, rel=0.006)
    plan = TrainingPlan(
        precision="mixed_bf16", optimizer="adamw_fused", framework="deepspeed", sharding=stage, n_gpus=degree,
        micro_batch=1, seq_len=64,
    )  # fmt: skip
    made = bill(shape, plan, GPU)
    # Stage 3 holds its gradient partition all through the step; in backward a whole matrix's gradient comes on top.
    found = states(made, "forward" if stage == "zero3" else "backward")
    if stage == "zero1":
        # DeepSpeed copies its own partition of the gradients into one buffer; the paper counts them once.
        found -= 2 * shape.parameters.total / degree / 1e9
    assert found == pytest.approx(ZERO[degree][column], rel=0.05)


# Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models (arXiv:2205.05198), equation 1 and
# section 4.1: sbh (34 + 5 as/h) bytes of activations a layer, for 16-bit GPT layers with GeLU, dropout and an attention
# matrix that is stored. BERT layers have just these operations.
@pytest.mark.parametrize(
    ("hidden", "heads", "length", "batch"), [(768, 12, 512, 4), (1024, 16, 512, 1), (2048, 32, 256, 8)]
)
def test_megatron_activation_formula(hidden: int, heads: int, length: int, batch: int):
    config = {
        "model_type": "bert", "vocab_size": 30522, "hidden_size": hidden, "intermediate_size": 4 * hidden,
        "num_hidden_layers": 4, "num_attention_heads": heads, "max_position_embeddings": 512,
    }  # fmt: skip
    shape = read(config)
    plan = TrainingPlan(
        framework="plain_torch", checkpointing="none", attention="eager", micro_batch=batch, seq_len=length,
        optimizer="sgd",
    )  # fmt: skip
    kept = saved_layers(step(shape, plan, GPU, tensors_only=True).program)
    published = 4 * length * batch * hidden * (34 + 5 * heads * length / hidden)
    assert kept == pytest.approx(published, rel=0.01)


# The same paper, table 2: with every layer checkpointed only its input stays, 2sbh bytes.
def test_full_recomputation_keeps_the_layers_input_only():
    shape = read(decoder(num_hidden_layers=8))
    plan = TrainingPlan(framework="plain_torch", checkpointing="full", micro_batch=2, seq_len=1024, optimizer="sgd")
    kept = saved_layers(step(shape, plan, GPU, tensors_only=True).program)
    assert kept == pytest.approx(8 * 2 * 2 * 1024 * 4096, rel=0.13)


# The same paper, table 2, its first three rows: sbh (34 + 5 as/h); with tensor parallelism sbh (10 + 24/t + 5 as/ht);
# with sequence parallelism on top all of it is divided by t.
@pytest.mark.parametrize(("hidden", "heads", "batch", "ranks"), [(4096, 32, 2, 8), (2048, 16, 4, 4)])
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_megatron_table_2(hidden: int, heads: int, batch: int, ranks: int, sequence_parallel: bool):
    config = {
        "model_type": "bert", "vocab_size": 30720, "hidden_size": hidden, "intermediate_size": 4 * hidden,
        "num_hidden_layers": 4, "num_attention_heads": heads, "max_position_embeddings": 512,
    }  # fmt: skip
    plan = TrainingPlan(
        framework="plain_torch", checkpointing="none", attention="eager", micro_batch=batch, seq_len=512,
        optimizer="sgd", tp=ranks, n_gpus=ranks, sequence_parallel=sequence_parallel,
    )  # fmt: skip
    kept = saved_layers(step(read(config), plan, GPU, tensors_only=True).program)
    scores = 5 * heads * 512 / hidden
    each = (34 + scores) / ranks if sequence_parallel else 10 + (24 + scores) / ranks
    assert kept == pytest.approx(4 * 512 * batch * hidden * each, rel=0.01)


# Zhang and Su, Memory Analysis on the Training Course of DeepSeek Models (arXiv:2502.07846): DeepSeek-V3 in 16 bit
# with 32 data-parallel, 2 tensor-parallel, 16 pipeline and 8 expert-parallel ranks; weights of stages 1 to 14: 86 GiB
# a stage, 11.64 GiB a device.
def test_deepseek_v3_with_expert_parallelism():
    shape = load_preset("deepseek-v3").shape
    plan = TrainingPlan(
        framework="megatron", precision="mixed_bf16", sharding="distributed_optimizer", n_gpus=1024, tp=2, pp=16, ep=8,
        expert_tp=1, seq_len=4096, sequence_parallel=True, checkpointing="full", micro_batches=32,
    )  # fmt: skip
    made = bill(shape, plan, GPU)
    held = next(item for item in made.items if item.key == "parameters")
    assert made.rank == "pp1"
    assert held.bytes / 2**30 == pytest.approx(11.64, rel=0.05)
    stage = sum(t.elements for t in shape.blocks[-1].tensors) * 4 * 2
    assert stage / 2**30 == pytest.approx(86, rel=0.05)
