"""A command line fills the page: pasted, it is read as text, never run, and what was not understood is named."""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st

from calculator.errors import CalculatorError
from calculator.serving.command import LONGEST, Command, parse_command
from calculator.serving.plan import USUAL_CONTEXT_TOKENS, ServingPlan
from ui import models, state
from ui.i18n import Words
from ui.markdown import plain

_KEY = "command.pasted"
_READ = "command.read"
_KEPT_FROM_WISH = ("concurrency", "practical_share", "request_lengths")


@dataclass(frozen=True, slots=True)
class Read:
    """What came of the last pasted command; ``problem`` is why it, or its model, could not be taken."""

    command: Command | None
    problem: CalculatorError | None = None


def command_input(words: Words) -> None:
    with st.expander(words("explore.command.paste"), icon=":material/terminal:", key="command.box"):
        st.text_area(
            words("explore.command.label"), key=_KEY, height=110, max_chars=LONGEST, help=words("explore.command.help"),
            placeholder="vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192", on_change=_take,
        )  # fmt: skip
        _result(words)


def kept(plan: ServingPlan) -> tuple[str, ...]:
    """The flags of the pasted command that have no field, for the command that is written back."""
    read: Read | None = st.session_state.get(_READ)
    return read.command.kept if read and read.command and read.command.engine == plan.engine else ()


def _take() -> None:
    written = st.session_state[_KEY]
    if not written.strip():
        st.session_state[_READ] = None
        return
    try:
        command = parse_command(written)
        put(command)
    except CalculatorError as error:
        st.session_state[_READ] = Read(None, error)
        return
    problem = None
    if command.model:
        try:
            choice = models.from_text(command.model)
        except CalculatorError as error:
            problem = error
        else:
            state.put(state.current().model_copy(update={"model": choice}))
    st.session_state[_READ] = Read(command, problem)


def put(command: Command) -> None:
    """The settings with what the command says, and engines' defaults for all that it does not say; the wish stays.
    Raises ``PlanError``."""
    settings = state.current()
    wish = {name: getattr(settings.serving, name) for name in _KEPT_FROM_WISH}
    plan = command.plan(ServingPlan(**wish))
    # Ollama's own default follows the card.
    if plan.max_model_len is None and plan.context_tokens is None and plan.engine != "ollama":
        plan = plan.model_copy(update={"context_tokens": settings.serving.context_tokens or USUAL_CONTEXT_TOKENS})
    n_gpus = plan.n_gpus if command.fields.get("n_gpus") else 1
    state.put(
        settings.model_copy(
            update={"serving": plan.model_copy(update={"n_gpus": 1}), "n_gpus": n_gpus, "usual_context": False}
        )
    )


def _result(words: Words) -> None:
    read: Read | None = st.session_state.get(_READ)
    if read is None:
        return
    if read.command is not None:
        engine = words.option("engine", read.command.engine)
        count = len(read.command.fields)
        st.caption(plain(words("explore.command.read", engine=engine, fields_count=count)))
        if read.command.unknown:
            names = words("explore.comma").join(name[:40] for name in read.command.unknown[:20])
            st.warning(plain(words("explore.command.unknown", list=names)), icon=":material/help:")
    if read.problem is not None:
        said = f"{words.text(read.problem.message)} {words.text(read.problem.remedy)}"
        st.warning(plain(said), icon=":material/error:")
