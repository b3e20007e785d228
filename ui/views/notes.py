"""What has to be said besides the numbers: a link that was not wholly understood, refusals, assumptions."""

from __future__ import annotations

from collections.abc import Iterable

import streamlit as st

from calculator.errors import CalculatorError
from calculator.text import Text
from ui import state
from ui.i18n import Words
from ui.link import Problem
from ui.markdown import plain


def link_note(words: Words) -> None:
    """Names every part of the link that was not used."""
    found = state.problems()
    if not found:
        return
    with st.container(key="link.note"):
        st.warning(
            "\n".join((words("ui.link.note"), "", *(f"- {plain(problem_text(p, words))}" for p in found[:12]))),
            icon=":material/link_off:",
        )  # fmt: skip
        st.button(words("ui.link.dismiss"), key="link.dismiss", on_click=state.forget_problems, type="tertiary")


def problem_text(problem: Problem, words: Words) -> str:
    return words(f"ui.link.{problem.reason}", key=problem.key, value=problem.value)


def refusal(error: CalculatorError, words: Words) -> None:
    """What is wrong and what to do, in place of the result."""
    st.error(f"**{plain(words.text(error.message))}**  \n{plain(words.text(error.remedy))}", icon=":material/block:")


def assumptions(texts: Iterable[Text], words: Words) -> None:
    """Everything that was taken for granted."""
    said = list(dict.fromkeys(words.text(message) for message in texts))
    if said:
        st.subheader(words("ui.section.assumptions"), anchor=False)
        st.markdown("\n".join(f"- {plain(sentence)}" for sentence in said))
