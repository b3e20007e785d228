"""Inputs of the model: an id, a built-in one, pasted or uploaded JSON, or the shape by hand."""

from __future__ import annotations

from typing import Any, cast

import streamlit as st

from calculator.errors import CalculatorError, GatedModelError, HubError, ModelNotFoundError, NotAuthorisedError
from calculator.gguf.mixes import mix_name
from calculator.lookup import LoadedModel
from calculator.model.shape import ModelShape
from calculator.presets import find_preset, presets
from ui import compact, models, state
from ui.i18n import Words
from ui.inputs.form import Form
from ui.manual import ManualShape, like
from ui.markdown import plain
from ui.settings import ConfigChoice, HubChoice, ModelChoice, PresetChoice, is_file_name

_REFUSED = "model_refused"
_TYPED = "model_typed"
_DRAFT = "model_draft"
"""A shape by hand that cannot be, kept as it was typed until it can or another model is chosen."""
_PASTE_LIMIT = 262_144
_OWN = "~"
"""The repository's own weights, no GGUF file."""


def _take(choice: ModelChoice) -> None:
    st.session_state[_REFUSED] = st.session_state[_TYPED] = st.session_state[_DRAFT] = None
    state.put(state.current().model_copy(update={"model": choice}))


def _take_text(written: str) -> None:
    if not written.strip():
        return
    try:
        _take(models.from_text(written))
    except CalculatorError as error:
        st.session_state[_REFUSED], st.session_state[_TYPED] = error, written


def _take_json(written: str | bytes) -> None:
    try:
        _take(models.from_json(written))
    except CalculatorError as error:
        st.session_state[_REFUSED] = error


def shown_name(choice: ModelChoice) -> str:
    """What stands in the field of the id."""
    if isinstance(choice, HubChoice):
        return choice.id if choice.file is None else f"{choice.id}:{choice.file}"
    built_in = find_preset(choice.key) if isinstance(choice, PresetChoice) else None
    return built_in.id if built_in else ""


def model_inputs(words: Words, model: LoadedModel | CalculatorError | None) -> None:
    """All ways to name a model. ``model`` is what is known of the present choice."""
    choice = state.current().model
    st.subheader(words("ui.group.model"))
    st.text_input(
        words("ui.field.model_id"), max_chars=512, placeholder="Qwen/Qwen2.5-7B", icon=":material/deployed_code:",
        autocomplete="off", **state.bound("model.id", st.session_state.get(_TYPED) or shown_name(choice), _take_text),
    )  # fmt: skip
    keys = list(presets())
    key = choice.key if isinstance(choice, PresetChoice) and choice.key in keys else None
    st.selectbox(
        words("ui.field.preset"), keys, index=None, placeholder=words("ui.choose_preset"),
        format_func=lambda k: presets()[k].id.rpartition("/")[2],
        **state.bound("model.preset", key, lambda k: _take(PresetChoice(key=k)) if k else None),
    )  # fmt: skip
    refused = cast("CalculatorError | None", st.session_state.get(_REFUSED))
    if refused is not None:
        st.warning(plain(f"{words.text(refused.message)} {words.text(refused.remedy)}"), icon=":material/error:")
    with st.expander(words("ui.other_ways"), key="model.other"):
        way = st.segmented_control(
            words("ui.other_ways"), ("paste", "upload", "manual"), default="paste", required=True, key="model.way",
            format_func=lambda w: words(f"ui.way.{w}"), label_visibility="collapsed", persist_state="session",
        )  # fmt: skip
        if way == "paste":
            _paste(words)
        elif way == "upload":
            _upload(words)
        else:
            _editor(words, models.shape_of(model))


def refused_note(words: Words, model: LoadedModel) -> None:
    """On the page itself: what was typed or pasted could not be used, so the bill is still the earlier model's."""
    refused = cast("CalculatorError | None", st.session_state.get(_REFUSED))
    if refused is not None:
        kept = words("ui.model.kept", model=model.name)
        st.warning(plain(f"{words.text(refused.message)} {kept}"), icon=":material/error:")


def token_input(words: Words, model: LoadedModel | CalculatorError) -> None:
    """The person's hub token, where the hub asked for one or one was given."""
    asked = isinstance(model, GatedModelError | NotAuthorisedError | ModelNotFoundError)
    if asked or st.session_state.get(models.TOKEN_KEY):
        st.text_input(
            words("ui.field.token"), type="password", key=models.TOKEN_KEY, max_chars=200, autocomplete="off",
            help=words("ui.help.token"), on_change=models.forget, persist_state="session",
        )  # fmt: skip


