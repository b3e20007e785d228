"""Weight files that exist as headers only: safetensors of the right names, shapes and sizes, full of zeros."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from tests.gguf.writer import head

DTYPE_BYTES = {"F32": 4, "BF16": 2, "F16": 2, "I32": 4, "F8_E4M3": 1, "U8": 1}


@dataclass(frozen=True)
class File:
    """``head`` followed by zeros up to ``size``. ``lfs`` files carry the headers of large-file storage."""

    head: bytes
    size: int
    lfs: bool = False

    @staticmethod
    def of(body: bytes | str | Mapping[str, Any]) -> File:
        raw = body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else json.dumps(body).encode()
        return File(raw, len(raw))

    @property
    def etag(self) -> str:
        return hashlib.sha256(self.head + self.size.to_bytes(16, "little")).hexdigest()[: 64 if self.lfs else 40]

    def read(self, start: int, end: int) -> Iterator[bytes]:
        """Bytes from ``start`` up to, not including, ``end``."""
        while start < end:
            chunk = self.head[start : min(end, start + 65_536)] if start < len(self.head) else b""
            chunk = chunk or bytes(min(end - start, 65_536))
            yield chunk
            start += len(chunk)


def safetensors(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> File:
    """A safetensors file of these names, dtypes and shapes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (dtype, shape) in tensors.items():
        size = prod(shape) * DTYPE_BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    return File(len(raw).to_bytes(8, "little") + raw, 8 + len(raw) + offset, lfs=True)


def llama_like(config: Mapping[str, Any], dtype: str = "BF16") -> dict[str, tuple[str, tuple[int, ...]]]:
    """The tensors of a Llama, Mistral, Qwen2 or Qwen3 checkpoint, as their files name them."""
    hidden, width, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or hidden // heads
    bias, head_norm = config["model_type"] == "qwen2", config["model_type"] == "qwen3"
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden)}
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        for name, rows in (("q", heads * head_dim), ("k", kv_heads * head_dim), ("v", kv_heads * head_dim)):
            shapes[f"{layer}self_attn.{name}_proj.weight"] = (rows, hidden)
            if bias:
                shapes[f"{layer}self_attn.{name}_proj.bias"] = (rows,)
        shapes[f"{layer}self_attn.o_proj.weight"] = (hidden, heads * head_dim)
        if head_norm:
            shapes[f"{layer}self_attn.q_norm.weight"] = shapes[f"{layer}self_attn.k_norm.weight"] = (head_dim,)
        shapes[f"{layer}mlp.gate_proj.weight"] = shapes[f"{layer}mlp.up_proj.weight"] = (width, hidden)
        shapes[f"{layer}mlp.down_proj.weight"] = (hidden, width)
        shapes[f"{layer}input_layernorm.weight"] = shapes[f"{layer}post_attention_layernorm.weight"] = (hidden,)
    shapes["model.norm.weight"] = (hidden,)
    if not config.get("tie_word_embeddings", False):
        shapes["lm_head.weight"] = (vocab, hidden)
    return {name: (dtype, shape) for name, shape in shapes.items()}


def gguf(config: Mapping[str, Any], kind: str = "Q8_0", architecture: str = "llama", base: str = "") -> File:
    """A llama model as llama.cpp's converter would write it, all matrices of one type. ``base``: the repository that
    the metadata name as its origin."""
    pairs, tensors = _llama_gguf(config, kind, architecture)
    if base:
        pairs["general.base_model.0.repo_url"] = f"https://huggingface.co/{base}"
    return _gguf_file(pairs, tensors)


