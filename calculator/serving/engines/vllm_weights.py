"""What vLLM adds to, or makes of, the stored weights once they are on the card."""

from __future__ import annotations

from calculator.errors import PlanError
from calculator.hardware import Gpu
from calculator.model.shape import DenseMlp, LatentAttention, ModelShape, MoeMlp, Tensor
from calculator.model.weights import WeightLayout
from calculator.precision import Format, weight_format
from calculator.serving.adapters import Adapted
from calculator.serving.engines.vllm_rules import capability_of
from calculator.serving.plan import ServingPlan
from calculator.serving.split import Split, ceil_div, round_up
from calculator.serving.versions import Version

MLA_ABSORBED: Version = (0, 8, 0)
"""Before this release MLA models kept the up-projections a second time, multiplied into q and o (0.7.x,
vllm/attention/backends/mla/utils.py)."""


def chosen_format(plan: ServingPlan) -> Format | None:
    """The format that the engine quantises to while loading; bitsandbytes with nested scales, as its loader asks for
    (vllm/model_executor/model_loader/bitsandbytes_loader.py)."""
    if plan.weights is None:
        return None
    return weight_format("nf4_dq" if plan.weights in ("bnb_nf4", "nf4") else plan.weights)


BLOCKS_DIVIDED: Version = (0, 12, 0)
"""Releases before this one were seen to refuse ranks that cut through a quantisation block."""


def check_blocks(shape: ModelShape, split: Split, version: Version) -> None:
    """Block FP8 weights can only be cut along their blocks: a rank's share of an MLP's width has to be a multiple of
    the block (vllm/model_executor/layers/quantization/fp8.py). Raises ``PlanError`` ("serving.tp_block")."""
    stored = shape.quantization
    if stored is None or stored.block is None or version >= BLOCKS_DIVIDED:
        return
    for block in shape.blocks:
        for mlp in block.mlps:
            width, ranks = 0, 1
            if isinstance(mlp, DenseMlp):
                width, ranks = mlp.width, split.tp
            elif isinstance(mlp, MoeMlp):
                width, ranks = mlp.width, split.width_ranks
            if ranks > 1 and width // ranks % stored.block[0]:
                raise PlanError(
                    "serving.tp_block", field="tp", width_count=width // ranks, block_count=stored.block[0], tp=ranks
                )


def mxfp4_kernel(plan: ServingPlan, gpu: Gpu, version: Version) -> str:
    """The MXFP4 back end: Triton on Hopper from 0.11 where its kernels are installed, FlashInfer on data-centre
    Blackwell, else Marlin (vllm/model_executor/layers/quantization/mxfp4.py, 0.11.0)."""
    if plan.kernel is not None:
        return plan.kernel
    capability = capability_of(gpu)
    if 9 <= capability < 10 and version >= (0, 11, 0):
        return "triton"
    return "trtllm" if 10 <= capability < 12 else "marlin"


def padded_experts(tensor: Tensor, form: Format, kernel: str) -> int:
    """Bytes of MXFP4 expert matrices as the kernel holds them.

    Marlin rounds the expert width to 128 and the hidden size to 256, TRT-LLM both to 256. The Triton layout for Hopper
    rounds the packed values' inner dimension to 256 and leaves the scales.
    """
    rows, columns = tensor.shape[-2], tensor.shape[-1]
    down = "down" in tensor.name
    if kernel == "triton":
        scales = form.tensor_bytes((rows, columns)) - ceil_div(rows * columns, 2)
        return tensor.copies * (rows * round_up(columns, 256) // 2 + scales)
    width_to, hidden_to = (128, 256) if kernel == "marlin" else (256, 256)
    if down:
        padded = (round_up(rows, hidden_to), round_up(columns, width_to))
    else:
        halves = 2 if "gate_up" in tensor.name else 1
        padded = (halves * round_up(rows // halves, width_to), round_up(columns, hidden_to))
    return tensor.copies * form.tensor_bytes(padded)


def tensor_size(layout: WeightLayout, tensor: Tensor, layer: int | None, kernel: str) -> int:
    """Bytes of a whole tensor as the engine holds it."""
    form = layout.format(tensor, layer)
    if form.key == "mxfp4" and tensor.component == "experts" and len(tensor.shape) >= 2:
        return padded_experts(tensor, form, kernel)
    return layout.tensor_bytes(tensor, layer)


def latent_copies(shape: ModelShape, layers: range, split: Split, version: Version) -> int:
    """Second copies of MLA's up-projections on one rank.

    0.7.x multiplies them into the projections of q and o. Later releases keep views of the 16-bit matrix, and copies
    where it is quantised.
    """
    total = 0
    quantised = shape.quantization is not None
    latents = (m for i in layers for m in shape.blocks[shape.order[i]].mixers if isinstance(m, LatentAttention))
    for mixer in latents:
        heads = mixer.heads // split.tp
        if version < MLA_ABSORBED:
            into = mixer.q_lora_rank or shape.hidden
            total += 2 * heads * (mixer.kv_lora_rank * (into + shape.hidden) + mixer.qk_rope_head_dim * into)
        elif quantised:
            total += 2 * heads * (mixer.qk_nope_head_dim + mixer.v_head_dim) * mixer.kv_lora_rank
    return total


EXPERTS_ADAPTED: Version = (0, 11, 1)
"""From here on routed experts have adapter slots too (vllm/lora/layers/fused_moe.py)."""
EXTRA_VOCABULARY_DROPPED: Version = (0, 12, 0)
"""Before this release 256 rows for added tokens stood beside embedding and head (``lora_extra_vocab_size``)."""


def adapted(version: Version) -> Adapted:
    """The matrices that get adapter slots in a release."""
    extra = 0 if version >= EXTRA_VOCABULARY_DROPPED else 256
    return Adapted(experts=version >= EXPERTS_ADAPTED, ends=True, extra=extra)
