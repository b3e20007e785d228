"""The peak of vLLM's profiling run above the weights.

activation = max(S, B) + E + C, with S the sampler's buffers, B those of the widest layer, E what the run keeps, and C
the cuBLAS workspace. All bytes are of one rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from calculator.hardware import Gpu
from calculator.model.shape import Attention, DenseMlp, LatentAttention, Mlp, ModelShape, MoeMlp, StateMixer, Tower
from calculator.serving.engines.vllm_multimodal import IMAGE_TOKENS_UNBOUNDED, Items, encoder_bytes, pixel_bytes
from calculator.serving.engines.vllm_rules import capability_of, sampler_factor, source
from calculator.serving.split import Split, round_up
from calculator.serving.start import Span
from calculator.serving.versions import Version
from calculator.units import GIB, MIB

LAYER_CONSTANT_BYTES = 47 * GIB // 1000
"""V1's layer peak over the buffers counted below, read off starts with hidden size 4096 (0.19)."""

LAYER_SOURCE = source("vllm/v1/worker/gpu_model_runner.py, profile_run; layer buffers counted", "0.6 to 0.33")
MLA_ROWS = 65536
"""Rows of the chunked-prefill up-projection that the run simulates (vllm/v1/attention/backends/mla/common.py)."""


@dataclass(frozen=True, slots=True)
class Run:
    """The profiling run's settings: sequences, tokens of a step, 16-bit or wider model, which stage, and the bytes a
    token of hidden states that are kept for a drafter. ``allowed`` items of each modality in a request, ``items`` those
    that the run makes up. ``latent`` False: the back ends of latent attention are off."""

    seqs: int
    tokens: int
    context: int
    sampler: str
    guessed_sampler: bool
    samples: bool
    receives: bool
    chunked: bool
    allowed: Mapping[str, int]
    items: Items | None = None
    states_token_bytes: int = 0
    latent: bool = True


@dataclass(frozen=True, slots=True)
class Activation:
    """The peak and its parts in bytes. ``cached`` is the cache of encoder outputs, which is not part of the peak."""

    total: Span
    sampler: int
    layer: int
    kept: int
    cublas: int
    scratch: int
    cached: int = 0


def activation(
    shape: ModelShape, split: Split, layers: range, run: Run, version: Version, runner: str, gpu: Gpu
) -> Activation:
    """The peak of one stage's run; ``layers`` are its layers."""
    low, value, high = _sampler(shape, run, version, gpu)
    layer = _layers(shape, split, layers, run, version, runner)
    kept = _moe_workspace(shape, split, layers, run, version) + run.states_token_bytes * run.tokens
    cublas = cublas_bytes(gpu)
    extra = kept + cublas
    # Gathered tokens of data-parallel ranks are worked on in pieces whose number the kernels choose.
    most = 1.5 if split.dp > 1 else 1.05
    tower, cached, pixels, encoder, least = _vision(shape), 0, 0, 0, layer
    if runner == "v0":
        encoder = _first_pictures(shape, run, split.tp)
        least = max(layer, encoder)
    elif tower is not None and run.items is not None:
        cached = 2 * shape.hidden * run.items.budget
        pixels = pixel_bytes(tower, run.items)
        # The towers run before the text model, so their peak stands against its buffers and the outputs' cache.
        encoder = encoder_bytes(tower, run.items.count * run.items.tokens, split.tp) - cached
        least = max(layer, int(ENCODER_LOW * encoder))
    if encoder > max(value, layer):
        layer, most = encoder, ENCODER_RANGE
    total = Span(
        max(value, layer) + extra + pixels,
        int(0.97 * (max(low, least) + extra)),
        int(most * (max(high, layer) + extra + 2 * pixels)),
    )
    mixers = (mixer for index in {shape.order[i] for i in layers} for mixer in shape.blocks[index].mixers)
    scratch = max((delta_scratch(m, split, run.tokens) for m in mixers if isinstance(m, StateMixer)), default=0)
    return Activation(total, value, layer, kept + pixels, cublas, scratch, cached)


def cublas_bytes(gpu: Gpu) -> int:
    """32 MiB on Hopper and Blackwell, 8 MiB before."""
    return (32 if 9 <= capability_of(gpu) < 12 else 8) * MIB


def _sampler(shape: ModelShape, run: Run, version: Version, gpu: Gpu) -> tuple[int, int, int]:
    """Logits buffers, hidden states of all tokens, two copies of the sampled rows: low, value, high."""
    if not run.samples:
        return 0, 0, 0
    rows = min(run.seqs, run.tokens)
    unit = rows * round_up(shape.vocab, 64) * 4
    value, low, high = sampler_factor(run.sampler, version, rows, multiprocessors(gpu))
    if run.guessed_sampler:
        low = 3.5
    hidden = 2 * run.tokens * shape.hidden + 4 * rows * shape.hidden
    return int(low * unit) + hidden, int(value * unit) + hidden, int(high * unit) + hidden


def multiprocessors(gpu: Gpu) -> int:
    """SMs of the card, which size the Triton sampler's rows: 132 on an H100; the count is not in the catalogue for
    others, so the data-centre value stands for large cards and 82 (RTX 3090) for small ones."""
    return 132 if gpu.total_bytes >= 70 * GIB else 82


