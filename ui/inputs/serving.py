"""Inputs of the serving page: engine, traffic, formats, parallelism."""

from __future__ import annotations

from typing import Any

import streamlit as st

from calculator.lookup import LoadedModel
from calculator.serving.context import REFUSES
from calculator.serving.drafts import METHODS, WITHOUT_MODEL
from calculator.serving.plan import ServingPlan
from calculator.serving.releases import RELEASES
from calculator.serving.split import BY_CARD, WITHOUT_STAGES
from ui import models, state
from ui.i18n import Words
from ui.inputs.command import command_input
from ui.inputs.form import Form
from ui.inputs.traffic import traffic_inputs

ENGINES = ("vllm", "sglang", "tensorrt_llm", "lmdeploy", "tgi", "llama_cpp", "ollama", "transformers")
WITH_FRACTION = ("vllm", "sglang", "tensorrt_llm", "lmdeploy", "tgi")
"""Engines that take a share of the card's memory at the start."""
WITH_GRAPHS = ("vllm", "sglang", "tensorrt_llm", "tgi")
WITH_EXPERT_PARALLEL = ("vllm", "sglang", "tensorrt_llm", "lmdeploy")
WITH_PREFIXES = ("vllm", "sglang", "tensorrt_llm", "lmdeploy", "tgi")
WITH_WEIGHTS_ON_HOST = ("vllm", "sglang")
WITH_CACHE_ON_HOST = ("vllm", "sglang", "tensorrt_llm")
WITH_LAYERS_ON_GPU = ("llama_cpp", "ollama")
KV_FORMATS = {
    "vllm": ("auto", "bf16", "fp8", "int8"),
    "sglang": ("auto", "bf16", "fp8"),
    "tensorrt_llm": ("auto", "bf16", "fp8", "int8"),
    "lmdeploy": ("auto", "bf16", "int8"),
    "tgi": ("auto", "bf16", "fp8"),
    "llama_cpp": ("auto", "fp16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"),
    "ollama": ("auto", "fp16", "q8_0", "q4_0"),
    "transformers": ("auto", "bf16"),
}
WEIGHTS = (None, "bf16", "fp8", "int8", "awq", "gptq", "nvfp4", "mxfp4")
GGUF_WEIGHTS = (None, "BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q3_K_M", "IQ4_XS")
YES_OR_NO = (None, True, False)
DEGREES = (1, 2, 4, 8, 16, 32, 64)


def _write(name: str, value: Any) -> None:
    state.put(state.current().with_serving(**{name: value}))


def plan_inputs(words: Words) -> None:
    """All inputs of a plan but the model and the hardware."""
    settings = state.current()
    model = models.known(settings.model)
    plan = settings.serving_plan(model.shape if isinstance(model, LoadedModel) else None)
    form = Form(plan, _write, words, "serving")
    st.subheader(words("ui.group.traffic"))
    left, right = st.columns(2)
    with left:
        form.number("max_model_len", step=1024, optional=True, placeholder=words("ui.auto_model"))
    with right:
        form.number("concurrency")
    form.number("context_tokens", step=1024, optional=True, placeholder=words("ui.auto_context"))
    traffic_inputs(form, plan, words)
    st.subheader(words("ui.group.engine"))
    command_input(words)
    form.select("engine", ENGINES)
    form.one_of_or_own("engine_version", RELEASES.get(plan.engine, ()), placeholder=words("ui.auto_newest"))
    weights = GGUF_WEIGHTS if plan.engine in WITH_LAYERS_ON_GPU else WEIGHTS
    form.select("weights", weights, none="ui.as_stored")
    form.select("kv_cache_dtype", KV_FORMATS.get(plan.engine, ("auto",)))
    if plan.engine == "llama_cpp":
        form.select("v_cache_dtype", (None, *KV_FORMATS["llama_cpp"][1:]), none="ui.as_keys")
    if plan.engine in WITH_FRACTION:
        form.fraction("memory_fraction")
    if plan.engine in WITH_LAYERS_ON_GPU:
        form.number("n_gpu_layers", optional=True, placeholder=words("ui.auto_all"))
    if settings.n_gpus > 1 and plan.engine not in BY_CARD:
        st.subheader(words("ui.group.parallelism"))
        degrees = [degree for degree in DEGREES if degree <= settings.n_gpus]
        if plan.engine in WITHOUT_STAGES:
            form.select("tp", degrees)
        else:
            left, right = st.columns(2)
            with left:
                form.select("tp", degrees)
            with right:
                form.select("pp", degrees)
        form.select("dp", degrees)
        _spread(form, plan, degrees)
        form.number("gpus_per_node", optional=True)
    with st.expander(words("ui.group.more")):
        form.number("max_num_seqs", optional=True)
        form.number("max_num_batched_tokens", step=512, optional=True)
        form.fraction("practical_share", optional=False)
        form.decimal("peak_reserve", 0.0, 0.99)
        if plan.engine in REFUSES:
            form.toggle("longer_context")
        if plan.engine in WITH_GRAPHS:
            form.toggle("cuda_graphs")
        if plan.engine in METHODS:
            form.select("speculative", (None, *METHODS[plan.engine]), none="ui.off")
            if plan.speculative is not None:
                form.number("draft_tokens")
                form.fraction("draft_acceptance")
            if plan.speculative not in (None, *WITHOUT_MODEL, "mtp"):
                form.words_of("draft_model", placeholder=words("ui.auto_head"), longest=120)
        form.number("max_loras")
        if plan.max_loras:
            form.number("max_lora_rank")
        if plan.engine in WITH_LAYERS_ON_GPU:
            form.select("fit", (None, False))
            form.select("mmproj", (None, "host", "none"))
            form.number("n_cpu_moe")
            form.select("flash_attn", YES_OR_NO)
            form.select("kv_unified", YES_OR_NO)
            form.toggle("swa_full")
        _kept(form, plan)


def _spread(form: Form, plan: ServingPlan, degrees: list[int]) -> None:
    """Further ways to spread a model over cards that only some engines have."""
    if plan.engine in WITH_EXPERT_PARALLEL:
        form.select("ep", degrees)
    if plan.engine == "vllm" and plan.tp > 1:
        form.select("dcp", degrees)
    if (plan.engine == "sglang" and plan.dp > 1) or (plan.engine == "tensorrt_llm" and plan.tp > 1):
        form.toggle("dp_attention")


def _kept(form: Form, plan: ServingPlan) -> None:
    """What the cache shares between requests, and what lies in host memory."""
    if plan.engine in WITH_PREFIXES:
        form.select("prefix_caching", YES_OR_NO)
        form.number("shared_prefix_tokens", step=256)
    if plan.engine == "vllm":
        form.gibibytes("kv_cache_memory_bytes", optional=True)
    if plan.engine in WITH_WEIGHTS_ON_HOST:
        form.gibibytes("cpu_offload_bytes")
    if plan.engine in WITH_CACHE_ON_HOST:
        form.gibibytes("kv_offload_bytes")


def goal_inputs(words: Words) -> None:
    """Goals in seconds for the first token and for each further one; empty for none."""
    plan = state.current().serving_plan()
    for name, column in zip(("ttft_goal_s", "tpot_goal_s"), st.columns(2), strict=True):
        with column:
            st.number_input(
                words(f"explore.goal.{name}"), min_value=0.001, max_value=3600.0, step=0.01, format="%.3f", value=None,
                placeholder=words("explore.goal.none"),
                **state.bound(f"serving.{name}", getattr(plan, name), lambda value, name=name: _write(name, value)),
            )  # fmt: skip
