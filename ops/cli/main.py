"""`quire`: the command line."""

import argparse
import errno
import sys
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from ops.cli import batch, chat, down, keys, plan_memory, quantize, record, replay, status, top, up
from ops.cli.output import escape_unknown, open_all, silence
from ops.runtime.errors import LaunchError

_DESCRIPTION = """\
Quire serves large language models through an OpenAI-compatible API.

  quire up                 start everything and serve a model, by default the one that ships with Quire
  quire batch IN OUT       answer the requests of a file
  quire chat               talk to it, in another terminal
  quire status             what runs, and how it is
  quire top                what goes on inside, live
  quire keys               give out and revoke API keys
  quire down               stop what `quire up --detach` left running
  quire bench serve        put it under load and measure it
  quire bench compare      the same questions to other engines, in turns
  quire bench step         where the time of a step goes
  quire bench mechanisms   each mechanism on and off
  quire simulate           a load on any number of workers, under virtual time
  quire plan-memory        how much memory a model takes, and how many requests fit
  quire quantize           write a copy of a model in 4 or 8 bits
  quire record             write down what was planned and computed in the last minutes
  quire replay FILE        carry out such a recording again, to the first difference

`quire COMMAND --help` has the options of each, with examples.
"""

TOOLS = ("bench", "simulate")
"""Commands that measure. What is installed from a wheel does not have them."""
FULL = (errno.ENOSPC, errno.EDQUOT)
"""What writing to a disk without room ends with."""


class _Version(argparse.Action):
    """Looked up only when it is asked for: a checkout that is not installed has none."""

    def __call__(self, *_: Any) -> None:
        print(f"quire {version('quire')}")
        raise SystemExit


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    whole = argparse.ArgumentParser(
        prog="quire",
        usage="quire [-h] [--version] COMMAND ...",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    whole.add_argument("--version", action=_Version, nargs=0, help="say which version this is")
    subcommands = whole.add_subparsers(prog="quire", metavar="COMMAND", required=True, help=argparse.SUPPRESS)
    for command in (up, batch, status, top, down, keys, chat, plan_memory, quantize, record, replay):
        command.add_to(subcommands)
    if _has_tools():
        from ops.cli.tools import bench, simulate

        bench.add_to(subcommands)
        simulate.add_to(subcommands)
    return whole


def _has_tools() -> bool:
    return find_spec("ops.cli.tools") is not None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand; its exit status: 0 all is well, 1 it is not, 2 it was asked wrongly."""
    open_all()
    escape_unknown()
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] in TOOLS and not _has_tools():
        print(
            f"quire: `quire {given[0]}` is not part of the installed package; "
            f"in a checkout of the repository run `make install`, then `.venv/bin/quire {given[0]}`",
            file=sys.stderr,
        )
        return 2
    try:
        options = parser().parse_args(given)
        status: int = options.run(options)
        sys.stdout.flush()
    except LaunchError as error:
        print(f"quire: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        silence(sys.stdout)
        return 0
    except OSError as error:
        if error.errno not in FULL:
            raise
        print(f"quire: {error.strerror}", file=sys.stderr)
        silence(sys.stdout)
        return 1
    return status


if __name__ == "__main__":
    sys.exit(main())
