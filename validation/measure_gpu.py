"""Measure training memory on a real GPU, as rows in the format of the training cases.

One file, for any machine with an NVIDIA card, ``torch``, ``transformers`` and ``peft``; models are made with random
weights, so nothing is downloaded::

    python measure_gpu.py --out rows.jsonl            # at most 8 minutes
    python measure_gpu.py --dry-run                   # print the grid, import nothing
    python measure_gpu.py --device cpu --out /tmp/x   # the same code path without a card, on toy sizes

Every case runs in its own process: a fresh CUDA context, a fresh allocator, its own allocator settings. The order is by
what is most in doubt: allocator slack at different batches, foreach against fused AdamW, expandable segments, eager
against SDPA, adapters, then the probes (context, cuBLAS workspaces, scratch of the flash backward). When the time is up
no further case is started; one that runs out of memory gives a row with ``fits`` false.

``docs/measuring.md`` says what the readings are and how to contribute rows.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

GIB = 1024**3
CASE_SECONDS = 90
STEPS = 3

# Sizes of the published models, so that the rows name a model that everybody can look up.
CONFIGS: dict[str, dict[str, Any]] = {
    "Qwen/Qwen2.5-0.5B": {
        "model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864,
        "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "max_position_embeddings": 32768,
        "tie_word_embeddings": True, "use_sliding_window": False,
    },
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": {
        "model_type": "llama", "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5632,
        "num_hidden_layers": 22, "num_attention_heads": 32, "num_key_value_heads": 4, "max_position_embeddings": 2048,
        "tie_word_embeddings": False, "rms_norm_eps": 1e-5,
    },
    "meta-llama/Llama-3.1-8B": {
        "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072,
        "tie_word_embeddings": False, "rms_norm_eps": 1e-5,
    },
}  # fmt: skip
TOY = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
       "num_key_value_heads": 2}  # fmt: skip

QWEN, TINY, LLAMA = CONFIGS
LORA = {"rank": 16, "targets": ["q", "k", "v", "o"], "train_embeddings": False}
PROJECTIONS = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj", "gate": "gate_proj", "up": "up_proj",
               "down": "down_proj"}  # fmt: skip


def case(name: str, model: str, **changes: Any) -> dict[str, Any]:
    """A case: the fields of a training row that are set, with this grid's defaults."""
    return {
        "id": name, "model": model, "method": "full", "adapter": None, "optimizer": "adamw_foreach",
        "precision": "bf16", "micro_batch": 4, "seq_len": 2048, "checkpointing": "full", "attention": "sdpa",
        "allocator": "default",
        **changes,
    }  # fmt: skip


def grid(card_bytes: int) -> list[dict[str, Any]]:
    """The cases for a card of this size, those most in doubt first. Each fits by a rough estimate."""
    big = card_bytes >= 40 * GIB
    model = TINY
    cases = [
        case("slack-b4", model),
        case("slack-b8", model, micro_batch=8),
        case("slack-b8-expandable", model, micro_batch=8, allocator="expandable"),
        case("fused-b8", model, micro_batch=8, optimizer="adamw_fused"),
        case("small-batch-foreach", model, micro_batch=1, seq_len=512),
        case("small-batch-fused", model, micro_batch=1, seq_len=512, optimizer="adamw_fused"),
        case("vocabulary", QWEN, micro_batch=2),
        case("vocabulary-expandable", QWEN, micro_batch=2, allocator="expandable"),
        case("vocabulary-b1", QWEN, micro_batch=1),
        case("no-checkpoint", model, micro_batch=1, checkpointing="none"),
        case("eager", model, micro_batch=1, checkpointing="none", attention="eager", seq_len=1024),
        case("lora", model, method="lora", adapter=LORA, micro_batch=8),
        case("lora-expandable", model, method="lora", adapter=LORA, micro_batch=8, allocator="expandable"),
        case("amp", model, precision="amp_bf16", micro_batch=2),
        case("sgd", model, optimizer="sgd", micro_batch=4),
    ]
    if big:
        cases += [
            case("llama-lora-b1", LLAMA, method="lora", adapter=LORA, micro_batch=1, seq_len=4096),
            case("llama-lora-b2", LLAMA, method="lora", adapter=LORA, micro_batch=2, seq_len=4096),
            case("llama-lora-b2-expandable", LLAMA, method="lora", adapter=LORA, micro_batch=2, seq_len=4096,
                 allocator="expandable"),
        ]  # fmt: skip
    return cases


