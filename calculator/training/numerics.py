"""What of a plan changes the operations of a layer: types, adapters, kernels. A recording is cached by it."""

from __future__ import annotations

from typing import Literal, NamedTuple

from calculator.training.parallel import Degrees

AttentionImpl = Literal["flash", "efficient", "math", "eager"]
Stored = Literal["", "bnb4", "bnb4_half", "int8", "packed"]
Experts = Literal["grouped_mm", "eager", "batched_mm", "modules"]


class Numerics(NamedTuple):
    """Types as in ``tape.ITEM_BYTES``.

    ``weight`` is the type that weights are held in, ``small`` that of embedding and head, ``norm`` of norms (both may
    be fp32 after PEFT's k-bit preparation), ``residual`` of the stream that enters a layer, ``autocast`` the compute
    type under autocast. ``quantised``: how the frozen Linear weights are stored (``bnb4_half``: packed from fp16 as
    Fabric does, by bitsandbytes before 0.43, which keeps the input of every product). ``packed_compute``: type that
    packed weights are unpacked to.
    ``code``: whose modelling code runs. ``masked``: an explicit attention mask is in use in windowed layers.
    ``grads_exist``: gradients of an earlier micro-batch are there, so new ones are added and freed. ``single``: the
    micro-batch is one sequence, which lets batched products view what they otherwise copy. ``fused_norm``,
    ``fused_mlp``, ``fused_rope`` stand for Triton kernels (Liger, Unsloth, fms-acceleration) in place of the
    written-out modules; ``fused_adapters`` for the fused product of a packed weight and its adapter, which keeps its
    input and the dropped input. ``cudnn``: SDPA takes cuDNN's kernel (compute capability 9 and up), which also serves
    heads whose keys and values differ in size. ``tiled_mlp``: MLPs run tile by tile. ``train_embeddings``: embedding
    and head are trained beside adapters. ``degrees``: ranks that a layer is cut over; ``sequence_parallel``: norms
    and residual sums work on a share of the tokens; ``exchanged``: keys and values travel around a ring of
    context-parallel ranks. ``fp8``: whose products run in 8 bits. ``evaluating``: forward runs without a graph.
    """

    weight: str = "bf16"
    small: str = "bf16"
    norm: str = "bf16"
    residual: str = "bf16"
    autocast: str | None = None
    trainable: bool = True
    rank: int = 0
    targets: frozenset[str] = frozenset()
    adapter: str = "fp32"
    adapter_dropout: float = 0.0
    dora: bool = False
    quantised: Stored = ""
    packed_compute: str = "bf16"
    code: Literal["transformers", "litgpt"] = "transformers"
    attention: AttentionImpl = "flash"
    repeat_kv: Literal["", "inside", "in_place"] = ""
    masked: bool = False
    experts: Experts = "grouped_mm"
    dropout: float | None = None
    grads_exist: bool = False
    single: bool = False
    fused_norm: bool = False
    fused_mlp: bool = False
    fused_rope: bool = False
    fused_adapters: bool = False
    input_needs_grad: bool = True
    scratch: bool = True
    cudnn: bool = False
    degrees: Degrees = Degrees()
    tiled_mlp: bool = False
    train_embeddings: bool = False
    sequence_parallel: bool = False
    exchanged: bool = False
    fp8: Literal["", "torchao", "te"] = ""
    evaluating: bool = False

    @property
    def compute(self) -> str:
        return self.autocast or self.weight
