"""Dialects of quantisation configs, and the module patterns they turn into."""

import itertools
import json
import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculator.errors import BadValueError
from calculator.model.patterns import matcher, module_patterns, regex_pattern, substring_patterns
from calculator.model.quantization import format_of, read_quantization
from calculator.model.shape import Quantization
from calculator.render import render

LINEAR_FP8 = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}


def found(**quantization: object) -> Quantization:
    read = read_quantization({"quantization_config": quantization})
    assert read is not None
    return read


def skips(quantization: Quantization, path: str) -> bool:
    return matcher(quantization.excluded).fullmatch(path) is not None


DIALECTS: list[tuple[dict[str, object], str, float, int | None]] = [
    ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_block", 8, None),
    ({"quant_method": "fp8", "weight_block_size": None, "activation_scheme": "static"}, "fp8", 8, None),
    ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, "fbgemm_fp8", 8, None),
    ({"quant_method": "mxfp4"}, "mxfp4", 4, 32),
    ({"quant_method": "awq", "bits": 4, "group_size": 64}, "awq", 4, 64),
    ({"quant_method": "awq", "w_bit": 4, "q_group_size": 128}, "awq", 4, 128),
    ({"quant_method": "gptq", "bits": 8, "group_size": -1, "desc_act": True}, "gptq", 8, None),
    ({"quant_method": "intel/auto-round", "bits": 2, "group_size": 32}, "auto_round", 2, 32),
    ({"quant_method": "auto-round", "bits": 4, "packing_format": "auto_round:auto_awq"}, "awq", 4, 128),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, "nf4", 4, 64),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True}, "fp4_dq", 4, 64),
    ({"load_in_8bit": True}, "bnb_int8", 8, None),
    ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": LINEAR_FP8}}}, "fp8_channel", 8, None),
    ({"config_groups": {"g": {"weights": INT4}}, "format": "pack-quantized"}, "w4a16", 4, 128),
    (
        {"quant_method": "compressed-tensors", "format": "int-quantized",
         "config_groups": {"g": {"weights": {"num_bits": 8, "type": "int", "strategy": "channel"}}}},
        "int8", 8, None,
    ),
    (
        {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
         "config_groups": {"g": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}}},
        "nvfp4", 4, 16,
    ),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4", 4, 16),
    ({"quant_algo": "FP8"}, "fp8", 8, None),
    ({"quant_method": "bitnet", "quantization_mode": "offline"}, "bitnet", 2, None),
    ({"quant_method": "exl2", "bits": 2.5, "head_bits": 6}, "exl2", 2.5, None),
    ({"quant_method": "exl3", "bits": 3.0, "head_bits": 6}, "exl3", 3, None),
    ({"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 3, "group_size": 64}}}, "hqq", 3, 64),
    ({"quant_method": "torchao", "quant_type": "int4_weight_only", "quant_type_kwargs": {"group_size": 32}},
     "torchao_int4", 4, 32),
    ({"quant_method": "torchao", "quant_type": {"default": {"_type": "Int8WeightOnlyConfig", "_data": {}}}},
     "torchao_int8", 8, None),
    ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4", "group_size": 32}}}, "mxfp4", 4, 32),
    ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8_e4m3", "qscheme": "per_channel"}}},
     "fp8_channel", 8, None),
    ({"quant_method": "quark", "global_quant_config": {"weight": [{"dtype": "fp8_e4m3"}]}}, "fp8", 8, None),
    ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "int8"}}}, "int8", 8, None),
    ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "uint4", "group_size": 32}}},
     "w4a16", 4, 32),
    ({"quant_method": "torchao", "quant_type": "float8_weight_only"}, "torchao_fp8", 8, None),
    ({"config_groups": {"g": {"weights": {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32}}}},
     "mxfp8", 8, 32),
    ({"config_groups": {"g": {"weights": {"num_bits": 4, "type": "float", "group_size": 32}}}}, "mxfp4", 4, 32),
    ({"config_groups": {"g": {"weights": {"num_bits": 8, "type": "float", "strategy": "block",
                                          "block_structure": [128, 128]}}}}, "fp8_block", 8, None),
    ({"group_size": 64, "bits": 6}, "mlx", 6, 64),
    ({"group_size": 32, "bits": 4, "mode": "mxfp4"}, "mxfp4", 4, 32),
    ({"group_size": 16, "bits": 4, "mode": "nvfp4"}, "nvfp4", 4, 16),
]  # fmt: skip


