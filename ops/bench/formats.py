"""Checkpoint formats: memory while a model is loaded, and steps beside Quire's own int4 or int8.

    python -m ops.bench.formats memory      adds to ops/bench/results/formats-memory.json
    python -m ops.bench.formats steps       adds to ops/bench/results/formats-steps-135m.json

Models have random weights (`ops/bench/rig/formats.py`) and compute in bfloat16. Memory is measured as in
`ops/bench/footprint.py`, at 1 to 2 GB. Steps are decodes of two models in one process, in turns: one with
weights that a checkpoint has in 4 bits or in one byte, and one of the same shape with the products of
`QUIRE_QUANTIZATION`. Formats that a call does not measure keep the figures that the file has.
"""

import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from gpu_worker.settings import WorkerSettings
from gpu_worker.startup.backend import instruction_set
from gpu_worker.startup.load import load
from gpu_worker.step.runner import Runner
from ops.bench.command import RESULTS, parser
from ops.bench.footprint import measured
from ops.bench.record import read, write
from ops.bench.rig.formats import made_in
from ops.bench.rig.pages import fill
from ops.bench.rig.plans import decodes

SHAPES: Mapping[str, str] = {
    **dict.fromkeys(("bfloat16", "fp8", "nvfp4", "int8", "q8_0"), "1.1b"),
    **dict.fromkeys(("awq", "gptq", "w4a16", "q4_k_m"), "3b"),
}
"""Shapes whose weights take 1 to 2 GB, by format, as they are kept on a CPU."""
BESIDE: Mapping[str, tuple[str, str]] = {
    "w4a16": ("bfloat16", "int4"),
    **dict.fromkeys(("int8", "q8_0"), ("bfloat16", "int8")),
    **dict.fromkeys(("awq", "gptq", "nvfp4"), ("w4a16", "auto")),
    "fp8": ("int8", "auto"),
}
"""What a format that is kept on a CPU is measured beside: another format, and `QUIRE_QUANTIZATION`, whose
products w4a16 and int8 have, too. But their heads are bfloat16, as in the formats beside them."""
BATCHES = (1, 8, 32)
CONTEXT = 128
STEPS = 16
"""Steps of a turn; the first ones are recorded, and the median of the others counts."""
WARM = 4


def memory(form: str, shape: str, folder: Path | None = None) -> dict[str, Any]:
    """What loading a model takes; bytes in MiB."""
    model = made_in(form, shape, folder=folder)
    files = [model] if model.is_file() else list(model.glob("*.safetensors"))
    for path in files:  # the system then has them at hand
        with path.open("rb") as file:
            while file.read(1 << 24):
                pass
    found = measured(model, "bfloat16")
    return {
        "shape": shape,
        "files MiB": round(sum(path.stat().st_size for path in files) / 2**20),
        "kept MiB": round(found["kept"] / 2**20),
        "peak over kept": round(found["loading"] / found["kept"], 3),
    }


def steps(form: str, shape: str, rounds: int, batches: Sequence[int], folder: Path | None = None) -> Any:
    """By the number of decodes: milliseconds of a step, Quire's own, and their ratio, lowest to highest."""
    with ThreadPoolExecutor(1) as engine:  # a thread of its own computes, as in a worker
        return engine.submit(_steps, form, shape, rounds, batches, folder).result()


def _steps(form: str, shape: str, rounds: int, batches: Sequence[int], folder: Path | None) -> dict[str, Any]:
    own, quantization = BESIDE[form]
    runners = [
        _runner(made_in(form, shape, folder=folder), "auto"),
        _runner(made_in(own, shape, folder=folder), quantization),
    ]
    name = own if quantization == "auto" else f"QUIRE_QUANTIZATION={quantization}"
    found: dict[str, Any] = {"beside": name}
    for rows in batches:
        spent: list[list[float]] = [[], []]
        for number in range(rounds + 1):  # the first round warms up
            for which in (0, 1) if number % 2 else (1, 0):
                seconds = _turn(runners[which], rows, number)
                if number:
                    spent[which].append(seconds)
        ratios = sorted(one / other for one, other in zip(*spent, strict=True))
        found[str(rows)] = {
            "ms": round(1000 * median(spent[0]), 2),
            "own ms": round(1000 * median(spent[1]), 2),
            "ratio": [round(each, 3) for each in (ratios[0], median(ratios), ratios[-1])],
        }
    return found


def _runner(model: Path, quantization: str) -> Runner:
    given: Any = {"quantization": quantization, "kv_memory": 256 << 20, "max_model_len": 256}
    runner = load(WorkerSettings(model=model, dtype="bfloat16", device="cpu", **given))
    for cache in runner.pages:  # memory that was never written is one page of zeros, read from the cache
        fill(cache)
    runner.enter()
    return runner


def _turn(runner: Runner, rows: int, seed: int) -> float:
    """Seconds of a step of `rows` decodes."""
    spent = []
    for plan in decodes(runner.limits, rows, CONTEXT, STEPS, seed):
        started = time.perf_counter()
        result = runner.execute(plan)
        spent.append(time.perf_counter() - started)
        if result.errors:
            raise RuntimeError(result.errors[0].message)
    runner.reset()
    return median(spent[WARM:])


def main() -> None:
    command = parser(__doc__)
    command.add_argument("what", choices=["memory", "steps"])
    command.add_argument("--formats", nargs="+", choices=sorted(SHAPES), help="default: all that fit")
    command.add_argument("--shape", default="135m", help="of steps")
    command.add_argument("--batches", nargs="+", type=int, default=BATCHES)
    command.add_argument("--rounds", type=int, default=9)
    given = command.parse_args()
    name = "formats-memory" if given.what == "memory" else f"formats-steps-{given.shape}"
    path = given.out or RESULTS / f"{name}.json"
    head = {"dtype": "bfloat16"}
    if given.what == "steps":
        chosen = instruction_set(WorkerSettings(dtype="bfloat16", device="cpu"))
        head |= {"model": given.shape, "instruction set": chosen}
    fitting = SHAPES if given.what == "memory" else BESIDE
    for form in given.formats or fitting:
        if given.what == "memory":
            found = memory(form, SHAPES[form])
        else:
            found = steps(form, given.shape, given.rounds, given.batches)
        print(form, json.dumps(found), flush=True)
        earlier = read(path).results["formats"] if path.exists() else {}
        write(path, f"formats-{given.what}", 0, head | {"formats": earlier | {form: found}})


if __name__ == "__main__":
    main()
