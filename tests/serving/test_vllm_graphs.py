"""Graph memory of vLLM: printed by start-ups that no constant was read off, and laws."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculator.serving.engines.vllm_graphs import Graphs, graphs
from calculator.serving.versions import Version
from tests.serving.shapes import llama
from validation.models import shape_of

MIB = 2**20
GIB = 2**30


def taken(model: str, version: Version, seqs: int = 256, runner: str = "v1") -> Graphs:
    shape = shape_of(model)
    return graphs(shape, range(shape.layers), 0, version, runner, seqs)


# Start-ups that print "Graph capturing finished ..., took {} GiB" and are not among the scored ones: Qwen2.5-VL-7B of
# 0.9.0.1 on an L4, Qwen2.5-7B of 0.24, Qwen3-4B of 0.24, and a
# linear hybrid of 64 layers on two ranks.
@pytest.mark.parametrize(
    ("model", "version", "printed_gib"),
    [
        ("Qwen/Qwen2.5-VL-7B-Instruct", (0, 9, 0), 0.51),
        ("Qwen/Qwen2.5-7B-Instruct", (0, 24, 0), 0.65),
        ("Qwen/Qwen3-4B", (0, 24, 0), 0.69),
        ("Qwen/Qwen3.6-27B", (0, 26, 0), 1.82),
    ],
)
def test_printed_graph_memory(model: str, version: Version, printed_gib: float) -> None:
    found = taken(model, version)
    assert found.used.value / GIB == pytest.approx(printed_gib, rel=0.3)
    assert found.used.low < printed_gib * GIB < found.used.high


# "Profiling CUDA graph memory: PIECEWISE={} (largest=512), FULL={} (largest=256)" of several starts from 0.19 to 0.22.
@pytest.mark.parametrize(
    ("version", "runner", "seqs", "pieces", "full"),
    [
        ((0, 21, 0), "v1", 256, 51, 35),
        ((0, 21, 0), "v1", 8, 5, 4),
        ((0, 21, 0), "v1", 2, 3, 2),
        ((0, 9, 2), "v1", 256, 67, 0),
        ((0, 6, 4), "v0", 256, 0, 35),
    ],
)
def test_captured_sizes_of_each_kind(version: Version, runner: str, seqs: int, pieces: int, full: int) -> None:
    found = taken("Qwen/Qwen3-4B", version, seqs, runner)
    assert (found.pieces, found.full) == (pieces, full)


@given(st.integers(1, 60), st.integers(1, 1024), st.sampled_from([(0, 7, 0), (0, 9, 0), (0, 11, 0), (0, 33, 0)]))
def test_more_layers_and_more_sizes_take_more(layers: int, seqs: int, version: Version) -> None:
    shape = llama(num_hidden_layers=64)
    few, more = (graphs(shape, range(n), 0, version, "v1", seqs).used for n in (layers, layers + 1))
    assert few.value < more.value
    assert few.low <= few.value <= few.high
    wider = graphs(shape, range(layers), 0, version, "v1", seqs * 2).used
    assert wider.value >= few.value
    assert graphs(shape, range(layers), 1, version, "v1", seqs).used == more
