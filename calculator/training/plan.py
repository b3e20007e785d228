"""A training run as the person describes it. Field names and values are those of the measured cases, so that a case
is a plan plus readings."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from calculator.base import Frozen

Method = Literal["full", "lora", "qlora", "dora", "galore", "other"]
BaseQuant = Literal["none", "nf4", "nf4_dq", "int8", "gptq_int4", "awq_int4", "fp8", "mxfp4", "other"]
Precision = Literal[
    "bf16", "fp16", "fp32", "amp_bf16", "amp_fp16", "mixed_bf16", "mixed_fp16", "fsdp_mixed_bf16", "fsdp_mixed_fp16"
]
Optimizer = Literal[
    "adamw_foreach",
    "adamw_fused",
    "adamw_loop",
    "adamw_8bit",
    "paged_adamw_8bit",
    "paged_adamw_32bit",
    "adafactor",
    "sgd",
    "sgd_momentum",
    "lion",
    "muon",
    "galore_adamw",
    "apollo",
    "schedule_free",
    "none",
    "other",
]
Fp8Recipe = Literal["torchao", "te_delayed", "te_current", "te_blockwise", "te_mxfp8"]
Checkpointing = Literal["none", "full", "selective", "offloaded", "other"]
AttentionKernel = Literal["eager", "sdpa", "flash"]
LossKernel = Literal["standard", "fused_ce", "fused_linear_ce", "chunked"]
Sharding = Literal["none", "ddp", "zero1", "zero2", "zero3", "fsdp1", "fsdp2", "hsdp", "distributed_optimizer"]
Framework = Literal[
    "hf_trainer",
    "torchtune",
    "litgpt",
    "torchtitan",
    "deepspeed",
    "megatron",
    "unsloth",
    "axolotl",
    "llamafactory",
    "ms_swift",
    "peft",
    "plain_torch",
    "other",
]
StateDtype = Literal["fp32", "bf16", "fp16", "int8", "int4"]
Offload = Literal["optimizer", "parameters", "activations"]
AdapterTarget = Literal["q", "k", "v", "o", "gate", "up", "down", "embed", "head", "all-linear"]


class Adapter(Frozen):
    """Low-rank adapters: ``rank``, the projections they sit on, and whether embedding and head are trained whole."""

    rank: int = Field(16, ge=1, le=4096)
    targets: tuple[AdapterTarget, ...] = ("all-linear",)
    train_embeddings: bool = False


class TrainingPlan(Frozen):
    """Everything that decides the memory of a training step. None means the framework's own default.

    ``eval_batch`` is transformers' ``per_device_eval_batch_size``; None: evaluation is not counted.
    ``eval_accumulation_steps``: batches whose predictions wait on the card; None: they are not kept, as without metrics
    of one's own. With metrics and transformers' own None they all wait: that is the number of batches in the set."""

    method: Method = "full"
    adapter: Adapter | None = None
    lora_dropout: float | None = Field(None, ge=0, lt=1)
    adapter_dtype: Literal["fp32", "bf16", "fp16"] | None = None
    base_quant: BaseQuant = "none"
    base_quant_group: int | None = Field(None, ge=-1, le=65_536)
    kbit_prepared: bool | None = None
    precision: Precision = "bf16"
    fp8_compute: bool = False
    fp8_recipe: Fp8Recipe | None = None
    fp8_param_gather: bool = False
    optimizer: Optimizer = "adamw_fused"
    optimizer_state_dtype: StateDtype | None = None
    grad_dtype: StateDtype | None = None
    optimizer_in_backward: bool = False
    micro_batch: int = Field(1, ge=1, le=65_536)
    seq_len: int = Field(2048, ge=1, le=16_777_216)
    grad_accum: int = Field(1, ge=1, le=1_048_576)
    packed: bool | None = None
    checkpointing: Checkpointing = "full"
    checkpointing_reentrant: bool | None = None
    checkpoint_every: int = Field(1, ge=1)
    attention: AttentionKernel = "sdpa"
    loss: LossKernel = "standard"
    compile: bool = False
    tiled_mlp: bool = False
    experts_impl: Literal["grouped_mm", "eager", "batched_mm"] | None = None
    outputs_held: bool | None = None
    convert_outputs_fp32: bool = False
    first_step: bool = False
    resumed: bool = False
    added_tokens: int = Field(0, ge=0, le=1_048_576)
    gradients_kept: bool = False
    framework: Framework = "hf_trainer"
    framework_version: str | None = None
    torch_version: str | None = None
    transformers_version: str | None = None
    peft_version: str | None = None
    gpu: str = "h100-80gb-sxm"
    gpu_capacity_bytes: int | None = Field(None, ge=1)
    n_gpus: int = Field(1, ge=1, le=1_048_576)
    sharding: Sharding = "none"
    hsdp_shard_size: int | None = Field(None, ge=1)
    tp: int = Field(1, ge=1)
    pp: int = Field(1, ge=1)
    vpp: int = Field(1, ge=1)
    pp_schedule: Literal["1f1b", "interleaved", "zero_bubble", "gpipe"] | None = None
    micro_batches: int | None = Field(None, ge=1)
    cp: int = Field(1, ge=1)
    ep: int = Field(1, ge=1)
    expert_tp: int | None = Field(None, ge=1)
    sequence_parallel: bool = False
    offload: tuple[Offload, ...] = ()
    zero_reduce_bucket: int | None = Field(None, ge=1)
    zero_allgather_bucket: int | None = Field(None, ge=1)
    zero_prefetch_bucket: int | None = Field(None, ge=0)
    zero_max_live_parameters: int | None = Field(None, ge=0)
    zero_overlap_comm: bool | None = None
    allocator: Literal["default", "expandable", "max_split_mb"] = "default"
    max_split_mb: int | None = Field(None, ge=21)
    dropout: float | None = Field(None, ge=0, lt=1)
    eval_batch: int | None = Field(None, ge=1, le=65_536)
    eval_accumulation_steps: int | None = Field(None, ge=1, le=1_048_576)
