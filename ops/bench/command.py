"""What the commands of benchmarks, `python -m ops.bench.NAME`, have in common."""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def parser(about: str | None, file: str = "") -> ArgumentParser:
    """A parser that shows `about`, a module's docstring, as its help, and takes `--out`.

    `file`: where results go by default, in `RESULTS`. Empty: nowhere, or where the benchmark says.
    """
    made = ArgumentParser(description=about, formatter_class=RawDescriptionHelpFormatter)
    default = RESULTS / file if file else None
    made.add_argument("--out", type=Path, default=default, metavar="FILE", help="JSON file for the results")
    return made