def row(done: dict[str, Any], readings: dict[str, int] | None, machine: dict[str, Any]) -> dict[str, Any]:
    """A training row with every field. ``readings`` None: the case ran out of memory."""
    full = done["method"] == "full"
    amp = done["precision"].startswith("amp")
    measured = readings or {}
    versions = f"torch {machine['torch']}, transformers {machine['transformers']}, peft {machine['peft']}"
    return {
        "id": f"gpu-{machine['key']}-{done['id']}", "source": machine["source"], "source_group": "measure_gpu",
        "trust": "high", "model": done["model"], "params": machine.get("params"), "framework": "plain_torch",
        "framework_version": versions, "method": done["method"], "adapter": done["adapter"], "base_quant": "none",
        "kbit_prepared": False, "precision": done["precision"], "fp8_compute": False,
        "fp8_recipe": None, "fp8_param_gather": False, "base_quant_group": None, "optimizer": done["optimizer"],
        "optimizer_state_dtype": "fp32" if amp or not full else "bf16",
        "grad_dtype": "fp32" if amp or not full else "bf16", "optimizer_in_backward": False,
        "micro_batch": done["micro_batch"], "seq_len": done["seq_len"], "packed": True, "grad_accum": 1,
        "checkpointing": done["checkpointing"], "attention": done["attention"], "loss": "standard", "compile": False,
        "tiled_mlp": False, "gpu": machine["key"], "gpu_capacity_bytes": machine["total_bytes"], "n_gpus": 1,
        "sharding": "none", "tp": 1, "pp": 1, "vpp": 1, "cp": 1, "ep": 1, "sequence_parallel": False, "offload": [],
        "allocator": done["allocator"], "torch_version": machine["torch"],
        "transformers_version": machine["transformers"], "peft_version": machine["peft"],
        "checkpointing_reentrant": False, "measured": measured, "fits": readings is not None,
        "saturated": bool(measured) and max(measured.values()) >= 0.95 * machine["total_bytes"], "complete": True,
        "score": sorted(measured), "assumed": [], "note": f"random weights, {STEPS} steps, driver {machine['driver']}",
    }  # fmt: skip


# ------------------------------------------------------------------------------------- inside one measuring process


def measure(done: dict[str, Any], device: str) -> dict[str, Any]:
    """Run a case here and return its readings. Needs torch; peft only for adapters."""
    torch, transformers = import_module("torch"), import_module("transformers")

    config = dict(CONFIGS[done["model"]])
    batch, length = done["micro_batch"], done["seq_len"]
    if device == "cpu":
        config.update(TOY)
        batch, length = 1, 32
    model_type = config.pop("model_type")
    amp = done["precision"].startswith("amp")
    dtype = torch.float32 if amp else torch.bfloat16
    built = transformers.AutoConfig.for_model(model_type, **config)
    built._attn_implementation = done["attention"]
    torch.set_default_dtype(dtype)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(built, attn_implementation=done["attention"])
    torch.set_default_dtype(torch.float32)
    model.config.use_cache = False
    params = sum(p.numel() for p in model.parameters())
    if done["adapter"]:
        peft = import_module("peft")
        targets = [PROJECTIONS[name] for name in done["adapter"]["targets"]]
        model.enable_input_require_grads()
        model = peft.get_peft_model(
            model, peft.LoraConfig(r=done["adapter"]["rank"], lora_alpha=16, target_modules=targets)
        )
    if done["checkpointing"] == "full":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = _optimizer(torch, done["optimizer"], trained)
    readings: dict[str, int] = {"params": params}
    process = 0
    for _ in range(STEPS):
        ids = torch.randint(0, config["vocab_size"], (batch, length), device=device)
        with torch.autocast(device, torch.bfloat16, enabled=amp):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        loss = loss.detach()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if device == "cuda":
            torch.cuda.synchronize()
            free, total = torch.cuda.mem_get_info()
            process = max(process, total - free + torch.cuda.max_memory_reserved() - torch.cuda.memory_reserved())
    del loss, ids
    if device == "cuda":
        readings |= {
            "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
            "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
            "end_allocated_bytes": torch.cuda.memory_allocated(),
            "process_bytes": process,
        }
    return readings


def _optimizer(torch: Any, name: str, parameters: list[Any]) -> Any:
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=1e-4, foreach=True)
    if name == "adamw_fused":
        return torch.optim.AdamW(parameters, lr=1e-4, fused=True)
    return torch.optim.AdamW(parameters, lr=1e-4, foreach=True)


