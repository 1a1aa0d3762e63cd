"""What a worker takes before it answers: seconds until its model is loaded, and memory at most.

    python -m ops.bench.footprint --shape 1.1b        writes ops/bench/results/footprint-1.1b.json

The model's files are read once beforehand, so that they come from the system's cache. A process of its own
loads the model, as a worker does, and computes one full step with all of its pages in place. The memory
while it loads is counted without what Python and its libraries had before, the whole peak with it.
"""

import json
import subprocess
import sys
from math import prod
from pathlib import Path
from statistics import median
from typing import Any

from safetensors import safe_open

from ops.bench.command import RESULTS, parser
from ops.bench.record import write
from ops.bench.rig.shapes import SHAPES, made

KV_MEMORY = 512 << 20
ITEM_BYTES = {"bfloat16": 2, "float32": 4}

_CHILD = """
import gc, json, sys, time
from pathlib import Path
started = time.perf_counter()
from gpu_worker.machine.huge_pages import populate
from gpu_worker.settings import WorkerSettings
from gpu_worker.startup.load import load
from gpu_worker.startup.warmup import full_step
def memory(name):
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status[name].split()[0]) * 1024
before = memory("VmRSS")
runner = load(WorkerSettings(**json.loads(sys.argv[1])))
runner.enter()
seconds = time.perf_counter() - started
loading = memory("VmHWM")
pages = [tensor for cache in runner.caches for tensor in cache.tensors()]
import torch
tensors = [each for each in gc.get_objects() if isinstance(each, torch.Tensor)]
packed = [each for each in tensors if each.is_mkldnn]  # oneDNN's, which have no storage
storages = [each.untyped_storage() for each in tensors if not each.is_mkldnn]
sizes = {each.data_ptr(): each.nbytes() for each in storages} | {id(each): each.nbytes for each in packed}
kept = sum(sizes.values()) - sum(page.nbytes for page in pages)
populate(pages).join()
runner.execute(full_step(runner.limits))
print(json.dumps(dict(
    seconds=seconds,
    loading=loading - before,
    kept=kept,
    peak=memory("VmHWM"),
    pages=sum(page.nbytes for page in pages),
)))
"""


def measured(model: Path, dtype: str, quantization: str = "auto") -> dict[str, float]:
    """One start of a worker, in a process of its own."""
    settings = {"model": str(model), "dtype": dtype, "kv_memory": KV_MEMORY, "device": "cpu"}
    settings["quantization"] = quantization
    command = [sys.executable, "-c", _CHILD, json.dumps(settings)]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return found


def weight_bytes(model: Path, dtype: str) -> int:
    """What the checkpoint's tensors take in this type. Reads all files: the system then has them at hand."""
    numbers = 0
    for path in model.glob("*.safetensors"):
        path.read_bytes()
        with safe_open(path, framework="pt") as file:
            numbers += sum(prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    return numbers * ITEM_BYTES[dtype]


def results(model: Path, dtype: str, rounds: int, quantization: str = "auto") -> dict[str, Any]:
    """Medians of several starts; bytes in MiB. Of quantized weights those count that the worker has kept."""
    weights = weight_bytes(model, dtype)
    starts = [measured(model, dtype, quantization) for _ in range(rounds)]
    if quantization != "auto":
        weights = int(median(start["kept"] for start in starts))
    loading, peak, pages = (median(start[name] for start in starts) for name in ("loading", "peak", "pages"))
    return {
        "model": model.name,
        "dtype": dtype,
        **({} if quantization == "auto" else {"quantization": quantization}),
        "seconds to load": round(median(start["seconds"] for start in starts), 2),
        "weights MiB": round(weights / 2**20, 1),
        "loading, peak over weights": round(loading / weights, 3),
        "pages MiB": round(pages / 2**20, 1),
        "peak MiB": round(peak / 2**20, 1),
        "beside weights and pages MiB": round((peak - weights - pages) / 2**20, 1),
    }


def main() -> None:
    command = parser(__doc__)
    command.add_argument("--shape", choices=sorted(SHAPES), default="1.1b")
    command.add_argument("--model", type=Path, help="a model (default: one of the shape)")
    command.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    command.add_argument("--quantization", choices=["auto", "int8", "int4"], default="auto")
    command.add_argument("--rounds", type=int, default=3)
    arguments = command.parse_args()
    found = results(
        arguments.model or made(arguments.shape), arguments.dtype, arguments.rounds, arguments.quantization
    )
    print(json.dumps(found, indent=2))
    name = "-".join(found[key] for key in ("model", "quantization") if key in found)
    write(arguments.out or RESULTS / f"footprint-{name}.json", "footprint", 0, found)


if __name__ == "__main__":
    main()
