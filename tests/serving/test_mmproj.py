"""The projector file of models of towers: printed sizes and buffers, and where a plan puts it."""

from typing import Any

import pytest

from calculator.bill import Bill
from calculator.gguf.header import GgufHeader, read_header
from calculator.gguf.mixes import projector_weights
from calculator.gguf.projector import encoder_in, encoder_of
from calculator.gguf.weights import weights_of
from calculator.hardware import find
from calculator.model.shape import ModelShape
from calculator.model.stored import ImageEncoder
from calculator.serving import bill
from calculator.serving.engines.mmproj import patches, scratch_bytes
from calculator.serving.plan import ServingPlan
from tests.fakehub.files import File, gguf, mmproj
from tests.fakehub.models import SMALL
from tests.serving.shapes import llama
from validation.models import shape_of

MIB = 2**20
H100 = find("h100-80gb-sxm")


def header_of(file: File) -> GgufHeader:
    return read_header(lambda start, length: b"".join(file.read(start, min(start + length, file.size))))


def item(result: Bill, key: str) -> int:
    return next((i.bytes for i in result.items if i.key == key), 0)


def served(shape: ModelShape, **changes: Any) -> Bill:
    base = {"engine": "llama_cpp", "weights": "Q4_K_M", "max_model_len": 8192, "concurrency": 1}
    return bill(shape, ServingPlan.model_validate(base | changes), H100)


# "model size" as llama-server prints it for F16 files of ggml-org and unsloth.
PRINTED = [
    ("Qwen/Qwen2.5-VL-7B-Instruct", 1291.40),
    ("Qwen/Qwen3-VL-30B-A3B-Instruct", 1033.29),
]


@pytest.mark.parametrize(("model", "mib"), PRINTED)
def test_weights_as_printed(model: str, mib: float) -> None:
    computed = projector_weights(shape_of(model))
    assert computed is not None
    assert computed.total_bytes / MIB == pytest.approx(mib, abs=0.01)
    assert item(served(shape_of(model)), "mmproj") == computed.total_bytes


def test_the_encoder_of_speech_is_not_the_one_that_speaks() -> None:
    computed = projector_weights(shape_of("Qwen/Qwen2.5-Omni-3B"))
    assert computed is not None
    # 2,447.80 MiB with its buffers in Q8_0 or F16 (llama.cpp pull request 21489); with the talker it would be 4,085.
    assert computed.total_bytes / MIB < 2500


def test_buffers_as_printed() -> None:
    # Qwen3.6-27B, build of May 2026, a picture of 1,472 x 1,472: 248.10 MiB with flash attention; 4,884,066,560 bytes
    # without. Qwen2.5-VL-3B: 704.79 MiB.
    qwen = encoder_in(shape_of("Qwen/Qwen3.6-27B"))
    assert qwen is not None
    usual, largest = patches(qwen)
    assert usual * qwen.patch**2 == 1472**2
    assert largest == 16_384
    assert scratch_bytes(qwen, usual, flash=True) / MIB == pytest.approx(248.10, abs=0.01)
    assert scratch_bytes(qwen, usual, flash=False) == pytest.approx(4_884_066_560, rel=1e-5)
    windowed = encoder_in(shape_of("Qwen/Qwen2.5-VL-3B-Instruct"))
    assert windowed is not None
    assert scratch_bytes(windowed, patches(windowed)[0], flash=True) / MIB == pytest.approx(704.79, rel=0.05)


def test_pictures_of_one_size_need_no_guess() -> None:
    gemma = encoder_in(shape_of("google/gemma-3-27b-it"))
    assert gemma is not None
    assert patches(gemma) == (4096, 4096)
    unknown = ImageEncoder(hidden=64, heads=2, patch=14)
    low, high = patches(unknown)
    assert low < high


def test_where_the_projector_goes() -> None:
    shape = shape_of("google/gemma-3-27b-it")
    plain, host, none = served(shape), served(shape, mmproj="host"), served(shape, mmproj="none")
    loaded = item(plain, "mmproj") + item(plain, "mmproj_compute")
    assert loaded > 900 * MIB
    assert plain.need.value - host.need.value == loaded
    assert host.need == none.need
    assert plain.serving is not None
    assert host.serving is not None
    assert none.serving is not None
    assert host.serving.host_bytes - none.serving.host_bytes == loaded
    assert "serving.assume.mmproj" in [a.id for a in plain.assumptions]
    assert "serving.assume.mmproj" not in [a.id for a in served(shape, mmproj="gpu").assumptions]
    assert not item(served(llama()), "mmproj")


def test_it_is_on_the_first_card() -> None:
    shape = shape_of("google/gemma-3-27b-it")
    two = served(shape, n_gpus=2)
    assert two.rank == "0"
    assert item(two, "mmproj") == item(served(shape), "mmproj")


def test_without_flash_attention_the_scores_are_held() -> None:
    shape = shape_of("google/gemma-3-27b-it")
    flash, plain = item(served(shape), "mmproj_compute"), item(served(shape, flash_attn=False), "mmproj_compute")
    assert plain - flash == 4 * (16 * 4096**2 + 4096 * 1152)


def test_ollama_leaves_it_on_the_host_beside_some_layers() -> None:
    shape = shape_of("google/gemma-3-27b-it")
    assert item(served(shape, engine="ollama"), "mmproj")
    assert not item(served(shape, engine="ollama", n_gpu_layers=20), "mmproj")
    assert item(served(shape, engine="llama_cpp", n_gpu_layers=20), "mmproj")


def test_a_repository_s_own_projector_counts_and_no_other() -> None:
    shape = llama()
    model, beside = header_of(gguf(SMALL, "Q4_K")), header_of(mmproj())
    with_it, without = weights_of((model,), (beside,), mix="Q4_K_M"), weights_of((model,), mix="Q4_K_M")
    assert encoder_of((beside,)) == with_it.encoder
    plan = ServingPlan(engine="llama_cpp", max_model_len=8192, concurrency=1)
    read = bill(shape, plan, H100, with_it)
    assert item(read, "mmproj") == beside.tensor_bytes
    assert next(i.basis for i in read.items if i.key == "mmproj") == "header"
    assert item(read, "mmproj_compute") == 4 * 4096 * (6 * 128 + 3 * 14 * 14 + 4)
    weights = next(i for i in read.items if i.key == "weights")
    assert weights.low == weights.bytes == weights.high
    assert not item(bill(shape, plan, H100, without), "mmproj")
    towers = shape_of("google/gemma-3-4b-it")
    assert not item(bill(towers, plan, H100, without), "mmproj")
    asked = plan.model_copy(update={"mmproj": "gpu"})
    assert item(bill(towers, asked, H100, without), "mmproj")
