"""Formats against layouts written out by hand, and the laws they share."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculator.errors import PlanError
from calculator.precision import FORMAT_KEYS, GGML_TYPES, KV_FORMATS, dtype_bits, dtype_bytes, kv_format, weight_format

SIZES = st.integers(1, 3000)
KEYS = st.sampled_from(FORMAT_KEYS)

# A 4096 x 14336 down projection: out 4096, in 14336.
OUT, IN = 4096, 14336
WRITTEN_OUT = {
    "fp32": OUT * IN * 4,
    "bf16": OUT * IN * 2,
    # weight, weight_scale and input_scale in fp32
    "fp8": OUT * IN + 4 + 4,
    # weight_scale bf16 [4096, 1]
    "fp8_channel": OUT * IN + OUT * 2,
    # weight_scale_inv fp32 [32, 112]
    "fp8_block": OUT * IN + 32 * 112 * 4,
    "int8": OUT * IN + OUT * 2,
    # qweight int32 [14336, 512], qzeros int32 [112, 512], scales fp16 [112, 4096]
    "awq": 14336 * 512 * 4 + 112 * 512 * 4 + 112 * 4096 * 2,
    # qweight int32 [1792, 4096], qzeros int32 [112, 512], scales fp16 [112, 4096], g_idx int32 [14336]
    "gptq": 1792 * 4096 * 4 + 112 * 512 * 4 + 112 * 4096 * 2 + 14336 * 4,
    # weight_packed int32 [4096, 1792], weight_scale bf16 [4096, 112], weight_shape int64 [2]
    "w4a16": 4096 * 1792 * 4 + 4096 * 112 * 2 + 16,
    # 64 weights an fp32 absmax, a code of 16 fp32
    "nf4": OUT * IN // 2 + OUT * IN // 64 * 4 + 64,
    # 64 weights a byte, 256 of those an fp32, codes of 16 and 256 fp32, an fp32 offset
    "nf4_dq": OUT * IN // 2 + OUT * IN // 64 + OUT * IN // 64 // 256 * 4 + 64 + 1024 + 4,
    # SCB fp32 [4096]
    "bnb_int8": OUT * IN + OUT * 4,
    # weight uint8 [4096, 7168], weight_scale fp8 [4096, 896], weight_scale_2 and input_scale fp32
    "nvfp4": OUT * IN // 2 + OUT * 896 + 8,
    # blocks uint8 [4096, 448, 16], scales uint8 [4096, 448]
    "mxfp4": 4096 * 448 * 16 + 4096 * 448,
    # weight uint8 [1024, 14336], weight_scale bf16 [1]
    "bitnet": 1024 * 14336 + 2,
    # weight uint32 [4096, 1792], scales and biases bf16 [4096, 224]
    "mlx": 4096 * 1792 * 4 + 2 * 4096 * 224 * 2,
    "ggml:Q4_K": OUT * IN // 256 * 144,
    "ggml:Q8_0": OUT * IN // 32 * 34,
    "ggml:BF16": OUT * IN * 2,
}


@pytest.mark.parametrize("key", WRITTEN_OUT)
def test_a_matrix_takes_what_its_tensors_take(key: str) -> None:
    assert weight_format(key).tensor_bytes((OUT, IN)) == WRITTEN_OUT[key]


EXL3 = {(2048, 10240): 20480 + 4096 + 4 + 10485760, (4096, 2048): 4096 + 8192 + 4 + 4194304,
        (512, 2048): 4096 + 1024 + 4 + 524288}  # fmt: skip
"""suh, svh, mcg and trellis of three matrices, from the quantization_config.json of
huggingface.co/UnstableLlama/Qwen3.6-35B-A3B-DFlash-exl3-3.50bpw, which lists every tensor's n_bytes."""


@pytest.mark.parametrize("shape", EXL3)
def test_exl3_matrices_take_what_a_published_repository_lists(shape: tuple[int, int]) -> None:
    assert weight_format("exl3", bits=4).tensor_bytes(shape) == EXL3[shape]


def test_parameters_change_the_layout() -> None:
    shape = (4096, 4096)
    # 3 bit words: 4096 * 3 / 32 = 384 words a column; one group: qzeros int32 [1, 384], scales fp16 [1, 4096].
    three = weight_format("gptq", bits=3, group_size=-1)
    assert three.tensor_bytes(shape) == 384 * 4096 * 4 + 384 * 4 + 4096 * 2 + 4096 * 4
    coarse, fine = weight_format("awq", group_size=128), weight_format("awq", group_size=32)
    assert fine.tensor_bytes(shape) - coarse.tensor_bytes(shape) == 96 * (512 * 4 + 4096 * 2)
    asymmetric = weight_format("w4a16", symmetric=False)
    # weight_zero_point int32 [512, 32]
    assert asymmetric.tensor_bytes(shape) - weight_format("w4a16").tensor_bytes(shape) == 512 * 32 * 4
    assert weight_format("fp8", static_scales=False).tensor_bytes(shape) == 4096 * 4096 + 4
    assert weight_format("fp8_block", block=(64, 128)).tensor_bytes(shape) == 4096 * 4096 + 64 * 32 * 4
    assert weight_format("exl2", bits=2.5).tensor_bytes(shape) == 4096 * 4096 * 5 // 16 + 4096 * 2