def gguf_parts(config: Mapping[str, Any], stem: str, count: int, kind: str = "Q8_0") -> dict[str, File]:
    """The same in ``count`` files, as llama.cpp's splitter would: metadata in the first, tensors by their order."""
    pairs, tensors = _llama_gguf(config, kind, "llama")
    files = {}
    for number in range(count):
        own = tensors[number * len(tensors) // count : (number + 1) * len(tensors) // count]
        split = {"split.no": number, "split.count": count, "split.tensors.count": len(tensors)}
        known = pairs if number == 0 else {"general.architecture": "llama"}
        files[f"{stem}-{number + 1:05}-of-{count:05}.gguf"] = _gguf_file(known | split, own)
    return files


def mmproj(kind: str = "F16", hidden: int = 128, layers: int = 2, width: int = 256, text: int = 256) -> File:
    """A SigLIP tower and its projector, as llama.cpp's converter would write them."""
    pairs = {
        "general.architecture": "clip", "clip.projector_type": "gemma3", "clip.has_vision_encoder": True,
        "clip.vision.embedding_length": hidden, "clip.vision.block_count": layers, "clip.vision.patch_size": 14,
        "clip.vision.image_size": 896, "clip.vision.attention.head_count": 4, "clip.vision.feed_forward_length": width,
    }  # fmt: skip
    tensors = [("v.position_embd.weight", (4096, hidden), "F32"), ("mm.input_projection.weight", (text, hidden), kind)]
    for i in range(layers):
        layer = f"v.blk.{i}."
        tensors += [(f"{layer}attn_{name}.weight", (hidden, hidden), kind) for name in ("q", "k", "v", "out")]
        tensors += [
            (f"{layer}ffn_up.weight", (width, hidden), kind),
            (f"{layer}ffn_down.weight", (hidden, width), kind),
        ]
        tensors += [(f"{layer}ln{number}.weight", (hidden,), "F32") for number in (1, 2)]
    return _gguf_file(pairs, tensors)


Tensors = list[tuple[str, tuple[int, ...], str]]


def _gguf_file(pairs: Mapping[str, object], tensors: Tensors) -> File:
    raw = head(pairs, tensors)
    return File(raw, len(raw) + 2 * sum(prod(shape) for _, shape, _ in tensors), lfs=True)


def _llama_gguf(config: Mapping[str, Any], kind: str, architecture: str) -> tuple[dict[str, object], Tensors]:
    hidden, vocab, width = config["hidden_size"], config["vocab_size"], config["intermediate_size"]
    rows = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    pairs: dict[str, object] = {
        "general.architecture": architecture,
        f"{architecture}.block_count": config["num_hidden_layers"],
        f"{architecture}.context_length": config["max_position_embeddings"],
        f"{architecture}.embedding_length": hidden,
        f"{architecture}.feed_forward_length": width,
        f"{architecture}.attention.head_count": config["num_attention_heads"],
        f"{architecture}.attention.head_count_kv": config["num_key_value_heads"],
        "tokenizer.ggml.tokens": [f"token {i}" for i in range(vocab)],
    }
    tensors: Tensors = [("token_embd.weight", (vocab, hidden), kind), ("output.weight", (vocab, hidden), kind)]
    tensors.append(("output_norm.weight", (hidden,), "F32"))
    for i in range(config["num_hidden_layers"]):
        layer = f"blk.{i}."
        tensors += [(f"{layer}{name}_norm.weight", (hidden,), "F32") for name in ("attn", "ffn")]
        tensors += [(f"{layer}attn_{name}.weight", (hidden, hidden), kind) for name in ("q", "output")]
        tensors += [(f"{layer}attn_{name}.weight", (rows, hidden), kind) for name in ("k", "v")]
        tensors += [(f"{layer}ffn_{name}.weight", (width, hidden), kind) for name in ("gate", "up")]
        tensors.append((f"{layer}ffn_down.weight", (hidden, width), kind))
    return pairs, tensors


def sharded(tensors: Mapping[str, tuple[str, tuple[int, ...]]], shard_bytes: int = 5_000_000_000) -> dict[str, File]:
    """The files that ``save_pretrained`` would write: one, or shards of at most ``shard_bytes`` and their index."""
    shards: list[dict[str, tuple[str, tuple[int, ...]]]] = [{}]
    room, total = shard_bytes, 0
    for name, (dtype, shape) in tensors.items():
        size = prod(shape) * DTYPE_BYTES[dtype]
        if size > room and shards[-1]:
            shards.append({})
            room = shard_bytes
        shards[-1][name] = (dtype, shape)
        room, total = room - size, total + size
    if len(shards) == 1:
        return {"model.safetensors": safetensors(shards[0])}
    names = [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
    weight_map = {tensor: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
    index = File.of({"metadata": {"total_size": total}, "weight_map": weight_map})
    return {"model.safetensors.index.json": index} | {
        name: safetensors(shard) for name, shard in zip(names, shards, strict=True)
    }
