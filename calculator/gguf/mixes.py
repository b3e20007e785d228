"""GGUF mixes: which type llama.cpp's quantiser gives each tensor, for a model that has no file yet.

A mix such as Q4_K_M is a base type and a set of exceptions by tensor, layer, number of experts and query heads per KV
head. The rules are facts of ``src/llama-quant.cpp`` (github.com/ggml-org/llama.cpp, 2026).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from calculator.errors import PlanError
from calculator.gguf.names import Category, as_layer, as_written, category
from calculator.gguf.projector import encoders
from calculator.model.shape import Attention, ModelShape, StateMixer, Tensor
from calculator.model.stored import StoredWeights
from calculator.precision.ggml import GGML_TYPES, GgmlType
from calculator.sources import Source

MIX_SOURCE = Source(
    title="llama.cpp, llama-quant.cpp",
    url="https://github.com/ggml-org/llama.cpp/blob/master/src/llama-quant.cpp",
    checked_on="2026-11-29",
)

_BASE: dict[str, str] = {
    "F32": "F32", "F16": "F16", "BF16": "BF16", "Q4_0": "Q4_0", "Q4_1": "Q4_1", "Q5_0": "Q5_0", "Q5_1": "Q5_1",
    "Q8_0": "Q8_0", "Q2_K": "Q2_K", "Q2_K_S": "Q2_K", "Q3_K_S": "Q3_K", "Q3_K_M": "Q3_K", "Q3_K_L": "Q3_K",
    "Q4_K_S": "Q4_K", "Q4_K_M": "Q4_K", "Q5_K_S": "Q5_K", "Q5_K_M": "Q5_K", "Q6_K": "Q6_K", "IQ1_S": "IQ1_S",
    "IQ1_M": "IQ1_M", "IQ2_XXS": "IQ2_XXS", "IQ2_XS": "IQ2_XS", "IQ2_S": "IQ2_XS", "IQ2_M": "IQ2_S",
    "IQ3_XXS": "IQ3_XXS", "IQ3_XS": "IQ3_S", "IQ3_S": "IQ3_S", "IQ3_M": "IQ3_S", "IQ4_NL": "IQ4_NL",
    "IQ4_XS": "IQ4_XS", "TQ1_0": "TQ1_0", "TQ2_0": "TQ2_0", "MXFP4_MOE": "MXFP4", "NVFP4": "NVFP4",
}  # fmt: skip
_LARGE_ENDS = {"Q2_K_L": "Q2_K", "Q3_K_XL": "Q3_K_L", "Q4_K_L": "Q4_K_M", "Q5_K_L": "Q5_K_M", "Q6_K_L": "Q6_K"}
"""Widely published variants of a mix with embedding and output in Q8_0."""

_OTHER_NAMES = {"MXFP4": "MXFP4_MOE", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M", "Q3_K": "Q3_K_M", "Q8": "Q8_0", "Q6": "Q6_K"}
MIXES = (*_BASE, *_LARGE_ENDS)

_FALLBACK = {
    "IQ1_S": "IQ4_NL", "IQ1_M": "IQ4_NL", "IQ2_XXS": "IQ4_NL", "IQ2_XS": "IQ4_NL", "IQ2_S": "IQ4_NL",
    "IQ3_XXS": "IQ4_NL", "IQ3_S": "IQ4_NL", "IQ4_XS": "IQ4_NL", "Q2_K": "Q4_0", "Q3_K": "Q4_0", "TQ1_0": "Q4_0",
    "TQ2_0": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0",
}  # fmt: skip
_KEEP_PREDICTION = ("glm4_moe", "glm4v_moe", "glm_moe_dsa", "qwen3_5", "exaone4_5")
"""Families of which the converter writes prediction layers; llama.cpp leaves them unloaded unless it drafts."""

_TINY = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M")
_BLOCK_OF_NAMES = {name: kind.block for name, kind in GGML_TYPES.items()}


def mix_name(written: str) -> str:
    """The name of a mix as llama.cpp spells it, from "q4_k_m" or "gguf:Q4_K_M". Raises ``PlanError``
    ("gguf.unknown_mix"), for vendors' dynamic mixes too, whose types only the file tells."""
    name = written.strip().upper().removeprefix("GGUF:").replace("-", "_")
    name = _OTHER_NAMES.get(name, name)
    if name not in MIXES:
        raise PlanError("gguf.unknown_mix", field="weights", text=written[:40], candidates=", ".join(MIXES))
    return name


