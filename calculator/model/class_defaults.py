"""What transformers fills in when a sub-object of a composite file leaves a key out, by class.

Published composites abridge their sub-objects: some text objects hold nothing but a model_type. Values are the
constructor defaults of the configuration classes of transformers 5.24 (src/transformers/models/*/configuration_*.py),
https://github.com/huggingface/transformers, read 2026-11-29. They are used for sub-objects only: no class default ever
stands for a whole model.
"""

from __future__ import annotations

from collections.abc import Mapping

Defaults = Mapping[str, int | bool]

_LLAMA: Defaults = {
    "vocab_size": 32_000,
    "hidden_size": 4_096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}

TEXT: Mapping[str, Defaults] = {
    "llama": _LLAMA,
    "qwen2": {
        "vocab_size": 151_936,
        "hidden_size": 4_096,
        "intermediate_size": 22_016,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
    },
    "mistral": {
        "vocab_size": 32_000,
        "hidden_size": 4_096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    "gemma3_text": {
        "vocab_size": 262_208,
        "hidden_size": 2_304,
        "intermediate_size": 9_216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
    },
}

_VIT: Defaults = {
    "hidden_size": 768,
    "intermediate_size": 3_072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 16,
}
_QWEN_VISION: Defaults = {
    "depth": 27,
    "hidden_size": 1_152,
    "intermediate_size": 4_304,
    "num_heads": 16,
    "in_channels": 3,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "num_position_embeddings": 2_304,
}

TOWERS: Mapping[str, Defaults] = {
    "siglip": _VIT,
    "siglip_so400m": {
        "hidden_size": 1_152,
        "intermediate_size": 4_304,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "num_channels": 3,
        "image_size": 384,
        "patch_size": 14,
    },
    "siglip2": {**_VIT, "num_patches": 256},
    "clip": {**_VIT, "patch_size": 32},
    "clip_large": {
        "hidden_size": 1_024,
        "intermediate_size": 4_096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_channels": 3,
        "image_size": 336,
        "patch_size": 14,
    },
    "idefics3": {
        "hidden_size": 1_152,
        "intermediate_size": 3_072,
        "num_hidden_layers": 12,
        "num_attention_heads": 16,
        "num_channels": 3,
        "image_size": 224,
        "patch_size": 32,
    },
    "pixtral": {
        "hidden_size": 1_024,
        "intermediate_size": 4_096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_channels": 3,
        "image_size": 1_024,
        "patch_size": 16,
    },
    "internvl": {
        "hidden_size": 1_024,
        "intermediate_size": 4_096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_channels": 3,
    },
    "qwen2_vl": {
        "depth": 32,
        "embed_dim": 1_280,
        "hidden_size": 3_584,
        "mlp_ratio": 4,
        "num_heads": 16,
        "in_channels": 3,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    },
    "qwen2_5_vl": {
        "depth": 32,
        "hidden_size": 3_584,
        "intermediate_size": 3_420,
        "num_heads": 16,
        "in_channels": 3,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": 3_584,
    },
    "qwen3_vl": _QWEN_VISION,
    "glm4v": {
        "depth": 24,
        "hidden_size": 1_536,
        "num_heads": 12,
        "in_channels": 3,
        "image_size": 336,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": 4_096,
    },
    "llama4": {
        "hidden_size": 768,
        "num_hidden_layers": 34,
        "num_attention_heads": 16,
        "num_channels": 3,
        "intermediate_size": 5_632,
        "vision_output_dim": 7_680,
        "image_size": 448,
        "patch_size": 14,
        "projector_input_dim": 4_096,
        "projector_output_dim": 4_096,
    },
    "mllama": {
        "hidden_size": 1_280,
        "num_hidden_layers": 32,
        "num_global_layers": 8,
        "attention_heads": 16,
        "num_channels": 3,
        "intermediate_size": 5_120,
        "vision_output_dim": 7_680,
        "image_size": 448,
        "patch_size": 14,
        "max_num_tiles": 4,
    },
    "step3p7": {
        "hidden_size": 1_536,
        "intermediate_size": 8_960,
        "num_hidden_layers": 47,
        "num_attention_heads": 16,
        "num_channels": 3,
        "image_size": 728,
        "patch_size": 14,
    },
    "whisper": {
        "num_mel_bins": 128,
        "encoder_layers": 32,
        "encoder_attention_heads": 20,
        "encoder_ffn_dim": 5_120,
        "d_model": 1_280,
        "max_source_positions": 1_500,
    },
}
