"""The repositories that the fake hub serves: every built-in model as if it were published, and one of each trouble."""

from __future__ import annotations

from typing import Any

from calculator.presets import Preset, presets
from tests.fakehub.files import File, gguf, gguf_parts, llama_like, mmproj, safetensors, sharded
from tests.fakehub.server import Repo

LLAMA_LIKE = {"llama", "mistral", "qwen2", "qwen3"}
TINY: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256, "hidden_act": "silu",
    "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip


SMALL = TINY | {"hidden_size": 256, "intermediate_size": 512}
"""Wide enough for blocks of 256."""


def quantised_files() -> dict[str, File]:
    """A repository as quantisers publish them: many mixes, one in parts, another of the same mix in a folder, two
    projectors, and files that are no models."""
    return {
        "README.md": File.of("# small"),
        "small-Q4_K_M.gguf": gguf(SMALL, "Q4_K", base="Qwen/Qwen2.5-7B"),
        "small-Q6_K.gguf": gguf(SMALL, "Q6_K"),
        "small-Q8_0.gguf": gguf(SMALL, "Q8_0"),
        "old/small-old-Q8_0.gguf": gguf(SMALL, "F16"),
        **gguf_parts(SMALL, "BF16/small-BF16", 3, "F16"),
        "broken/small-Q5_K_M-00001-of-00002.gguf": gguf(SMALL, "Q6_K"),
        "mmproj-F32.gguf": mmproj("F32"),
        "mmproj-F16.gguf": mmproj("F16"),
        "imatrix_small.gguf": File.of(b"GGUF"),
    }


def tiny_files(**changes: Any) -> dict[str, File]:
    """A whole small model."""
    return {"README.md": File.of("# tiny"), "config.json": File.of(TINY | changes)} | sharded(llama_like(TINY))


def published(preset: Preset) -> Repo:
    """A preset as a repository: with weight headers where its names are known, else with the hub's totals only."""
    config = preset.config()
    files = {"README.md": File.of(f"# {preset.id}"), "config.json": File.of(preset.config_text())}
    info: dict[str, Any] = {}
    if config.get("model_type") in LLAMA_LIKE:
        files |= sharded(llama_like(config))
    elif preset.published_elements is not None and "quantization_config" not in config:
        total = preset.published_elements
        info = {"safetensors": {"parameters": {"BF16": total}, "total": total}}
    return Repo(preset.id, files, info=info)


def good_repos() -> list[Repo]:
    """Models that answer as they should."""
    tiny = tiny_files()
    return [
        *(published(preset) for preset in presets().values()),
        Repo("fake/tiny", tiny, revisions=("v1.0", "refs/pr/2")),
        Repo("fake/new-name", tiny, moved_from=("fake/old-name", "oldest")),
        Repo("fake/gated", tiny, gated="manual"),
        Repo("fake/private", tiny, private=True),
        Repo("fake/via-cache", tiny, fault="via_cache"),
        Repo("fake/no-range", tiny, fault="no_range"),
        Repo("fake/gguf", {"tiny-Q8_0.gguf": gguf(TINY), "sub/tiny-F16.gguf": gguf(TINY, "F16")}),
        Repo("fake/gguf-many", quantised_files(), revisions=("v2.0",)),
        Repo("fake/gguf-beside", tiny | {"tiny-Q8_0.gguf": gguf(TINY)}),
        Repo("fake/gguf-and-config", {"config.json": File.of(TINY), "tiny-F16.gguf": gguf(TINY, "F16")}),
        Repo(
            "fake/gguf-of-qwen",
            {"new-Q8_0.gguf": gguf(TINY, architecture="newest")},
            info={"cardData": {"base_model": ["Qwen/Qwen2.5-7B-Instruct"]}},
        ),
        Repo("fake/gguf-of-none", {"new-Q8_0.gguf": gguf(TINY, architecture="newest")}),
        Repo("fake/pickled", {"config.json": File.of(TINY), "pytorch_model.bin": File(b"", 10_000_000)}),
        Repo(
            "fake/quantised",
            {
                "config.json": File.of(TINY | {"quantization_config": {"quant_method": "gptq", "bits": 4}}),
                "hf_quant_config.json": File.of({"quantization": {"quant_algo": "FP8"}}),
                "model.safetensors": safetensors({"w.qweight": ("I32", (8, 64)), "w.scales": ("F16", (1, 64))}),
            },
        ),
    ]


