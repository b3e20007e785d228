"""Where a total or a cache differs from the index, and why."""

from __future__ import annotations

UNTIED_HEAD = {
    # the text family's default is a head of its own; the index built the class with the composite's default
    "OpenGVLab/InternVL3-1B-hf",
    "OpenGVLab/InternVL3-2B-hf",
    "OpenGVLab/InternVL3-8B-hf",
    "OpenGVLab/InternVL3-14B-hf",
    "OpenGVLab/InternVL3-38B-hf",
    "deepseek-community/deepseek-vl-1.3b-chat",
    "mistralai/Mistral-Small-3.1-24B-Instruct-2503",
    "mistralai/Mistral-Small-3.2-24B-Instruct-2506",
    # the file says untied; transformers 5.24 ties these classes all the same
    "bigscience/T0_3B",
    "google/byt5-small",
    "google/byt5-xxl",
    "google/long-t5-tglobal-xl",
    "google/mt5-small",
    "google/mt5-xl",
    "google/mt5-xxl",
}
"""The index is one head (vocabulary x width) short; the published totals, where known, are ours."""

TIED_HEAD = {"Qwen/Qwen3-VL-4B-Thinking-FP8"}
"""The text object ties the head and the top does not; the 16-bit twin's published total is the tied one."""

TOWER_LEFT_OUT = {"zai-org/glm-4v-9b"}
"""The index's formula leaves the vision tower out."""

OTHER_VOCABULARY = {"stepfun-ai/Step-3.7-Flash-FP8"}
"""The index took the class's vocabulary instead of the file's."""

DECODER_SHORTER = {
    # the index counts the encoder's layers; the decoder, which caches, has fewer
    "google/byt5-small": 4,
    "google/byt5-xxl": 12,
    "google/switch-c-2048": 12,
    "google/switch-xxl-128": 12,
}

CACHE_REFUSED = {
    "community/blt-1b-hf": "patcher_config",
    "community/blt-7b-hf": "patcher_config",
}
"""How much a token leaves in the cache depends on the text."""

COMPRESSED = {"sgl-project/DeepSeek-V4-Flash-FP8"}
"""The index counts full keys and values for each token; the model caches one row for several."""

PUBLISHED_BEYOND = {
    # published total - total - mtp: router biases of all expert layers, the MTP layer's included
    "deepseek-ai/DeepSeek-R1": 59 * 256,
    "zai-org/GLM-4.5-Base": 90 * 160,
    "zai-org/GLM-4.5-Air-Base": 46 * 128,
    "zai-org/GLM-4.7-Flash": 47 * 64,
    "zai-org/GLM-5": 76 * 256,
    "zai-org/GLM-5.2": 76 * 256,
    "tencent/Hy3-preview": 80 * 192,
    # nothing beyond
    "LGAI-EXAONE/EXAONE-4.5-33B": 0,
    "Qwen/Qwen3.5-0.8B": 0,
    "Qwen/Qwen3.5-27B": 0,
    "Qwen/Qwen3.5-35B-A3B": 0,
    "Qwen/Qwen3.5-122B-A10B": 0,
    "XiaomiMiMo/MiMo-7B-Base": 0,
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8": 0,
    # no MTP layers in the files although the configuration names three: only router biases
    "MiniMaxAI/MiniMax-M2": 62 * 256,
}
"""What published files hold beside the counted parameters and the MTP layers, to the unit."""

EQUAL_TO_PUBLISHED = {
    # neither a class in transformers nor a formula in the index
    "OpenGVLab/InternVL2-2B",
    "OpenGVLab/InternVL2-4B",
    "allenai/Molmo-7B-D-0924",
    "baidu/ERNIE-4.5-VL-28B-A3B-PT",
    "deepseek-ai/deepseek-vl2-tiny",
    "microsoft/Phi-3-vision-128k-instruct",
    "microsoft/Phi-3.5-vision-instruct",
    "openbmb/MiniCPM-V-2_6",
    "openbmb/MiniCPM-V-4",
}
