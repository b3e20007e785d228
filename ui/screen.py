"""What a page works with: its inputs in the sidebar, and then the settings, the card, and the model that was read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import streamlit as st

from calculator import hardware
from calculator.errors import CalculatorError
from calculator.hardware import Gpu
from calculator.lookup import LoadedModel
from calculator.model.weights import StoredWeights
from calculator.serving.drafts import with_draft
from ui import frame, models, state
from ui.i18n import Words
from ui.inputs.hardware import hardware_inputs
from ui.inputs.model import file_input, model_inputs, refused_note, token_input, ways_on
from ui.settings import Settings
from ui.views import notes
from ui.views.card import model_card


@dataclass(frozen=True, slots=True)
class Screen:
    """One run of a page, once the model has been read."""

    settings: Settings
    words: Words
    model: LoadedModel
    gpu: Gpu
    stored: StoredWeights | None


def open_screen(plan_inputs: Callable[[Words], None], *, files: bool = False) -> Screen | None:
    """Draws the inputs and reads the model, with a sign of progress while the hub is asked.

    ``files``: a repository's GGUF files are offered. Where the model cannot be had, the page says why and offers the
    other ways, and None is returned.
    """
    words = state.enter()
    choice = state.current().model
    model = models.known(choice)
    with st.sidebar:
        model_inputs(words, model)
        below_model = st.container()
        hardware_inputs(words)
        plan_inputs(words)
        frame.close_inputs(words)
    if model is None:
        with st.spinner(words("ui.fetching", id=getattr(choice, "id", "")), show_time=True):
            model = models.load(choice)
    with below_model:
        token_input(words, model)
        if files:
            file_input(words, model)
        model_card(model, words)
    if isinstance(model, CalculatorError):
        notes.refusal(model, words)
        ways_on(words, model)
        return None
    refused_note(words, model)
    settings = state.current()
    gpu = hardware.resolve(settings.gpu, settings.gpu_capacity_bytes)
    return Screen(settings, words, model, gpu, models.stored(model))


def with_drafter(screen: Screen) -> Screen | None:
    """The screen with the model that the plan names for drafting; None where it cannot be had, which the page says."""
    written = screen.settings.serving_plan().draft_model
    if written is None:
        return screen
    with st.spinner(screen.words("ui.fetching", id=written), show_time=True):
        found = models.draft(written)
    if isinstance(found, CalculatorError):
        notes.refusal(found, screen.words)
        return None
    shape = with_draft(screen.model.shape, found.shape)
    return replace(screen, model=screen.model.model_copy(update={"shape": shape}))
