"""A model configuration as a few characters, for links.

``smallest`` takes away every key without which the configuration still reads to the same shape, so what remains is
what the number depends on; ``pack`` deflates it against a dictionary of the keys that configurations use.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Mapping
from typing import Any

from calculator.errors import CalculatorError
from calculator.jsonin import parse_object
from calculator.model import read
from calculator.model.shape import ModelShape

LONGEST_PACKED = 6_000
"""Characters of a packed configuration. Browsers and chat programs cut longer addresses."""
_LONGEST_TEXT = 262_144
"""Bytes that a packed configuration may unfold to."""
_DICTIONARY = (
    b'"expert_layer_period":"mamba_n_heads":"linear_num_value_heads":"linear_num_key_heads":"layer_types":["linear_attention",'
    b'"sliding_attention","full_attention"],"text_config":{"quantization_config":{"quant_method":"first_k_dense_replace":'
    b'"n_shared_experts":"n_routed_experts":"kv_lora_rank":512,"q_lora_rank":"qk_nope_head_dim":128,"qk_rope_head_dim":64,'
    b'"v_head_dim":128,"moe_intermediate_size":"num_experts_per_tok":"num_local_experts":"num_experts":"sliding_window":'
    b'"use_sliding_window":true,false,null,"attention_bias":"tie_word_embeddings":true,"torch_dtype":"bfloat16","dtype":'
    b'"max_position_embeddings":32768,131072,"architectures":["ForCausalLM"],"head_dim":128,"hidden_act":"silu",'
    b'"hidden_size":4096,"intermediate_size":14336,"model_type":"qwen3_moe","mixtral","llama",'
    b'"num_attention_heads":32,"num_hidden_layers":32,"num_key_value_heads":8,"vocab_size":128256}'
)


def canonical(config: Mapping[str, Any]) -> str:
    """One text for equal configurations: sorted keys, no spaces."""
    return json.dumps(config, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def smallest(config: Mapping[str, Any]) -> tuple[str, ModelShape]:
    """The canonical text of the part of ``config`` that its shape depends on, and that shape.

    Raises what ``calculator.model.read`` raises on the whole configuration.
    """
    shape = read(config)
    kept = _reduced(dict(config), shape, lambda part: part)
    return canonical(kept), shape


def _reduced(part: dict[str, Any], shape: ModelShape, whole: Any) -> dict[str, Any]:
    """``part`` without the keys that ``shape`` does not need; ``whole`` puts a part back into its configuration."""
    kept = dict(part)
    for key in sorted(part):
        tried = {k: v for k, v in kept.items() if k != key}
        if _reads_to(whole(tried), shape):
            kept = tried
        elif isinstance(part[key], dict):
            before = kept
            kept = {**kept, key: _reduced(part[key], shape, lambda inner, k=key, b=before: whole({**b, k: inner}))}
    return kept


def _reads_to(config: Mapping[str, Any], shape: ModelShape) -> bool:
    try:
        return read(config) == shape
    except CalculatorError:
        return False


def pack(config: str) -> str:
    """A configuration text as characters that an address keeps as they are."""
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15, 9, zlib.Z_DEFAULT_STRATEGY, _DICTIONARY)
    packed = squeeze.compress(config.encode()) + squeeze.flush()
    return base64.urlsafe_b64encode(packed).decode().rstrip("=")


def unpack(packed: str) -> str:
    """What ``pack`` packed. Raises ``ValueError`` on anything else, and on more than a quarter of a mebibyte."""
    if len(packed) > LONGEST_PACKED:
        raise ValueError("too long")
    try:
        raw = base64.b64decode(packed + "=" * (-len(packed) % 4), altchars=b"-_", validate=True)
        stretch = zlib.decompressobj(-15, _DICTIONARY)
        text = stretch.decompress(raw, _LONGEST_TEXT)
        if not stretch.eof or stretch.unused_data:
            raise ValueError("cut short, or more than a configuration")
        return canonical(parse_object(text))
    except (binascii.Error, zlib.error, CalculatorError) as error:
        raise ValueError("not a packed configuration") from error
