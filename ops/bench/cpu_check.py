"""Check the CPU kernels on this machine, and measure them: `python -m ops.bench.cpu_check OUT`.

    --minutes 10             at most; parts without time left are listed as left out
    --start NAME='COMMAND'   another server to compare with (docs/measure.md); transformers always is

For each instruction set that the machine has, the best first: the kernels' tests; steps of a model of 135
million parameters beside their floors, in each form of weights; products beside oneDNN's and attention beside
PyTorch's; then answers over HTTP beside other engines, which are held to the same instruction set. Needs a
checkout, and no network. Writes OUT/cpu-PROCESSOR-SET.json, where SET is the best instruction set: machines
without and with AVX-512 may give their processors the same name.

Status: 0 if no check failed, 1 if one did.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from ops.bench import record

SHAPE = "135m"
FORMS = {
    "float32": ("float32", "none"),
    "bfloat16": ("bfloat16", "none"),
    "int8": ("bfloat16", "int8"),
    "int4": ("bfloat16", "int4"),
}
"""Type of activations and type that weights are quantized to, by the name of the weights' form."""
ROWS = (1, 8, 32)
"""Sequences of a step that decodes."""
CONTEXT = 256
"""Tokens of each of them."""
PREFILL = 512
"""Tokens of a prompt that one step computes."""
STEPS = 12
"""Steps of each batch. The median counts, without the first and those that lost a core to other machines."""
PRODUCTS = {"135M": {"gate_up": (3072, 576)}, "1.1B": {"gate_up": (11264, 2048)}}
"""(out, in) of the products that are compared."""
DECODES = ((8, 1024),)
"""(sequences, tokens of each) of the decodes whose attention is compared."""
CHUNKS = ((128, 1024),)
"""(tokens, tokens before them) of the chunks whose attention is compared."""
TURNS = 3
SEED = 1
TESTS = "tests/unit/gpu_worker/kernels/cpu"
ISA_OF_ONEDNN = {
    "amx": "AVX512_CORE_AMX",
    "avx512_bf16": "AVX512_CORE_BF16",
    "avx512_vnni": "AVX512_CORE_VNNI",
    "avx512": "AVX512_CORE",
    "avx2_vnni": "AVX2_VNNI",
    "avx2": "AVX2",
    "neon_dot": "DEFAULT",
    "portable": "SSE41",
}
"""ONEDNN_MAX_CPU_ISA of other engines, by the instruction set that Quire's kernels are compiled for."""
USERS = "1,8"
LEFT_FOR_A_COMPARISON = 75
"""Seconds that a comparison with other engines takes at least."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check. Returns the process's exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder for the results")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--start", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--one", nargs=2, metavar=("KERNELS", "FORM"), help=argparse.SUPPRESS)
    parser.add_argument("--kernels", metavar="KERNELS", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(steps(*options.one)))
        return 0
    if options.kernels:
        print(json.dumps(kernels_alone(options.kernels)))
        return 0
    return _check(options.out, time.monotonic() + 60 * options.minutes, options.start)


def _check(out: Path, deadline: float, others: Sequence[str]) -> int:
    from gpu_worker.kernels.cpu import build

    sets = build.supported()
    results: dict[str, Any] = {"wrong": [], "left out": [], "steps": {}, "kernels": {}, "answers": {}}
    machine = record.machine()["cpu"] or build.processor().splitlines()[0]
    processor = re.sub(r"[^a-z0-9]+", "-", machine.lower()).strip("-")
    path = out / f"cpu-{processor}-{sets[0]}.json"

    def note(part: str, run: Any, *needed: Any) -> None:
        print(f"== {part}", file=sys.stderr, flush=True)
        if time.monotonic() > deadline:
            results["left out"].append(part)
        else:
            try:
                run(*needed)
            except subprocess.TimeoutExpired:
                results["left out"].append(f"{part}: not ended in time")
            except (subprocess.SubprocessError, OSError, ValueError) as error:
                results["wrong"].append(f"{part}: {_reason(error)}")
        record.write(path, "cpu-check", SEED, results)

    note("tests", _tests, results, deadline)
    for form in FORMS:
        for name in sets:
            note(f"steps of {form} with {name}", _steps, results["steps"], name, form, deadline)
    for name in sets:
        note(f"products and attention with {name}", _kernels, results["kernels"], name, deadline)
    for name in sets[: sets.index("portable")] or sets:
        if time.monotonic() + LEFT_FOR_A_COMPARISON > deadline:
            results["left out"].append(f"answers with {name}")
            continue
        note(f"answers with {name}", _answers, results["answers"], name, others, deadline)
    record.write(path, "cpu-check", SEED, results)
    print(table(results))
    for what in ("wrong", "left out"):
        for line in results[what]:
            print(f"{what}: {line}")
    print(f"written to {path}")
    return 1 if results["wrong"] else 0


def _python(
    command: Sequence[str], environment: Mapping[str, str], deadline: float, check: bool = True
) -> "subprocess.CompletedProcess[str]":
    """Run a module of Python, with its arguments, until the deadline or for a minute."""
    return subprocess.run(
        [sys.executable, "-m", *command],
        env=environment,
        capture_output=True,
        text=True,
        check=check,
        timeout=max(60, deadline - time.monotonic()),
    )


def _tests(results: dict[str, Any], deadline: float) -> None:
    """The kernels' own tests, over every instruction set."""
    if not Path(TESTS).is_dir():
        results["left out"].append("tests: this is no checkout")
        return
    command = ("pytest", "-q", "-n", str(min(4, os.cpu_count() or 1)), TESTS)
    done = _python(command, os.environ | {"TEST_KERNELS": "all"}, deadline, check=False)
    results["tests"] = done.stdout.strip().splitlines()[-1:]
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if done.returncode:
        results["wrong"] += failed or [f"tests: {_last_line(done.stderr or done.stdout)}"]


