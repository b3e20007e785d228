"""Keys that nobody read: which of them mean that the file is not understood.

A family's reader asks for the keys that it knows. What is left over is mostly training settings and token ids; but a
key that sizes tensors or caches in another family, or that looks like a misspelling of one whose default was taken,
means that the file speaks a dialect the reader does not know. Then it is refused with the key named.
"""

from __future__ import annotations

import re
from typing import Any

from calculator.errors import UnknownFamilyError
from calculator.model.config import Notes

MATTERING = frozenset(
    {
        # heads and head sizes
        "num_key_value_heads",
        "num_kv_heads",
        "n_head_kv",
        "multi_query",
        "multi_query_group_num",
        "kv_channels",
        "attention_head_dim",
        "global_head_dim",
        "num_global_key_value_heads",
        "swa_num_key_value_heads",
        "swa_head_dim",
        "swa_v_head_dim",
        "swa_num_attention_heads",
        "num_attention_heads_per_layer",
        "v_head_dim",
        "d_kv",
        # latent attention
        "kv_lora_rank",
        "q_lora_rank",
        "o_lora_rank",
        "qk_nope_head_dim",
        "index_n_heads",
        "index_head_dim",
        "o_groups",
        # layer patterns
        "per_layer_config",
        "layer_types",
        "layers_block_type",
        "hybrid_override_pattern",
        "hybrid_layer_pattern",
        "attn_type_list",
        "block_configs",
        "full_attn_idxs",
        "attn_layer_indices",
        "attn_layer_period",
        "full_attention_interval",
        "linear_attn_config",
        "cross_attention_layers",
        "compress_ratios",
        "sparse_attention_config",
        "attention_types",
        "sliding_window_pattern",
        "global_attn_every_n_layers",
        "attention_chunk_size",
        "attention_window_size",
        "num_kv_shared_layers",
        "attention_k_eq_v",
        "full_attn_every_n_layers",
        # experts
        "num_experts",
        "n_routed_experts",
        "num_local_experts",
        "moe_num_experts",
        "num_routed_experts",
        "moe_intermediate_size",
        "n_shared_experts",
        "num_shared_experts",
        "moe_num_shared_experts",
        "shared_expert_intermediate_size",
        "shared_intermediate_size",
        "moe_shared_expert_intermediate_size",
        "share_expert_dim",
        "moe_latent_size",
        "routed_expert_hidden_size",
        "first_k_dense_replace",
        "moe_layer_freq",
        "mlp_layer_types",
        "num_dense_layers",
        "decoder_sparse_step",
        "interleave_moe_layer_step",
        "moe_layers",
        "expert_layer_period",
        "moe_layer_start_index",
        "moe_layer_interval",
        "dense_intermediate_size",
        "intermediate_size_mlp",
        "num_zero_experts",
        "zero_expert_num",
        "expert_ffn_hidden_size",
        # state-space and linear mixers
        "mamba_d_state",
        "mamba_n_heads",
        "mamba_num_heads",
        "mamba_d_head",
        "mamba_expand",
        "ssm_state_size",
        "state_size",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "conv_L_cache",
        "ssm_cfg",
        "lru_width",
        "block_types",
        "_block_types",
        # extra tables, streams and predictors
        "hidden_size_per_layer_input",
        "altup_num_inputs",
        "laurel_rank",
        "hc_mult",
        "hc_count",
        "ple_layer_ids",
        "num_nextn_predict_layers",
        "mtp_num_hidden_layers",
        "num_mtp_modules",
        "word_embed_proj_dim",
        "embedding_size",
        "emb_size",
        "use_mtp",
        "cla_share_factor",
        "lora_rank",
        "adapter_hidden_size",
        # nested models
        "text_config",
        "vision_config",
        "audio_config",
        "llm_config",
        "language_config",
        "visual",
        "talker_config",
    }
)
"""Keys that change tensors or caches in at least one family."""

