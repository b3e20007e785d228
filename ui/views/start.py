"""The plan as a command for its engine, and for the others that are started by one."""

from __future__ import annotations

import streamlit as st

from calculator.errors import CalculatorError, PlanError
from calculator.gguf.projector import encoders
from calculator.lookup import LoadedModel
from calculator.presets import find_preset
from calculator.serving.command import emit_command
from calculator.serving.engines.gguf import type_of
from calculator.serving.ollama_command import library_name
from calculator.serving.plan import ServingPlan
from ui.inputs.command import kept
from ui.inputs.serving import ENGINES, KV_FORMATS
from ui.markdown import plain
from ui.screen import Screen

GGUF_ENGINES = frozenset(("llama_cpp", "ollama"))


def start_it(screen: Screen, plan: ServingPlan) -> None:
    words = screen.words
    st.subheader(words("explore.start.title"), anchor=False)
    try:
        own = _command(screen, plan, kept(plan))
    except CalculatorError as error:
        st.caption(plain(words.text(error.message)))
    else:
        st.code(folded(own), language="bash", wrap_lines=True)
    others = {
        engine: command for engine in ENGINES if engine != plan.engine and (command := _for(engine, screen, plan))
    }
    with st.expander(words("explore.start.others"), key="start.others"):
        for engine, command in others.items():
            st.caption(words.option("engine", engine))
            st.code(folded(command), language="bash", wrap_lines=True)


def model_argument(model: LoadedModel, plan: ServingPlan) -> str:
    """What the engine of the plan calls the model: llama.cpp and Ollama start GGUF files alone. Raises ``PlanError``
    ("command.no_gguf") where no file is known."""
    name = model.id or model.name
    if plan.engine not in GGUF_ENGINES:
        return name
    if model.origin == "hub" and model.gguf_file is not None and plan.weights is None:
        file = next((f for f in model.gguf_choices if model.gguf_file in f.names), None)
        return name if file is None else f"{name}:{model.gguf_name(file)}"
    if plan.engine == "llama_cpp":
        return f"{name.rpartition('/')[2]}-{type_of(model.shape, plan)}.gguf"
    built_in = find_preset(name)
    library = library_name(built_in.key, plan.weights) if built_in is not None else None
    if library is None:
        raise PlanError("command.no_gguf", field="model", id=name)
    return library


def _command(screen: Screen, plan: ServingPlan, words: tuple[str, ...] = ()) -> str:
    argument = model_argument(screen.model, plan)
    if argument.endswith(".gguf") and plan.engine == "llama_cpp" and ":" not in argument and "--mmproj" not in words:
        words = (*words, *_projector(screen.model, plan, argument))
    return emit_command(argument, plan, words)


def _projector(model: LoadedModel, plan: ServingPlan, file: str) -> tuple[str, ...]:
    """A file of its own is loaded with its projector only where that is named."""
    if plan.mmproj == "none" or not encoders(model.shape):
        return ()
    return ("--mmproj", f"mmproj-{file.rpartition('-')[0]}-F16.gguf")


def _for(engine: str, screen: Screen, plan: ServingPlan) -> str | None:
    """The plan's wish for another engine: what only the present one knows is left out."""
    cache = plan.kv_cache_dtype if plan.kv_cache_dtype in KV_FORMATS.get(engine, ()) else "auto"
    mix = plan.weights if {engine, plan.engine} <= GGUF_ENGINES else None
    try:
        wish = ServingPlan(
            engine=engine, kv_cache_dtype=cache, max_model_len=plan.max_model_len, max_num_seqs=plan.max_num_seqs,
            tp=plan.tp, pp=plan.pp, dp=plan.dp, n_gpus=plan.n_gpus, weights=mix,
        )  # fmt: skip
        return _command(screen, wish)
    except CalculatorError:
        return None


def folded(command: str) -> str:
    """A flag a line, where no quoted argument could be broken."""
    return command if "'" in command or '"' in command else command.replace(" --", " \\\n  --")
