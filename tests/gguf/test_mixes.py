"""Mixes computed from shapes against published files, and against the quantiser's rules told slowly."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculator.errors import PlanError
from calculator.gguf.mixes import MIXES, Mix, mix_name, mix_weights, projector_weights
from calculator.gguf.names import category
from calculator.model import read
from calculator.model.shape import ModelShape, Tensor, Tower
from calculator.model.weights import layout_of, weights_in_format
from calculator.units import parse_bytes

PUBLISHED = json.loads((Path(__file__).parents[1] / "data" / "weights" / "gguf.json").read_text())
FILES = [(row, mix) for row in PUBLISHED for mix in row["sizes"]]


@pytest.mark.parametrize(("row", "mix"), FILES, ids=[f"{row['model']}-{mix}" for row, mix in FILES])
def test_a_mix_is_within_a_percent_of_the_published_file(row: dict[str, Any], mix: str) -> None:
    """Half a percent, more where the tokenizer, which the file also holds, is a larger part of a small file."""
    how = {"imatrix": row["imatrix"], "fused_apart": row.get("fused_apart", False)}
    weights = mix_weights(read(row["config"]), mix, **how)
    kept = weights.total_bytes if row.get("prediction") else weights.loaded_bytes
    assert kept == pytest.approx(parse_bytes(row["sizes"][mix]), rel=row.get("tolerance", 0.005)), row["url"]


def test_the_tokenizer_is_what_a_published_file_has_more() -> None:
    """Files whose exact size is known exceed the tensors by the same 7.8 MB in every mix."""
    exact = next(row for row in PUBLISHED if row["sizes"].get("Q4_K_M", "").endswith(" B"))
    shape = read(exact["config"])
    more = {m: parse_bytes(size) - mix_weights(shape, m).total_bytes for m, size in exact["sizes"].items()}
    assert max(more.values()) - min(more.values()) < 100_000
    assert 7_000_000 < min(more.values()) < 8_500_000


def llama(**changes: Any) -> ModelShape:
    return read({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 1024, "intermediate_size": 2048,
        "num_hidden_layers": 32, "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 4096,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "max_position_embeddings": 2048, **changes,
    })  # fmt: skip


def types(shape: ModelShape, mix: str, tail: str, **how: Any) -> list[str]:
    plan = Mix(shape, mix, **how)
    return [
        plan.type_of(tensor, layer).name
        for layer, index in enumerate(shape.order)
        for tensor in shape.blocks[index].tensors
        if tensor.name.endswith(f"{tail}.weight")
    ]


def test_the_middle_mix_gives_more_bits_at_both_ends_and_to_every_third_layer() -> None:
    down = types(llama(), "Q4_K_M", "down_proj")
    six = [layer for layer, name in enumerate(down) if name == "Q6_K"]
    assert six == [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31]
    assert set(down) == {"Q4_K", "Q6_K"}
    assert types(llama(), "Q4_K_M", "v_proj") == down
    assert set(types(llama(), "Q4_K_M", "q_proj")) == {"Q4_K"}


def test_other_mixes_by_layer() -> None:
    shape = llama()
    assert types(shape, "Q3_K_M", "down_proj") == ["Q5_K"] * 2 + ["Q4_K"] * 30
    assert types(shape, "Q3_K_M", "v_proj") == ["Q5_K"] * 2 + ["Q4_K"] * 30
    assert types(shape, "Q4_K_S", "down_proj") == ["Q5_K"] * 4 + ["Q4_K"] * 28
    assert types(shape, "IQ4_XS", "down_proj") == ["Q5_K"] * 4 + ["IQ4_XS"] * 28
    assert types(shape, "IQ4_XS", "down_proj", imatrix=True) == ["IQ4_XS"] * 32
    assert types(shape, "Q4_0", "down_proj", imatrix=True) == ["Q4_1"] * 4 + ["Q4_0"] * 28
    assert set(types(shape, "Q2_K", "v_proj")) == {"Q4_K"}
    assert set(types(llama(num_key_value_heads=8), "Q2_K", "v_proj")) == {"Q3_K"}
    assert set(types(shape, "Q2_K", "o_proj")) == {"Q3_K"}
    assert types(llama(num_hidden_layers=80), "Q3_K_M", "v_proj") == ["Q5_K"] * 80


HYBRID = {
    "model_type": "qwen3_5_text", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 24,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 512,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 6, "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 64, "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_value_head_dim": 64,
    "tie_word_embeddings": True, "torch_dtype": "bfloat16", "mtp_num_hidden_layers": 1,
}  # fmt: skip
MORE = [0, 1, 2, 5, 8, 11, 14, 17, 20, 21, 22, 23]
"""Layers of 24 that the middle mixes give more bits."""


def test_fused_matrices_count_as_value_matrices() -> None:
    """Both kinds of layer share one count. Before April 2026 the fused ones had a rule, and the others a count."""
    shape = read(HYBRID)
    attends = [layer for layer in range(24) if layer % 4 == 3]
    value = dict(zip(attends, types(shape, "Q4_K_M", "v_proj"), strict=True))
    fused = dict(zip(sorted({*range(24)} - {*attends}), types(shape, "Q4_K_M", "in_proj_qkv"), strict=True))
    assert [layer for layer, name in sorted((value | fused).items()) if name == "Q6_K"] == MORE
    assert set(types(shape, "Q4_K_M", "in_proj_qkv", fused_apart=True)) == {"Q5_K"}
    assert types(shape, "Q4_K_M", "v_proj", fused_apart=True) == ["Q6_K"] * 3 + ["Q4_K"] * 2 + ["Q6_K"]
    assert set(types(shape, "Q4_K_M", "in_proj_z") + types(shape, "Q4_K_M", "out_proj")) == {"Q4_K"}


def test_a_joint_projection_is_written_as_two() -> None:
    changes = {
        "model_type": "qwen3_next", "num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 256,
        "shared_expert_intermediate_size": 256, "decoder_sparse_step": 1, "mlp_only_layers": [],
    }  # fmt: skip
    joint = read({**{k: v for k, v in HYBRID.items() if k != "mtp_num_hidden_layers"}, **changes})
    tensor = next(t for t in joint.blocks[joint.order[1]].tensors if t.name.endswith("in_proj_qkvz.weight"))
    assert tensor.shape == (2 * 4 * 64 + 2 * 8 * 64, 256)
    six, four = 2 * 4 * 64 + 8 * 64, 8 * 64
    assert Mix(joint, "Q4_K_M").tensor_bytes(tensor, 1) == six * 210 + four * 144


def test_prediction_layers_stand_apart_where_the_converter_keeps_them() -> None:
    shape = read(HYBRID)
    weights = mix_weights(shape, "Q8_0")
    assert weights.by_component["mtp"] == weights.total_bytes - weights.loaded_bytes > 0
    plain = mix_weights(shape.model_copy(update={"mtp": ()}), "Q8_0")
    assert plain.total_bytes == weights.loaded_bytes
    dropped = shape.model_copy(update={"model_type": "deepseek_v3"})
    assert "mtp" not in mix_weights(dropped, "Q8_0").by_component


def test_the_output_is_the_embedding_where_they_are_tied() -> None:
    untied, tied = llama(), llama(tie_word_embeddings=True)
    assert Mix(untied, "Q4_K_M").type_of(untied.embedding[0], None).name == "Q4_K"
    assert Mix(untied, "Q4_K_M").type_of(untied.head[0], None).name == "Q6_K"
    assert Mix(tied, "Q4_K_M").type_of(tied.embedding[0], None).name == "Q6_K"
    assert Mix(untied, "Q8_0").type_of(untied.head[0], None).name == "Q8_0"
    assert Mix(untied, "Q4_K_L").type_of(untied.embedding[0], None).name == "Q8_0"


def test_columns_that_do_not_fill_a_block_take_the_next_type() -> None:
    odd = llama(intermediate_size=2080)
    assert set(types(odd, "Q4_K_M", "down_proj")) == {"Q5_0", "Q8_0"}
    assert set(types(odd, "Q4_K_M", "gate_proj")) == {"Q4_K"}
    odder = llama(intermediate_size=2056)
    assert set(types(odder, "Q4_K_M", "down_proj")) == {"F16"}


def test_norms_and_routers_stay_in_fp32() -> None:
    moe = read({
        "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "hidden_size": 256, "intermediate_size": 512,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512,
        "num_local_experts": 8, "num_experts_per_tok": 2, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    })  # fmt: skip
    weights = mix_weights(moe, "Q4_K_M")
    assert weights.by_component["router"] == 4 * 4 * 8 * 256
    assert weights.by_component["norm"] == 4 * 256 * (2 * 4 + 1)
    assert set(types(moe, "Q4_K_M", "v_proj")) == {"Q8_0"}
    assert set(types(moe, "Q4_K_M", "o_proj")) == {"Q5_K"}
    assert mix_weights(moe, "MXFP4_MOE").by_format["MXFP4"] == 4 * 8 * 3 * 256 * 512 * 17 // 32


@given(st.sampled_from(MIXES), st.integers(1, 100), st.booleans())
def test_parts_add_up_and_grow_with_the_layers(mix: str, layers: int, imatrix: bool) -> None:
    small, large = llama(num_hidden_layers=layers), llama(num_hidden_layers=layers + 1)
    weights = mix_weights(small, mix, imatrix=imatrix)
    assert sum(weights.by_component.values()) == sum(weights.by_format.values()) == weights.total_bytes
    if mix in ("Q8_0", "F16", "Q6_K", "Q4_1"):  # without exceptions by layer
        assert weights.total_bytes < mix_weights(large, mix).total_bytes
    bits = 8 * weights.total_bytes / small.parameters.total
    assert 1.5 < bits <= 32


def test_the_layout_answers_tensor_by_tensor() -> None:
    shape = llama()
    layout = layout_of(shape, "gguf:q4_k_m")
    total = sum(
        layout.tensor_bytes(t, layer) for layer, index in enumerate(shape.order) for t in shape.blocks[index].tensors
    )
    total += sum(layout.tensor_bytes(t, None) for t in (*shape.embedding, *shape.final, *shape.head))
    assert total == weights_in_format(shape, "gguf:Q4_K_M").total_bytes
    assert layout.by_layer


@pytest.mark.parametrize(
    ("written", "name"),
    [("q4_k_m", "Q4_K_M"), ("gguf:Q5_K_S", "Q5_K_S"), ("IQ4-XS", "IQ4_XS"), ("MXFP4", "MXFP4_MOE"), ("q8", "Q8_0")],
)
def test_mixes_by_the_names_people_write(written: str, name: str) -> None:
    assert mix_name(written) == name


@pytest.mark.parametrize("written", ["UD-Q4_K_XL", "gguf:unknown", "", "Q7_K"])
def test_a_mix_without_rules_is_refused(written: str) -> None:
    with pytest.raises(PlanError) as caught:
        mix_name(written)
    assert caught.value.key == "gguf.unknown_mix"


def test_towers_go_to_a_file_of_their_own() -> None:
    shape = llama()
    matrix = Tensor(name="fc.weight", shape=(64, 32), component="vision", kind="linear", copies=3)
    vector = Tensor(name="ln.weight", shape=(64,), component="vision", kind="norm")
    tower = Tower(modality="vision", prefix="vision.", hidden=64, layers=3, heads=4, tensors=(matrix, vector))
    seeing = shape.model_copy(update={"towers": (tower,)})
    projector = projector_weights(seeing)
    assert projector is not None
    assert projector.total_bytes == 3 * 64 * 32 * 2 + 64 * 4
    assert mix_weights(seeing, "Q4_K_M").total_bytes == mix_weights(shape, "Q4_K_M").total_bytes
    assert projector_weights(shape) is None


NO_CATEGORY = re.compile(r"kv_a_proj|kv_b_proj|q_[ab]_proj|(conv|linear_attn)\.(in|out)_proj")
"""Latent projections and what keeps a state are in no category of the quantiser."""


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: row["model"])
def test_every_matrix_of_the_published_models_has_a_category(row: dict[str, Any]) -> None:
    shape = read(row["config"])
    for block in shape.blocks:
        for tensor in block.tensors:
            if tensor.kind == "linear" and not NO_CATEGORY.search(tensor.name):
                assert category(tensor) not in ("other", "kept"), tensor.name
