"""`quire bench compare`: Quire beside other engines."""

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import Any

from ops.cli.arguments import add_command, numbers, positive, span
from ops.model_directory.hub import HubError, fetched
from ops.model_directory.settings import SHIPPED_MODEL

_DESCRIPTION = """\
Ask Quire and other engines the same questions on this machine, in turns, and tell the ratios.

  quire bench compare --shape 135m                  Quire and transformers, static and continuous batching
  quire bench compare --model ~/models/llama --dtype float32 --check
  quire bench compare --shape 1.1b --server vllm=http://127.0.0.1:9000
  quire bench compare --shape 1.1b --start 'other=serve {model} --port {port} --threads {threads}'

All have the same weights, type of numbers and threads. Quire is measured over HTTP through all of its
processes, transformers inside its own. docs/measure.md says how to start other servers, and what the
figures mean. A shape is a model with random weights, made when it is first asked for.
"""


def add_to(kinds: Any) -> None:
    compare = add_command(kinds, "compare", "Quire beside other engines, in turns", _DESCRIPTION)
    model = compare.add_mutually_exclusive_group()
    model.add_argument("--shape", choices=("135m", "1.1b"), help="a model of this shape, with random weights")
    model.add_argument("--model", type=Path, metavar="MODEL", help="directory or id (the shipped model)")
    compare.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    compare.add_argument(
        "--quantization",
        choices=("none", "int8", "int4"),
        default="none",
        help="what Quire's weights become; a server that is started brings such weights of its own",
    )
    compare.add_argument(
        "--threads", type=positive, metavar="N", help="threads of each model (default: all cores)"
    )
    compare.add_argument(
        "--concurrency",
        type=numbers,
        default=(1, 4, 8, 16, 32),
        metavar="N,N",
        help="requests at once (1,4,8,16,32)",
    )
    compare.add_argument(
        "--prompt-lengths", type=numbers, default=(32, 128, 512), metavar="N,N", help="tokens (32,128,512)"
    )
    compare.add_argument(
        "--output", type=span, default=(64, 64), metavar="N[:M]", help="tokens of an answer (64)"
    )
    compare.add_argument("--rounds", type=positive, default=3, metavar="N", help="turns of each (3)")
    compare.add_argument(
        "--requests",
        type=positive,
        default=6,
        metavar="N",
        help="least requests of a turn (6; two for each at once at least)",
    )
    compare.add_argument(
        "--server", type=_named, action="append", default=[], metavar="NAME=URL", help="a server that runs"
    )
    compare.add_argument(
        "--start",
        type=_named,
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="a server to start; {port}, {model}, {dtype} and {threads} are filled in",
    )
    compare.add_argument(
        "--without-transformers",
        action="store_true",
        help="of a large model it takes most of the time",
    )
    compare.add_argument(
        "--check", action="store_true", help="also compare greedy answers with those of transformers"
    )
    compare.add_argument("--seed", type=int, default=0)
    compare.add_argument("--out", type=Path, metavar="FILE", help="also write the result as JSON")
    compare.add_argument("--plots", type=Path, metavar="DIR", help="also draw it (needs matplotlib)")
    compare.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from ops.bench.compare import Contest, compare, save, table  # its libraries are for this command alone
    from ops.bench.engines.competitor import terms
    from ops.bench.load.workload import Workload
    from ops.bench.rig.shapes import made

    contest = Contest(
        Workload(arguments.prompt_lengths, arguments.output),
        arguments.concurrency,
        arguments.requests,
        arguments.rounds,
        arguments.seed,
    )
    model = made(arguments.shape) if arguments.shape else arguments.model or SHIPPED_MODEL
    try:
        directory = fetched(model)
    except HubError as error:
        print(f"quire bench compare: {error}", file=sys.stderr)
        return 2
    equal = terms(
        directory,
        arguments.dtype,
        arguments.threads or len(os.sched_getaffinity(0)),
        max(arguments.concurrency),
        max(arguments.prompt_lengths) + arguments.output[1],
        arguments.quantization,
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # competitors, which are stopped, end with it
    try:
        found = compare(
            contest,
            equal,
            dict(arguments.server),
            dict(arguments.start),
            arguments.check,
            not arguments.without_transformers,
        )
    except (RuntimeError, OSError) as error:
        print(f"quire bench compare: {error}", file=sys.stderr)
        return 1
    print(table(found))
    if arguments.out is not None:
        save(arguments.out, arguments.seed, found)
    if arguments.plots is not None:
        from ops.bench.report.plots import plot_compare

        for path in plot_compare(found, arguments.plots):
            print(path)
    wrong = sum(one["wrong"] for load in found["loads"] for one in load["competitors"].values())
    return 1 if wrong or found["absent"] else 0


def _named(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise argparse.ArgumentTypeError("NAME=... is needed")
    return name, value