@pytest.mark.parametrize(("raw", "key", "bits", "group"), DIALECTS)
def test_every_dialect_names_its_format(raw: dict[str, object], key: str, bits: float, group: int | None) -> None:
    form = format_of(found(**raw))
    assert (form.key, form.bits, form.group_size) == (key, bits, group)


def test_the_config_may_sit_in_several_places() -> None:
    awq = {"quant_method": "awq", "bits": 4, "group_size": 128}
    for config in (
        {"quantization_config": awq},
        {"text_config": {"quantization_config": awq}},
        {"compression_config": {"config_groups": {"g": {"weights": INT4}}}},
        {"quantization": {"bits": 4, "group_size": 64}},
    ):
        assert read_quantization(config) is not None
    for config in ({}, {"quantization_config": None}, {"quantization_config": {}}, {"quantization": "none"}):
        assert read_quantization(config) is None
    assert read_quantization({"quantization_config": {"quant_method": "bitnet", "quantization_mode": "online"}}) is None


def test_the_sidecar_stands_in_and_adds() -> None:
    sidecar = {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    alone = read_quantization({}, sidecar)
    assert alone is not None
    assert (alone.format, alone.kv_format) == ("nvfp4", "fp8")
    beside = read_quantization({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}, sidecar)
    assert beside is not None
    assert beside.kv_format == "fp8"
    assert skips(beside, "lm_head")


def test_cache_formats_are_read() -> None:
    groups = {"g": {"weights": LINEAR_FP8}}
    scheme = {"num_bits": 8, "type": "float"}
    assert found(config_groups=groups, kv_cache_scheme=scheme).kv_format == "fp8"
    assert found(config_groups=groups).kv_format is None
    assert found(quant_algo="FP8", kv_cache_quant_algo=None).kv_format is None


def test_exclusions_follow_their_dialect() -> None:
    listed = found(quant_method="fp8", modules_to_not_convert=["lm_head", "model.layers.3.mlp.gate", "visual"])
    assert skips(listed, "lm_head")
    assert skips(listed, "model.layers.3.mlp.gate")
    assert skips(listed, "model.language_model.layers.3.mlp.gate")
    assert skips(listed, "model.visual.blocks.0.attn.qkv")
    assert not skips(listed, "model.layers.3.mlp.gate_proj")
    assert not skips(listed, "model.layers.13.mlp.gate")
    # AutoAWQ matches a text anywhere in the path.
    awq = found(quant_method="awq", modules_to_not_convert=["mlp.gate", "model.layers.0."])
    assert skips(awq, "model.layers.9.mlp.gate_proj")
    assert skips(awq, "model.layers.0.self_attn.q_proj")
    assert not skips(awq, "model.layers.10.self_attn.q_proj")
    # compressed-tensors: exact names, or expressions after "re:".
    tensors = found(config_groups={"g": {"weights": INT4}}, ignore=["lm_head", r"re:.*mlp\.(gate|up)_proj$"])
    assert skips(tensors, "model.layers.0.mlp.gate_proj")
    assert not skips(tensors, "model.layers.0.mlp.gate_proj.more")
    assert not skips(tensors, "model.layers.0.mlp.down_proj")
    # Model Optimizer: shell wildcards.
    nvidia = found(quant_algo="NVFP4", exclude_modules=["model.layers.0*", "model.layers.1.*", "mtp*"])
    assert skips(nvidia, "model.layers.0.mlp.up_proj")
    assert skips(nvidia, "model.layers.1.mlp.up_proj")
    assert skips(nvidia, "mtp.fc")
    assert not skips(nvidia, "model.layers.10.mlp.up_proj")


def test_a_vision_layer_is_not_taken_for_a_language_layer() -> None:
    listed = found(quant_method="fp8", modules_to_not_convert=["model.layers.0.self_attn.q_proj"])
    assert not skips(listed, "vision_tower.encoder.layers.0.self_attn.q_proj")


def test_mixed_precision_names_a_format_per_module() -> None:
    layers = {
        f"model.layers.{i}.mlp.experts.{e}.up_proj": {"quant_algo": "NVFP4"} for i in range(40) for e in range(64)
    }
    layers |= {f"model.layers.{i}.self_attn.q_proj": {"quant_algo": "FP8"} for i in range(40)}
    mixed = found(quant_algo="MIXED_PRECISION", quantized_layers=layers)
    assert len(mixed.per_module) == 2
    by_spec = {spec: re.compile(p) for p, spec in mixed.per_module.items()}
    assert by_spec["nvfp4"].fullmatch("model.layers.39.mlp.experts.63.up_proj")
    assert by_spec["fp8"].fullmatch("model.layers.7.self_attn.q_proj")
    assert not by_spec["fp8"].fullmatch("model.layers.40.self_attn.q_proj")
    assert not matcher(mixed.only).fullmatch("model.layers.0.mlp.down_proj")


def test_gptq_rules_skip_and_change_modules() -> None:
    rules = {r"-:.*\.gate$": {}, r"+:.*\.down_proj$": {"bits": 8, "group_size": 32}}
    gptq = found(quant_method="gptq", bits=4, group_size=128, dynamic=rules)
    assert skips(gptq, "model.layers.0.mlp.gate")
    assert list(gptq.per_module.values()) == ["gptq:bits=8,group=32"]


def test_auto_round_layers_have_their_own_bits() -> None:
    own = {"model.layers.0.mlp.down_proj": {"bits": 8, "group_size": 32}, ".*shared_expert.*": {"bits": 16}}
    rounded = found(quant_method="auto-round", bits=4, group_size=128, extra_config=own)
    assert list(rounded.per_module.values()) == ["auto_round:bits=8,group=32"]
    assert skips(rounded, "model.layers.4.mlp.shared_expert.up_proj")
    assert not skips(rounded, "model.layers.4.mlp.up_proj")


def test_a_quantised_head_is_read() -> None:
    assert found(quant_method="gptq", bits=4, group_size=128, lm_head=True).per_module == {
        "lm_head": "gptq:bits=4,group=128"
    }
    assert found(quant_method="exl3", bits=3.5, head_bits=6).per_module == {"lm_head": "exl3:bits=6"}
    assert found(quant_method="exl2", bits=3.5, head_bits=16).per_module == {}


def test_mlx_modules_have_their_own_bits() -> None:
    raw: dict[str, object] = {"group_size": 64, "bits": 4, "lm_head": {"group_size": 32, "bits": 8}, "model.a.b": False}
    mlx = found(**raw)
    assert list(mlx.per_module.values()) == ["mlx:bits=8,group=32"]
    assert skips(mlx, "model.a.b")


def test_deepseek_v4_experts_are_four_bit() -> None:
    read = read_quantization({"expert_dtype": "fp4", "quantization_config": {"quant_method": "fp8"}})
    assert read is not None
    assert list(read.per_module.values()) == ["mxfp4"]


@pytest.mark.parametrize(
    "raw",
    [
        {"quant_method": "aqlm"}, {"quant_method": None}, {"quant_method": 3}, {"quant_method": "awq", "bits": "four"},
        {"quant_method": "gptq", "bits": 4, "group_size": [1]}, {"quant_method": "exl2"},
        {"quant_method": "fp8", "weight_block_size": [0, 128]}, {"quant_method": "fp8", "weight_block_size": [128]},
        {"quant_method": "modelopt", "quant_algo": "FANCY"}, {"config_groups": {"g": {"weights": 3}}},
        {"quant_method": "torchao", "quant_type": "int3"}, {"quant_method": "quark"}, {"bits": 4, "group_size": True},
        {"bits": 4, "group_size": 32, "mode": "ternary"}, {"quant_algo": "MIXED_PRECISION",
                                                           "quantized_layers": {"a": {"quant_algo": "FANCY"}}},
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused_by_key(raw: dict[str, object]) -> None:
    with pytest.raises(BadValueError) as caught:
        read_quantization({"quantization_config": raw})
    assert "quantization_config" in caught.value.field


@pytest.mark.parametrize("written", ["(a+)+$", "(.*a){20}", "(a|a)*b", ".*.*.*.*.*x", "[", "x" * 500])
def test_slow_or_broken_expressions_are_refused(written: str) -> None:
    with pytest.raises(BadValueError) as caught:
        regex_pattern(written)
    assert caught.value.key == "quantization.bad_pattern"
    with pytest.raises(BadValueError):
        found(config_groups={"g": {"weights": INT4}}, ignore=[f"re:{written}"])


NAMES = st.lists(
    st.lists(st.sampled_from(["layers", "mlp", "gate", "experts", "0", "1", "12", "b"]), min_size=1, max_size=6).map(
        ".".join
    ),
    min_size=1,
    max_size=30,
)


@given(NAMES, NAMES)
def test_grouping_names_by_their_numbers_changes_no_match(names: list[str], paths: list[str]) -> None:
    """Against one comparison per name: equal to it, below it, or ending in it."""
    pattern = matcher(module_patterns(names))
    for path in paths:
        slow = any(f".{path}.".find(f".{name}.") >= 0 for name in names)
        assert bool(pattern.fullmatch(path)) == slow


@given(st.sets(st.tuples(st.integers(0, 11), st.integers(0, 4), st.integers(0, 2)), max_size=60))
def test_names_that_lack_some_numbers_are_still_one_expression(numbers: set[tuple[int, int, int]]) -> None:
    """Experts that are excluded in some layers only, for one."""
    patterns = module_patterns(f"layers.{i}.experts.{e}.part.{p}.up" for i, e, p in numbers)
    assert len(patterns) == (1 if numbers else 0)
    found = matcher(patterns)
    for i, e, p in itertools.product(range(13), range(5), range(3)):
        assert bool(found.fullmatch(f"model.layers.{i}.experts.{e}.part.{p}.up")) == ((i, e, p) in numbers)


@given(NAMES, NAMES)
def test_substrings_match_anywhere(names: list[str], paths: list[str]) -> None:
    pattern = matcher(substring_patterns(names))
    for path in paths:
        assert bool(pattern.fullmatch(path)) == any(name in path for name in names)


def test_thousands_of_names_become_a_few_expressions() -> None:
    names = [f"model.layers.{i}.{m}" for i in range(100) for m in ("mlp.gate", "norm")]
    assert len(module_patterns(names)) == 2
    with pytest.raises(BadValueError):
        module_patterns(f"a{chr(97 + i % 26)}{i}x" for i in range(5000))


JUNK = st.sampled_from(
    [
        None,
        True,
        False,
        0,
        -1,
        3,
        2**70,
        1.5,
        float("nan"),
        "",
        "x" * 500,
        "(a+)+",
        [],
        [[]],
        [None],
        {},
        {"a": {}},
        ["a", 1],
    ]
)


@given(st.sampled_from([raw for raw, *_ in DIALECTS]), st.data())
def test_damaged_configs_are_read_or_refused_by_type(raw: dict[str, object], data: st.DataObject) -> None:
    """Any value of any dialect replaced by junk: a form that can be computed with, none, or a typed error."""
    damaged = json.loads(json.dumps(raw))
    place, keys = damaged, list(damaged)
    while True:
        key = data.draw(st.sampled_from(keys))
        if isinstance(place[key], dict) and place[key] and data.draw(st.booleans()):
            place = place[key]
            keys = list(place)
            continue
        place[key] = data.draw(JUNK)
        break
    for config, sidecar in (({"quantization_config": damaged}, None), ({}, {"quantization": damaged})):
        with suppress(BadValueError):
            read = read_quantization(config, sidecar)
            assert read is None or format_of(read).tensor_bytes((256, 256)) > 0


@pytest.mark.parametrize(
    "written",
    ["awq", [1], {"quant_method": "awq", "bits": 0, "group_size": 128},
     {"quant_method": "awq", "bits": 4, "group_size": -128}, {"quant_method": "fp8", "weight_block_size": [128]}],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_in_words(written: object) -> None:
    with pytest.raises(BadValueError) as refused:
        read_quantization({"quantization_config": written})
    assert refused.value.field.startswith("quantization_config")
    said = render(refused.value.message)
    assert "unpack" not in said
    assert "{'text'" not in said
