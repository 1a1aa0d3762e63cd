"""The command `quire`, as it is installed: with a package missing it says so in one line.

Ctrl-C ends it without a traceback from the beginning, while its modules are imported.
"""

import sys

from ops.launcher.installed import HINT


def main() -> int:
    """See `ops.cli.main.main`."""
    try:
        from ops.cli.main import main as command

        return command()  # some modules are imported only by the command that needs them
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("ops", "proto", "gateway", "scheduler_svc"):
            raise  # not a package that somebody could install
        print(f"quire: not installed: {error.name}; {HINT}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
