"""Inputs of the training and the fine-tuning page: workload, method, recipe, savers, parallelism."""

from __future__ import annotations

from functools import partial
from typing import Any

import streamlit as st

from calculator.training.applies import APPLIES
from calculator.training.plan import Adapter, TrainingPlan
from calculator.training.recipe import sixteen, usual_precision
from ui import state
from ui.i18n import Words
from ui.inputs.form import Form
from ui.inputs.framework import framework_inputs
from ui.settings import Page

METHODS = ("lora", "qlora", "dora")
BASE_QUANTS = ("nf4", "nf4_dq", "int8", "gptq_int4", "awq_int4")
TARGETS = (("all-linear",), ("q", "k", "v", "o"), ("q", "v"), ("gate", "up", "down"))
PRECISIONS = ("bf16", "amp_bf16", "mixed_bf16", "fsdp_mixed_bf16", "fp16", "amp_fp16", "mixed_fp16", "fp32")
OPTIMIZERS = (
    "adamw_fused", "adamw_foreach", "adamw_loop", "adamw_8bit", "paged_adamw_8bit", "paged_adamw_32bit", "adafactor",
    "lion", "muon", "schedule_free", "sgd_momentum", "sgd",
)  # fmt: skip
CHECKPOINTING = ("none", "selective", "full", "offloaded")
ATTENTION = ("sdpa", "flash", "eager")
LOSSES = ("standard", "fused_ce", "fused_linear_ce", "chunked")
SHARDINGS = ("ddp", "zero1", "zero2", "zero3", "fsdp1", "fsdp2", "hsdp", "distributed_optimizer")
DEGREES = (1, 2, 4, 8, 16, 32, 64)
OFFLOADS = ("optimizer", "parameters", "activations")
FP8_RECIPES = ("torchao", "te_delayed", "te_current", "te_blockwise", "te_mxfp8")
YES_OR_NO = (None, True, False)
USUAL_SPLIT_MB = 512
"""The size that guides to fragmentation use; the allocator has none of its own."""


def _write(page: Page, name: str, value: Any) -> None:
    """Writes a field, and what follows from it: an allocator's size, and the recipe that goes with a sharding where it
    was not another one of the person's own."""
    changes = {name: value}
    plan = state.current().training_plan(page)
    if name == "sharding" and _is_usual(plan):
        plain = {"sharding": value, "precision": sixteen(plan.precision)}
        changes["precision"] = usual_precision(plan.model_copy(update=plain))
    if value == "max_split_mb":
        changes["max_split_mb"] = state.current().training.max_split_mb or USUAL_SPLIT_MB
    state.put(state.current().with_training(**changes))


def _is_usual(plan: TrainingPlan) -> bool:
    """Whether the precision is the one that the sharding stands for."""
    return plan.precision == usual_precision(plan.model_copy(update={"precision": sixteen(plan.precision)}))


def _write_adapter(name: str, value: Any) -> None:
    settings = state.current()
    adapter = settings.training.adapter or Adapter()
    state.put(settings.with_training(adapter=adapter.model_copy(update={name: value})))


def plan_inputs(page: Page, words: Words) -> None:
    """All inputs of a plan but the model and the hardware."""
    settings = state.current()
    plan = settings.training_plan(page)
    form = Form(plan, partial(_write, page), words, "training")
    if page == "finetuning":
        st.subheader(words("ui.group.method"))
        _method(form, plan, words)
    st.subheader(words("ui.group.workload"))
    left, right = st.columns(2)
    with left:
        form.number("micro_batch")
    with right:
        form.number("seq_len", step=512)
    form.number("grad_accum")
    st.subheader(words("ui.group.recipe"))
    framework_inputs(page, plan, words)
    form.select("precision", PRECISIONS)
    form.select("optimizer", OPTIMIZERS)
    st.subheader(words("ui.group.savers"))
    form.choose("checkpointing", CHECKPOINTING)
    form.select("loss", LOSSES)
    form.select("attention", ATTENTION)
    if settings.n_gpus > 1:
        st.subheader(words("ui.group.parallelism"))
        form.select("sharding", SHARDINGS)
        _model_parallel(form, plan, settings.n_gpus)
        _sharding(form, plan)
    with st.expander(words("ui.group.more")):
        form.several("offload", OFFLOADS)
        form.select("packed", YES_OR_NO)
        form.toggle("compile")
        form.toggle("tiled_mlp")
        if APPLIES["optimizer_in_backward"](plan):
            form.toggle("optimizer_in_backward")
        if plan.checkpointing == "full":
            form.number("checkpoint_every")
    with st.expander(words("ui.group.types")):
        _types(form, plan)


def _types(form: Form, plan: TrainingPlan) -> None:
    """Types of gradients and states, 8-bit products, and the allocator's mode."""
    form.select("grad_dtype", (None, "fp32", "bf16", "fp16"))
    form.select("optimizer_state_dtype", (None, "fp32", "bf16", "fp16", "int8"))
    form.toggle("fp8_compute")
    if APPLIES["fp8_recipe"](plan):
        form.select("fp8_recipe", (None, *FP8_RECIPES))
    if APPLIES["fp8_param_gather"](plan):
        form.toggle("fp8_param_gather")
    form.select("allocator", ("default", "expandable", "max_split_mb"))
    if APPLIES["max_split_mb"](plan):
        form.number("max_split_mb")


def _sharding(form: Form, plan: TrainingPlan) -> None:
    """What belongs to the way of sharding that was chosen."""
    if APPLIES["hsdp_shard_size"](plan):
        form.number("hsdp_shard_size", optional=True)
    if plan.sharding == "zero3":
        form.number("zero_prefetch_bucket", optional=True, step=1_000_000)
        form.number("zero_max_live_parameters", optional=True, step=1_000_000)
    if plan.sharding in ("zero1", "zero2", "zero3"):
        form.number("zero_reduce_bucket", optional=True, step=1_000_000)
        form.select("zero_overlap_comm", YES_OR_NO)


def _model_parallel(form: Form, plan: TrainingPlan, n_gpus: int) -> None:
    degrees = [degree for degree in DEGREES if degree <= n_gpus]
    left, right = st.columns(2)
    with left:
        form.select("tp", degrees)
        form.select("cp", degrees)
    with right:
        form.select("pp", degrees)
        form.select("ep", degrees)
    if APPLIES["sequence_parallel"](plan):
        form.toggle("sequence_parallel")
    if APPLIES["expert_tp"](plan):
        form.number("expert_tp", optional=True)
    if APPLIES["vpp"](plan):
        form.select("pp_schedule", (None, "1f1b", "interleaved", "zero_bubble", "gpipe"))
        form.number("vpp")
        form.number("micro_batches", optional=True)


def _method(form: Form, plan: TrainingPlan, words: Words) -> None:
    form.choose("method", METHODS)
    if plan.method == "qlora":
        form.select("base_quant", BASE_QUANTS)
        if APPLIES["base_quant_group"](plan):
            form.number("base_quant_group", optional=True, step=32)
        form.select("kbit_prepared", YES_OR_NO)
    adapter_form = Form(plan.adapter or Adapter(), _write_adapter, words, "adapter")
    left, right = st.columns(2)
    with left:
        adapter_form.number("rank", step=8)
    with right:
        adapter_form.select("targets", TARGETS)
    adapter_form.toggle("train_embeddings")
    form.select("adapter_dtype", (None, "fp32", "bf16", "fp16"))
