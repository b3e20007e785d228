"""Which GGUF file of a repository is meant."""

import pytest

from calculator.errors import HubAnswerError, PlanError
from calculator.gguf.files import choose, group_files, mix_of, projector

REPOSITORY = {
    "README.md": 10,
    "Model-7B-Instruct-Q8_0.gguf": 800,
    "Model-7B-Instruct-Q4_K_M.gguf": 450,
    "Model-7B-Instruct-UD-Q4_K_XL.gguf": 460,
    "Model-7B-Instruct-IQ4_XS.gguf": 400,
    "BF16/Model-7B-Instruct-BF16-00002-of-00002.gguf": 600,
    "BF16/Model-7B-Instruct-BF16-00001-of-00002.gguf": 900,
    "mmproj-F32.gguf": 40,
    "mmproj-F16.gguf": 20,
    "imatrix_unsloth.gguf": 5,
    "mtp-Model-7B-Instruct-Q8_0.gguf": 30,
}


@pytest.mark.parametrize(
    ("name", "mix"),
    [
        ("Llama-3-8B-Instruct.q4_k_m", "Q4_K_M"),
        ("UD-Q2_K_XL/DeepSeek-R1-UD-Q2_K_XL", "UD-Q2_K_XL"),
        ("model-IQ3_XXS", "IQ3_XXS"),
        ("ggml-model-f16", "F16"),
        ("qwen2.5-7b-instruct-fp16", "F16"),
        ("gpt-oss-20b-mxfp4", "MXFP4"),
        ("tinyllama-1.1b", ""),
        ("Q4-model", "Q4"),
        ("model-TQ1_0", "TQ1_0"),
    ],
)
def test_the_mix_stands_in_the_name(name: str, mix: str) -> None:
    assert mix_of(name) == mix


def test_parts_belong_together_and_other_files_do_not_count() -> None:
    files = group_files(REPOSITORY)
    assert len(files) == 7
    whole = next(f for f in files if f.mix == "BF16")
    assert whole.size_bytes == 1500
    assert [name[-11:-5] for name in whole.names] == ["-00002", "-00002"]
    assert whole.names[0].endswith("00001-of-00002.gguf")
    assert sum(f.projector for f in files) == 2


def test_sizes_may_be_unknown() -> None:
    assert group_files({"a-Q4_0.gguf": None})[0].size_bytes is None
    assert group_files({"a-00001-of-00002.gguf": 1, "a-00002-of-00002.gguf": None})[0].size_bytes is None


def test_a_missing_part_is_named_if_it_is_needed() -> None:
    broken = {"m-Q4_K_M-00001-of-00003.gguf": 1, "m-Q4_K_M-00003-of-00003.gguf": 1}
    with pytest.raises(HubAnswerError) as caught:
        choose(group_files(broken))
    assert choose(group_files({**broken, "m-Q8_0.gguf": 5})).mix == "Q8_0"
    with pytest.raises(HubAnswerError):
        choose(group_files({**broken, "m-Q8_0.gguf": 5}), "Q4_K_M")
    assert caught.value.key == "gguf.missing_part"
    assert caught.value.message.values["part"] == 2


def test_the_usual_file_is_chosen_unless_one_is_named() -> None:
    files = group_files(REPOSITORY)
    assert choose(files).mix == "Q4_K_M"
    assert choose(files, "q8_0").mix == "Q8_0"
    assert choose(files, "gguf:UD-Q4_K_XL").mix == "UD-Q4_K_XL"
    assert choose(files, "Model-7B-Instruct-IQ4_XS.gguf").mix == "IQ4_XS"
    assert choose(group_files({"a-Q5_K_M.gguf": 1, "a-Q8_0.gguf": 2})).mix == "Q5_K_M"
    assert choose(group_files({"strange.gguf": 1})).names == ("strange.gguf",)


def test_what_is_not_there_is_refused_with_what_is() -> None:
    with pytest.raises(PlanError) as caught:
        choose(group_files(REPOSITORY), "Q2_K")
    assert "Q8_0" in str(caught.value.message.values["candidates"])
    with pytest.raises(HubAnswerError):
        choose(group_files({"mmproj-F16.gguf": 1, "README.md": 1}))


def test_the_projector_is_the_16_bit_one() -> None:
    files = group_files(REPOSITORY)
    found = projector(files)
    assert found is not None
    assert found.names == ("mmproj-F16.gguf",)
    assert projector(group_files({"a-Q4_0.gguf": 1})) is None
