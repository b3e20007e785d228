"""Command lines as plans and back: public ones, and every flag of every engine."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculator.errors import CalculatorError, PlanError, TooLargeError
from calculator.serving.command import emit_command, parse_command
from calculator.serving.flags import FLAGS, SETS
from calculator.serving.left_out import left_out
from calculator.serving.plan import Engine, ServingPlan

# Published command lines with where each was found.
PUBLIC = [
    json.loads(line)
    for line in (Path(__file__).parent.parent / "data" / "serving" / "commands.jsonl").read_text("utf-8").splitlines()
]
ENGINES = tuple(FLAGS)


@pytest.mark.parametrize("row", PUBLIC, ids=[str(number) for number in range(len(PUBLIC))])
def test_public_command_lines_survive_the_round_trip(row: dict[str, str]) -> None:
    read = parse_command(row["command"])
    assert read.model
    plan = read.plan()
    again = parse_command(emit_command(read.model, plan, read.kept))
    assert again.model == read.model
    assert again.kept == read.kept
    assert again.unknown == read.unknown
    # An image's tag is no flag.
    assert again.plan() == plan.model_copy(update={"engine_version": None})
    assert set(left_out(read.model, plan, read.kept)) <= {"engine_version"}


def test_there_are_fifty_of_them_from_every_engine() -> None:
    assert len(PUBLIC) >= 50
    assert {parse_command(row["command"]).engine for row in PUBLIC} == set(ENGINES)
    assert all(row["source"] for row in PUBLIC)


READ: list[tuple[str, str, dict[str, Any]]] = [
    (
        "vllm serve Qwen/Qwen3-8B -tp 2 --max-model-len 32k --gpu-memory-utilization=0.95 --enforce-eager",
        "vllm",
        {"tp": 2, "max_model_len": 32_000, "memory_fraction": 0.95, "cuda_graphs": False, "n_gpus": 2},
    ),
    ("vllm serve m --max-model-len 32K --max-num-batched-tokens 8k", "vllm",
     {"max_model_len": 32_768, "max_num_batched_tokens": 8000}),
    ("vllm serve m --max_model_len auto --kv_cache_dtype fp8_e5m2", "vllm", {"kv_cache_dtype": "fp8"}),
    ("vllm serve m -dp 4 -tp 2 --enable-expert-parallel", "vllm", {"dp": 4, "tp": 2, "ep": 8, "n_gpus": 8}),
    ("VLLM_USE_V1=0 CUDA_VISIBLE_DEVICES=2,3 vllm serve m", "vllm", {"runner": "v0", "n_gpus": 2}),
    ("vllm serve m --quantization awq", "vllm", {}),
    ("vllm serve m --quantization fp8 --cpu-offload-gb 10", "vllm",
     {"weights": "fp8", "cpu_offload_bytes": 10 * 2**30}),
    ("vllm serve m --speculative-config.method mtp --speculative-config.num_speculative_tokens 3", "vllm",
     {"speculative": "mtp", "draft_tokens": 3}),
    ("""vllm serve m --speculative-config '{"model": "yuhuili/EAGLE3-x", "num_speculative_tokens": 2}'""", "vllm",
     {"speculative": "eagle3", "draft_model": "yuhuili/EAGLE3-x", "draft_tokens": 2}),
    ("""vllm serve m --speculative-config '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}'""",
     "vllm", {"speculative": "ngram", "draft_tokens": 4}),
    ("vllm serve m --speculative-model org/small --num-speculative-tokens 5", "vllm",
     {"speculative": "draft_model", "draft_model": "org/small", "draft_tokens": 5}),
    ("vllm serve m --speculative_model [ngram] --num_speculative_tokens 5", "vllm",
     {"speculative": "ngram", "draft_tokens": 5}),
    ("python -m sglang.launch_server --model m --speculative-algorithm STANDALONE "
     "--speculative-draft-model-path org/small --speculative-num-draft-tokens 4", "sglang",
     {"speculative": "draft_model", "draft_model": "org/small", "draft_tokens": 4}),
    ("python -m sglang.launch_server --model m --enable-lora --max-lora-rank 64", "sglang",
     {"max_loras": 8, "max_lora_rank": 64}),
    ("text-generation-launcher --model-id m --lora-adapters a/b,c/d", "tgi", {"max_loras": 2}),
    ("vllm serve m --enable-lora --max-loras 4 --max-lora-rank 64", "vllm", {"max_loras": 4, "max_lora_rank": 64}),
    ("python3 -m vllm.entrypoints.openai.api_server --model m \\\n  --pipeline-parallel-size 2 \\\n &",
     "vllm", {"pp": 2, "n_gpus": 2}),
    ("docker run --gpus '\"device=0,1\"' -e HF_TOKEN=x -p 8000:8000 --ipc=host vllm/vllm-openai:v0.9.1 --model m",
     "vllm", {"engine_version": "0.9.1", "n_gpus": 2}),
    ("llama-server -hf org/repo:Q4_K_M -c 16384 -np 4 -ngl 20 -fa -ctk q8_0 -ctv q8_0 -ts 3,1", "llama_cpp",
     {"max_model_len": 16_384, "max_num_seqs": 4, "n_gpu_layers": 20, "flash_attn": True, "kv_cache_dtype": "q8_0",
      "tensor_split": (3.0, 1.0)}),
    ("llama-server -hf a/b -ctk q8_0", "llama_cpp", {"kv_cache_dtype": "q8_0", "v_cache_dtype": "fp16"}),
    ("llama-server -hf a/b -ctv q4_1 -fa on", "llama_cpp", {"v_cache_dtype": "q4_1", "flash_attn": True}),
    ("llama-server -hf a/b -ctk q8_0 -ctv q4_0", "llama_cpp", {"kv_cache_dtype": "q8_0", "v_cache_dtype": "q4_0"}),
    ("llama-server -hf a/b -ctk f16 -ctv f16", "llama_cpp", {"kv_cache_dtype": "fp16"}),
    ("LLAMA_ARG_CTX_SIZE=32768 LLAMA_ARG_N_GPU_LAYERS=99 LLAMA_ARG_FLASH_ATTN=on LLAMA_ARG_CACHE_TYPE_K=q8_0 "
     "LLAMA_ARG_CACHE_TYPE_V=q8_0 LLAMA_ARG_N_CPU_MOE=17 LLAMA_ARG_BATCH=4096 LLAMA_ARG_UBATCH=1024 "
     "LLAMA_ARG_N_PARALLEL=2 LLAMA_ARG_HF_REPO=a/b:Q4_K_M LLAMA_ARG_KV_UNIFIED=false LLAMA_ARG_SWA_FULL=1 "
     "llama-server -np 4", "llama_cpp",
     {"max_model_len": 32_768, "n_gpu_layers": 99, "flash_attn": True, "kv_cache_dtype": "q8_0", "n_cpu_moe": 17,
      "max_num_batched_tokens": 4096, "n_ubatch": 1024, "max_num_seqs": 4, "kv_unified": False, "swa_full": True}),
    ("python3 -m llama_cpp.server --model x.gguf --n_gpu_layers -1 --n_ctx 16192 --type_k 8 --chat_format chatml",
     "llama_cpp",
     {"max_model_len": 16_192, "n_gpu_layers": 999, "kv_cache_dtype": "q8_0", "v_cache_dtype": "fp16",
      "max_num_seqs": 1, "max_num_batched_tokens": 512, "flash_attn": False, "fit": False, "mmproj": "none"}),
    ("vllm serve m --limit-mm-per-prompt image=2,video=0", "vllm", {"limit_mm_per_prompt": {"image": 2, "video": 0}}),
    ("vllm serve m \\ --max-model-len 4096 \\ --tensor-parallel-size 2", "vllm",
     {"max_model_len": 4096, "tp": 2, "n_gpus": 2}),
    ("vllm serve m --dtype float32 --kv-offloading-size 12.5 --kv-cache-dtype int8_per_token_head", "vllm",
     {"weights": "fp32", "kv_offload_bytes": 25 * 2**29, "kv_cache_dtype": "int8"}),
    ("VLLM_PP_LAYER_PARTITION=20,12 VLLM_MLA_DISABLE=1 VLLM_LOGGING_LEVEL=DEBUG vllm serve m -pp 2 --dtype half",
     "vllm",
     {"pp": 2, "n_gpus": 2, "pp_layer_partition": (20, 12), "mla": False}),
    ("python -m sglang.launch_server --model m --cpu-offload-gb 4 --kv-cache-dtype fp8_e5m2", "sglang",
     {"cpu_offload_bytes": 4 * 2**30, "kv_cache_dtype": "fp8"}),
    ("trtllm-serve m --tensor_parallel_size 4 --free_gpu_memory_fraction 0.8 --moe_expert_parallel_size 2",
     "tensorrt_llm", {"tp": 4, "memory_fraction": 0.8, "ep": 2, "n_gpus": 4}),
    ("trtllm-serve m --tp_size 16 --gpus_per_node 8", "tensorrt_llm", {"tp": 16, "n_gpus": 16, "gpus_per_node": 8}),
    ("/usr/local/mpi/bin/mpirun -np 16 -x NCCL_DEBUG=INFO --allow-run-as-root trtllm-llmapi-launch trtllm-serve m "
     "--tp_size 16 --ep_size 8 --max_batch_size 128", "tensorrt_llm",
     {"tp": 16, "ep": 8, "max_num_seqs": 128, "n_gpus": 16}),
    ("lmdeploy serve api_server m --quant-policy fp8 --eager-mode", "lmdeploy",
     {"kv_cache_dtype": "fp8", "cuda_graphs": False}),
    ("docker run --gpus 4 -e MODEL_ID=a/b -e NUM_SHARD=4 -e MAX_TOTAL_TOKENS=8192 -e QUANTIZE=bitsandbytes "
     "-e HF_TOKEN=x -e TRUST_REMOTE_CODE=true -e PREFIX_CACHING=0 ghcr.io/huggingface/text-generation-inference:3.3.5",
     "tgi",
     {"engine_version": "3.3.5", "tp": 4, "n_gpus": 4, "max_model_len": 8192, "weights": "bnb_int8",
      "prefix_caching": False}),
    ("text-generation-launcher --model-id m --quantize bitsandbytes --cuda-graphs 0", "tgi",
     {"weights": "bnb_int8", "cuda_graphs": False}),
    ("llama-server -hf org/repo -hff repo-Q4_K_M.gguf --mmproj proj.gguf --no-mmproj-offload -fit off -ncmoe 12",
     "llama_cpp", {"mmproj": "host", "fit": False, "n_cpu_moe": 12}),
    ("llama-server -m gemma.gguf --mmproj mmproj.gguf", "llama_cpp", {"mmproj": "gpu"}),
    ("llama-server -hf org/repo:Q4_K_M", "llama_cpp", {}),
    ("llama-server -m x.gguf -ngl all -c 0 --no-mmproj --fit-target 512,2048 --fit-ctx 8192", "llama_cpp",
     {"n_gpu_layers": 999, "mmproj": "none", "fit_target_bytes": 2 * 2**30, "fit_min_context": 8192}),
    ("docker run --gpus all ghcr.io/ggml-org/llama.cpp:server-cuda-b6123 -m /models/x.gguf -c 512", "llama_cpp",
     {"engine_version": "b6123", "max_model_len": 512, "mmproj": "none"}),
    ("python -m sglang.launch_server --model-path m --tp 8 --dp 8 --enable-dp-attention", "sglang",
     {"tp": 8, "dp": 8, "dp_attention": True, "n_gpus": 8}),
    ("lmdeploy serve api_server m --quant-policy 8 --session-len 8192", "lmdeploy",
     {"kv_cache_dtype": "int8", "max_model_len": 8192}),
    ("text-generation-launcher --model-id m --num-shard 4 --quantize bitsandbytes-nf4", "tgi",
     {"tp": 4, "weights": "bnb_nf4", "n_gpus": 4}),
]  # fmt: skip


@pytest.mark.parametrize(("written", "engine", "fields"), READ, ids=[written[:40] for written, _, _ in READ])
def test_what_a_command_says(written: str, engine: str, fields: dict[str, Any]) -> None:
    read = parse_command(written)
    assert (read.engine, read.fields) == (engine, fields)
    assert not read.unknown


def test_flags_that_matter_and_are_not_understood_are_named() -> None:
    read = parse_command("vllm serve m --num-gpu-blocks-override 100 --kv-cache-dtype turboquant --host 0.0.0.0 --zz")
    assert read.unknown == ("--num-gpu-blocks-override", "--kv-cache-dtype", "--zz")
    for written, named in (
        ("vllm serve m --swap-space 16 --quantization experts_int8 --quantization awq",
         ("--swap-space", "--quantization")),
        ("text-generation-launcher --model-id m --quantize eetq --max-batch-total-tokens 9",
         ("--quantize", "--max-batch-total-tokens")),
        ("VLLM_ATTENTION_BACKEND=FLASHINFER VLLM_USE_FLASHINFER_SAMPLER=0 HF_HOME=/x NCCL_DEBUG=INFO vllm serve m",
         ("VLLM_ATTENTION_BACKEND", "VLLM_USE_FLASHINFER_SAMPLER")),
        ("docker run -e MAX_BATCH_TOTAL_TOKENS=9 -e MODEL_ID=m ghcr.io/huggingface/text-generation-inference",
         ("MAX_BATCH_TOTAL_TOKENS",)),
        ("LLAMA_ARG_SPEC_TYPE=draft-mtp LLAMA_ARG_PORT=80 llama-server -m x.gguf", ("LLAMA_ARG_SPEC_TYPE",)),
        ("trtllm-serve m --config x.yml", ("--config",)),
        ("python -m sglang.launch_server --model m --enable-hierarchical-cache --hicache-size 30 --cuda-graph-max-bs 8",
         ("--enable-hierarchical-cache", "--hicache-size", "--cuda-graph-max-bs")),
    ):  # fmt: skip
        read = parse_command(written)
        assert (read.unknown, read.model) == (named, "x.gguf" if read.engine == "llama_cpp" else "m"), written
        again = parse_command(emit_command(read.model, read.plan(), read.kept))
        assert (again.unknown, again.kept, again.plan()) == (read.unknown, read.kept, read.plan())


def test_secrets_are_not_kept() -> None:
    read = parse_command("vllm serve m --api-key s3cret --port 80")
    assert "s3cret" not in " ".join(read.kept)
    assert read.kept == ("--port", "80")
    read = parse_command("VLLM_API_KEY=s3cret MY_SECRET=s3cret vllm serve m --ngrok-authtoken s3cret --hf-token=s3cret")
    assert (read.kept, read.unknown) == ((), ("--ngrok-authtoken",))


def test_only_the_first_command_is_read() -> None:
    for tail in ("> log 2>&1 &", "| tee log", "; rm -rf /", "&& echo done", "# a comment"):
        read = parse_command(f"vllm serve m --max-num-seqs 8 {tail}")
        assert read.fields == {"max_num_seqs": 8}
        assert not read.unknown


@pytest.mark.parametrize(
    "written", ["", "   ", "ls -la", "docker run ubuntu", "vllm serve 'unclosed", "python -m http.server", "vllm bench"]
)
def test_other_lines_are_refused(written: str) -> None:
    with pytest.raises(PlanError):
        parse_command(written)


@pytest.mark.parametrize(
    ("written", "field"),
    [
        ("vllm serve m --tensor-parallel-size two", "tp"), ("vllm serve m --max-model-len", "max_model_len"),
        ("vllm serve m --gpu-memory-utilization 1.5", "memory_fraction"), ("vllm serve m -tp 0", "tp"),
        ("vllm serve m --speculative-config '[1]'", "speculative"),
        ("vllm serve m --cpu-offload-gb inf", "cpu_offload_bytes"), ("llama-server -m x -ts nan", "tensor_split"),
        ("vllm serve m --max-model-len " + "9" * 400, "max_model_len"),
        ("vllm serve m --limit-mm-per-prompt " + "[" * 9000, "limit_mm_per_prompt"),
        ("vllm serve m --limit-mm-per-prompt image=two", "limit_mm_per_prompt"),
        ("vllm serve m --speculative-config " + "[" * 9000, "speculative"),
        ("VLLM_PP_LAYER_PARTITION=a,b vllm serve m", "pp_layer_partition"),
        ("docker run -e NUM_SHARD=two ghcr.io/huggingface/text-generation-inference", "tp"),
    ],
)  # fmt: skip
def test_bad_values_name_the_field(written: str, field: str) -> None:
    with pytest.raises(PlanError) as caught:
        parse_command(written).plan()
    assert caught.value.field == field


def test_long_text_is_refused() -> None:
    with pytest.raises(TooLargeError):
        parse_command("vllm serve m " + "x" * 20_000)


@pytest.mark.parametrize("engine", ["transformers", "other"])
def test_engines_without_a_server_command_say_so(engine: Engine) -> None:
    with pytest.raises(PlanError):
        emit_command("m", ServingPlan(engine=engine))


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(1, 32), "tokens": st.integers(1, 10**6), "float": st.sampled_from([0.25, 0.5, 0.85, 0.9]),
    "gib": st.integers(1, 10**12), "whole_gib": st.integers(1, 64).map(lambda n: n * 2**30),
    "bytes": st.integers(1, 10**12),
    "mib": st.integers(1, 8192).map(lambda n: n * 2**20),
    "floats": st.lists(st.sampled_from([1.0, 2.0, 2.5]), min_size=1, max_size=4).map(tuple),
    "text": st.just("org/draft-1B"),
    "json": st.dictionaries(st.sampled_from(["image", "video"]), st.integers(0, 9), min_size=1),
}  # fmt: skip


@st.composite
def plans(draw: st.DrawFn) -> ServingPlan:
    engine = draw(st.sampled_from(ENGINES))
    values: dict[str, Any] = {"engine": engine}
    for flag in FLAGS[engine]:
        if flag.field in values or draw(st.booleans()) or (flag.spelled is not None and not flag.spelled):
            continue
        if flag.field in ("flash_attn", "fit"):
            values[flag.field] = draw(st.booleans())
        elif flag.spelled is not None:
            values[flag.field] = draw(st.sampled_from(sorted(set(flag.spelled.values()))))
        elif flag.kind in ("on", "off"):
            values[flag.field] = flag.kind == "on"
        else:
            values[flag.field] = draw(VALUES[flag.kind])
    if values.get("v_cache_dtype") == values.get("kv_cache_dtype", "fp16"):
        del values["v_cache_dtype"]  # one type for keys and values is one field
    for field, value in SETS.get(engine, {}).values():
        if field not in values and draw(st.booleans()):
            values[field] = value
    tp, pp, dp = (int(values.get(name, 1)) for name in ("tp", "pp", "dp"))
    values["n_gpus"] = tp * pp * (1 if values.get("dp_attention") else dp)
    if engine in ("vllm", "sglang"):
        values["speculative"] = draw(st.sampled_from([None, "ngram", "mtp", "eagle3", "draft_model"]))
        if engine == "vllm" and values["speculative"] is not None:
            values["draft_tokens"] = draw(st.integers(1, 8))
            values["draft_model"] = draw(st.sampled_from([None, "org/draft-1B"]))
    if engine == "vllm" and draw(st.booleans()):
        values["ep"] = tp * dp
    return ServingPlan.model_validate(values)


@given(plans(), st.sampled_from(["Qwen/Qwen3-8B", "./local model", "-odd", "模型"]))
def test_every_plan_survives_as_a_command(plan: ServingPlan, model: str) -> None:
    if model.startswith("-"):
        return
    read = parse_command(emit_command(model, plan))
    assert read.model == model
    assert not read.unknown
    assert left_out(model, plan) == ()
    # A file of one's own comes without its projector, unless that is named; one type for keys and values is one field.
    if plan.engine == "llama_cpp" and plan.mmproj is None and model != "Qwen/Qwen3-8B":
        plan = plan.model_copy(update={"mmproj": "none"})
    assert read.plan() == plan


STARTS = (
    "", "vllm serve m ", "llama-server -m x ", "docker run vllm/vllm-openai ", "mpirun trtllm-serve m ", "bash -c ",
    "docker run -e MODEL_ID=m -e X=1 ghcr.io/huggingface/text-generation-inference ", "LLAMA_ARG_MODEL=x ",
    "python -m llama_cpp.server --model x ",
)  # fmt: skip


@given(st.text(max_size=200), st.sampled_from(STARTS))
def test_junk_is_read_or_refused(text: str, start: str) -> None:
    with suppress(CalculatorError):
        parse_command(start + text).plan()
