"""Drafts: what a method of speculative decoding loads and caches beside the model it drafts for.

EAGLE's heads are one decoder layer of the target's sizes that shares the target's embedding. EAGLE-3's reads embedding
and hidden state side by side, joins three hidden states of the target through ``fc`` and has a head of its own over a
reduced vocabulary. Medusa's heads are residual blocks with an output matrix each. Layers for multi-token prediction are
the checkpoint's own. A separate draft model is whole: its embedding, layers and head.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import cast

from calculator.errors import PlanError
from calculator.model.shape import Attention, DenseMlp, LatentAttention, ModelShape, Tensor
from calculator.model.weights import WeightLayout
from calculator.precision import KvFormat
from calculator.serving.cache import Spec, attention_spec, latent_spec, layer_specs
from calculator.serving.plan import Engine, ServingPlan
from calculator.serving.split import Split, check_layers
from calculator.serving.start import ZERO, Rows, Span, Term
from calculator.serving.weights import VOCAB_PADDING, Recent, rank_weights, share
from calculator.sources import Source
from calculator.text import Text, text

METHODS: Mapping[Engine, tuple[str, ...]] = MappingProxyType(
    {
        "vllm": ("ngram", "suffix", "mtp", "eagle", "eagle3", "medusa", "draft_model", "mlp_speculator", "dflash"),
        "sglang": ("ngram", "mtp", "eagle", "eagle3", "draft_model", "dflash"),
        "tensorrt_llm": ("ngram", "mtp", "eagle", "eagle3", "medusa", "draft_model"),
    }
)
"""Methods of the engines whose drafts are counted (vllm/config/speculative.py; sglang/srt/speculative/spec_info.py;
tensorrt_llm/llmapi/llm_args.py)."""
ALL = tuple(dict.fromkeys(name for names in METHODS.values() for name in names))
WITHOUT_MODEL = ("ngram", "suffix")
"""Look-ups in the prompt or in earlier answers: nothing is loaded."""
BY_HAND = ("mlp_speculator", "dflash")
"""Methods whose weights are not derived: ``draft_bytes`` says them."""
FED_BY_HIDDEN = ("eagle", "eagle3", "mtp")

EAGLE3_VOCABULARY = 32_000
EAGLE3_STATES = 3
"""Hidden states of the target that ``fc`` joins, from a low, a middle and a high layer."""
SPARSE_WIDTH = (6, 3)
"""Width of a published head's MLP over the hidden size where the target has no dense layer: usual, and lowest seen."""
HEAD_DIM, KV_HEADS = 128, 8
"""Attention of published heads for targets with latent attention, which they do not copy."""
EAGLE_SOURCE = Source(
    title="EAGLE-3 heads: vllm/model_executor/models/llama_eagle3.py and published configurations (draft_vocab_size "
    "32,000; MLPs of 3 to 6 times the hidden size for mixtures)",
    url="https://github.com/sgl-project/SpecForge/tree/main/configs", checked_on="2026-11-29",
)  # fmt: skip

_recent = Recent(16)


@dataclass(frozen=True, slots=True)
class Draft:
    """What one GPU of the last pipeline stage holds for drafting: weights, the cache of each kind of layer, the layers,
    and the bytes of inner hidden states that the target keeps for each token of a step."""

    weights: Span = ZERO
    specs: Mapping[Spec, int] = field(default_factory=dict)
    layers: int = 0
    kept_token_bytes: int = 0
    notes: tuple[Text, ...] = ()


NOTHING = Draft()


def draft_rows(draft: Draft, cache_bytes: int = 0) -> Rows:
    """The bill's line of a draft, with its cache where that is no part of the engine's pool; none where nothing is
    loaded."""
    span = draft.weights + Span.exact(cache_bytes)
    if not span.high:
        return ()
    formula = text("serving.item.draft", weights_bytes=draft.weights.value)
    if cache_bytes:
        formula = text("serving.item.draft.cache", weights_bytes=draft.weights.value, cache_bytes=cache_bytes)
    return (("draft", Term(span, formula, "assumed" if draft.notes else "computed", EAGLE_SOURCE)),)


def with_draft(shape: ModelShape, draft: ModelShape) -> ModelShape:
    """The model together with the one that drafts for it: the same object for the same pair, since engines remember by
    it what they laid out."""
    made = _recent.get(shape, (id(draft),), lambda: shape.model_copy(update={"draft": draft}))
    return cast(ModelShape, made)


