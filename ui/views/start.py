"""The plan as a command for its engine, and for the others that are started by one."""

from __future__ import annotations

import streamlit as st

from calculator.errors import CalculatorError
from calculator.serving.command import emit_command
from calculator.serving.plan import ServingPlan
from ui.inputs.command import kept
from ui.inputs.serving import ENGINES, KV_FORMATS
from ui.markdown import plain
from ui.screen import Screen


def start_it(screen: Screen, plan: ServingPlan) -> None:
    words = screen.words
    model = screen.model.id or screen.model.name
    st.subheader(words("explore.start.title"), anchor=False)
    try:
        own = emit_command(model, plan, kept(plan))
    except CalculatorError as error:
        st.caption(plain(words.text(error.message)))
    else:
        st.code(folded(own), language="bash", wrap_lines=True)
    others = {engine: command for engine in ENGINES if engine != plan.engine and (command := _for(engine, model, plan))}
    with st.expander(words("explore.start.others"), key="start.others"):
        for engine, command in others.items():
            st.caption(words.option("engine", engine))
            st.code(folded(command), language="bash", wrap_lines=True)


def _for(engine: str, model: str, plan: ServingPlan) -> str | None:
    """The plan's wish for another engine: what only the present one knows is left out."""
    cache = plan.kv_cache_dtype if plan.kv_cache_dtype in KV_FORMATS.get(engine, ()) else "auto"
    try:
        wish = ServingPlan(
            engine=engine, kv_cache_dtype=cache, max_model_len=plan.max_model_len, max_num_seqs=plan.max_num_seqs,
            tp=plan.tp, pp=plan.pp, dp=plan.dp, n_gpus=plan.n_gpus,
        )  # fmt: skip
        return emit_command(model, wish)
    except CalculatorError:
        return None


def folded(command: str) -> str:
    """A flag a line, where no quoted argument could be broken."""
    return command if "'" in command or '"' in command else command.replace(" --", " \\\n  --")
