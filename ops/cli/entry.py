"""The command `quire`, as it is installed. If its modules cannot be imported, one line says why.

A package may be missing, or another one may have the name of one of Quire's, such as `proto` of proto-plus.
Ctrl-C ends the command without a traceback, also while its modules are imported.
"""

import sys
from pathlib import Path

from ops.launcher.installed import HINT


def main() -> int:
    """See `ops.cli.main.main`."""
    try:
        from ops.cli.main import main as command

        return command()  # some modules are imported only by the command that needs them
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("ops", "proto", "gateway", "scheduler_svc"):
            found = getattr(sys.modules.get(package), "__file__", None)
            if found is None or Path(found) == Path(__file__).parents[2] / package / "__init__.py":
                raise  # not a package that somebody could install
            print(
                f"quire: {found} has the name of a package of Quire's; take it out of PYTHONPATH, or install "
                "Quire in a virtual environment of its own",
                file=sys.stderr,
            )
            return 2
        print(f"quire: not installed: {error.name}; {HINT}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