def _steps(found: dict[str, Any], name: str, form: str, deadline: float) -> None:
    """Steps beside floors whose matrix rate is PyTorch's, held to the instruction set."""
    command = ("ops.bench.cpu_check", ".", "--one", name, form)
    done = _python(command, _held_to(name), deadline)
    found.setdefault(form, {})[name] = json.loads(done.stdout)


def _kernels(found: dict[str, Any], name: str, deadline: float) -> None:
    """Products and attention, in a process in which PyTorch is held to the instruction set, too."""
    done = _python(("ops.bench.cpu_check", ".", "--kernels", name), _held_to(name), deadline)
    found[name] = json.loads(done.stdout)


def _held_to(name: str) -> dict[str, str]:
    """The environment, in which nothing uses more than one instruction set of `ISA_OF_ONEDNN`."""
    has_avx512 = name == "amx" or "avx512" in name
    return os.environ | {
        "QUIRE_KERNELS": name,
        "ONEDNN_MAX_CPU_ISA": ISA_OF_ONEDNN[name],
        "ATEN_CPU_CAPABILITY": "avx512" if has_avx512 else "avx2" if "avx2" in name else "default",
        "MKL_ENABLE_INSTRUCTIONS": "AVX512" if has_avx512 else "AVX2" if "avx2" in name else "SSE4_2",
    }


def _answers(found: dict[str, Any], name: str, others: Sequence[str], deadline: float) -> None:
    """Quire and other engines, asked by turns, all held to one instruction set."""
    environment = _held_to(name)
    for model, dtype in (("", "float32"), (SHAPE, "bfloat16")):
        if time.monotonic() + LEFT_FOR_A_COMPARISON > deadline:
            return
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "compare.json"
            command = (
                *("ops.cli.main", "bench", "compare", "--dtype", dtype),
                *("--concurrency", USERS, "--requests", "4", "--rounds", "2", "--seed", str(SEED)),
                *(("--shape", model) if model else ()),
                *(argument for other in others if model for argument in ("--start", other)),
                *("--out", str(out), "--plots", folder),
            )
            _python(command, environment, deadline)
            results = record.read(out).results
        found.setdefault(name, {})[model or "shipped"] = {
            "dtype": dtype,
            "openmp": results["openmp"],
            "output tokens a second": {
                str(load["concurrency"]): {
                    engine: one["all"]["output_rate"] for engine, one in load["competitors"].items()
                }
                for load in results["loads"]
            },
        }


def steps(kernels: str, form: str) -> dict[str, Any]:
    """Steps of the model of shape `SHAPE` in this process: milliseconds, and multiples of their floors."""
    with ThreadPoolExecutor(1) as engine:  # a thread of its own computes, as in a worker
        return engine.submit(_steps_here, kernels, form).result()


