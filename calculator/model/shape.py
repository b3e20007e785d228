"""The model as layers: what a config.json means once it has been read.

Nothing downstream of ``ModelShape`` looks at a raw config. Parameter counts, shards, cache bytes, activations and
FLOPs all come from the tensors and mixers listed here. Sizes are element counts unless a name ends in ``_bytes``.
"""

from __future__ import annotations

from functools import cached_property
from math import prod
from typing import Annotated, Literal

from pydantic import Field

from calculator.base import Frozen
from calculator.text import Text

Component = Literal[
    "embedding",
    "attention",
    "mlp",
    "experts",
    "shared_experts",
    "router",
    "norm",
    "ssm",
    "head",
    "vision",
    "audio",
    "projector",
    "mtp",
    "other",
]

TensorKind = Literal["linear", "embedding", "norm", "bias", "conv", "router", "other"]
"""``linear`` tensors are the ones that adapters target and quantisers pack."""

Split = Literal["none", "column", "row", "kv", "vocab", "expert"]
"""How tensor or expert parallelism divides a tensor: ``column`` by its first dimension, ``row`` by its last, ``kv`` by
its first but in whole KV heads (replicated beyond them), ``vocab`` by padded rows, ``expert`` by whole experts and
within an expert by the name's usual rule, ``none`` is replicated."""


class Tensor(Frozen):
    """One weight, as the checkpoint names it, ``shape`` in checkpoint order (out, in).

    ``name`` is relative to its owner ("self_attn.q_proj.weight"); "{e}" in it stands for the expert number and
    ``copies`` is how many there are. ``fused`` marks expert weights that the modelling code keeps as one 3-D
    parameter.
    """

    name: str
    shape: tuple[int, ...]
    component: Component
    kind: TensorKind
    copies: int = 1
    split: Split = "none"
    fused: bool = False

    @property
    def elements(self) -> int:
        return prod(self.shape) * self.copies

    @property
    def out_features(self) -> int:
        return self.shape[0]

    @property
    def in_features(self) -> int:
        return self.shape[-1]


# ---------------------------------------------------------------------------------------------------- mixers


class Attention(Frozen):
    """Softmax attention with ``heads`` query heads and ``kv_heads`` cached heads.

    ``window``: keys older than this many tokens are not seen (sliding); ``chunk``: attention stays inside chunks of
    that size. ``block_sparse``: blocks of keys are skipped but every key is cached. ``shares_kv``: this layer reads
    another layer's cache and holds none. ``k_eq_v``: one projection gives both, two are cached. ``causal`` is False in
    encoders; cross attention (``cross``) belongs to a decoder and keeps the keys and values of the whole source.
    ``query_experts``: queries and output are those of the experts that a token is sent to, out of so many, each with
    ``kv_heads`` heads (JetMoE). ``one_row``: keys and values are the same row, cached once. ``compress``: beside the
    window one more row is cached for so many tokens, and ``open_elements`` of the blocks not full yet (DeepSeek-V4);
    ``index_width`` is that of the keys by which rows or blocks are chosen, one for each row.
    """

    kind: Literal["attention"] = "attention"
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    window: int | None = None
    chunk: int | None = None
    block_sparse: bool = False
    shares_kv: bool = False
    k_eq_v: bool = False
    causal: bool = True
    cross: bool = False
    qk_norm: Literal["none", "head", "full"] = "none"
    bias: bool = False
    sinks: bool = False
    output_gate: bool = False
    fused_qkv: bool = False
    rotary: Literal["none", "full", "partial"] = "full"
    rotary_dim: int | None = None
    softcap: bool = False
    dropout: float = 0.0
    query_experts: int = 0
    one_row: bool = False
    compress: int = 0
    index_width: int = 0
    open_elements: int = 0


class LatentAttention(Frozen):
    """Multi-head latent attention (MLA): the cache holds one latent of ``kv_lora_rank`` plus the rotary key. An indexer
    caches a key of ``indexer_head_dim``, and beside it ``indexer_extra`` elements: the gates by which keys are pooled,
    and whether the token counts (GLM-5 Next)."""

    kind: Literal["mla"] = "mla"
    heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    indexer_heads: int = 0
    indexer_head_dim: int = 0
    indexer_topk: int = 0
    indexer_extra: int = 0


class StateMixer(Frozen):
    """A recurrent or convolutional mixer: a fixed state per sequence and no cache that grows.

    ``conv_elements`` = channels x kernel width (full width; engines keep kernel - 1 columns), ``state_elements`` the
    recurrent state of one sequence. ``heads`` etc. are those of the recurrence, for sharding.
    """

    kind: Literal["state"] = "state"
    variant: Literal["mamba1", "mamba2", "gated_delta", "kda", "lightning", "short_conv", "rwkv", "rglru"]
    conv_channels: int = 0
    conv_kernel: int = 0
    state_elements: int = 0
    heads: int = 0
    head_dim: int = 0
    key_heads: int = 0
    key_dim: int = 0
    value_heads: int = 0
    value_dim: int = 0
    state_size: int = 0
    groups: int = 0
    inner: int = 0
    state_dtype: str | None = None

    @property
    def conv_elements(self) -> int:
        return self.conv_channels * self.conv_kernel


