"""The framework: chosen, it sets the recipe that it runs by default, and the page says which fields those are."""

from __future__ import annotations

import streamlit as st

from calculator.training.frameworks import ADAPTER_FIELDS, Preset, presets
from calculator.training.plan import Adapter, TrainingPlan
from ui import state
from ui.i18n import Words
from ui.markdown import plain
from ui.settings import Page

_SHOWN = ("framework", "attention")
"""Fields that go without saying in the list of what was set: the name itself, and the widest default."""


def framework_inputs(page: Page, plan: TrainingPlan, words: Words) -> None:
    adapted = page == "finetuning"
    offered = [key for key, preset in presets().items() if not adapted or preset.adapter is not None]
    if plan.framework not in offered:
        offered.append(plan.framework)
    st.selectbox(
        words("ui.field.framework"), offered, format_func=lambda key: _name(key, words),
        help=words("explore.framework.help"),
        **state.bound("training.framework", plan.framework, lambda key: _take(key, page)),
    )  # fmt: skip
    preset = presets().get(plan.framework)
    if preset is None or (adapted and preset.adapter is None):
        return
    changed = preset.changed(plan, adapted=adapted)
    fields = preset.fields(adapted=adapted, n_gpus=plan.n_gpus)
    parts = words("explore.comma").join(_said(name, v, words) for name, v in fields.items() if name not in _SHOWN)
    st.caption(plain(words("explore.framework.sets", name=preset.name, versions=preset.versions, list=parts)))
    if changed:
        named = words("explore.comma").join(_field(name, words) for name in changed)
        st.caption(plain(words("explore.framework.changed", list=named)))
        st.button(
            words("explore.framework.reset", name=preset.name), key="training.framework.reset", type="tertiary",
            icon=":material/restart_alt:", on_click=_take, args=(plan.framework, page),
        )  # fmt: skip


def _name(key: str, words: Words) -> str:
    preset = presets().get(key)
    return preset.name if preset is not None else words.option("framework", key)


def _take(key: str, page: Page) -> None:
    settings = state.current()
    preset = presets().get(key)
    if preset is None:
        state.put(settings.with_training(framework=key))
        return
    state.put(settings.with_training(**_changes(preset, page)))


def _changes(preset: Preset, page: Page) -> dict[str, object]:
    """The fields of the shared plan that the preset sets."""
    settings = state.current()
    fields = preset.fields(adapted=page == "finetuning", n_gpus=settings.n_gpus)
    of_adapter = {name.removeprefix("adapter_"): fields.pop(name) for name in ADAPTER_FIELDS if name in fields}
    if of_adapter:
        fields["adapter"] = (settings.training.adapter or Adapter()).model_copy(update=of_adapter)
    return fields


def _field(name: str, words: Words) -> str:
    return words(f"ui.field.{name.removeprefix('adapter_')}")


def _said(name: str, value: object, words: Words) -> str:
    """ "Optimizer AdamW, fused"."""
    field = name.removeprefix("adapter_")
    written = "_".join(value) if isinstance(value, tuple) else str(value)
    return words("explore.framework.one", field=words(f"ui.field.{field}"), value=words.option(field, written))
