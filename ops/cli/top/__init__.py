"""`quire top`: what goes on inside a deployment, live in the terminal; `view.py` draws it."""

import argparse
from typing import Any

from ops.cli.arguments import add_command, add_url, gateway_url

_DESCRIPTION = """\
Show what goes on inside a deployment while it happens: requests, blocks, steps, rates and
processes. By default of the one that `quire up` has started on this machine. The page at
/inside shows more. Where an API key is needed it is taken from OPENAI_API_KEY, and must have the
right: `quire keys add NAME --rights inside`.

Ctrl-C ends it. Where the output is no terminal, or with --once, it shows how things are and ends.
"""


def add_to(subcommands: Any) -> None:
    top = add_command(subcommands, "top", "show what goes on inside, live", _DESCRIPTION)
    add_url(top)
    top.add_argument("--once", action="store_true", help="show how things are, and end")
    top.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from ops.cli.top.watch import follow  # its libraries are for this command alone

    return follow(gateway_url(arguments.url), arguments.once)
