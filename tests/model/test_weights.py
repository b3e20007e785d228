"""Weight bytes: against published file sizes, against sums by hand, and the laws they keep."""

import json
from collections import Counter
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculator.errors import PlanError
from calculator.model import read
from calculator.model.quantization import format_of
from calculator.model.shape import ModelShape, Quantization, Tensor
from calculator.model.weights import (
    WeightLayout,
    every_tensor,
    stored_weights,
    tensor_bytes,
    tensors_with_layers,
    weights_in_format,
)
from calculator.precision import FORMAT_KEYS, weight_format
from calculator.units import parse_bytes

PUBLISHED = json.loads((Path(__file__).parents[1] / "data" / "weights" / "published.json").read_text())
LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 512, "intermediate_size": 1024,
    "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 1000,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "max_position_embeddings": 2048,
}  # fmt: skip
# Elements of one layer's linears: q and o, k and v, gate, up and down.
LINEAR = 2 * 512 * 512 + 2 * 128 * 512 + 3 * 512 * 1024
REST = 3 * 2 * 512 + 512 + 2 * 1000 * 512


def llama(**changes: Any) -> ModelShape:
    return read({**LLAMA, **changes})


def ids(row: dict[str, Any]) -> str:
    return f"{row['repo']}-{row['config']['quantization_config'].get('bits', '')}"


@pytest.mark.parametrize("row", PUBLISHED, ids=ids)
def test_computed_weights_are_within_half_a_percent_of_the_published_files(row: dict[str, Any]) -> None:
    """Sizes as the hub's file lists and pointers print them; three digits are good to 0.3 % at worst."""
    shape = read(row["config"])
    published = sum(parse_bytes(size) for size in row["sizes"])
    computed = stored_weights(shape).total_bytes
    if row["head_copy"]:
        assert shape.tied
        computed += 2 * shape.vocab * shape.hidden
    assert computed == pytest.approx(published, rel=0.005), row["url"]


@pytest.mark.parametrize("row", PUBLISHED, ids=ids)
def test_a_plain_model_in_a_format_takes_what_the_quantised_repository_takes(row: dict[str, Any]) -> None:
    quantised = read(row["config"])
    assert quantised.quantization is not None
    form = format_of(quantised.quantization)
    plain = read({key: value for key, value in row["config"].items() if key != "quantization_config"})
    written = form.key
    if weight_format(written) != form:
        written += f":bits={form.bits:g}" + (f",group={form.group_size}" if form.group_size else "")
    produced = weights_in_format(plain, written)
    assert produced.total_bytes == pytest.approx(stored_weights(quantised).total_bytes, rel=0.001), row["url"]


ELEMENTS = json.loads((Path(__file__).parents[1] / "data" / "weights" / "elements.json").read_text())["rows"]


@pytest.mark.parametrize("row", ELEMENTS, ids=lambda row: row["repo"])
def test_exclusions_leave_exactly_the_published_number_of_stored_elements(row: dict[str, Any]) -> None:
    """The hub counts what the files store: weights, scales and all. One wrongly packed module shifts the count by its
    scales or by half its weights; what is left over are single numbers and short vectors beside the weights (global
    and cache scales, router biases)."""
    shape = read(row["config"], sidecar=row.get("sidecar"))
    layout = WeightLayout(shape)
    total = sum(n * t.copies * stored_elements(layout, t, layer) for t, layer, n, _ in every_tensor(shape))
    assert total == pytest.approx(row["elements"], rel=1.5e-6)


