"""From a listing of files to a model: only heads are read."""

import pytest

from calculator.errors import HubAnswerError, PlanError
from calculator.gguf.repository import read_model
from calculator.model import read
from calculator.model.weights import every_tensor, stored_weights
from tests.gguf.writer import head

CONFIG = {
    "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "intermediate_size": 512,
    "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}  # fmt: skip
SHAPE = read(CONFIG)
METADATA: dict[str, object] = {
    "general.architecture": "llama", "llama.embedding_length": 256, "llama.block_count": 2,
    "llama.feed_forward_length": 512, "llama.attention.head_count": 8, "llama.attention.head_count_kv": 2,
    "llama.context_length": 4096, "tokenizer.ggml.tokens": ["a"] * 512,
}  # fmt: skip
OUTSIDE = {"embedding": "token_embd.weight", "head": "output.weight", "norm": "output_norm.weight"}
TENSORS = [
    (
        f"blk.{layer}.{tensor.name}" if layer is not None else OUTSIDE[tensor.component],
        tensor.shape,
        "F32" if len(tensor.shape) == 1 else "Q8_0",
    )
    for tensor, layer, _, _ in every_tensor(SHAPE)
]
FILES = {
    "tiny-Q8_0.gguf": head(METADATA, TENSORS),
    "tiny-F16-00001-of-00002.gguf": head(METADATA, [(n, s, "F16") for n, s, _ in TENSORS[:3]]),
    "tiny-F16-00002-of-00002.gguf": head({"split.no": 1}, [(n, s, "F16") for n, s, _ in TENSORS[3:]]),
    "mmproj-F16.gguf": head({"general.architecture": "clip"}, []),
    "broken-Q2_K.gguf": b"not a model",
}
SIZES = dict.fromkeys(FILES, 10**9)


class Reader:
    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, name: str, offset: int, length: int) -> bytes:
        self.asked.append(name)
        return (FILES[name] + bytes(1 << 20))[offset : offset + length]


@pytest.mark.parametrize(("wanted", "parts"), [("Q8_0", 1), ("F16", 2)])
def test_a_file_gives_shape_and_exact_weights(wanted: str, parts: int) -> None:
    reader = Reader()
    model = read_model(SIZES, reader, wanted)
    assert model.shape.parameters == SHAPE.parameters
    assert model.shape.cache == SHAPE.cache
    assert len(model.headers) == parts
    assert sorted(reader.asked) == sorted(model.file.names)
    assert model.projector is not None
    if wanted == "F16":
        assert model.weights.total_bytes == stored_weights(SHAPE).total_bytes
    else:
        matrices = sum(n for _, shape, kind in TENSORS if kind == "Q8_0" for n in [shape[0] * shape[1]])
        assert model.weights.total_bytes == matrices * 34 // 32 + 4 * 5 * 256


def test_the_config_reads_back_to_the_same_shape() -> None:
    model = read_model(SIZES, Reader())
    assert read(model.config) == model.shape


def test_a_broken_file_and_a_missing_mix_are_refused() -> None:
    with pytest.raises(HubAnswerError) as broken:
        read_model(SIZES, Reader(), "Q2_K")
    assert (broken.value.key, broken.value.field) == ("gguf.not_gguf", "broken-Q2_K.gguf")
    with pytest.raises(PlanError):
        read_model(SIZES, Reader(), "IQ1_S")