def _layers(shape: ModelShape, split: Split, layers: range, run: Run, version: Version, runner: str) -> int:
    """The widest layer's buffers: MLP intermediates and hidden rows a token, 16 bit.

    Three hidden rows are alive beside the MLP; V0 without chunked prefill keeps a fourth, and one more where the
    ranks' sums are made out of place.
    """
    rows = 3
    if runner == "v0" and not run.chunked:
        rows = 5 if split.tp > 1 else 4
    widest = 0
    for index in {shape.order[layer] for layer in layers}:
        block = shape.blocks[index]
        peak = run.tokens * (2 * rows * shape.hidden + max(_mlp_bytes(mlp, split) for mlp in block.mlps))
        if block.mixture is not None and version < WORKSPACE_KEPT:
            peak += _experts(block.mixture, shape.hidden, split, run)
        for mixer in block.mixers:
            if isinstance(mixer, LatentAttention) and runner != "v0" and run.latent:
                peak = max(peak, _latent_projection(mixer, split, run))
            elif isinstance(mixer, StateMixer):
                peak += delta_scratch(mixer, split, run.tokens)
            elif isinstance(mixer, Attention):
                peak = max(peak, 4 * run.tokens * mixer.heads * mixer.head_dim // split.tp)
        widest = max(widest, peak)
    if runner != "v0":
        widest += LAYER_CONSTANT_BYTES
    if run.receives:
        widest += 4 * run.tokens * shape.hidden
    return widest


def delta_scratch(mixer: StateMixer, split: Split, tokens: int) -> int:
    """The fp32 values of a chunk that the gated delta rule's prefill writes: tokens x value heads per rank x value
    width x 4 (12 KiB a token for Qwen3.6-27B on two ranks, https://github.com/noonghunna/club-3090/issues/838)."""
    if mixer.variant not in ("gated_delta", "kda"):
        return 0
    return tokens * (mixer.value_heads // split.tp) * mixer.value_dim * 4


def _mlp_bytes(mlp: Mlp, split: Split) -> int:
    """Bytes a token of the dense part of an MLP."""
    if isinstance(mlp, DenseMlp):
        return (6 if mlp.gated else 4) * mlp.width // split.tp
    if isinstance(mlp, MoeMlp):
        return 6 * (mlp.shared_width + mlp.dense_width) // split.tp
    return 0


WORKSPACE_KEPT: Version = (0, 13, 0)
CHUNK_TOKENS = 32768
"""VLLM_FUSED_MOE_CHUNK_SIZE: tokens that the expert kernel works on at once, to 0.12."""


def _experts(mlp: MoeMlp, hidden: int, split: Split, run: Run) -> int:
    """Transient expert buffers to 0.12. With data parallelism every rank works on the tokens of all, which are gathered
    before and scattered after (vllm/model_executor/layers/fused_moe/fused_moe.py, 0.11.0)."""
    tokens = run.tokens * split.dp
    width, inner = mlp.width // split.width_ranks, mlp.latent or hidden
    rows = 2 * min(tokens, CHUNK_TOKENS) * mlp.top_k
    gathered = 2 * 2 * tokens * hidden if split.dp > 1 else 0
    return rows * (max(2 * width, inner) + width) + gathered


def _latent_projection(mixer: LatentAttention, split: Split, run: Run) -> int:
    rows = min(max(8 * run.context, 4 * run.seqs * 16), MLA_ROWS)
    return rows * (mixer.heads // split.tp) * (mixer.qk_nope_head_dim + mixer.v_head_dim) * 2


def _moe_workspace(shape: ModelShape, split: Split, layers: range, run: Run, version: Version) -> int:
    """Expert buffers that the workspace manager keeps from 0.13 on (vllm/v1/worker/workspace.py): 2 T k [max(2 f/t, h)
    + max(f/t, h)]. MXFP4 kernels have none."""
    if version < WORKSPACE_KEPT or (shape.quantization is not None and shape.quantization.format == "mxfp4"):
        return 0
    largest = 0
    for index in {shape.order[layer] for layer in layers}:
        mlp = shape.blocks[index].mixture
        if mlp is not None:
            width, hidden = mlp.width // split.width_ranks, mlp.latent or shape.hidden
            largest = max(largest, 2 * run.tokens * mlp.top_k * (max(2 * width, hidden) + max(width, hidden)))
    return largest


ENCODER_RANGE = 1.3
"""How far above the counted buffers an encoder's peak was seen to lie."""
ENCODER_LOW = 0.35
"""How far below: a video's real patches may be fewer than its budget (Qwen2.5-Omni, 0.10.2)."""


def _vision(shape: ModelShape) -> Tower | None:
    return next((t for t in shape.towers if t.modality == "vision"), None)


def _first_pictures(shape: ModelShape, run: Run, tp: int) -> int:
    """V0 sends one picture of the largest size through the tower for each modality that a request may hold, whatever
    the context."""
    tower = _vision(shape)
    if tower is None or tower.image_size:
        return 0
    return sum(count > 0 for count in run.allowed.values()) * encoder_bytes(tower, IMAGE_TOKENS_UNBOUNDED, tp)