@dataclass(frozen=True)
class Mix:
    """The rules of one mix over one model.

    ``imatrix``: quantised with an importance matrix, which changes a few types. ``fused_apart``: the file was made
    before April 2026, when fused query-key-value matrices had a rule of their own; they now count as value matrices.
    ``by_layer``: layers of one kind differ.
    """

    shape: ModelShape
    name: str
    imatrix: bool = False
    fused_apart: bool = False
    by_layer: bool = True

    @cached_property
    def rules(self) -> str:
        """The mix whose rules hold, which for the variants with large ends is the plain one."""
        return _LARGE_ENDS.get(self.name, self.name)

    @cached_property
    def base(self) -> str:
        return _BASE[self.rules]

    @cached_property
    def experts(self) -> int:
        return max((b.mixture.experts for b in self.shape.blocks if b.mixture), default=0)

    @cached_property
    def group(self) -> int:
        """Query heads per KV head of the first attention layer."""
        mixers = (mixer for i in self.shape.order for mixer in self.shape.blocks[i].mixers)
        return next((m.heads // max(m.kv_heads, 1) for m in mixers if isinstance(m, Attention)), 1)

    @cached_property
    def value_layers(self) -> tuple[int, ...]:
        """Layers with a value or fused projection, in order."""
        return self._layers_with("attn_v", "attn_qkv")

    @cached_property
    def counted_layers(self) -> dict[int, int]:
        """The number of each value layer: the quantiser counts these, not all layers."""
        counted = self._layers_with("attn_v") if self.fused_apart else self.value_layers
        return {layer: number for number, layer in enumerate(counted)}

    def _layers_with(self, *categories: Category) -> tuple[int, ...]:
        has = [any(category(p) in categories for t in b.tensors for p in as_written(t, 1)) for b in self.shape.blocks]
        return tuple(layer for layer, index in enumerate(self.shape.order) if has[index])

    @property
    def tied(self) -> bool:
        """Whether one tensor serves as embedding and output. GPT-2's is written twice by the converter."""
        return self.shape.tied and self.shape.model_type != "gpt2"

    @property
    def output(self) -> tuple[Tensor, ...]:
        """The output projection as the file holds it; none where the embedding serves."""
        if self.tied:
            return ()
        if not self.shape.tied:
            return self.shape.head
        return tuple(
            t.model_copy(update={"component": "head", "kind": "linear"})
            for t in self.shape.embedding
            if category(t) == "token_embd"
        )

    @property
    def _falcon(self) -> bool:
        return self.shape.model_type == "falcon"

    def type_of(self, tensor: Tensor, layer: int | None) -> GgmlType:
        """The type of a tensor of layer ``layer`` (None: outside the layers)."""
        what = category(tensor)
        if what == "kept":
            return GGML_TYPES["F32"]
        if self.base in ("F32", "F16", "BF16"):
            return GGML_TYPES[self.base]
        columns = tensor.in_features
        return GGML_TYPES[_fitting(self._chosen(what, tensor, layer or 0, columns), columns)]

    def as_written(self, tensor: Tensor, layer: int | None) -> tuple[Tensor, ...]:
        """The tensors of the file that one of the checkpoint becomes."""
        inside = layer is not None and layer < self.shape.layers
        mixers = self.shape.blocks[self.shape.order[layer or 0]].mixers if inside else ()
        return as_written(tensor, next((m.conv_channels for m in mixers if isinstance(m, StateMixer)), 0))

    def tensor_bytes(self, tensor: Tensor, layer: int | None) -> int:
        parts = self.as_written(tensor, layer)
        return tensor.copies * sum(self.type_of(part, layer).tensor_bytes(part.shape) for part in parts)

    def _chosen(self, what: Category, tensor: Tensor, layer: int, columns: int) -> str:
        if what == "output" or (what == "token_embd" and self.tied):
            return self._output(columns)
        if self.rules == "MXFP4_MOE":
            return "MXFP4" if tensor.component == "experts" else "Q8_0"
        if what == "token_embd":
            return self._embedding()
        if self.rules in _TINY:
            return self._tiny(what, layer)
        match what:
            case "attn_v":
                return self._value(layer)
            case "attn_k" | "attn_q":
                return self._key_or_query(what)
            case "attn_qkv":
                return self._fused() if self.fused_apart else self._value(layer)
            case "attn_output":
                return self._attention_output()
            case "ffn_down":
                return self._down(layer)
            case "ffn_gate" | "ffn_up":
                middle = self._first_eighth <= layer < 7 * self.shape.layers // 8
                return "IQ3_XXS" if self.rules == "IQ3_XS" and middle else self.base
        return self.base

    @property
    def _first_eighth(self) -> int:
        return self.shape.layers // 8

    def _output(self, columns: int) -> str:
        if self.name in _LARGE_ENDS or self.rules == "MXFP4_MOE":
            return "Q8_0"
        if self._falcon or columns % _BLOCK_OF_NAMES[self.base]:
            return "Q8_0"
        if self.rules in (*_TINY, "IQ3_XXS"):
            return "Q5_K"
        return "Q8_0" if self.base == "Q8_0" else "Q6_K"

    def _embedding(self) -> str:
        if self.name in _LARGE_ENDS:
            return "Q8_0"
        if self.rules in ("IQ2_XXS", "IQ2_XS", "IQ1_S", "IQ1_M"):
            return "Q2_K"
        if self.rules in ("IQ2_S", "IQ2_M", "IQ3_XXS"):
            return "IQ3_S"
        return "Q4_K" if self.rules in ("TQ1_0", "TQ2_0") else self.base

    def _tiny(self, what: Category, layer: int) -> str:
        better = "IQ3_S" if self.rules in ("IQ2_S", "IQ2_M") else "Q2_K"
        if what == "attn_v" or (what == "attn_qkv" and not self.fused_apart):
            return "Q4_K" if self.group >= 4 or self.experts >= 4 else better
        if what == "attn_k" and self.experts == 8:
            return "Q4_K"
        if what == "ffn_down" and layer < self._first_eighth:
            return better
        if what == "attn_output":
            if self.experts == 8:
                return "Q5_K"
            return {"IQ1_S": "IQ2_XXS", "IQ1_M": "IQ2_XXS", "IQ2_S": "IQ3_S", "IQ2_M": "IQ3_S"}.get(
                self.rules, self.base
            )
        return self.base

    def _value(self, layer: int) -> str:
        chosen = self._value_type(self.counted_layers.get(layer, layer))
        if self.shape.layers == 80 and not self.experts and chosen in ("Q3_K", "Q4_K"):
            chosen = "Q5_K"  # the 70B class: the tensor is an eighth of the query's
        return "Q8_0" if self.experts == 8 else chosen

    def _value_type(self, number: int) -> str:
        grouped = self.group >= 4
        match self.rules:
            case "Q2_K":
                return "Q4_K" if grouped else "Q3_K"
            case "Q2_K_S" | "IQ3_XS" | "IQ3_S" if grouped:
                return "Q4_K"
            case "IQ3_XXS":
                return "Q4_K" if grouped else "IQ3_XXS" if self.imatrix else "IQ3_S"
            case "IQ3_M":
                return "Q4_K"
            case "Q3_K_M":
                return "Q5_K" if number < 2 else "Q4_K"
            case "Q3_K_L":
                return "Q5_K"
            case "IQ4_NL" | "IQ4_XS" if grouped:
                return "Q5_K"
            case "Q4_K_M" | "Q5_K_M" if _more_bits(number, len(self.value_layers)):
                return "Q6_K"
            case "Q4_K_S" if number < 4:
                return "Q5_K"
        return self.base

    def _key_or_query(self, what: Category) -> str:
        if what == "attn_k" and self.experts == 8:
            return "Q8_0"
        return {"IQ3_XS": "IQ3_XXS", "IQ3_XXS": "IQ2_S"}.get(self.rules, self.base)

    def _fused(self) -> str:
        return {
            "Q3_K_M": "Q4_K", "Q3_K_L": "Q4_K", "IQ3_M": "Q4_K", "Q4_K_M": "Q5_K", "Q5_K_M": "Q6_K",
        }.get(self.rules, self.base)  # fmt: skip

    def _attention_output(self) -> str:
        if self._falcon:
            return "Q4_K" if self.rules == "Q3_K_L" else self.base
        if self.experts == 8:
            raised = ("Q2_K", "IQ3_XS", "IQ3_XXS", "Q3_K_S", "Q3_K_M", "IQ4_NL", "Q4_K_S", "Q4_K_M", "IQ3_S", "IQ3_M",
                      "IQ4_XS")  # fmt: skip
            return "Q5_K" if self.rules in raised else self.base
        return {
            "Q2_K": "Q3_K", "IQ3_XXS": "IQ3_S", "Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K", "IQ3_M": "Q4_K",
        }.get(self.rules, self.base)  # fmt: skip

    def _down(self, layer: int) -> str:
        layers, early = self.shape.layers, layer < self._first_eighth
        more = _more_bits(layer, layers)
        match self.rules:
            case "Q2_K":
                return "Q3_K"
            case "Q2_K_S" if early:
                return "Q4_K"
            case "IQ3_XXS" if not self.imatrix:
                return "Q4_K" if early else "Q3_K"
            case "Q3_K_M":
                if layer < layers // 16:
                    return "Q5_K"
                return "Q4_K" if not self._falcon or more else "Q3_K"
            case "IQ3_M" if early or (self.experts == 8 and more):
                return "Q4_K"
            case "Q3_K_L":
                return "Q4_K" if self._falcon else "Q5_K"
            case "Q4_K_M":
                if self._falcon:
                    return "Q6_K" if layer < layers // 16 else "Q5_K" if more else "Q4_K"
                return "Q6_K" if more else self.base
            case "IQ4_NL" | "IQ4_XS" if early and not self.imatrix:
                return "Q5_K"
            case "Q5_K_M" if more:
                return "Q6_K"
            case "Q4_K_S" if early and not self._falcon:
                return "Q5_K"
            case "Q4_0" | "Q5_0" if early and self.imatrix:
                return "Q4_1" if self.rules == "Q4_0" else "Q5_1"
        return self.base


def _more_bits(layer: int, layers: int) -> bool:
    """The first and last eighth, and every third layer between."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def _fitting(name: str, columns: int) -> str:
    """The type itself, or the one that replaces it where the columns do not fill whole blocks."""
    if columns % _BLOCK_OF_NAMES[name] == 0:
        return name
    other = _FALLBACK.get(name, "F16")
    return other if columns % _BLOCK_OF_NAMES[other] == 0 else "F16"


def mix_weights(shape: ModelShape, written: str, *, imatrix: bool = False, fused_apart: bool = False) -> StoredWeights:
    """The tensors of a GGUF file of the model, as llama.cpp's converter and quantiser would write them; ``imatrix`` and
    ``fused_apart`` as for ``Mix``.

    Prediction layers are in the file where the converter keeps them. Towers and their projector go to a file of their
    own (see ``projector_weights``). The file is larger by its metadata, mostly the tokenizer: some 5 to 20 MB.

    Raises ``PlanError`` ("gguf.unknown_mix").
    """
    mix = Mix(shape, mix_name(written), imatrix, fused_apart)

    def parts(tensor: Tensor, layer: int | None, times: int = 1) -> Iterator[tuple[str, str, int]]:
        for part in mix.as_written(tensor, layer):
            kind = mix.type_of(part, layer)
            yield tensor.component, kind.name, times * part.copies * kind.tensor_bytes(part.shape)

    def predicting(tensor: Tensor) -> tuple[str, str, int]:
        kind = mix.type_of(as_layer(tensor), shape.layers)
        return "mtp", kind.name, tensor.copies * kind.tensor_bytes(tensor.shape)

    blocks = shape.blocks
    layers = (parts(t, layer) for layer, index in enumerate(shape.order) for t in blocks[index].tensors)
    encoder = (parts(t, None, n) for index, n in Counter(shape.encoder_order).items() for t in blocks[index].tensors)
    ends = (parts(t, None) for t in (*shape.embedding, *shape.shared, *shape.final, *mix.output))
    prediction = map(predicting, shape.mtp if shape.model_type.startswith(_KEEP_PREDICTION) else ())
    everything = chain(chain.from_iterable(chain(layers, encoder, ends)), prediction)
    return StoredWeights.summed(everything, basis="computed", source=MIX_SOURCE)


def projector_weights(shape: ModelShape) -> StoredWeights | None:
    """The multimodal file (mmproj) that goes with a model of towers, as the converter writes it in F16: matrices in 16
    bit, positions and the rest in fp32. None where the model has none."""
    towers = encoders(shape)
    tensors = (*(t for tower in towers for t in tower.tensors), *(shape.projector if towers else ()))
    if not tensors:
        return None

    def part(tensor: Tensor) -> tuple[str, str, int]:
        whole = len(tensor.shape) < 2 or "pos" in tensor.name or _wide_patches(shape, tensor)
        kind = GGML_TYPES["F32" if whole else "F16"]
        return tensor.component, kind.name, tensor.copies * kind.tensor_bytes(tensor.shape)

    return StoredWeights.summed(map(part, tensors), basis="computed", source=MIX_SOURCE)


def _wide_patches(shape: ModelShape, tensor: Tensor) -> bool:
    """Gemma 3's converter keeps the patch embedding in fp32 too."""
    return shape.model_type == "gemma3" and "patch_embedding" in tensor.name