def test_odd_sizes_are_padded_to_whole_words_groups_and_blocks() -> None:
    assert weight_format("awq").tensor_bytes((12, 130)) == 130 * 2 * 4 + 2 * 2 * 4 + 2 * 12 * 2
    assert weight_format("fp8_block").tensor_bytes((576, 7168)) == 576 * 7168 + 5 * 56 * 4
    assert weight_format("w4a16").tensor_bytes((3, 9)) == 3 * 2 * 4 + 3 * 2 + 16
    assert weight_format("ggml:Q4_0").tensor_bytes((2, 33)) == 2 * 2 * 18


def test_experts_are_so_many_matrices() -> None:
    for key in ("mxfp4", "awq", "fp8_block"):
        one = weight_format(key).tensor_bytes((5760, 2880))
        assert weight_format(key).tensor_bytes((32, 5760, 2880)) == 32 * one


@given(KEYS, SIZES, SIZES, SIZES, SIZES)
def test_bytes_do_not_fall_when_a_matrix_grows(key: str, rows: int, columns: int, more: int, wider: int) -> None:
    weights = weight_format(key)
    small = weights.tensor_bytes((rows, columns))
    assert small <= weights.tensor_bytes((rows + more, columns))
    assert small <= weights.tensor_bytes((rows, columns + wider))


@given(KEYS, SIZES, SIZES)
def test_a_matrix_takes_at_least_its_bits(key: str, rows: int, columns: int) -> None:
    weights = weight_format(key)
    assert 8 * weights.tensor_bytes((rows, columns)) >= math.floor(weights.bits * rows * columns)


@given(KEYS, st.integers(1, 40), st.integers(1, 40))
def test_scales_and_padding_stay_small_on_large_matrices(key: str, rows: int, columns: int) -> None:
    """Scales cost at most one bit a weight at the usual group sizes."""
    weights = weight_format(key)
    elements = rows * columns * 256 * 256
    assert 8 * weights.tensor_bytes((rows * 256, columns * 256)) <= (weights.bits + 1) * elements + 8 * 1200


@given(st.sampled_from(["gptq", "awq", "w4a16", "mlx", "hqq", "nf4"]), st.integers(1, 9), SIZES, SIZES)
def test_larger_groups_are_not_larger(key: str, power: int, rows: int, columns: int) -> None:
    fine, coarse = weight_format(key, group_size=2**power), weight_format(key, group_size=2 ** (power + 1))
    assert coarse.tensor_bytes((rows, columns)) <= fine.tensor_bytes((rows, columns))


@pytest.mark.parametrize(
    ("name", "bits"),
    # The figures that llama.cpp's quantize tool and its pull requests print as bits per weight.
    [
        ("Q2_K", 2.625), ("Q3_K", 3.4375), ("Q4_K", 4.5), ("Q5_K", 5.5), ("Q6_K", 6.5625), ("Q8_0", 8.5),
        ("Q4_0", 4.5), ("Q4_1", 5.0), ("Q5_0", 5.5), ("Q5_1", 6.0), ("IQ1_S", 1.5625), ("IQ1_M", 1.75),
        ("IQ2_XXS", 2.0625), ("IQ2_XS", 2.3125), ("IQ2_S", 2.5625), ("IQ3_XXS", 3.0625), ("IQ3_S", 3.4375),
        ("IQ4_XS", 4.25), ("IQ4_NL", 4.5), ("TQ1_0", 1.6875), ("TQ2_0", 2.0625), ("MXFP4", 4.25), ("NVFP4", 4.5),
        ("BF16", 16.0), ("F32", 32.0),
    ],
)  # fmt: skip
def test_ggml_types_have_their_bits_per_weight(name: str, bits: float) -> None:
    assert GGML_TYPES[name].bits == bits


@pytest.mark.parametrize(
    ("key", "elements", "expected"),
    [
        ("bf16", 128, 256), ("fp8", 128, 128), ("fp8_e4m3", 128, 128), ("q8_0", 128, 136), ("q5_1", 128, 96),
        ("q4_0", 128, 72), ("q8_0", 80, 102), ("int8", 128, 132), ("int4", 128, 68), ("fp32", 64, 256),
        ("nvfp4", 128, 72),
    ],
)  # fmt: skip
def test_cache_vectors(key: str, elements: int, expected: int) -> None:
    assert kv_format(key).vector_bytes(elements) == expected


@given(st.sampled_from(list(KV_FORMATS)), st.integers(0, 2000), st.integers(0, 2000))
def test_cache_bytes_do_not_fall_with_the_head_size(key: str, elements: int, more: int) -> None:
    cache = kv_format(key)
    assert cache.vector_bytes(elements) <= cache.vector_bytes(elements + more)
    assert 8 * cache.vector_bytes(elements) >= cache.bits * elements


def test_dtypes_by_every_name() -> None:
    assert dtype_bytes("torch.bfloat16") == dtype_bytes("BF16") == dtype_bytes("float16") == 2
    assert dtype_bytes("F8_E4M3") == dtype_bytes("U8") == 1
    assert dtype_bits("F4") == 4
    for name in ("float5", "", "F4"):
        with pytest.raises(PlanError):
            dtype_bytes(name)


@pytest.mark.parametrize("key", ["q4_k_m", "awqq", "", "ggml:Q9_K", "gguf:Q4_K_M"])
def test_unknown_formats_are_refused(key: str) -> None:
    with pytest.raises(PlanError) as caught:
        weight_format(key)
    assert caught.value.key == "format.unknown"
    with pytest.raises(PlanError):
        kv_format(key)


def test_impossible_parameters_are_refused() -> None:
    for bits in (0, -4, 65):
        with pytest.raises(PlanError):
            weight_format("awq", bits=bits)