class NoMixer(Frozen):
    """A layer without token mixing (Nemotron-H MLP layers, skipped attention of pruned models)."""

    kind: Literal["none"] = "none"


Mixer = Annotated[Attention | LatentAttention | StateMixer | NoMixer, Field(discriminator="kind")]

# ------------------------------------------------------------------------------------------------------ MLPs

Activation = Literal["silu", "gelu", "gelu_new", "gelu_tanh", "relu", "relu2", "xielu", "swiglu_oai", "none"]


class DenseMlp(Frozen):
    """A plain (two matrices) or gated (three matrices) MLP of one width. ``receptance``: one more matrix of the input
    gates the output (RWKV). ``sparse``: of the gate only the largest values pass (Gemma 3n)."""

    kind: Literal["dense"] = "dense"
    width: int
    gated: bool
    activation: Activation
    fused_gate_up: bool = False
    bias: bool = False
    receptance: bool = False
    sparse: bool = False


class MoeMlp(Frozen):
    """Mixture of experts: ``experts`` routed ones of ``width``, ``top_k`` per token, shared ones always on.

    ``dense_width`` is a dense MLP that runs beside the experts in the same layer (0: none). ``latent`` is the narrower
    space that the experts work in (0: the hidden size). ``zero_experts`` are further choices of the router that hand a
    token on as it is (LongCat-Flash). ``picture_width`` is that of as many experts again, which tokens of pictures are
    sent to and others are not (ERNIE-4.5-VL).
    """

    kind: Literal["moe"] = "moe"
    experts: int
    top_k: int
    width: int
    gated: bool
    activation: Activation
    shared_experts: int = 0
    shared_width: int = 0
    shared_gate: bool = False
    dense_width: int = 0
    latent: int = 0
    zero_experts: int = 0
    picture_width: int = 0


class NoMlp(Frozen):
    kind: Literal["none"] = "none"


Mlp = Annotated[DenseMlp | MoeMlp | NoMlp, Field(discriminator="kind")]

NormKind = Literal["rms", "rms_unit_offset", "layer", "layer_no_affine", "none"]
"""``rms``: Llama's (input cast to fp32, weight in the model's dtype); ``rms_unit_offset``: Gemma's (1 + w, in fp32)."""


class Sublayer(Frozen):
    """A mixer and an MLP that run in a layer before its own.

    ``joined``: they read the layer's input beside the embedding's output, twice the hidden size, and what they make is
    projected and added to what the layer's own mixer reads (Zamba). Otherwise they are a layer's first half with
    residual sums of its own, and ``shortcut`` experts, fed by its second norm, are added after the second half
    (LongCat-Flash).
    """

    mixer: Mixer
    mlp: Mlp
    joined: bool = False
    shortcut: MoeMlp | None = None


class Block(Frozen):
    """One kind of layer. ``norms`` names the hidden-wide norms in order ("input", "post_attention", ...).

    ``parallel``: attention and MLP read the same residual. ``dropout`` is that of the residual branches. ``beside``: a
    second mixer that reads what the first one reads; their outputs are added (Falcon-H1). ``per_layer_width`` is that
    of an input of the layer's own (Gemma 3n), ``laurel_rank`` that of a low-rank path beside attention. ``tensors`` are
    those of all parts, but for weights that layers share.
    """

    mixer: Mixer
    mlp: Mlp
    tensors: tuple[Tensor, ...]
    norm: NormKind
    norms: tuple[str, ...]
    parallel: bool = False
    dropout: float = 0.0
    cross_attention: Attention | None = None
    beside: Mixer | None = None
    before: Sublayer | None = None
    per_layer_width: int = 0
    laurel_rank: int = 0

    @cached_property
    def elements(self) -> int:
        return sum(t.elements for t in self.tensors)

    @cached_property
    def mixers(self) -> tuple[Mixer, ...]:
        """All mixers, the first to run first."""
        found = (self.before.mixer if self.before else None, self.mixer, self.beside)
        return tuple(mixer for mixer in found if mixer is not None)

    @cached_property
    def mlps(self) -> tuple[Mlp, ...]:
        """All MLPs, the first to run first."""
        found = (self.before.mlp, self.before.shortcut) if self.before else ()
        return tuple(mlp for mlp in (*found, self.mlp) if mlp is not None)

    @cached_property
    def mixture(self) -> MoeMlp | None:
        """The layer's experts, if it has some."""
        return next((mlp for mlp in self.mlps if isinstance(mlp, MoeMlp)), None)

    @cached_property
    def kv_heads(self) -> int:
        """KV heads of the layer's softmax attention, 0 without one."""
        return next((mixer.kv_heads for mixer in self.mixers if isinstance(mixer, Attention)), 0)