def stored_elements(layout: WeightLayout, tensor: Tensor, layer: int | None) -> int:
    """Numbers in the file for one copy of a tensor: fp8 weights or pairs of fp4 ones, and their scales."""
    form = layout.format(tensor, layer)
    *matrices, rows, columns = (1, 1, *tensor.shape)
    if form.plain:
        return prod(tensor.shape)
    scales = {
        "fp8": 2,
        "fp8_channel": rows,
        "fp8_block": -(-rows // 128) * -(-columns // 128),
        "nvfp4": rows * columns // 16,
    }[form.key]
    return prod(matrices) * (rows * columns // (2 if form.key == "nvfp4" else 1) + scales)


def test_the_published_files_cover_many_formats() -> None:
    formats = Counter(shape.quantization.format for row in PUBLISHED if (shape := read(row["config"])).quantization)
    assert len(PUBLISHED) >= 12
    assert len(formats) >= 9, formats


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("bf16", 2 * (3 * LINEAR + REST)),
        ("fp32", 4 * (3 * LINEAR + REST)),
        # a byte, and two fp32 scales for each of the seven linears
        ("fp8", 3 * (LINEAR + 7 * 8) + 2 * REST),
        # a byte, and a 16-bit scale a row: q 512, k and v 128, o 512, gate and up 1024, down 512
        ("int8", 3 * (LINEAR + 2 * (512 + 2 * 128 + 512 + 2 * 1024 + 512)) + 2 * REST),
        # half a byte, and for each group of 128 a 16-bit scale and a 4-bit zero
        ("awq", 3 * (LINEAR // 2 + LINEAR // 128 * 2 + LINEAR // 128 // 2) + 2 * REST),
        # 4.5 bits everywhere but the norms
        ("mlx", (3 * LINEAR + 2 * 1000 * 512) * 9 // 16 + 2 * (3 * 2 * 512 + 512)),
    ],
)  # fmt: skip
def test_a_small_model_by_hand(key: str, expected: int) -> None:
    assert weights_in_format(llama(), key).total_bytes == expected


LOADED = [
    ("meta-llama/Llama-3.3-70B-Instruct", "fp8_channel", 72_713_796_321, 0.005,
     "https://github.com/llm-d/llm-d-benchmark/issues/621"),
    ("meta-llama/Llama-3.1-8B-Instruct", "fp8", 9_116_068_086, 0.01, "https://github.com/llm-d-incubation/llm-d-planner"),
    ("meta-llama/Llama-3.1-8B-Instruct", "fp32", 32_190_779_884, 0.005,
     "https://github.com/llm-d-incubation/llm-d-planner"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("model", "key", "printed", "tolerance", "url"), LOADED, ids=[f"{r[0]}-{r[1]}" for r in LOADED]
)
def test_a_chosen_format_takes_what_an_engine_printed(
    model: str, key: str, printed: int, tolerance: float, url: str
) -> None:
    large = "70B" in model
    shape = llama(
        hidden_size=8192 if large else 4096, intermediate_size=28672 if large else 14336, vocab_size=128256,
        num_hidden_layers=80 if large else 32, num_attention_heads=64 if large else 32, num_key_value_heads=8,
    )  # fmt: skip
    assert weights_in_format(shape, key).total_bytes == pytest.approx(printed, rel=tolerance), url


def test_tied_embeddings_count_once() -> None:
    untied, tied = llama(), llama(tie_word_embeddings=True)
    assert stored_weights(untied).total_bytes - stored_weights(tied).total_bytes == 2 * 1000 * 512


def test_exclusions_leave_modules_in_16_bit() -> None:
    fp8 = {"quant_method": "fp8", "weight_block_size": None}
    whole = stored_weights(llama(quantization_config=fp8))
    down = stored_weights(llama(quantization_config={**fp8, "modules_to_not_convert": ["down_proj"]}))
    one = stored_weights(llama(quantization_config={**fp8, "modules_to_not_convert": ["model.layers.1.mlp.down_proj"]}))
    assert down.total_bytes - whole.total_bytes == 3 * (512 * 1024 - 8)
    assert one.total_bytes - whole.total_bytes == 512 * 1024 - 8


def test_modules_with_their_own_format() -> None:
    shape = llama()
    half = Quantization(format="awq", bits=4, group_size=128, only=(r"(?!)",), per_module={r".*\.q_proj": "bnb_int8"})
    mixed = stored_weights(shape.model_copy(update={"quantization": half}))
    assert mixed.by_format["bnb_int8"] == 3 * (512 * 512 + 4 * 512)
    assert set(mixed.by_format) == {"bnb_int8", "bf16"}


def test_fused_experts_stay_in_16_bit_when_linear_modules_are_replaced() -> None:
    moe = read({
        "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "hidden_size": 256, "intermediate_size": 512,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 500,
        "num_local_experts": 4, "num_experts_per_tok": 2, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    })  # fmt: skip
    experts = 2 * 4 * 3 * 256 * 512
    assert weights_in_format(moe, "nf4").by_component["experts"] == 2 * experts
    assert weights_in_format(moe, "mxfp4").by_component["experts"] == experts * 17 // 32
    assert (
        weights_in_format(moe, "mxfp4").by_component["attention"]
        == weights_in_format(moe, "bf16").by_component["attention"]
    )
    # A checkpoint that was packed when the experts were linear modules keeps them packed.
    stored = moe.model_copy(update={"quantization": Quantization(format="nf4", bits=4, group_size=64)})
    assert stored_weights(stored).by_component["experts"] < experts * 0.6


QUANTIZED = [llama(), llama(quantization_config={"quant_method": "fp8", "modules_to_not_convert": ["layers.1"]})]


@given(st.sampled_from(FORMAT_KEYS))
def test_parts_add_up_in_every_format(key: str) -> None:
    weights = weights_in_format(QUANTIZED[0], key)
    assert sum(weights.by_component.values()) == sum(weights.by_format.values()) == weights.total_bytes
    assert weights.loaded_bytes == weights.total_bytes


@pytest.mark.parametrize("shape", QUANTIZED)
def test_the_layout_tells_each_layer_apart(shape: ModelShape) -> None:
    layout = WeightLayout(shape)
    one_by_one = sum(n * layout.tensor_bytes(t, layer) for t, layer, n, _ in every_tensor(shape))
    assert one_by_one == stored_weights(shape).total_bytes
    together = sum(n * tensor_bytes(t, layout.format(t, layer)) for t, layer, n, _ in tensors_with_layers(shape))
    assert (together == one_by_one) == (not layout.by_layer)


@given(st.sampled_from(FORMAT_KEYS), st.integers(1, 8), st.integers(1, 4))
def test_bytes_do_not_fall_when_the_model_grows(key: str, layers: int, more: int) -> None:
    small = weights_in_format(llama(num_hidden_layers=layers), key).total_bytes
    assert small < weights_in_format(llama(num_hidden_layers=layers + more), key).total_bytes
    assert (
        small < weights_in_format(llama(num_hidden_layers=layers, intermediate_size=1024 * (1 + more)), key).total_bytes
    )


def test_unknown_formats_are_refused() -> None:
    with pytest.raises(PlanError):
        weights_in_format(llama(), "q5_fancy")


@dataclass(frozen=True)
class Group:
    name: str
    bytes: int


@dataclass(frozen=True)
class Headers:
    tensors: tuple[Group, ...]

    @property
    def total_bytes(self) -> int:
        return sum(t.bytes for t in self.tensors)

    @property
    def bytes_by_dtype(self) -> dict[str, int]:
        return {"I32": self.total_bytes}


def test_headers_are_taken_as_they_are_and_told_apart_by_component() -> None:
    headers = Headers((
        Group("model.embed_tokens.weight", 7),
        Group("model.layers.{i}.self_attn.q_proj.qweight", 100),
        Group("model.layers.{i}.self_attn.q_proj.scales", 10),
        Group("language_model.model.layers.2.mlp.down_proj.weight_packed", 1000),
        Group("model.layers.{i}.mlp.up_proj.weight.absmax", 500),
        Group("model.layers.{i}.mlp.up_proj.weight.quant_state.bitsandbytes__nf4", 5),
        Group("model.layers.{i}.self_attn.rotary_emb.inv_freq", 3),
        Group("lm_head.weight", 7),
    ))  # fmt: skip
    weights = stored_weights(llama(tie_word_embeddings=True), headers)
    assert weights.basis == "header"
    assert weights.total_bytes == headers.total_bytes
    assert weights.by_component == {"embedding": 7, "attention": 110, "mlp": 1505, "other": 3, "head": 7}
    assert weights.tied_copy_bytes == 7
    assert weights.loaded_bytes == weights.total_bytes - 7
    assert stored_weights(llama(), headers).tied_copy_bytes == 0


def test_computed_weights_name_their_source() -> None:
    assert stored_weights(llama(quantization_config={"quant_method": "awq"})).source == weight_format("awq").source
