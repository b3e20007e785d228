"""Drafts and adapters on the serving page: inputs, link and figures."""

from tests.ui.test_pages import checked, figures, opened, query_of


def test_a_draft_model_is_chosen_named_and_travels() -> None:
    at = opened("serving")
    before = figures(at)
    checked(at.selectbox(key="serving.speculative").set_value("eagle3").run())
    assert query_of(at) == {"v": "1", "sd": "eagle3"}
    head = figures(at)
    assert head["KV cache pool"] != before["KV cache pool"]
    checked(at.text_input(key="serving.draft_model").set_value("llama-3.2-1b").run())
    checked(at.selectbox(key="serving.speculative").set_value("draft_model").run())
    assert query_of(at) == {"v": "1", "sd": "draft_model", "dm": "llama-3.2-1b"}
    again = opened("serving", **query_of(at))
    assert figures(again) == figures(at)
    assert figures(again)["KV cache pool"] not in (before["KV cache pool"], head["KV cache pool"])


def test_a_draft_that_is_missing_and_adapters_are_said() -> None:
    missing = opened("serving", v="1", sd="draft_model")
    assert any("needs a model" in error.value for error in (*missing.error, *missing.warning, *missing.markdown))
    adapted = opened("serving", v="1", nl="8", nr="64")
    assert not adapted.warning
    assert adapted.number_input(key="serving.max_lora_rank").value == 64
    assert figures(adapted)["KV cache pool"] != figures(opened("serving"))["KV cache pool"]


def test_a_process_larger_than_the_card_is_said() -> None:
    at = opened("serving", v="1", p="llama-3.1-70b", g="rtx-4090-24gb")
    notes = [metric.delta for metric in at.metric if metric.label == "nvidia-smi will show"]
    assert notes
    assert "runs out of memory before" in notes[0]
