"""What a shape says beside its tensors: the traits that decide activations, shards and names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculator.model import read
from calculator.model.shape import Attention, DenseMlp, LatentAttention, ModelShape, MoeMlp, StateMixer
from tests.model.corpus import configs
from tests.model.test_corpus import READABLE, shape_of


def first_attention(shape: ModelShape) -> Attention:
    return next(b.mixer for b in shape.blocks if isinstance(b.mixer, Attention))


@pytest.mark.parametrize("model", READABLE)
def test_the_order_uses_every_block_and_names_are_distinct(model: str) -> None:
    shape = shape_of(model)
    assert set(shape.order) | set(shape.encoder_order) == set(range(len(shape.blocks)))
    for block in shape.blocks:
        names = [t.name for t in block.tensors]
        assert len(names) == len(set(names))
    ends = [t.name for t in (*shape.embedding, *shape.final, *shape.head, *shape.projector, *shape.mtp)]
    assert len(ends) == len(set(ends))
    for tower in shape.towers:
        names = [t.name for t in tower.tensors]
        assert len(names) == len(set(names))


@pytest.mark.parametrize("model", READABLE)
def test_projections_have_the_widths_that_the_mixer_states(model: str) -> None:
    for block in shape_of(model).blocks:
        mixer = block.mixer
        if not isinstance(mixer, Attention):
            continue
        by_split = {t.name: t for t in block.tensors if t.component == "attention" and t.kind == "linear"}
        for tensor in by_split.values():
            if tensor.split == "kv":
                assert tensor.out_features in (mixer.kv_heads * mixer.head_dim, mixer.kv_heads * mixer.v_head_dim)


@pytest.mark.parametrize("model", READABLE)
def test_experts_are_whole(model: str) -> None:
    for block in shape_of(model).blocks:
        experts = [t for t in block.tensors if t.component == "experts"]
        assert bool(experts) == isinstance(block.mlp, MoeMlp)
        if isinstance(block.mlp, MoeMlp):
            assert {t.copies for t in experts} == {block.mlp.experts}
            assert {t.split for t in experts} == {"expert"}
            assert block.mlp.top_k <= block.mlp.experts


def test_llama() -> None:
    shape = shape_of("meta-llama/Llama-3.1-8B-Instruct")
    block = shape.blocks[0]
    assert [t.name for t in block.tensors] == [
        "self_attn.q_proj.weight",
        "self_attn.k_proj.weight",
        "self_attn.v_proj.weight",
        "self_attn.o_proj.weight",
        "mlp.gate_proj.weight",
        "mlp.up_proj.weight",
        "mlp.down_proj.weight",
        "input_layernorm.weight",
        "post_attention_layernorm.weight",
    ]
    assert [t.split for t in block.tensors] == ["column", "kv", "kv", "row", "column", "column", "row", "none", "none"]
    assert block.norm == "rms"
    assert block.norms == ("input", "post_attention")
    assert (shape.prefix, shape.layer_prefix) == ("model.", "model.layers.{i}.")
    assert isinstance(block.mlp, DenseMlp)
    assert (block.mlp.gated, block.mlp.activation) == (True, "silu")


def test_gpt2_drops_and_does_not_rotate() -> None:
    shape = shape_of("openai-community/gpt2")
    block, mixer = shape.blocks[0], first_attention(shape)
    assert (block.dropout, mixer.dropout, shape.embedding_dropout) == (0.1, 0.1, 0.1)
    assert (mixer.fused_qkv, mixer.bias, mixer.rotary) == (True, True, "none")
    assert isinstance(block.mlp, DenseMlp)
    assert block.mlp.activation == "gelu_new"
    assert block.norm == "layer"


def test_gemma_2() -> None:
    shape = shape_of("unsloth/gemma-2-9b-it")
    assert [b.mixer.window for b in shape.blocks if isinstance(b.mixer, Attention)] == [4096, None]
    assert shape.order[:4] == (0, 1, 0, 1)
    assert first_attention(shape).softcap
    assert shape.final_softcap
    assert shape.blocks[0].norm == "rms_unit_offset"
    assert len(shape.blocks[0].norms) == 4
    assert shape.tied


def test_gemma_4_shares_caches_and_widens() -> None:
    shape = shape_of("google/gemma-4-E2B-it")
    sharing = [b for b in shape.blocks if isinstance(b.mixer, Attention) and b.mixer.shares_kv]
    assert len(sharing) == 2
    for block in sharing:
        assert not any("k_proj" in t.name or "v_proj" in t.name for t in block.tensors)
        assert isinstance(block.mlp, DenseMlp)
        assert block.mlp.width == 2 * 6144
    large = shape_of("google/gemma-4-31B-it")
    mixers = [b.mixer for b in large.blocks if isinstance(b.mixer, Attention)]
    assert {(m.head_dim, m.kv_heads, m.k_eq_v) for m in mixers} == {(256, 16, False), (512, 4, True)}


def test_parallel_residuals() -> None:
    assert shape_of("EleutherAI/pythia-1b").blocks[0].parallel
    assert shape_of("CohereForAI/aya-23-35B").blocks[0].norms == ("input",)
    assert not shape_of("NousResearch/Llama-2-7b-hf").blocks[0].parallel


def test_gpt_oss_has_sinks_and_biases() -> None:
    shape = shape_of("openai/gpt-oss-20b")
    mixer = first_attention(shape)
    assert mixer.sinks
    assert mixer.bias
    assert {b.mixer.window for b in shape.blocks if isinstance(b.mixer, Attention)} == {128, None}
    assert any(t.name == "mlp.experts.gate_up_proj_bias" for t in shape.blocks[0].tensors)


def test_deepseek_v3_has_dense_layers_first() -> None:
    shape = shape_of("deepseek-ai/DeepSeek-V3")
    assert shape.order == (0,) * 3 + (1,) * 58
    assert isinstance(shape.blocks[0].mixer, LatentAttention)
    assert shape.mtp_layers == 1


def test_hybrids_keep_a_state() -> None:
    shape = shape_of("Qwen/Qwen3.5-27B")
    states = [b.mixer for b in shape.blocks if isinstance(b.mixer, StateMixer)]
    assert [s.variant for s in states] == ["gated_delta"]
    assert states[0].state_dtype == "float32"
    assert first_attention(shape).output_gate
    assert shape.order[:8] == (0, 0, 0, 1, 0, 0, 0, 1)


def test_encoders_do_not_upcast_their_loss() -> None:
    shape = shape_of("google-bert/bert-base-uncased")
    assert (shape.kind, shape.loss_upcast, first_attention(shape).causal) == ("encoder", False, False)
    pair = shape_of("google-t5/t5-small")
    assert (pair.kind, len(pair.order), len(pair.encoder_order)) == ("encoder_decoder", 6, 6)
    assert pair.blocks[pair.order[0]].cross_attention is not None


def test_albert_counts_its_layer_once() -> None:
    shape = shape_of("albert/albert-base-v1")
    assert shape.shared_layers
    assert shape.layers == 12
    assert shape.parameters.mlp == sum(t.elements for t in shape.blocks[0].tensors if t.component == "mlp")


def test_composites_move_the_language_model() -> None:
    shape = shape_of("llava-hf/llava-1.5-7b-hf")
    assert shape.layer_prefix == "language_model.model.layers.{i}."
    assert shape.head[0].name == "language_model.lm_head.weight"
    assert [t.modality for t in shape.towers] == ["vision"]


@given(st.integers(1, 48), st.integers(1, 8), st.integers(1, 64), st.integers(1, 1_000), st.booleans())
def test_more_of_anything_never_has_fewer_parameters(
    layers: int, groups: int, width: int, vocab: int, tie: bool
) -> None:
    def config(**change: object) -> dict[str, object]:
        base = {
            "model_type": "llama",
            "hidden_size": 64 * groups,
            "num_hidden_layers": layers,
            "num_attention_heads": 4 * groups,
            "num_key_value_heads": groups,
            "intermediate_size": 16 * width,
            "vocab_size": vocab,
            "tie_word_embeddings": tie,
        }
        return {**base, **change}

    total = read(config()).parameters.total
    assert read(config(num_hidden_layers=layers + 1)).parameters.total > total
    assert read(config(intermediate_size=16 * width + 1)).parameters.total > total
    assert read(config(vocab_size=vocab + 1)).parameters.total > total
    assert read(config(num_key_value_heads=4 * groups)).parameters.total > total
    head = vocab * 64 * groups
    assert read(config(tie_word_embeddings=not tie)).parameters.total == total + (head if tie else -head)


def test_reading_is_quick() -> None:
    import time

    config = configs()["Qwen/Qwen3.5-27B"]
    read(config)
    started = time.perf_counter()
    for _ in range(20):
        read(config)
    assert (time.perf_counter() - started) / 20 < 0.1
