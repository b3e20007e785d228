"""Predicting exact facts: cache bytes, parameter counts, weight bytes, under the engine and version that a fact names.

A fact without an engine is one of the model itself: its caches at the named type, windows counted at their width. Where
such a fact names a tensor-parallel size, vLLM's split is meant.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calculator.bill import Bill, ServingFigures
from calculator.errors import CalculatorError
from calculator.hardware import resolve
from calculator.model import read
from calculator.model.shape import Attention, LatentAttention, ModelShape
from calculator.serving import bill
from calculator.serving.plan import ServingPlan
from calculator.units import TIB
from validation.models import shape_of
from validation.outcome import Missed, Outcome, Scored, UnpredictableError
from validation.plans import validated
from validation.rows import Row

_ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "16-bit": 2, "fp32": 4, "fp8": 1}
_WITHOUT_CREDIT = "0.19.0"
_CACHE_TYPES = frozenset({"bf16", "fp16", "fp8", "int8", "q8_0", "q5_1", "q4_0"})
_WEIGHT_TYPES = {"bf16": "bf16", "fp16": "fp16", "fp32": "fp32", "fp8 at load": "fp8"}


def predict(row: Row) -> Outcome:
    """The fact's ``value``."""
    fact = row.data
    checked = bool(fact.get("checked"))
    base: dict[str, Any] = {"kind": row.kind, "id": row.id, "complete": checked}
    try:
        shape = _bare_shape(fact["args"]) if not fact.get("model") else shape_of(fact["model"])
        predicted = value_of(shape, str(fact["quantity"]), fact.get("args") or {})
    except UnpredictableError as error:
        return Outcome(**base, wanted=1, missed=(Missed(**base, key="value", reason=error.reason),))
    except CalculatorError as error:
        reason = UnpredictableError("validation.reason.refused", message=error.message).reason
        return Outcome(**base, wanted=1, missed=(Missed(**base, key="value", reason=reason),))
    tags = {
        "quantity": str(fact["quantity"]),
        "engine": str((fact.get("args") or {}).get("engine")),
        "model": str(fact.get("model")),
        "source": str(fact.get("source", "")).removeprefix("https://").split("/")[0],
        "url": str(fact.get("source") or ""),
    }
    scored = Scored(
        **base, key="value", measured=fact["value"], predicted=predicted, low=predicted, high=predicted, tags=tags,
        tolerance=fact.get("tolerance"), checked=checked,
    )  # fmt: skip
    return Outcome(**base, wanted=1, scored=(scored,))


def value_of(shape: ModelShape, quantity: str, args: Mapping[str, Any]) -> float:
    """The number that a fact states. Raises ``UnpredictableError`` and what the calculator raises."""
    own = args.get("engine") is None and int(args.get("tp") or 1) == 1 and int(args.get("dcp") or 1) == 1
    if quantity == "param_count":
        return shape.parameters.total
    if quantity == "other" and args.get("name") == "attention_layers":
        return sum(isinstance(m, Attention | LatentAttention) for i in shape.order for m in shape.blocks[i].mixers)
    if own and quantity in ("kv_bytes_per_token", "kv_bytes_at_context"):
        context = int(args.get("context") or 1)
        return int(args.get("sequences") or 1) * own_cache_bytes(shape, context, args)
    figures = _figures(shape, args)
    if quantity == "kv_bytes_per_token" and args.get("sliding_window_credit") is False:
        return round(figures.kv_pool_bytes / figures.kv_tokens)
    if quantity == "kv_bytes_per_token":
        return figures.bytes_per_token
    if quantity == "kv_bytes_at_context":
        return figures.kv_needed_bytes * int(args.get("sequences") or 1)
    if quantity == "state_bytes_per_sequence":
        return figures.state_bytes_per_sequence
    if quantity in ("weights_bytes", "pp_stage_weights_bytes"):
        return figures.weights_bytes
    if quantity == "max_tokens":
        return figures.kv_tokens
    if quantity == "other":
        return _other(shape, figures, str(args.get("name")), args)
    raise UnpredictableError("validation.reason.no_figure", quantity=quantity)


def _other(shape: ModelShape, figures: ServingFigures, name: str, args: Mapping[str, Any]) -> float:
    if name == "kv_swa_bytes" and args.get("cells"):
        return int(args["cells"]) * _ELEMENT_BYTES[str(args["dtype"])] * sum(_token_elements(shape, windowed=True))
    known = {"state_bytes_total": "state_bytes", "kv_full_bytes": "kv_full_bytes", "kv_swa_bytes": "kv_swa_bytes"}
    found = getattr(figures, known.get(name, name), None)
    if found is None:
        raise UnpredictableError("validation.reason.no_figure", quantity=name)
    return float(found)


