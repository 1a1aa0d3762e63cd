"""`quire bench mechanisms`: each mechanism on and off."""

import argparse
import sys
from typing import Any

from ops.cli.arguments import add_command, positive
from ops.cli.tools.bench_step import add_model_to, worker_settings
from ops.model_directory.hub import HubError

_DESCRIPTION = """\
The same work with a mechanism and without it, in turns.

  quire bench mechanisms                                     all of them, on the model that ships
  quire bench mechanisms --only 'chunked prefill' --shape 135m --dtype bfloat16
"""

STEP_TOKENS = 2304
"""Room for the long prompt in one step."""


def add_to(kinds: Any) -> None:
    mechanisms = add_command(kinds, "mechanisms", "each mechanism on and off", _DESCRIPTION)
    add_model_to(mechanisms)
    mechanisms.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="this one; can be given several times"
    )
    mechanisms.add_argument("--rounds", type=positive, default=3, metavar="N", help="turns of each (3)")
    mechanisms.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from gpu_worker.startup.load import load
    from ops.bench.mechanisms import deployed, mechanisms
    from ops.bench.record import write

    known = [one.name for one in (*mechanisms.MECHANISMS, *deployed.DEPLOYED)]
    if unknown := [name for name in arguments.only if name not in known]:
        print(f"quire bench: no mechanism {unknown[0]!r} ({', '.join(known)})", file=sys.stderr)
        return 2
    settings = worker_settings(arguments, step_tokens=STEP_TOKENS)
    try:
        found = mechanisms.measure(
            load(settings), settings, arguments.rounds, arguments.seed, frozenset(arguments.only)
        )
    except (RuntimeError, OSError, HubError) as error:
        print(f"quire bench: {error}", file=sys.stderr)
        return 1
    print(mechanisms.table(found))
    if arguments.out is not None:
        write(arguments.out, "mechanisms", arguments.seed, found)
    return 0
