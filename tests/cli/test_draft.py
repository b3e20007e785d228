"""A draft model named on the command line is read like any other model."""

from collections.abc import Callable

from tests.cli.conftest import Run

Call = Callable[..., Run]


def test_a_named_draft_is_billed(run: Call) -> None:
    given = ("serve", "qwen2.5-7b", "--speculative", "draft_model", "--draft-tokens", "3", "--json")
    drafted = run(*given, "--draft-model", "qwen2.5-0.5b").json
    item = next(i for i in drafted["items"] if i["key"] == "draft")
    # 494,032,768 parameters in 16 bit, embedding and head tied.
    assert abs(item["bytes"] / (2 * 494_032_768) - 1) < 0.01
    assert drafted["model"]["parameters"] == 7_615_616_512
    missing = run(*given)
    assert missing.code == 2
    unknown = run("serve", "qwen2.5-7b", "--speculative", "zzz", "--json")
    assert unknown.code == 2
    assert "eagle3" in str(unknown.json)