LOOKALIKE_EXCLUDED = re.compile(r"(_id|_ids|_token|_index|_indices|_eps|_epsilon|_std|_range|_dropout|_coef|_scale)$")

SIZE_LIKE = re.compile(
    r"head|layer|expert|(?:^|_)dims?(?:_|$)|rank|width|(?:^|_)size|intermediate|ffn|window|conv|state|ssm|mamba|moe|mtp"
    r"|nextn|latent|vocab|embed|group|block|pattern|period|interval|chunk|depth|(?:^|_)kv|lora|codebook|stage|factor"
    r"|bias|norm|gate|(?:^|_)tie|parallel|share|alibi|qk|memory|recur"
)
"""Names by which files size or switch things, for families that nobody has read before."""

HARMLESS = re.compile(
    r"^(?:_.*|.*(?:_id|_ids|_token|_tokens|_token_index|_eps|_epsilon|_std|_range|_dropout|_drop|_pdrop|_prob|_coef"
    r"|_norm_topk_prob|_bias_lr|_lr|_loss.*|_loss_weight|_multiplier|_scaling|_scaling_factor|_penalty)"
    r"|initializer_.*|rope_.*|rotary_.*|partial_rotary_factor|max_.*|min_.*|original_max.*|pretraining_tp|chunk_size_feed_forward"
    r"|num_beams|num_beam_groups|num_return_sequences|no_repeat_ngram_size|encoder_no_repeat_ngram_size|top_k|top_p"
    r"|typical_p|temperature|pruned_heads|id2label|label2id|auto_map|architectures|torch_dtype|dtype"
    r"|transformers_version|quantization.*|compression_config|use_cache|hidden_act.*|activation_function|n_group"
    r"|topk_group|ep_size|seq_length|model_max_length|layer_norm.*|layernorm.*|norm_.*|router_.*|logit.*|final_logit.*"
    r"|attn_logit.*|query_pre_attn_scalar|prefill_chunk_size|layerdrop|seq_aux|task_specific_params|time_step_.*)$"
)
"""Names of settings that change no size."""


def refuse_leftovers(notes: Notes, family: str, *, error: str = "shape.unknown_key") -> None:
    """Raise ``UnknownFamilyError`` naming a key that matters and that the family's reader did not ask for."""
    for path, raw in notes.visited.items():
        left = {key: value for key, value in raw.items() if path + key not in notes.asked and value is not None}
        defaulted = [
            key.removeprefix(path)
            for key in notes.defaulted
            if key.startswith(path) and "." not in key.removeprefix(path)
        ]
        for key, value in left.items():
            matters = key in MATTERING and _says_something(value)
            if matters or any(_looks_like(key, other) for other in defaulted):
                raise UnknownFamilyError(error, field=path + key, family=family, family_key="model_type")


def refuse_unknown(notes: Notes, family: str) -> None:
    """The same for a family without a reader of its own: any left-over name that sizes things is one too many."""
    error = "shape.unknown_family_key"
    refuse_leftovers(notes, family, error=error)
    for path, raw in notes.visited.items():
        for key, value in raw.items():
            if path + key in notes.asked or not _says_something(value) or HARMLESS.match(key):
                continue
            if SIZE_LIKE.search(key) or isinstance(value, dict):
                raise UnknownFamilyError(error, field=path + key, family=family, family_key="model_type")


def _says_something(value: Any) -> bool:
    """Null, false, zero and empty switch nothing on."""
    return value not in (None, False, 0, 0.0, "", [], {})


def _looks_like(key: str, known: str) -> bool:
    """Whether ``key`` may be ``known`` under another name: all of its words, or two of them."""
    if LOOKALIKE_EXCLUDED.search(key) or key.startswith("_"):
        return False
    words, other = set(known.split("_")) - {""}, set(key.split("_")) - {""}
    if known in key and key != known:
        return True
    return words <= other or len(words & other) >= 2
