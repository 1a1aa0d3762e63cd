"""`quire bench step`: one step, taken apart."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ops.cli.arguments import add_command, numbers, positive
from ops.model_directory.hub import HubError
from ops.model_directory.settings import SHIPPED_MODEL

if TYPE_CHECKING:
    from gpu_worker.settings import WorkerSettings

_DESCRIPTION = """\
Where the time of a step goes, beside the least that it can take on this machine; or what the chain of
processes costs beside the same engine in one process.

  quire bench step                                 the model that ships
  quire bench step --shape 135m --dtype bfloat16
  quire bench step --shape 135m --dtype bfloat16 --in-process
"""


def add_to(kinds: Any) -> None:
    step = add_command(kinds, "step", "one step, by part", _DESCRIPTION)
    add_model_to(step)
    step.add_argument(
        "--in-process", action="store_true", help="compare the chain of processes with the engine in one"
    )
    step.add_argument(
        "--concurrency", type=numbers, default=(1, 8, 32), metavar="N,N", help="with --in-process (1,8,32)"
    )
    step.add_argument("--rounds", type=positive, default=3, metavar="N", help="with --in-process: turns (3)")
    step.set_defaults(run=run)


def add_model_to(parser: argparse.ArgumentParser) -> None:
    """What is measured, and where the result goes."""
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--shape", choices=("135m", "1.1b"), help="a model of this shape, with random weights")
    model.add_argument("--model", type=Path, metavar="MODEL", help="directory or id (the shipped model)")
    parser.add_argument("--dtype", choices=("auto", "bfloat16", "float32"), default="auto")
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="of the model (all cores)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the result as JSON")


KV_MEMORY = 1 << 30
"""Bytes; enough for every shape of a step, and so that no more memory is taken than is needed."""


def worker_settings(arguments: argparse.Namespace, **changes: Any) -> "WorkerSettings":
    """Settings of a worker for the model that was asked for."""
    from gpu_worker.settings import WorkerSettings
    from ops.bench.rig import shapes

    return WorkerSettings(
        model=shapes.made(arguments.shape) if arguments.shape else (arguments.model or SHIPPED_MODEL),
        dtype=arguments.dtype,
        threads=arguments.threads,
        kv_memory=KV_MEMORY,
        **changes,
    )


def run(arguments: argparse.Namespace) -> int:
    from ops.bench import step
    from ops.bench.record import write

    settings = worker_settings(arguments)
    try:
        if arguments.in_process:
            result = step.in_process(settings, arguments.concurrency, arguments.rounds, arguments.seed)
            for many, one in result["output_tokens_per_second"].items():
                low, middle, high = one["ratio"]
                print(
                    f"{many:>3} at once: chain {one['chain']:.1f} tokens/s, one process "
                    f"{one['in_process']:.1f}, ratio {middle:.3f} ({low:.3f} to {high:.3f})"
                )
        else:
            result = step.measure(settings, arguments.seed)
            print(step.table(result))
    except (RuntimeError, OSError, HubError) as error:
        print(f"quire bench: {error}", file=sys.stderr)
        return 1
    if arguments.out is not None:
        write(arguments.out, "in-process" if arguments.in_process else "step", arguments.seed, result)
    return 0