def troubled_repos() -> list[Repo]:
    """One repository for each thing that can go wrong."""
    tiny = tiny_files()
    garbage = File.of(b"\xff" * 64)
    long_header = File((60_000_000).to_bytes(8, "little") + b"{", 60_000_100, lfs=True)
    short_header = File((500).to_bytes(8, "little") + b'{"a": 1}', 16, lfs=True)
    lying = File.of(tiny["model.safetensors"].head.replace(b'"shape":[256,64]', b'"shape":[256,65]'))
    index = File.of({"weight_map": {"a": "model-00001-of-00002.safetensors"}})
    deep = "[" * 5_000 + "]" * 5_000
    return [
        Repo("fake/rate-limited", tiny, fault="rate_limited", fault_seconds=3600),
        Repo("fake/rate-limited-once", tiny, fault="rate_limited_once", fault_seconds=0),
        Repo("fake/rate-limited-by-policy", tiny, fault="rate_limited_by_policy", fault_seconds=280),
        Repo("fake/server-error", tiny, fault="server_error"),
        Repo("fake/flaky", tiny, fault="flaky"),
        Repo("fake/slow", tiny, fault="slow", fault_seconds=2.0),
        Repo("fake/slow-shards", tiny, fault="slow", fault_seconds=60, fault_at="safetensors"),
        Repo("fake/trickle", tiny, fault="trickle", fault_at="config.json"),
        Repo("fake/truncated", tiny, fault="truncated", fault_at="config.json"),
        Repo("fake/truncated-once", tiny, fault="truncated_once", fault_at="config.json"),
        Repo("fake/endless", tiny, fault="endless", fault_at="config.json"),
        Repo("fake/endless-info", tiny, fault="endless", fault_at="/api/"),
        Repo("fake/gzip", tiny, fault="gzip", fault_at="config.json"),
        Repo("fake/portal", tiny, fault="html"),
        Repo("fake/html-config", tiny, fault="html", fault_at="config.json"),
        Repo("fake/forbidden", tiny, fault="forbidden"),
        Repo("fake/disabled", tiny, fault="disabled"),
        Repo("fake/teapot", tiny, fault="teapot"),
        Repo("fake/redirect-elsewhere", tiny, fault="redirect_elsewhere", fault_at="config.json"),
        Repo("fake/redirect-shards", tiny, fault="redirect_elsewhere", fault_at="safetensors"),
        Repo("fake/redirect-loop", tiny, fault="redirect_loop"),
        Repo("fake/huge-config", tiny | {"config.json": File.of('{"x": "' + "y" * 9_000_000 + '"}')}),
        Repo("fake/malformed", tiny | {"config.json": File.of("{not json")}),
        Repo("fake/list-config", tiny | {"config.json": File.of("[1, 2]")}),
        Repo("fake/deep-config", tiny | {"config.json": File.of(f'{{"x": {deep}}}')}),
        Repo("fake/no-config", {"README.md": File.of("# nothing")}),
        Repo("fake/diffusion", {"model_index.json": File.of({"_class_name": "FluxPipeline"})}),
        Repo(
            "fake/adapter",
            {"adapter_config.json": File.of({"peft_type": "LORA"}), "adapter_model.safetensors": garbage},
            info={"cardData": {"base_model": "Qwen/Qwen2.5-7B"}},
        ),
        Repo("fake/gguf-garbage", {"tiny-Q4_K_M.gguf": File(b"PK", 5_000_000, lfs=True)}),
        Repo("fake/bad-index", tiny | {"model.safetensors.index.json": File.of({"weight_map": [1]})}),
        Repo("fake/missing-shard", tiny | {"model.safetensors.index.json": index}),
        Repo("fake/garbage-header", tiny | {"model.safetensors": garbage}),
        Repo("fake/long-header", tiny | {"model.safetensors": long_header}),
        Repo("fake/short-header", tiny | {"model.safetensors": short_header}),
        Repo("fake/lying-header", tiny | {"model.safetensors": lying}),
    ]
