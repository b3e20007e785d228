"""Optimizer memory against the optimizers' own statements, run on sizes: a name holds its tensor, and nothing else."""

from __future__ import annotations

from math import prod

import pytest

from calculator.hardware import resolve
from calculator.lookup import load_preset
from calculator.training import bill
from calculator.training.optimizer import Tables, step_memory
from calculator.training.plan import TrainingPlan
from calculator.training.recipe import resolve as recipe_of

LLAMA = load_preset("llama-3.2-1b").shape
TABLE = (128_256, 2048)
MATRICES = [TABLE, (2048, 2048), (512, 2048), (8192, 2048), (2048, 8192), (2048,)]
TABLES = Tables(embedding=(TABLE,))


class Memory:
    """Live and highest bytes, each tensor rounded up to 512."""

    def __init__(self) -> None:
        self.live = self.peak = 0

    def new(self, elements: int, item: int) -> Bytes:
        return Bytes(self, -(-elements * item // 512) * 512)


class Bytes:
    def __init__(self, memory: Memory, size: int) -> None:
        self.memory, self.size = memory, size
        memory.live += size
        memory.peak = max(memory.peak, memory.live)

    def __del__(self) -> None:
        self.memory.live -= self.size


def found(optimizer: str, precision: str = "bf16", framework: str = "plain_torch", tensors=MATRICES):
    plan = TrainingPlan(optimizer=optimizer, precision=precision, framework=framework)
    return step_memory(tensors, plan, recipe_of(LLAMA, plan), TABLES)


@pytest.mark.parametrize(("precision", "item"), [("bf16", 2), ("fp32", 4)])
def test_adafactor_step(precision: str, item: int) -> None:
    memory, states = Memory(), 0
    update = None
    for dims in MATRICES:
        n = prod(dims)
        grad = memory.new(n, 4) if item == 2 else None
        weight = memory.new(n, 4) if item == 2 else None
        squared = memory.new(n, 4)
        update = memory.new(n, 4)  # the square plus a constant
        del squared
        if len(dims) > 1:
            update = memory.new(n, 4)
            states += sum(-(-4 * d // 512) * 512 for d in dims)
        else:
            update = memory.new(n, 4)
            states += -(-4 * n // 512) * 512
        negated = memory.new(n, 4)
        del negated, grad, weight
    made = found("adafactor", precision)
    assert update is not None
    assert (made.states, made.temporary) == (states, memory.peak)


def test_adafactor_factors_each_expert() -> None:
    assert found("adafactor", tensors=[(8, 1024, 512)]).states == 4 * 8 * (1024 + 512)


@pytest.mark.parametrize(("precision", "item"), [("bf16", 2), ("fp32", 4)])
def test_muon_step(precision: str, item: int) -> None:
    """Two rounds of the iteration for each matrix within layers; AdamW's two moments for all else."""
    memory, states, rest = Memory(), 0, 0
    for dims in MATRICES:
        n, size = prod(dims), -(-item * prod(dims) // 512) * 512
        if len(dims) != 2 or dims == TABLE:
            states += 2 * size
            rest += size
            continue
        states += size
        update = memory.new(n, item)
        ortho = update if item == 2 else memory.new(n, 2)
        for _ in range(2):
            gram = memory.new(min(dims) ** 2, 2)
            scaled, product = memory.new(min(dims) ** 2, 2), memory.new(min(dims) ** 2, 2)
            gram_update = memory.new(min(dims) ** 2, 2)
            del scaled, product
            left, right = memory.new(n, 2), memory.new(n, 2)
            ortho = memory.new(n, 2)
            del left, right
        del update, ortho, gram, gram_update
    made = found("muon", precision)
    assert (made.states, made.temporary) == (states, max(memory.peak, rest))


def test_muon_leaves_embedding_and_norms_to_adamw() -> None:
    plan = TrainingPlan(optimizer="muon", seq_len=64)
    held = {i.key: i.max_bytes for i in bill(LLAMA, plan, resolve("h100-80gb-sxm")).items}["optimizer_states"]
    apart = 128_256 * 2048 + 33 * 2048
    assert held == pytest.approx(2 * (LLAMA.parameters.total + apart), rel=1e-4)


def test_galore_projects_only_matrices_within_layers() -> None:
    """Two moments and a projection of rank 128 for a matrix, two full moments for the embedding and the norm."""
    made = found("galore_adamw")
    wanted = 4 * (prod(TABLE) + 2048)
    for dims in MATRICES[1:-1]:
        wanted += 2 * 128 * (2 * max(dims) + min(dims))
    assert made.states == pytest.approx(wanted, rel=1e-6)
    # The decomposition: fp32 matrix, its copy and both factors, against the embedding's root and quotient.
    assert made.temporary == max(12 * 8192 * 2048 + 4 * 2048**2, 4 * prod(TABLE))


def test_schedule_free_keeps_two_copies_and_takes_all_roots_at_once() -> None:
    one = sum(-(-2 * prod(dims) // 512) * 512 for dims in MATRICES)
    made = found("schedule_free")
    assert (made.states, made.temporary) == (2 * one, one)


def test_the_trainer_keeps_fp32_states_for_embeddings_of_8_bit_optimizers() -> None:
    plain, trainer = found("adamw_8bit"), found("adamw_8bit", framework="hf_trainer")
    n = prod(TABLE)
    assert trainer.states - plain.states == 8 * n - 2 * n - 2 * 4 * (n // 256)
    assert found("paged_adamw_8bit", framework="hf_trainer").host_states > 8 * n


def test_a_master_copy_comes_on_top_of_any_optimizer() -> None:
    n = sum(-(-4 * prod(dims) // 512) * 512 for dims in MATRICES)
    for name in ("adamw_8bit", "adafactor", "muon", "galore_adamw"):
        assert found(name, "mixed_bf16").master == n
