"""Weights published in float32: what an engine loads of them."""

import pytest

from calculator import hardware, model, presets
from calculator.render import render
from calculator.serving import bill
from calculator.serving.plan import ServingPlan

H100 = hardware.resolve("h100-80gb-sxm")


@pytest.mark.parametrize(("engine", "bytes_each"), [("vllm", 2), ("sglang", 2), ("transformers", 4)])
def test_float32_is_loaded_in_16_bit_where_the_engine_does_so(engine: str, bytes_each: int) -> None:
    config = dict(presets.preset("llama-3.1-8b").config())
    shape = model.read(config | {"torch_dtype": "float32"})
    made = bill(shape, ServingPlan(engine=engine, max_model_len=4096, concurrency=1), H100)  # type: ignore[arg-type]
    assert made.serving is not None
    assert made.serving.weights_bytes == pytest.approx(bytes_each * shape.parameters.total, rel=0.01)
    assert made.serving.bytes_per_token == 32 * 2 * 8 * 128 * bytes_each
    assert any("float32" in render(said) for said in made.assumptions) == (bytes_each == 2)


def test_a_chosen_dtype_stands() -> None:
    shape = model.read(dict(presets.preset("llama-3.1-8b").config()) | {"torch_dtype": "float32"})
    made = bill(shape, ServingPlan(weights="fp32", max_model_len=4096, concurrency=1), H100)
    assert made.serving is not None
    assert made.serving.weights_bytes == pytest.approx(4 * shape.parameters.total, rel=0.01)
