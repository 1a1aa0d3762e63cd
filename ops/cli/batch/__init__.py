"""`quire batch`: the requests of a file, answered into another one; `ops.cli.batch.asking` asks them."""

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

from ops.cli.arguments import add_command, gateway_url, positive
from ops.launcher.deployments import recorded

_DESCRIPTION = """\
Answer the requests of a file, one a line in the format of OpenAI's batches, by the deployment
that runs, or by one of its own until all are answered:

  quire batch in.jsonl out.jsonl
  quire batch in.jsonl out.jsonl --model ~/models/llama

Results come in any order. Broken off, it goes on when it is started again: requests whose
results are in the file are not asked again. An API key, where one is needed, is taken from
OPENAI_API_KEY.

Exit status: 0 if all requests were answered, 1 if some have failed.
"""


def add_to(subcommands: Any) -> None:
    batch = add_command(subcommands, "batch", "answer the requests of a file", _DESCRIPTION)
    batch.add_argument("input", type=Path, metavar="IN", help="requests, one a line")
    batch.add_argument("output", type=Path, metavar="OUT", help="results; others are added to its end")
    where = batch.add_mutually_exclusive_group()
    where.add_argument("--url", help="the gateway (default: the running one)")
    where.add_argument("--model", metavar="MODEL", help="start one of this model, as `quire up` does")
    batch.add_argument(
        "--at-once", type=positive, default=16, metavar="N", help="requests at once (default: 16)"
    )
    batch.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from ops.cli.batch.asking import answer_file  # its libraries are for this command alone
    from ops.launcher.specs import own_code
    from ops.launcher.temporary import temporary_deployment

    running = any(found.launcher.alive() for found in recorded())
    if (arguments.url or running) and not arguments.model:
        return answer_file(arguments.input, arguments.output, gateway_url(arguments.url), arguments.at_once)
    model = ["--model", arguments.model] if arguments.model else []
    with temporary_deployment(model, own_code(), partial(print, file=sys.stderr)) as own:
        return answer_file(arguments.input, arguments.output, own.url, arguments.at_once)