def file_input(words: Words, model: LoadedModel | CalculatorError) -> None:
    """Which of a repository's GGUF models to serve, where there are several, or other weights besides."""
    choice = state.current().model
    if not isinstance(choice, HubChoice) or not isinstance(model, LoadedModel):
        return
    own = model.headers is not None or model.hub_totals is not None
    files = {name: file for file in model.gguf_choices if is_file_name(name := model.gguf_name(file))}
    if len(files) + own < 2:
        return
    shown = next((name for name, file in files.items() if model.gguf_file in file.names), _OWN)

    def take(name: str) -> None:
        _take(choice.model_copy(update={"file": None if name == _OWN else name}))
        # A mix of the computed kind would win over the file.
        state.put(state.current().with_serving(weights=None))

    def label(name: str) -> str:
        if name == _OWN:
            return words("ui.file.original")
        file = files[name]
        parts = [name]
        if file.size_bytes is not None:
            parts.append(words.size(file.size_bytes))
        if file.part_count > 1:
            parts.append(words("ui.file.parts", parts_count=file.part_count))
        return " · ".join(parts)

    key = "model.gguf" if words.language == "en" else f"model.gguf.{words.language}"
    st.selectbox(
        words("ui.field.gguf_file"), [*([_OWN] if own else []), *files], format_func=label,
        help=words("ui.help.gguf_file"), **state.bound(key, shown, take),
    )  # fmt: skip


def _compute(choice: HubChoice) -> None:
    """The model itself, with the mix that was named computed from its shape where the rules for it are known."""
    try:
        mix = mix_name(choice.file or "")
    except CalculatorError:
        mix = None
    _take(HubChoice(id=choice.id, revision=choice.revision))
    if mix is not None:
        state.put(state.current().with_serving(weights=mix))


def base_model_button(words: Words, base: str | None) -> None:
    """The way from a GGUF repository to the model that it was made from."""
    if base is not None:
        st.button(
            words("ui.use_model", name=base), icon=":material/arrow_forward:", key="ways.base",
            on_click=lambda: _take_text(base),
        )  # fmt: skip


def _paste(words: Words) -> None:
    st.text_area(
        words("ui.field.config"), key="model.pasted", height=140, max_chars=_PASTE_LIMIT,
        placeholder='{"model_type": "llama", "hidden_size": 4096, ...}',
        on_change=lambda: _take_json(st.session_state["model.pasted"]) if st.session_state["model.pasted"] else None,
    )  # fmt: skip


def _upload(words: Words) -> None:
    def taken() -> None:
        file = st.session_state["model.uploaded"]
        if file is not None:
            _take_json(file.getvalue())

    st.file_uploader(words("ui.field.upload"), type=["json"], key="model.uploaded", on_change=taken, max_upload_size=2)


def _editor(words: Words, shape: ModelShape | None) -> None:
    draft = cast("ManualShape | None", st.session_state.get(_DRAFT))
    shown = draft or (ManualShape() if shape is None else like(shape))

    def write(name: str, value: Any) -> None:
        changed = shown.model_copy(update={name: value})
        if changed.experts and name == "experts" and not shown.experts:
            changed = changed.model_copy(update={"top_k": min(8, changed.experts)})
        try:
            kept, _ = compact.smallest(changed.config())
        except CalculatorError as error:
            st.session_state[_REFUSED], st.session_state[_DRAFT] = error, changed
        else:
            _take(ConfigChoice(config=kept))

    if shape is not None:
        st.caption(words("ui.editor.count", total_params=shape.parameters.total, active_params=shape.parameters.active))
    form = Form(shown, write, words, "manual")
    form.choose("attention", ("full", "window", "mla", "linear"))
    names = ["hidden", "layers", "heads", "kv_heads", "head_dim", "intermediate", "vocab"]
    if shown.attention == "mla":
        names[3:4] = ["kv_lora_rank", "q_lora_rank", "rope_dim"]
    if shown.attention == "window":
        names.append("window")
    if shown.attention == "linear":
        names += ["full_every", "linear_heads", "linear_dim"]
    names.append("experts")
    if shown.experts:
        names += ["top_k", "shared_experts"]
    columns = st.columns(2)
    for index, name in enumerate(names):
        with columns[index % 2]:
            form.number(name)
    form.toggle("tied")


def ways_on(words: Words, error: CalculatorError) -> None:
    """Under a refusal: the ways to go on that need no hub."""
    choice = state.current().model
    with st.container(horizontal=True):
        built_in = find_preset(choice.id) if isinstance(choice, HubChoice) else None
        if built_in is not None:
            st.button(
                words("ui.use_preset", name=built_in.id), icon=":material/inventory_2:", key="ways.preset",
                on_click=lambda: _take(PresetChoice(key=built_in.key)),
            )  # fmt: skip
        if error.key == "gguf.no_such_file" and isinstance(choice, HubChoice):
            st.button(
                words("ui.use_default_file"), icon=":material/draft:", key="ways.file",
                on_click=lambda: _take(choice.model_copy(update={"file": None})),
            )  # fmt: skip
        if error.key == "gguf.no_files" and isinstance(choice, HubChoice) and choice.file is not None:
            st.button(
                words("ui.use_computed", name=choice.id), icon=":material/calculate:", key="ways.computed",
                on_click=lambda: _compute(choice),
            )  # fmt: skip
        if isinstance(error, HubError):
            st.button(words("ui.try_again"), icon=":material/refresh:", key="ways.retry", on_click=models.forget)
    st.caption(words("ui.ways_on"))
