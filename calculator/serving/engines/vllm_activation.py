"""The peak of vLLM's profiling run above the weights.

activation = max(S, B) + E + C, with S the sampler's buffers, B those of the widest layer, E what the run keeps, and C
the cuBLAS workspace. All bytes are of one rank.
"""

from __future__ import annotations

from dataclasses import dataclass

from calculator.hardware import Gpu
from calculator.model.shape import Attention, DenseMlp, LatentAttention, Mlp, ModelShape, MoeMlp, StateMixer, Tower
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
    token of hidden states that are kept for a drafter."""

    seqs: int
    tokens: int
    context: int
    sampler: str
    guessed_sampler: bool
    samples: bool
    receives: bool
    chunked: bool
    modalities: int
    states_token_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Activation:
    """The peak and its parts in bytes."""

    total: Span
    sampler: int
    layer: int
    kept: int
    cublas: int
    scratch: int


def activation(
    shape: ModelShape, split: Split, layers: range, run: Run, version: Version, runner: str, gpu: Gpu
) -> Activation:
    """The peak of one stage's run; ``layers`` are its layers."""
    low, value, high = _sampler(shape, run, version, gpu)
    layer = _layers(shape, split, layers, run, version, runner)
    kept = _moe_workspace(shape, split, layers, run, version) + run.states_token_bytes * run.tokens
    leftovers = _multimodal(shape, run, runner) if layers.start == 0 or shape.towers else 0
    cublas = cublas_bytes(gpu)
    extra = kept + cublas
    # Gathered tokens of data-parallel ranks are worked on in pieces whose number the kernels choose.
    most = 1.5 if split.dp > 1 else 1.05
    encoder = _encoder(shape, run) if runner == "v0" else 0
    if encoder > layer:
        layer, most = encoder, ENCODER_RANGE
    total = Span(
        max(value, layer) + extra + leftovers,
        int(0.97 * (max(low, layer) + extra)),
        int(most * (max(high, layer) + extra + 2 * leftovers)),
    )
    mixers = (shape.blocks[index].mixer for index in {shape.order[i] for i in layers})
    scratch = max((delta_scratch(m, split, run.tokens) for m in mixers if isinstance(m, StateMixer)), default=0)
    return Activation(total, value, layer, kept + leftovers, cublas, scratch)


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
        peak = run.tokens * (2 * rows * shape.hidden + _mlp_bytes(block.mlp, split))
        if isinstance(block.mlp, MoeMlp) and version < WORKSPACE_KEPT:
            peak += _experts(block.mlp, shape.hidden, split, run)
        if isinstance(block.mixer, LatentAttention) and runner != "v0":
            peak = max(peak, _latent_projection(block.mixer, split, run))
        elif isinstance(block.mixer, StateMixer):
            peak += delta_scratch(block.mixer, split, run.tokens)
        elif isinstance(block.mixer, Attention):
            peak = max(peak, 4 * run.tokens * block.mixer.heads * block.mixer.head_dim // split.tp)
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
        mlp = shape.blocks[index].mlp
        if isinstance(mlp, MoeMlp):
            width, hidden = mlp.width // split.width_ranks, mlp.latent or shape.hidden
            largest = max(largest, 2 * run.tokens * mlp.top_k * (max(2 * width, hidden) + max(width, hidden)))
    return largest


IMAGE_TOKENS_UNBOUNDED = 16384
"""Tokens of the largest image of Qwen2-VL-class models, whose resolution is free (12,845,056 pixels of 28 x 28)."""


ENCODER_RANGE = 1.3
"""How far above the counted buffers an encoder's peak was seen to lie."""
ITEM_TOKENS = {"gemma4": 280}
"""Tokens of an image by family where the tower has no fixed picture size of its own (``default_output_length``)."""


def _item_tokens(shape: ModelShape, tower: Tower, context: int) -> int:
    """Tokens of the largest picture: fixed by the tower's picture size, else as many as the processor allows."""
    if tower.image_size and tower.patch:
        return int((tower.image_size // tower.patch // max(tower.merge, 1)) ** 2)
    return ITEM_TOKENS.get(shape.model_type, min(IMAGE_TOKENS_UNBOUNDED, max(context, 1)))


def _multimodal(shape: ModelShape, run: Run, runner: str) -> int:
    """Encoder outputs and pixel batch, alive while the text model runs (V1; fitted at 0.19)."""
    tower = next((t for t in shape.towers if t.modality == "vision"), None)
    if tower is None or runner == "v0":
        return 0
    item = max(_item_tokens(shape, tower, run.context), 1)
    if tower.image_size:
        pixels = 3 * tower.image_size**2
    else:
        pixels = item * max(tower.merge, 1) ** 2 * 2 * 3 * (tower.patch or 14) ** 2
    items = max(1, max(run.tokens, item) // item)
    return 2 * shape.hidden * max(run.tokens, item) + 2 * pixels * items


def _encoder(shape: ModelShape, run: Run) -> int:
    """V0 sends one picture of the largest size through the tower for each modality that a request may hold, whatever
    the context: MLP intermediates and hidden rows of every patch. The five hidden rows were read off one start of a
    Qwen2.5-VL tower (4.06 GiB for both modalities); two others of the same tower lie 21 % above."""
    tower = next((t for t in shape.towers if t.modality == "vision"), None)
    if tower is None or tower.image_size:
        return 0
    patches = IMAGE_TOKENS_UNBOUNDED * max(tower.merge, 1) ** 2
    widths = [t.out_features for t in tower.tensors if len(t.shape) == 2 and ".mlp." in t.name and "up" in t.name]
    gated = bool(widths)
    widths += [t.out_features for t in tower.tensors if len(t.shape) == 2 and t.name.endswith("mlp.fc1.weight")]
    width = max(widths, default=4 * tower.hidden)
    return run.modalities * patches * ((6 if gated else 4) * width + 10 * tower.hidden)