class Tower(Frozen):
    """An encoder beside the language model. ``prefix`` is its path in the checkpoint."""

    modality: Literal["vision", "audio"]
    prefix: str
    hidden: int
    layers: int
    heads: int
    tensors: tuple[Tensor, ...]
    patch: int = 0
    image_size: int = 0
    merge: int = 1


class Quantization(Frozen):
    """How the checkpoint's weights are stored, normalised over the dialects of ``quantization_config``.

    ``format`` is a key of ``calculator.precision``. ``excluded`` are the module-name patterns kept in 16 bit, in the
    dialect's own matching rules, already normalised to regular expressions over full module paths.
    """

    format: str
    bits: float
    group_size: int | None = None
    block: tuple[int, int] | None = None
    symmetric: bool = True
    desc_act: bool = False
    double_quant: bool = False
    excluded: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    kv_format: str | None = None
    per_module: dict[str, str] = {}


class ParameterCount(Frozen):
    """Parameters by component. ``total`` leaves out ``mtp``; tied weights count once; ``active`` are those that one
    token uses: total less the routed experts that it skips."""

    total: int
    embedding: int
    attention: int
    mlp: int
    experts: int
    shared_experts: int
    router: int
    norm: int
    ssm: int
    head: int
    vision: int
    audio: int
    projector: int
    mtp: int
    other: int
    active: int


class CacheShape(Frozen):
    """Cache of the model at 16 bit, as the model defines it (engines lay it out in their own way).

    Of an encoder these are the keys and values of one pass, which nothing keeps; of an encoder-decoder, the decoder's
    own, without those of cross attention.

    ``sparse_bytes_per_token``: what layers with block-sparse attention cache, which are not full layers.
    """

    bytes_per_token_full_layers: int
    full_layers: int
    window_layers: int
    window: int | None
    state_bytes_per_sequence: int
    indexer_bytes_per_token: int = 0
    sparse_bytes_per_token: int = 0


class RopeScaling(Frozen):
    """How a file stretches its rotary positions: the method's name ("linear", "dynamic", "yarn", "llama3"), the factor,
    and the context before stretching where the file states it."""

    kind: str
    factor: float
    original: int | None = None


class ModelShape(Frozen):
    """A whole model. ``order`` lists the blocks from first to last layer as indices into ``blocks``.

    ``embedding`` holds token and position tables, ``final`` what stands between the last layer and the head,
    ``head`` the output projection (empty when ``tied``). ``encoder_order`` is for encoder-decoder models and indexes
    ``blocks`` too. ``shared_layers``: all layers are one set of weights (ALBERT). ``shared``: weights that several
    layers use and that exist once (Zamba), under their whole names. ``streams``: residual streams that the layers read
    and write (Gemma 3n). ``layer_prefix`` is the path of layer ``{i}`` in
    the checkpoint. ``draft`` is the model that drafts for this one where a plan names it. ``max_context`` is the
    longest context that the file states; what ``rope_scaling`` makes of it is each engine's own reading.
    """

    model_type: str
    architecture: str
    kind: Literal["decoder", "encoder", "encoder_decoder"] = "decoder"
    hidden: int
    vocab: int
    max_context: int | None = None
    rope_scaling: RopeScaling | None = None
    blocks: tuple[Block, ...]
    order: tuple[int, ...]
    encoder_order: tuple[int, ...] = ()
    shared_layers: bool = False
    shared: tuple[Tensor, ...] = ()
    streams: int = 1
    embedding: tuple[Tensor, ...]
    final: tuple[Tensor, ...]
    head: tuple[Tensor, ...]
    tied: bool
    final_norm: NormKind = "rms"
    final_softcap: bool = False
    embedding_dropout: float = 0.0
    embedding_scaled: bool = False
    embedding_norm: NormKind = "none"
    loss_upcast: bool = True
    towers: tuple[Tower, ...] = ()
    projector: tuple[Tensor, ...] = ()
    mtp: tuple[Tensor, ...] = ()
    mtp_layers: int = 0
    dtype: str = "bfloat16"
    quantization: Quantization | None = None
    prefix: str = "model."
    layer_prefix: str = "model.layers.{i}."
    encoder_layer_prefix: str = ""
    cache_refusal: Text | None = None
    assumptions: tuple[Text, ...] = ()
    draft: ModelShape | None = None

    @property
    def layers(self) -> int:
        return len(self.order)

    @cached_property
    def positions(self) -> int:
        """Rows of the table of learned positions, 0 without one."""
        tables = (t for t in self.embedding[1:] if t.kind == "embedding")
        return next((t.shape[0] for t in tables if "position" in t.name or ".wpe." in t.name), 0)

    @cached_property
    def block_counts(self) -> tuple[int, ...]:
        """How many decoder layers are of each block kind."""
        return tuple(self.order.count(i) for i in range(len(self.blocks)))

    @cached_property
    def parameters(self) -> ParameterCount:
        from calculator.model.count import count_parameters

        return count_parameters(self)

    @cached_property
    def cache(self) -> CacheShape:
        """Cache geometry. Raises ``UnknownFamilyError`` where ``cache_refusal`` is set."""
        from calculator.model.count import cache_shape

        return cache_shape(self)
