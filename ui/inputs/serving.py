"""Inputs of the serving page: engine, traffic, formats, parallelism."""

from __future__ import annotations

from typing import Any

import streamlit as st

from ui import state
from ui.i18n import Words
from ui.inputs.form import Form

ENGINES = ("vllm",)
KV_FORMATS = ("auto", "bf16", "fp8")
DEGREES = (1, 2, 4, 8, 16, 32, 64)


def _write(name: str, value: Any) -> None:
    state.put(state.current().with_serving(**{name: value}))


def plan_inputs(words: Words) -> None:
    """All inputs of a plan but the model and the hardware."""
    settings = state.current()
    form = Form(settings.serving_plan(), _write, words, "serving")
    st.subheader(words("ui.group.traffic"))
    left, right = st.columns(2)
    with left:
        form.number("max_model_len", step=1024, optional=True, placeholder=words("ui.auto_model"))
    with right:
        form.number("concurrency")
    form.number("context_tokens", step=1024, optional=True, placeholder=words("ui.auto_context"))
    st.subheader(words("ui.group.engine"))
    left, right = st.columns(2)
    with left:
        form.select("engine", ENGINES)
    with right:
        form.fraction("memory_fraction")
    form.select("kv_cache_dtype", KV_FORMATS)
    if settings.n_gpus > 1:
        st.subheader(words("ui.group.parallelism"))
        left, right = st.columns(2)
        degrees = [degree for degree in DEGREES if degree <= settings.n_gpus]
        with left:
            form.select("tp", degrees)
        with right:
            form.select("pp", degrees)
        form.select("dp", degrees)
    with st.expander(words("ui.group.more")):
        form.number("max_num_seqs", optional=True)
        form.number("max_num_batched_tokens", step=512, optional=True)
        form.fraction("practical_share", optional=False)
        form.toggle("cuda_graphs")
