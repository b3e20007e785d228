"""The plan as a command for its engine, and for the others that are started by one."""

from __future__ import annotations

from typing import NamedTuple

import streamlit as st
from pydantic import ValidationError

from calculator.errors import CalculatorError, PlanError
from calculator.gguf.projector import encoders
from calculator.lookup import LoadedModel
from calculator.presets import find_preset
from calculator.serving.command import emit_command
from calculator.serving.engines.gguf import type_of
from calculator.serving.left_out import NO_SETTINGS, left_out
from calculator.serving.ollama_command import library_name
from calculator.serving.plan import ServingPlan
from ui.i18n import Words
from ui.inputs.command import kept
from ui.inputs.serving import ENGINES, KV_FORMATS
from ui.markdown import plain
from ui.screen import Screen

GGUF_ENGINES = frozenset(("llama_cpp", "ollama"))


class Shown(NamedTuple):
    """A command, and the plan's settings that it does not say."""

    text: str
    left_out: tuple[str, ...]


def start_it(screen: Screen, plan: ServingPlan) -> None:
    words, plan = screen.words, spelled_out(plan)
    st.subheader(words("explore.start.title"), anchor=False)
    try:
        own = command_of(screen, plan, kept(plan))
    except CalculatorError as error:
        st.caption(plain(words.text(error.message)))
    else:
        show(own, words)
    others = {
        engine: command for engine in ENGINES if engine != plan.engine and (command := _for(engine, screen, plan))
    }
    with st.expander(words("explore.start.others"), key="start.others"):
        for engine, command in others.items():
            st.caption(words.option("engine", engine))
            show(command, words)


def spelled_out(plan: ServingPlan) -> ServingPlan:
    """The plan with the context of all slots together where only that of a request is said: llama.cpp and Ollama are
    started with the former."""
    if plan.engine not in GGUF_ENGINES or plan.max_model_len is not None or plan.context_tokens is None:
        return plan
    slots = plan.max_num_seqs or plan.concurrency
    return plan.model_copy(
        update={"max_model_len": plan.context_tokens * slots, "max_num_seqs": slots if slots > 1 else None}
    )


def show(command: Shown, words: Words) -> None:
    st.code(folded(command.text), language="bash", wrap_lines=True)
    if command.left_out:
        names = (words.first(f"ui.field.{name}", fallback=name) for name in command.left_out)
        st.caption(plain(words("explore.start.left_out", list=words("explore.comma").join(names))))


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


def command_of(screen: Screen, plan: ServingPlan, words: tuple[str, ...] = ()) -> Shown:
    argument = model_argument(screen.model, plan)
    if argument.endswith(".gguf") and plan.engine == "llama_cpp" and ":" not in argument and "--mmproj" not in words:
        words = (*words, *_projector(screen.model, plan, argument))
    return Shown(emit_command(argument, plan, words), left_out(argument, plan, words))


def _projector(model: LoadedModel, plan: ServingPlan, file: str) -> tuple[str, ...]:
    """A file of its own is loaded with its projector only where that is named."""
    if plan.mmproj == "none" or not encoders(model.shape):
        return ()
    return ("--mmproj", f"mmproj-{file.rpartition('-')[0]}-F16.gguf")


def _for(engine: str, screen: Screen, plan: ServingPlan) -> Shown | None:
    """The plan's wish for another engine. What only the present one knows, or means in its own way (a share of memory,
    a size of blocks), is left out and named."""
    cache = plan.kv_cache_dtype if plan.kv_cache_dtype in KV_FORMATS.get(engine, ()) else "auto"
    both = {engine, plan.engine} <= GGUF_ENGINES
    context, slots = _context(engine, plan)
    try:
        wish = ServingPlan(
            engine=engine, kv_cache_dtype=cache, max_model_len=context, max_num_seqs=slots,
            tp=plan.tp, pp=plan.pp, dp=plan.dp, n_gpus=plan.n_gpus, weights=plan.weights if both else None,
            v_cache_dtype=plan.v_cache_dtype if both else None, prefix_caching=plan.prefix_caching,
            max_loras=plan.max_loras, max_lora_rank=plan.max_lora_rank, cpu_offload_bytes=plan.cpu_offload_bytes,
            kv_offload_bytes=plan.kv_offload_bytes,
        )  # fmt: skip
        command = command_of(screen, wish)
    except (CalculatorError, ValidationError):  # the latter: a context of all slots beyond what a plan takes
        return None
    lost = set(command.left_out) | {
        name for name, info in ServingPlan.model_fields.items()
        if name not in (*NO_SETTINGS, "engine_version", "max_model_len", "max_num_seqs")
        and getattr(plan, name) not in (info.default, getattr(wish, name))
    }  # fmt: skip
    return Shown(command.text, tuple(name for name in ServingPlan.model_fields if name in lost))


def _context(engine: str, plan: ServingPlan) -> tuple[int | None, int | None]:
    """Context and requests as the other engine counts them: llama.cpp and Ollama say the context of all slots
    together, the others that of one request."""
    there, here = engine in GGUF_ENGINES, plan.engine in GGUF_ENGINES
    if plan.max_model_len is None or there == here:
        return plan.max_model_len, plan.max_num_seqs
    slots = plan.max_num_seqs or (plan.concurrency if there else 1)
    return (plan.max_model_len * slots if there else max(plan.max_model_len // slots, 1)), slots


def folded(command: str) -> str:
    """A flag a line, where no quoted argument could be broken."""
    return command if "'" in command or '"' in command else command.replace(" --", " \\\n  --")