def own_cache_bytes(shape: ModelShape, context: int, args: Mapping[str, Any]) -> int:
    """Cache of one sequence as the model defines it: full layers hold every token, windowed ones their window."""
    if shape.cache_refusal is not None:
        raise UnpredictableError("validation.reason.refused", message=shape.cache_refusal)
    element = _ELEMENT_BYTES[str(args.get("dtype") or "bf16")]
    total = 0
    for mixer in (mixer for index in shape.order for mixer in shape.blocks[index].mixers):
        elements = _elements(mixer)
        if isinstance(mixer, Attention) and mixer.compress:
            total += context // mixer.compress * (elements + mixer.index_width) * element
        window = (mixer.window or mixer.chunk) if isinstance(mixer, Attention) else None
        total += elements * element * (min(context, window) if window else context)
    if args.get("includes_mtp"):
        total += shape.mtp_layers * _elements(shape.blocks[shape.order[-1]].mixer) * element * context
    return total


def _elements(mixer: object) -> int:
    if isinstance(mixer, LatentAttention):
        return mixer.kv_lora_rank + mixer.qk_rope_head_dim
    if isinstance(mixer, Attention) and not mixer.shares_kv:
        return mixer.kv_heads * (mixer.head_dim + (0 if mixer.one_row else mixer.v_head_dim))
    return 0


def _token_elements(shape: ModelShape, *, windowed: bool) -> list[int]:
    mixers = [mixer for i in shape.order for mixer in shape.blocks[i].mixers]
    return [_elements(m) for m in mixers if isinstance(m, Attention) and bool(m.window or m.chunk) is windowed]


def _figures(shape: ModelShape, args: Mapping[str, Any]) -> ServingFigures:
    tp, pp = int(args.get("tp") or 1), int(args.get("pp") or 1)
    dtype = str(args.get("dtype") or "")
    values: dict[str, Any] = {
        "engine": args.get("engine") or "vllm",
        "engine_version": args.get("engine_version"),
        "kv_cache_dtype": dtype if dtype in _CACHE_TYPES else "auto",
        "weights": None if shape.quantization else _WEIGHT_TYPES.get(dtype),
        "max_model_len": args.get("context"),
        "max_num_seqs": args.get("slots"),
        "max_num_batched_tokens": args.get("max_num_batched_tokens"),
        "kv_cache_memory_bytes": args.get("pool_bytes"),
        "tp": tp, "pp": pp, "n_gpus": tp * pp, "dcp": int(args.get("dcp") or 1), "concurrency": 1,
        "gpu": "custom", "gpu_capacity_bytes": 64 * TIB,
    }  # fmt: skip
    if args.get("sliding_window_credit") is False and not args.get("engine_version"):
        # The token line of releases up to 0.20 gives windows no credit: blocks divided by the number of groups.
        values["engine_version"] = _WITHOUT_CREDIT
    for name in ("n_ubatch", "mla"):
        value = args.get(name)
        if value is None:
            continue
        if name not in ServingPlan.model_fields:
            raise UnpredictableError("validation.reason.plan", field=name, value=str(value))
        values[name] = value
    plan = validated(ServingPlan, {key: value for key, value in values.items() if value is not None})
    result: Bill = bill(shape, plan, resolve(plan.gpu, plan.gpu_capacity_bytes))
    if result.serving is None:
        raise UnpredictableError("validation.reason.no_figure", quantity="serving")
    return result.serving


def _bare_shape(args: Mapping[str, Any]) -> ModelShape:
    """A plain gated decoder of the sizes that a fact gives instead of a model's name."""
    hidden, head_dim = int(args["hidden"]), int(args.get("head_dim") or 128)
    heads = hidden // head_dim
    kv_heads = int(args["kv_heads"]) if args.get("kv_heads") else int(heads * args.get("kv_ratio", 1))
    return read(
        {
            "model_type": "llama", "hidden_size": hidden, "num_hidden_layers": int(args["layers"]),
            "vocab_size": int(args.get("vocab") or 32000),
            "intermediate_size": int(args.get("intermediate") or 4 * hidden),
            "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim,
            "tie_word_embeddings": False, "hidden_act": "silu",
        }
    )  # fmt: skip
