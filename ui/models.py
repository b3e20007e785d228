"""From the model that was chosen to its shape, remembered for the visit so that the hub is asked once."""

from __future__ import annotations

import json
from typing import cast

import streamlit as st

from calculator import lookup
from calculator.errors import CalculatorError
from calculator.hub import endpoint_from_environment, parse_address
from calculator.jsonin import parse_object
from calculator.lookup import LoadedModel
from calculator.model.shape import ModelShape
from calculator.model.stored import StoredWeights
from calculator.presets import find_preset
from ui import compact, state
from ui.settings import ConfigChoice, HubChoice, ModelChoice, PresetChoice

TOKEN_KEY = "hub_token"
"""Session state only: a token is in no link, no log and no cache."""
_LAST = "model_last"
_DRAFT = "draft_last"


def from_text(written: str) -> ModelChoice:
    """What a person typed or pasted: a built-in model's key, an id or address of the hub, or JSON.

    Raises ``CalculatorError``.
    """
    wanted = written.strip()
    if wanted.startswith("{"):
        return from_json(wanted)
    built_in = find_preset(wanted)
    if built_in is not None and built_in.key == wanted.lower():
        return PresetChoice(key=built_in.key)
    address = parse_address(wanted, endpoint_from_environment())
    return HubChoice(id=address.repo, revision=address.revision, file=address.file)


def from_json(written: str | bytes) -> ConfigChoice:
    """A pasted or uploaded configuration, cut to what its shape depends on. Raises ``CalculatorError``."""
    kept, _ = compact.smallest(parse_object(written))
    return ConfigChoice(config=kept)


def known(choice: ModelChoice) -> LoadedModel | CalculatorError | None:
    """What is remembered of a choice: the model, why it could not be had, or None if it must be fetched first."""
    kept = st.session_state.get(_LAST)
    if kept is not None and kept[0] == choice:
        return cast("LoadedModel | CalculatorError", kept[1])
    return None if isinstance(choice, HubChoice) else load(choice)


def load(choice: ModelChoice) -> LoadedModel | CalculatorError:
    """The model of a choice, from the hub if need be, or why it could not be had.

    A hub model's commit joins the settings, so that the link names exactly what was read; a chosen GGUF file stands
    there by its shortest name.
    """
    try:
        model: LoadedModel | CalculatorError = _load(choice)
    except CalculatorError as error:
        model = error
    if isinstance(choice, HubChoice) and isinstance(model, LoadedModel) and model.commit and _is_commit(model.commit):
        choice = HubChoice(id=model.name, revision=model.commit, file=_shortest(choice.file, model))
        state.put(state.current().model_copy(update={"model": choice}))
    st.session_state[_LAST] = (choice, model)
    return model


def draft(written: str) -> LoadedModel | CalculatorError:
    """The model that drafts for the chosen one, by preset key or hub id; asked once while its name stays."""
    kept = st.session_state.get(_DRAFT)
    if kept is not None and kept[0] == written:
        return cast("LoadedModel | CalculatorError", kept[1])
    try:
        model: LoadedModel | CalculatorError = _load(from_text(written))
    except CalculatorError as error:
        model = error
    st.session_state[_DRAFT] = (written, model)
    return model


def stored(model: LoadedModel) -> StoredWeights | None:
    """The weight bytes that the files' headers tell, None where no headers were read. One object a model, since engines
    remember by it what they laid out."""
    return model.stored


def forget() -> None:
    """Ask again on the next run."""
    st.session_state.pop(_LAST, None)
    st.session_state.pop(_DRAFT, None)


def _load(choice: ModelChoice) -> LoadedModel:
    if isinstance(choice, PresetChoice):
        return lookup.load_preset(choice.key)
    if isinstance(choice, ConfigChoice):
        return lookup.load_text(choice.config, name=json.loads(choice.config).get("model_type", "config.json"))
    token = st.session_state.get(TOKEN_KEY) or None
    written = choice.id if choice.file is None else f"{choice.id}:{choice.file}"
    return lookup.load(written, revision=choice.revision, token=token)


def _shortest(asked: str | None, model: LoadedModel) -> str | None:
    file = next((f for f in model.gguf_choices if model.gguf_file in f.names), None)
    return asked if asked is None or file is None else model.gguf_name(file)


def _is_commit(revision: str) -> bool:
    return len(revision) == 40 and all(c in "0123456789abcdef" for c in revision)


def shape_of(model: LoadedModel | CalculatorError | None) -> ModelShape | None:
    return model.shape if isinstance(model, LoadedModel) else None