def probe(device: str) -> dict[str, Any]:
    """What is no tensor of the program: the context, cuBLAS workspaces, the scratch inside SDPA's backward."""
    torch = import_module("torch")
    if device == "cpu":
        return {}
    free_before, total = torch.cuda.mem_get_info()
    torch.zeros(1, device="cuda")
    free, _ = torch.cuda.mem_get_info()
    found = {"context_bytes": total - free - torch.cuda.memory_reserved(), "used_before_bytes": total - free_before}
    x = torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16)
    before = torch.cuda.memory_allocated()
    y = x @ x
    torch.cuda.synchronize()
    found["cublas_workspace_bytes"] = torch.cuda.memory_allocated() - before - y.numel() * y.element_size()
    free, _ = torch.cuda.mem_get_info()
    found["context_with_cublas_bytes"] = total - free - torch.cuda.memory_reserved()
    for heads, kv_heads, head_dim, length in (
        (32, 32, 128, 4096),
        (32, 8, 128, 4096),
        (32, 8, 128, 16384),
        (32, 4, 64, 4096),
    ):
        q, k, v = (torch.randn(1, n, length, head_dim, device="cuda", dtype=torch.bfloat16, requires_grad=True)
                   for n in (heads, kv_heads, kv_heads))  # fmt: skip
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads != kv_heads)
        gradient = torch.ones_like(out)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        out.backward(gradient)
        results = sum(t.grad.numel() * t.grad.element_size() for t in (q, k, v))
        peak = torch.cuda.max_memory_allocated() - before - results
        found[f"flash_backward_scratch_bytes:{heads}x{kv_heads}x{head_dim}@{length}"] = peak
        del q, k, v, out, gradient
    return found


# ------------------------------------------------------------------------------------------------- the outer process


def machine_of(device: str) -> dict[str, Any]:
    """The card and the library versions."""
    torch, transformers, peft = (import_module(name) for name in ("torch", "transformers", "peft"))
    found: dict[str, Any] = {
        "torch": torch.__version__.split("+")[0], "transformers": transformers.__version__, "peft": peft.__version__,
        "source": "validation/measure_gpu.py", "driver": "none", "key": device, "total_bytes": 8 * GIB, "idle_bytes": 0,
    }  # fmt: skip
    if device == "cuda":
        query = ["nvidia-smi", "--query-gpu=driver_version,memory.used", "--format=csv,noheader,nounits", "-i", "0"]
        answer = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip().split(", ")
        found["driver"] = answer[0] or "unknown"
        found["idle_bytes"] = int(answer[1]) * 1024**2 if len(answer) == 2 and answer[1].isdigit() else 0
        properties = torch.cuda.get_device_properties(0)
        found["key"] = properties.name
        found["total_bytes"] = properties.total_memory
    return found


def run_child(task: dict[str, Any], device: str, seconds: float) -> dict[str, Any]:
    """A case or a probe in a process of its own: its readings, or ``{"error": ...}``."""
    environment = dict(os.environ, HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    if task.get("allocator") == "expandable":
        environment["PYTORCH_CUDA_ALLOC_CONF"] = environment["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    command = [sys.executable, str(Path(__file__).resolve()), "--child", json.dumps(task), "--device", device]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"not done in {seconds:.0f} s"}
    last = done.stdout.strip().rpartition("\n")[2]
    try:
        found: dict[str, Any] = json.loads(last)
    except ValueError:
        return {"error": done.stderr.strip()[-300:] or "no answer"}
    return found


def child(task: dict[str, Any], device: str) -> dict[str, Any]:
    """What a child process prints: readings, ``{"oom": true}`` or ``{"error": ...}``."""
    try:
        return probe(device) if task.get("id") == "probe" else measure(task, device)
    except Exception as error:  # whatever the libraries raise is an answer here
        out_of_memory = "OutOfMemory" in type(error).__name__ or "out of memory" in str(error)
        return {"oom": True} if out_of_memory else {"error": f"{type(error).__name__}: {error}"[:300]}


def run(out: Path, device: str, minutes: float) -> int:
    """Measure the grid within the time and write the rows; returns how many were written."""
    start = time.monotonic()
    machine = machine_of(device)
    tasks = [*grid(machine["total_bytes"]), {"id": "probe"}]
    tasks.insert(6, tasks.pop())
    written = 0
    with out.open("w", encoding="utf-8") as file:
        for task in tasks:
            left = 60 * minutes - (time.monotonic() - start)
            if left < 15:
                print(f"{task['id']}: not started, the time is up", file=sys.stderr)
                continue
            found = run_child(task, device, min(left, CASE_SECONDS))
            print(json.dumps({"id": task["id"], **found}), file=sys.stderr)
            if task["id"] == "probe" or "error" in found:
                continue
            machine["params"] = found.pop("params", None)
            if "process_bytes" in found:
                found["process_bytes"] -= machine["idle_bytes"]
            line = row(task, None if found.get("oom") else found, machine)
            file.write(json.dumps(line) + "\n")
            file.flush()
            written += 1
    return written


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0 if at least one row was written (or with ``--dry-run``)."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("measured.jsonl"), help="file for the rows")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--minutes", type=float, default=8.0, help="stop starting cases after this long")
    parser.add_argument("--card-gib", type=float, default=80.0, help="card size that --dry-run plans for")
    parser.add_argument("--dry-run", action="store_true", help="print the cases and import no library")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        print(json.dumps(child(json.loads(options.child), options.device)))
        return 0
    if options.dry_run:
        for task in grid(int(options.card_gib * GIB)):
            print(json.dumps(task))
        return 0
    return 0 if run(options.out, options.device, options.minutes) else 1


if __name__ == "__main__":
    sys.exit(main())
