"""Whether a change costs speed: this checkout beside another commit, the same benchmarks in turns.

    python -m ops.bench.before_after COMMIT [--rounds 5] [--only core chain step]

A machine's speed drifts by more than a change may cost. So each round runs a benchmark of both, one after the
other, and the order changes with every round. What counts is the median over the rounds of after / before, of
every figure that the benchmark writes. Writes ops/bench/results/before_after.json, anew after each round.
A round of `step` takes six minutes on two cores.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ops.bench.command import parser
from ops.bench.record import aligned, commit, read, write

ROOT = Path(__file__).parents[2]

BENCHMARKS: Mapping[str, Sequence[str]] = {
    "core": ("-m", "ops.bench.core"),
    "chain": ("-m", "ops.bench.chain"),
    "step": ("-m", "ops.cli.main", "bench", "step", "--shape", "135m", "--dtype", "bfloat16"),
}
"""What Python is told; `--seed` and `--out` are added."""


class Ratio(NamedTuple):
    """One figure after the change, as a multiple of what it was before."""

    before: float
    """Median over the rounds."""
    after: float
    """Median over the rounds."""
    low: float
    """Lowest ratio of a round."""
    middle: float
    """Median ratio."""
    high: float
    """Highest ratio of a round."""


def numbers_in(results: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Every number in nested results, with the keys that lead to it."""
    if isinstance(results, Mapping):
        for name, value in results.items():
            yield from numbers_in(value, f"{path} {name}".strip())
    elif isinstance(results, list):
        for place, value in enumerate(results):
            yield from numbers_in(value, f"{path} {place}".strip())
    elif isinstance(results, int | float) and not isinstance(results, bool):
        yield path, float(results)


def ratios(before: Sequence[Any], after: Sequence[Any]) -> dict[str, Ratio]:
    """The figures that all rounds of both have, that are not zero, and that differ in some round: sizes and
    counts do not. One entry of each sequence a round."""
    rounds = [(dict(numbers_in(old)), dict(numbers_in(new))) for old, new in zip(before, after, strict=True)]
    shared = [name for name in rounds[0][0] if all(old.get(name) and new.get(name) for old, new in rounds)]
    found = {}
    for name in shared:
        old, new = ([side[name] for side in sides] for sides in zip(*rounds, strict=True))
        if old == new:
            continue
        each = [later / sooner for sooner, later in zip(old, new, strict=True)]
        middles = statistics.median(old), statistics.median(new)
        found[name] = Ratio(*middles, min(each), statistics.median(each), max(each))
    return found


@contextmanager
def checkout(revision: str) -> Iterator[Path]:
    """The files of another commit, in a folder that is gone afterwards. Raises `CalledProcessError`."""
    with tempfile.TemporaryDirectory(prefix="quire-before-") as parent:
        folder = Path(parent) / "checkout"
        git = ("git", "-C", str(ROOT), "worktree")
        subprocess.run([*git, "add", "--quiet", "--detach", str(folder), revision], check=True)
        try:
            yield folder
        finally:
            subprocess.run([*git, "remove", "--force", str(folder)], check=True)


def run(root: Path, benchmark: str, seed: int) -> Any:
    """The results of one benchmark of the checkout `root`. Raises `CalledProcessError`."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        command = [sys.executable, *BENCHMARKS[benchmark], "--seed", str(seed), "--out", str(out)]
        environment = os.environ | {"PYTHONPATH": str(root)}
        subprocess.run(command, cwd=root, env=environment, check=True, stdout=subprocess.DEVNULL)
        return read(out).results


def compare(
    before: Path, after: Path, benchmark: str, rounds: int, seed: int
) -> Iterator[tuple[int, dict[str, Ratio]]]:
    """One benchmark of two checkouts in turns. After each round: its number, and the ratios so far."""
    taken: dict[Path, list[Any]] = {before: [], after: []}
    for number in range(rounds):
        for root in (before, after) if number % 2 == 0 else (after, before):
            taken[root].append(run(root, benchmark, seed + number))
        yield number + 1, ratios(taken[before], taken[after])


def main() -> None:
    command = parser(__doc__, "before_after.json")
    command.add_argument("commit", help="what to compare with: the commit before the change")
    command.add_argument("--rounds", type=int, default=5)
    command.add_argument("--only", nargs="+", choices=BENCHMARKS, default=list(BENCHMARKS))
    command.add_argument("--seed", type=int, default=1)
    options = command.parse_args()
    results: dict[str, Any] = {"before": options.commit, "after": commit(), "benchmarks": {}}
    with checkout(options.commit) as before:
        for benchmark in options.only:
            found = dict[str, Ratio]()
            for rounds, found in compare(before, ROOT, benchmark, options.rounds, options.seed):
                figures = {name: ratio._asdict() for name, ratio in found.items()}
                results["benchmarks"][benchmark] = {"rounds": rounds, "figures": figures}
                write(options.out, "before-after", options.seed, results)
            rows = [(name, *(f"{number:.4g}" for number in ratio)) for name, ratio in found.items()]
            print(aligned([(benchmark, "before", "after", "lowest", "ratio", "highest"), *rows]), end="\n\n")


if __name__ == "__main__":
    main()
