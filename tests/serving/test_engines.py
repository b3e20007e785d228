"""The other engines against printed lines and their own identities."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculator.bill import ServingFigures
from calculator.errors import PlanError
from calculator.hardware import Gpu, find, resolve
from calculator.model.shape import LatentAttention, ModelShape
from calculator.precision import kv_format
from calculator.serving import bill, start
from calculator.serving.engines import cells, llama_cpp, lmdeploy, ollama, sglang, tgi, transformers
from calculator.serving.engines.gguf import place
from calculator.serving.pages import PagedCache, Part
from calculator.serving.plan import ServingPlan
from tests.serving.shapes import llama
from validation.models import shape_of

GIB, MIB = 2**30, 2**20
SHAPE = llama()
H100 = find("h100-80gb-sxm")


def figures(shape: ModelShape, plan: ServingPlan, gpu: Gpu = H100) -> ServingFigures:
    serving = bill(shape, plan, gpu).serving
    assert serving is not None
    return serving


# ------------------------------------------------------------------------------------------------- TensorRT-LLM

# Free memory before the pool, fraction, pool in GiB and tokens as printed (https://nvidia.github.io/TensorRT-LLM,
# memory page, and public log files).
POOLS = [
    ("meta-llama/Llama-2-7b-hf", "fp8", 64, 0.9, 70.48, 63.44, 259_840),
    ("meta-llama/Llama-3.1-8B-Instruct", "fp8", 32, 0.9, 17.83, 16.05, 263_008),
    ("Qwen/Qwen2.5-1.5B-Instruct", "fp16", 32, 0.45, 16.25, 7.31, 273_792),
    ("Qwen/Qwen2.5-0.5B-Instruct", "fp16", 32, 0.25, 8.73, 2.18, 190_656),
]


@pytest.mark.parametrize(("model", "cache", "block", "fraction", "free", "pool", "tokens"), POOLS)
def test_tensorrt_llm_takes_a_fraction_of_what_is_free(
    model: str, cache: str, block: int, fraction: float, free: float, pool: float, tokens: int
) -> None:
    plan = ServingPlan.model_validate(
        {"engine": "tensorrt_llm", "kv_cache_dtype": cache, "memory_fraction": fraction, "block_size": block,
         "free_memory_bytes": int(free * GIB), "max_model_len": 2048}
    )  # fmt: skip
    serving = figures(shape_of(model), plan)
    assert serving.kv_pool_bytes / GIB == pytest.approx(pool, rel=0.002)
    assert serving.kv_tokens == pytest.approx(tokens, rel=0.002)


# ------------------------------------------------------------------------------------------------------- SGLang


@pytest.mark.parametrize(
    ("version", "gib", "tp", "expected"),
    [
        ((0, 4, 4), 80, 1, 0.88), ((0, 4, 4), 80, 2, 0.87), ((0, 4, 4), 80, 4, 0.85), ((0, 4, 4), 80, 8, 0.81),
        # 512 + 1.5 x 8192 + 2 x 256 + 128 MiB = 13,440 MiB of 81,920.
        ((0, 5, 4), 80, 1, round(1 - 13_440 / 81_920, 3)),
        # 9.5 + 0.5 GiB of 80.
        ((0, 4, 8), 80, 1, 0.875),
    ],
)  # fmt: skip
def test_sglang_default_fraction(version: tuple[int, int, int], gib: int, tp: int, expected: float) -> None:
    plan = ServingPlan(engine="sglang", tp=tp, n_gpus=tp)
    total = gib * GIB
    chunk, batch = sglang.chunk_size(version, total), sglang.graph_batch(version, total, tp)
    assert sglang.default_fraction(version, total, plan, chunk, batch) == pytest.approx(expected)


@given(st.floats(0.2, 0.95), st.integers(20, 79))
def test_sglang_static_share_is_weights_and_pool(fraction: float, free_after: int) -> None:
    plan = ServingPlan(
        engine="sglang", memory_fraction=fraction, free_memory_bytes=free_after * GIB, max_model_len=4096
    )
    begun = start(SHAPE, plan, H100)
    before = free_after * GIB + begun.weights.span.value
    # The published identity: pool = free after loading - (1 - fraction) x free before.
    assert begun.pool.value == pytest.approx(free_after * GIB - (1 - fraction) * before, abs=2)


def test_sglang_state_slots() -> None:
    shape = shape_of("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16")
    plan = ServingPlan(engine="sglang", tp=4, n_gpus=4, max_num_seqs=8, max_model_len=8192)
    # Printed: 0.10 GB of states with eight slots on each of four ranks.
    assert figures(shape, plan, find("rtx-4090-24gb")).state_bytes / GIB == pytest.approx(0.10, rel=0.05)


def test_sglang_graph_sizes() -> None:
    assert sglang.graph_sizes(8) == [1, 2, 4, 8]
    assert sglang.graph_sizes(160)[-1] == 160
    assert len(sglang.graph_sizes(512)) == 5 + 31 + 15 + 1


# ---------------------------------------------------------------------------------------------------- llama.cpp


def test_llama_cpp_cells_of_windows_as_printed() -> None:
    # Gemma-4-12B at 262,144 with q8_0: full 2,281,701,376 bytes, windows 1,536 cells, 267,386,880 bytes
    # (https://github.com/unslothai/unsloth/issues/10489). gpt-oss-20b at 131,072: 768 cells, 18,874,368 bytes.
    shape = shape_of("openai/gpt-oss-20b")
    plan = ServingPlan(engine="llama_cpp", max_model_len=131_072, max_num_seqs=1, n_ubatch=512, weights="gguf:MXFP4")
    serving = figures(shape, plan)
    assert (serving.kv_full_bytes, serving.kv_swa_bytes) == (3 * GIB, 18_874_368)


@pytest.mark.parametrize(
    ("slots", "unified", "expected"),
    [(1, True, 1536), (4, True, 4 * 1024 + 512 + 0), (4, False, 4 * 1536)],
)  # fmt: skip
def test_llama_cpp_window_cells_by_slots(slots: int, unified: bool, expected: int) -> None:
    cache = cells.CellCache((cells.Layer(1, 1024),), 32_768, slots, 512, unified, False, 9000)
    assert cache.window_cells(1024, 32_768, slots) == -(-expected // 256) * 256


def test_flash_attention_pads_to_256_cells() -> None:
    old, flash = (
        cells.CellCache((cells.Layer(1),), 1000, 1, 512, True, False, 6000, flash=flash) for flash in (False, True)
    )
    assert (old.cells(1000, 1), flash.cells(1000, 1)) == ((1024, 1), (1024, 1))
    assert (old.cells(1025, 1), flash.cells(1025, 1)) == ((1056, 1), (1280, 1))


def test_llama_cpp_before_windows_were_credited() -> None:
    cache = cells.CellCache((cells.Layer(1, 1024),), 32_768, 1, 512, True, False, 4000)
    assert cache.window_cells(1024, 32_768, 1) == 32_768


@given(st.integers(1, 200_000), st.integers(1, 16), st.integers(1, 8192), st.booleans())
def test_llama_cpp_windows_never_take_more_than_full_layers(
    context: int, slots: int, window: int, unified: bool
) -> None:
    cache = cells.CellCache((cells.Layer(1, window),), context, slots, 512, unified, False, 9000)
    full, streams = cache.cells(context, slots)
    assert cache.window_cells(window, context, slots) <= full
    assert full >= context
    assert full % (256 * streams) == 0


def test_llama_cpp_loads_the_file_less_the_embedding() -> None:
    # Printed for Llama-2-7B Q4_K_M: 3,820.93 MiB on the card, 70.31 MiB on the host.
    shape = shape_of("meta-llama/Llama-2-7b-hf")
    (placement,) = place(shape, ServingPlan(weights="gguf:Q4_K_M"), None, head_counts=True)
    assert placement.weights_bytes / MIB == pytest.approx(3820.93, abs=0.1)
    assert placement.host_bytes / MIB == pytest.approx(70.31, abs=0.1)


@given(st.integers(0, 33), st.integers(1, 4), st.booleans())
def test_llama_cpp_layers_are_on_one_card_or_on_the_host(offloaded: int, cards: int, head_counts: bool) -> None:
    plan = ServingPlan(weights="gguf:Q8_0", n_gpu_layers=offloaded, n_gpus=cards)
    placed = place(SHAPE, plan, None, head_counts=head_counts)
    everything = place(SHAPE, ServingPlan(weights="gguf:Q8_0"), None, head_counts=head_counts)[0]
    layers = [layer for p in placed for layer in p.layers]
    assert layers == sorted(set(layers))
    assert layers == list(range(32 - len(layers), 32))
    total = everything.weights_bytes + everything.host_bytes
    assert sum(p.weights_bytes for p in placed) + placed[0].host_bytes == total
    assert sum(p.head for p in placed) == int(offloaded == 33 or (head_counts and offloaded > 0))


def test_tied_embeddings_stand_twice() -> None:
    tied = llama(tie_word_embeddings=True)
    (placement,) = place(tied, ServingPlan(weights="fp16"), None, head_counts=True)
    assert placement.host_bytes == 128_256 * 4096 * 2
    (untied,) = place(SHAPE, ServingPlan(weights="fp16"), None, head_counts=True)
    assert placement.weights_bytes == untied.weights_bytes


def test_old_releases_expand_the_latent() -> None:
    # DeepSeek-R1 in Ollama 0.5: 4,997,120 bytes a token (https://github.com/ollama/ollama/issues/8447).
    rows = cells.layers_of(shape_of("deepseek-ai/DeepSeek-R1"), kv_format("fp16"), kv_format("fp16"), latent=False)
    assert sum(row.row_bytes for row in rows) == 4_997_120
    rows = cells.layers_of(shape_of("deepseek-ai/DeepSeek-R1"), kv_format("q8_0"), kv_format("q8_0"))
    assert sum(row.row_bytes for row in rows) == 37_332


def test_keys_and_values_have_types_of_their_own() -> None:
    """ggml's blocks of 32: 34 bytes of q8_0, 20 of q4_1, 18 of q4_0; Llama's 1,024 keys and values a layer."""

    def token_bytes(**types: Any) -> int:
        plan = ServingPlan(engine="llama_cpp", max_model_len=4096, max_num_seqs=1, **types)
        return figures(SHAPE, plan).bytes_per_token

    assert token_bytes() == token_bytes(kv_cache_dtype="fp16", v_cache_dtype="fp16") == 32 * (2048 + 2048)
    assert token_bytes(kv_cache_dtype="q8_0") == 32 * (1088 + 1088)
    assert token_bytes(kv_cache_dtype="q8_0", v_cache_dtype="q4_0") == 32 * (1088 + 576)
    assert token_bytes(kv_cache_dtype="q8_0", v_cache_dtype="fp16") == 32 * (1088 + 2048)
    assert token_bytes(v_cache_dtype="q4_1") == 32 * (2048 + 640)
    assert token_bytes(kv_cache_dtype="fp32", v_cache_dtype="iq4_nl") == 32 * (4096 + 576)
    # A latent is kept as keys.
    latent = shape_of("deepseek-ai/DeepSeek-R1")
    rows = cells.layers_of(latent, kv_format("q8_0"), kv_format("fp32"))
    assert rows == cells.layers_of(latent, kv_format("q8_0"), kv_format("q8_0"))


@pytest.mark.parametrize(
    ("engine", "field", "format_"),
    [
        ("llama_cpp", "kv_cache_dtype", "fp8"), ("llama_cpp", "kv_cache_dtype", "int8"),
        ("ollama", "kv_cache_dtype", "q4_1"), ("ollama", "kv_cache_dtype", "fp8"), ("ollama", "v_cache_dtype", "q5_0"),
        ("transformers", "kv_cache_dtype", "q4_0"), ("transformers", "kv_cache_dtype", "fp8"),
        ("vllm", "kv_cache_dtype", "q8_0"), ("vllm", "kv_cache_dtype", "int4"), ("sglang", "kv_cache_dtype", "int8"),
        ("tgi", "kv_cache_dtype", "int8"), ("tensorrt_llm", "kv_cache_dtype", "q4_0"),
    ],
)  # fmt: skip
def test_formats_that_an_engine_does_not_have_are_refused(engine: str, field: str, format_: str) -> None:
    plan = ServingPlan.model_validate({"engine": engine, field: format_, "max_model_len": 4096})
    with pytest.raises(PlanError) as caught:
        start(SHAPE, plan, find("h100-80gb-sxm"))
    assert (caught.value.key, caught.value.field) == ("serving.kv_format", field)


def test_state_is_kept_in_fp32() -> None:
    # Qwen3.6-27B: 149.625 MiB a slot (https://github.com/lmstudio-ai/lmstudio-bug-tracker/issues/1862).
    plan = ServingPlan(engine="llama_cpp", max_model_len=4096, max_num_seqs=4, weights="gguf:Q4_K_M")
    serving = figures(shape_of("Qwen/Qwen3.6-27B"), plan)
    assert serving.state_bytes_per_sequence == 156_893_184
    assert serving.state_bytes == 4 * 156_893_184


@pytest.mark.parametrize("written", ["b123456789", "master", ""])
def test_builds_that_are_no_number_are_refused(written: str) -> None:
    with pytest.raises(PlanError):
        llama_cpp.build_of(written)


@pytest.mark.parametrize(
    ("version", "gib", "context"),
    [
        ((0, 5, 4), 80, 2048), ((0, 10, 0), 80, 4096), ((0, 16, 0), 80, 262_144), ((0, 16, 0), 24, 32_768),
        ((0, 30, 0), 8, 4096),
    ],
)  # fmt: skip
def test_ollama_default_context(version: tuple[int, int, int], gib: int, context: int) -> None:
    assert ollama.default_context(version, gib * GIB) == context


# -------------------------------------------------------------------------------- LMDeploy, TGI, transformers


def test_lmdeploy_blocks() -> None:
    # InternVL2.5-8B on A100 80 GB: 6,214 blocks of 64 tokens, 8 MiB each, in 48.55 GiB
    # (https://github.com/InternLM/lmdeploy/issues/3411).
    plan = ServingPlan(engine="lmdeploy", engine_version="0.7", max_model_len=8192)
    begun = start(SHAPE, plan, find("a100-80gb-sxm4"))
    assert begun.cache.needed(1, 64) == 8 * MIB
    assert begun.cache.tokens(int(48.55 * GIB), 8192) == 6214 * 64
    assert lmdeploy.batch_size(find("a100-80gb-sxm4")) == 384


def test_lmdeploy_fraction_of_total_before_of_free() -> None:
    card = resolve("custom", 40 * GIB)
    old = start(SHAPE, ServingPlan(engine="lmdeploy", engine_version="0.2.1", max_model_len=4096), card)
    assert old.pool.value == 20 * GIB
    new = start(SHAPE, ServingPlan(engine="lmdeploy", engine_version="0.4.0", max_model_len=4096,
                                   free_memory_bytes=10 * GIB), card)  # fmt: skip
    assert new.pool.value == 8 * GIB


@pytest.mark.parametrize(
    ("version", "expected"),
    [("2.2", 0.95 * 10), ("2.4", 0.90 * 10), ("3.0", 10 - 0.1 * 80)],
)
def test_tgi_room(version: str, expected: float) -> None:
    plan = ServingPlan(engine="tgi", engine_version=version, free_memory_bytes=10 * GIB, max_model_len=4096)
    begun = start(SHAPE, plan, resolve("custom", 80 * GIB))
    assert begun.pool.value / GIB == pytest.approx(expected, abs=0.01)
    assert tgi.NEWEST >= (3, 3, 7)


def test_generate_before_only_the_last_logits_were_made() -> None:
    plan = ServingPlan(engine="transformers", engine_version="4.44.2", context_tokens=4096, concurrency=1)
    old = start(SHAPE, plan, H100).activation.span.value
    new = start(SHAPE, plan.model_copy(update={"engine_version": "4.51.3"}), H100).activation.span.value
    assert old == 4096 * 128_256 * 6
    assert new < old / 2


def test_generate_caches_expanded_heads() -> None:
    shape = shape_of("deepseek-ai/DeepSeek-V2-Lite-Chat")
    cache = start(shape, ServingPlan(engine="transformers", context_tokens=64, concurrency=1), H100).cache
    assert cache.bytes_per_token == 27 * 16 * (192 + 128) * 2
    assert isinstance(cache, transformers.Batch)


@given(st.integers(1, 32), st.integers(1, 8192))
def test_generate_need_is_linear_in_the_batch(requests: int, context: int) -> None:
    plan = ServingPlan(engine="transformers", context_tokens=context, concurrency=requests)
    cache = start(SHAPE, plan, H100).cache
    assert cache.needed(requests, context) == requests * context * (131_072 + 131_072 // 64)


def test_sglang_divides_the_pool_between_full_and_window_layers() -> None:
    # 10 full and 52 window layers of 1,000 bytes, windows with 0.8 times the tokens: 51.6 kB behind every token.
    cache = PagedCache((Part(10_000), Part(52_000, 1024)), 1, 0, 0, False, 0.8)
    assert cache.tokens(51_600 * 500, 4096) == 500
    # A long request fills the full part first, a short one the window part.
    assert cache.request_bytes(100_000) == 100_000 * 51_600
    assert cache.request_bytes(1000) == 1250 * 51_600


def test_sglang_data_parallel_attention() -> None:
    shape = shape_of("deepseek-ai/DeepSeek-V3")
    h200 = find("h200-141gb-sxm")
    plain = ServingPlan(engine="sglang", tp=8, n_gpus=8, max_model_len=8192, concurrency=64)
    spread = plain.model_copy(update={"dp": 8, "dp_attention": True})
    together, apart = figures(shape, plain, h200), figures(shape, spread, h200)
    # Attention and embedding are whole on every rank, experts are not; every rank has a cache of its own.
    attention = sum(
        2 * t.elements for index in shape.order for t in shape.blocks[index].tensors
        if t.component == "attention" and t.split != "none"
    )  # fmt: skip
    embedding = 2 * shape.vocab * shape.hidden
    assert apart.weights_bytes - together.weights_bytes == pytest.approx((attention / 2 + embedding) * 7 / 8, rel=0.005)
    assert apart.replicas == 8
    assert apart.kv_pool_bytes < together.kv_pool_bytes
    with pytest.raises(PlanError) as caught:
        figures(shape, spread.model_copy(update={"dp": 3}), h200)
    assert caught.value.field == "dp"


@pytest.mark.parametrize("split", [(1.0, 1.0, 1.0), (-1.0, 1.0), (float("nan"), 1.0), (0.0, 0.0), (float("inf"), 1.0)])
def test_a_split_must_be_shares_of_the_cards(split: tuple[float, ...]) -> None:
    plan = ServingPlan(engine="llama_cpp", weights="q4_k_m", n_gpus=2, tensor_split=split)
    with pytest.raises(PlanError, match="tensor_split"):
        place(llama(), plan, None, head_counts=True)


@pytest.mark.parametrize("split", [(3.0, 1.0), (3e307, 1e307), (3e-320, 1e-320)])
def test_a_split_counts_by_its_ratios(split: tuple[float, ...]) -> None:
    plan = ServingPlan(engine="llama_cpp", weights="q4_k_m", n_gpus=2, tensor_split=split)
    assert [len(card.layers) for card in place(llama(), plan, None, head_counts=True)] == [25, 7]


def test_cards_that_a_split_does_not_reach_hold_nothing() -> None:
    plan = ServingPlan(engine="llama_cpp", weights="q4_k_m", n_gpus=3, tensor_split=(1.0, 1.0))
    placed = place(llama(), plan, None, head_counts=True)
    assert [len(card.layers) for card in placed] == [17, 15, 0]
    assert [card.head for card in placed] == [False, True, False]
    assert placed[2].weights_bytes == 0


def test_experts_published_in_four_bits_stay_so() -> None:
    plan = ServingPlan(engine="llama_cpp", max_model_len=8192, concurrency=1)
    gpt_oss = shape_of("openai/gpt-oss-20b")
    # ggml-org/gpt-oss-20b-GGUF: 12.1 GB, of which the embedding table stays on the host.
    assert bill(gpt_oss, plan, H100).items[0].bytes < 12.2e9
    assert bill(gpt_oss, plan.model_copy(update={"weights": "bf16"}), H100).items[0].bytes > 39e9


@pytest.mark.parametrize("off", [False, 0])
@pytest.mark.parametrize("model", ["deepseek-ai/DeepSeek-V2-Lite", "deepseek-ai/DeepSeek-V3"])
def test_vllm_without_latent_back_ends_stores_heads_and_none_of_their_buffers(off: bool | int, model: str) -> None:
    shape, h200 = shape_of(model), find("h200-141gb-sxm")
    plan = ServingPlan(max_model_len=8192, tp=8, n_gpus=8, engine_version="0.33.0")
    latent, expanded = (figures(shape, plan.model_copy(update={"mla": mla}), h200) for mla in (None, off))
    mixer = next(b.mixer for b in shape.blocks if isinstance(b.mixer, LatentAttention))
    # Keys and values of this rank's heads, padded to 256.
    assert expanded.bytes_per_token == shape.layers * mixer.heads // 8 * 2 * 256 * 2
    assert expanded.kv_pool_bytes > latent.kv_pool_bytes
    assert expanded.weights_bytes <= latent.weights_bytes
    assert expanded.non_torch_bytes == latent.non_torch_bytes - 65536 * (512 + 64) * 2