def method_of(shape: ModelShape, plan: ServingPlan) -> str | None:
    """The plan's method. SGLang calls the checkpoint's own layers EAGLE too, where no other model is named.

    Raises ``PlanError`` ("serving.speculative_unknown") naming the methods that there are.
    """
    method = plan.speculative
    if method is None:
        return None
    known = METHODS.get(plan.engine, ALL)
    if method not in known:
        raise PlanError("serving.speculative_unknown", field="speculative", text=method[:40], engine=plan.engine,
                        candidates=", ".join(known))  # fmt: skip
    if plan.engine == "sglang" and method == "eagle" and shape.mtp_layers and plan.draft_model is None:
        return "mtp"
    return method


def drafts_of(plan: ServingPlan) -> int:
    """Tokens that are drafted a step; at least one where anything drafts."""
    return max(plan.draft_tokens, 1) if plan.speculative is not None else 0


def draft_of(shape: ModelShape, plan: ServingPlan, split: Split, form: KvFormat) -> Draft:
    """What the plan's method adds to a rank. ``draft_bytes`` of the plan replace the weights.

    The weights of layers for multi-token prediction are part of the model's own and not in ``weights``. Raises
    ``PlanError``: "serving.speculative_unknown", "serving.draft_missing", and the split's own for a draft model that
    cannot be divided.
    """
    method = method_of(shape, plan)
    if method is None or method in WITHOUT_MODEL:
        return NOTHING
    if method == "mtp":
        found = _own_layers(shape, split, form)
    elif method in ("eagle", "eagle3"):
        found = _eagle(shape, plan, split, form, method)
    elif method == "medusa":
        found = Draft(weights=Span.exact(_bytes(_medusa(shape, drafts_of(plan)), split, 0)))
    elif method == "draft_model" and shape.draft is not None:
        found = _whole(shape.draft, split, form)
    elif plan.draft_bytes:
        found = Draft(notes=(text("serving.assume.draft_cache", method=method),))
    else:
        raise PlanError("serving.draft_missing", field="draft_model", method=method)
    if not plan.draft_bytes:
        return found
    given = Span.exact(plan.draft_bytes // split.tp)
    return Draft(given, found.specs, found.layers, found.kept_token_bytes, found.notes)


def _own_layers(shape: ModelShape, split: Split, form: KvFormat) -> Draft:
    """Multi-token-prediction layers are full layers like the model's own."""
    if not shape.mtp_layers:
        return Draft(notes=(text("serving.assume.no_mtp"),))
    mixers = [mixer for index in shape.order for mixer in shape.blocks[index].mixers]
    latent = next((m for m in mixers if isinstance(m, LatentAttention)), None)
    plain = next((m for m in mixers if isinstance(m, Attention) and not m.window and not m.chunk), None)
    specs: dict[Spec, int] = {}
    if latent is not None:
        specs[latent_spec(latent, form)] = shape.mtp_layers
    elif plain is not None:
        specs[attention_spec(plain, split.heads_tp, form)] = shape.mtp_layers
    return Draft(
        specs=specs, layers=shape.mtp_layers, notes=(text("serving.assume.mtp", layers_count=shape.mtp_layers),)
    )


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The sizes of an EAGLE head."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    width: int
    least_width: int
    vocab: int
    layers: int


def _sizes(shape: ModelShape, named: ModelShape | None) -> tuple[_Sizes, tuple[Text, ...]]:
    """The named head's sizes, or the target's: its widest dense MLP and its full attention."""
    model = named or shape
    mixers = [mixer for index in model.order for mixer in model.blocks[index].mixers]
    plain = next((m for m in mixers if isinstance(m, Attention) and not m.window and not m.chunk), None)
    plain = plain or next((m for m in mixers if isinstance(m, Attention)), None)
    widths = [mlp.width for block in model.blocks for mlp in block.mlps if isinstance(mlp, DenseMlp)]
    width = max(widths, default=SPARSE_WIDTH[0] * model.hidden)
    least = width if widths else SPARSE_WIDTH[1] * model.hidden
    heads = (plain.heads, plain.kv_heads, plain.head_dim) if plain else (model.hidden // HEAD_DIM, KV_HEADS, HEAD_DIM)
    vocab = named.head[0].shape[0] if named and named.head else min(EAGLE3_VOCABULARY, shape.vocab)
    sizes = _Sizes(shape.hidden, *heads, width, least, vocab, named.layers if named else 1)
    if named is not None:
        return sizes, ()
    return sizes, (text("serving.assume.eagle_head", width_count=width, vocab_count=vocab),)


def _eagle(shape: ModelShape, plan: ServingPlan, split: Split, form: KvFormat, method: str) -> Draft:
    named = shape.draft
    sizes, notes = _sizes(shape, named)
    joined = method == "eagle3"

    def loaded() -> tuple[int, int]:
        # The target's embedding stands on the first stage: where the head is on another it has one of its own.
        own = 2 * shape.vocab * shape.hidden // split.tp if split.pp > 1 else 0
        usual, least = (
            own + _bytes(_head(sizes, width, joined=joined), split, sizes.kv_heads)
            for width in (sizes.width, sizes.least_width)
        )
        return usual, least

    weights, least = cast(tuple[int, int], _recent.get(shape, ("eagle", method, split), loaded))
    mixer = Attention(heads=sizes.heads, kv_heads=sizes.kv_heads, head_dim=sizes.head_dim, v_head_dim=sizes.head_dim)
    return Draft(
        Span(weights, least, weights), {attention_spec(mixer, split.heads_tp, form): sizes.layers}, sizes.layers,
        2 * EAGLE3_STATES * shape.hidden if joined else 0, notes,
    )  # fmt: skip


def _head(sizes: _Sizes, width: int, *, joined: bool) -> Iterable[Tensor]:
    """An EAGLE head's matrices in 16 bit. ``joined``: EAGLE-3. ``fc`` stands whole on every rank."""
    h, q, kv = sizes.hidden, sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    yield Tensor(name="fc", shape=(h, h * (EAGLE3_STATES if joined else 2)), component="other", kind="linear")
    for layer in range(sizes.layers):
        inside = 2 * h if joined and layer == 0 else h
        yield Tensor(name="q", shape=(q, inside), component="attention", kind="linear", split="column")
        yield Tensor(name="kv", shape=(kv, inside), component="attention", kind="linear", copies=2, split="kv")
        yield Tensor(name="o", shape=(h, q), component="attention", kind="linear", split="row")
        yield Tensor(name="up", shape=(width, h), component="mlp", kind="linear", copies=2, split="column")
        yield Tensor(name="down", shape=(h, width), component="mlp", kind="linear", split="row")
        yield Tensor(name="norms", shape=(h,), component="norm", kind="norm", copies=3 if joined else 1)
    if joined:
        yield Tensor(name="norm", shape=(h,), component="norm", kind="norm")
        yield Tensor(name="lm_head", shape=(sizes.vocab, h), component="head", kind="linear", split="vocab")


def _medusa(shape: ModelShape, heads: int) -> Iterable[Tensor]:
    """One residual block with bias and one output matrix a head (vllm/model_executor/models/medusa.py)."""
    h = shape.hidden
    yield Tensor(name="block", shape=(h, h + 1), component="other", kind="linear", copies=heads)
    yield Tensor(name="lm_head", shape=(shape.vocab, h), component="head", kind="linear", copies=heads, split="vocab")


def _bytes(tensors: Iterable[Tensor], split: Split, kv_heads: int) -> int:
    """16-bit bytes of one rank."""
    return round(sum(2 * tensor.elements * share(tensor, split, kv_heads) for tensor in tensors))


def _whole(draft: ModelShape, split: Split, form: KvFormat) -> Draft:
    """A draft model in its stored format, divided like the target over tensor-parallel ranks, on one stage."""
    alone = Split(tp=split.tp)
    check_layers(draft, alone)

    def loaded() -> int:
        layout = WeightLayout(draft, None)
        return rank_weights(
            draft, alone, layout.tensor_bytes, by_layer=layout.by_layer, padding=VOCAB_PADDING
        ).largest  # fmt: skip

    weights = cast(int, _recent.get(draft, ("weights", split.tp), loaded))
    specs = layer_specs(draft, range(draft.layers), alone.tp, form)
    return Draft(Span.about(weights, 0.01), specs, draft.layers)
