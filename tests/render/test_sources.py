"""Titles of sources in Chinese: sentences are translated, names stay."""

import ast
import re
from collections.abc import Iterator

import pytest

from calculator.render import catalogue, source_title
from calculator.sources import Source
from tests.source_files import ROOT

NAME = re.compile(r"[\w.+ -]+, [\w.-]+")
"""A project and one of its files or classes, such as "AutoAWQ, WQLinear_GEMM"."""


def written_titles() -> Iterator[str]:
    for path in sorted((ROOT / "calculator").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "Source":
                given = [k.value for k in node.keywords if k.arg == "title"] + node.args[:1]
                yield from (v.value for v in given if isinstance(v, ast.Constant) and isinstance(v.value, str))


@pytest.mark.parametrize("title", sorted(set(written_titles())))
def test_a_title_that_is_a_sentence_has_chinese(title: str) -> None:
    assert NAME.fullmatch(title) or source_title(Source(title=title), "zh") != title


def test_no_translated_title_is_left_over() -> None:
    titles = set(written_titles())
    text = "\n".join(path.read_text("utf-8") for path in (ROOT / "calculator").rglob("*.py"))
    english = catalogue("en")
    left = [
        key for key in catalogue("zh").keys() - english.keys() if key not in titles and f'"{key}"' not in text
    ]  # fmt: skip
    assert not left


def test_a_title_of_files_keeps_the_files() -> None:
    source = Source(title="vLLM source, vllm/v1/core/kv_cache_utils.py")
    assert source_title(source, "zh") == "vLLM 源码，vllm/v1/core/kv_cache_utils.py"
    assert source_title(source) == source.title
    assert source_title(Source(title="ExLlamaV2, EXL2"), "zh") == "ExLlamaV2, EXL2"