def _steps_here(kernels: str, form: str) -> dict[str, Any]:
    from gpu_worker.machine.rates import measured
    from gpu_worker.models.config import ModelConfig
    from gpu_worker.models.work import ITEM_BYTES, work
    from gpu_worker.settings import WorkerSettings
    from gpu_worker.startup.load import load
    from ops.bench.rig import shapes
    from ops.bench.rig.pages import fill
    from ops.bench.rig.plans import decodes, prefill
    from ops.bench.rig.stolen import calm, stolen_since

    dtype, quantization = FORMS[form]
    settings = WorkerSettings.model_validate(
        {
            "model": shapes.made(SHAPE),
            "dtype": dtype,
            "quantization": quantization,
            "kernels": kernels,
            "kv_memory": 1 << 30,
        }
    )
    runner = load(settings)
    config = runner.model.config
    assert isinstance(config, ModelConfig)
    for cache in runner.pages:
        fill(cache)
    rates = measured(runner.dtype, settings.thread_count)
    itemsize = ITEM_BYTES.get(quantization, runner.dtype.itemsize)
    token_bytes = runner.token_bytes
    runner.enter()

    def timed(plans: Any, counts: list[int], contexts: list[int]) -> dict[str, float]:
        spent = []
        for plan in plans:
            begun, stolen = time.perf_counter(), stolen_since()
            result = runner.execute(plan)
            spent.append((time.perf_counter() - begun, stolen()))
            if result.errors:
                raise RuntimeError(result.errors[0].message)
        runner.reset()
        seconds = median(each for each, _ in calm(spent[1:], lambda step: step[1]))
        floor = work(config, itemsize, token_bytes, counts, contexts).floor(rates)
        return {"ms": round(1000 * seconds, 3), "times the floor": round(seconds / floor, 3)}

    limits = runner.limits
    prompt = prefill(limits, [300 + number for number in range(PREFILL)])

    def prompts() -> Any:
        for _ in range(3):
            runner.reset()
            yield prompt

    found = {
        f"{rows} decodes": timed(
            decodes(limits, rows, CONTEXT, STEPS, SEED), [1] * rows, [CONTEXT - STEPS // 2] * rows
        )
        for rows in ROWS
    }
    found[f"prefill of {PREFILL}"] = timed(prompts(), [PREFILL], [PREFILL])
    return {
        "read_gb_s": round(rates.read / 1e9, 2),
        "matrix_gflop_s": round(rates.matrix / 1e9, 1),
        "steps": found,
    }


def kernels_alone(name: str) -> dict[str, Any]:
    """Microseconds of products by kind, and rates of attention, with one instruction set in this process."""
    from ops.bench.attention import attention
    from ops.bench.linear import products

    attended = attention(name, DECODES, CHUNKS, TURNS)  # first: `products` keeps this thread to one core
    return {"products": products(name, PRODUCTS, ROWS), "attention": attended}


def table(results: dict[str, Any]) -> str:
    """The results for a person: milliseconds of steps, and multiples of their floors in brackets."""
    cells: list[tuple[str, ...]] = []
    for form, by_set in results["steps"].items():
        for name, found in by_set.items():
            shapes = found["steps"]
            if not cells:
                cells.append(("weights", "kernels", *shapes))
            times = (f"{one['ms']:.1f} ({one['times the floor']:.2f})" for one in shapes.values())
            cells.append((form, name, *times))
    blocks = [record.aligned(cells)] if cells else []
    for name, alone in results["kernels"].items():
        blocks += [f"{name}, {line}" for line in _lines(alone)]
    for name, models in results["answers"].items():
        for model, found in models.items():
            for users, rates in found["output tokens a second"].items():
                each = ", ".join(f"{engine} {rate:.1f}" for engine, rate in rates.items())
                blocks.append(f"{name}, {model} in {found['dtype']}, {users} at once: {each} tokens/s")
    return "\n".join(blocks)


def _lines(alone: dict[str, Any]) -> Iterator[str]:
    """Products and attention with one instruction set."""
    for model, by_product in alone["products"].items():
        for product, by_rows in by_product.items() if isinstance(by_product, dict) else ():
            each = (f"{rows} rows {_kinds(found)}" for rows, found in by_rows.items())
            yield f"{model} {product}, microseconds: {', '.join(each)}"
    for kind, unit in (("decodes", "GB/s"), ("chunks", "GFLOP/s")):
        for one in alone["attention"][kind]:
            what = f"attention, {one['shape']}, {one['rows']} x {one['tokens']} of {one['context']} tokens"
            yield f"{what}: {one[unit]} {unit}, PyTorch {one[f'{unit} of PyTorch']}"


def _kinds(found: dict[str, Any]) -> str:
    return " ".join(f"{kind} {one['us']:.0f}" for kind, one in found.items() if kind != "plain_read")


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return _last_line(error.stderr or error.stdout or str(error))
    return _last_line(str(error))


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]


if __name__ == "__main__":
    sys.exit(main())
