"""`quire simulate`: a load on deployments that are not there."""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ops.cli.arguments import add_command, numbers, positive, span
from ops.simulate import STEP_COST, SWAP_US
from ops.simulate.arrivals import KINDS, Load
from ops.simulate.trace import Arrival, read

_DESCRIPTION = """\
Serve a load under virtual time: with the scheduler that serves in earnest, and a model of what its steps
cost in place of workers. Every combination of the values given is tried.

  quire simulate                                       a thousand requests, ten a second, one worker
  quire simulate --rate 40 --workers 2,4,8             how many workers does it take?
  quire simulate --arrivals shared --pool-blocks 256,512,1024 --plots plots
  quire simulate --trace requests.jsonl --step-tokens 128,512 --out simulated.json

A trace is JSON lines or CSV with at (seconds), prompt_tokens, output_tokens, and if wanted prefix,
shared_tokens, tenant, priority and timeout. `python -m ops.simulate.measure` measures what steps cost on a
machine. Times are milliseconds: TTFT to the first token, ITL between tokens. Fairness is Jain's index over
tenants; in time are answers that ended within their request's timeout.
"""


def add_to(subcommands: Any) -> None:
    simulate = add_command(
        subcommands, "simulate", "a load on any number of workers, under virtual time", _DESCRIPTION
    )
    load = simulate.add_argument_group("load")
    load.add_argument("--trace", type=Path, metavar="FILE", help="requests of a .jsonl or .csv file")
    load.add_argument("--arrivals", choices=KINDS, default="poisson", help="or drawn ones (poisson)")
    load.add_argument("--rate", type=_rate, default=10.0, metavar="R", help="requests a second (10)")
    load.add_argument("--requests", type=positive, default=1000, metavar="N", help="how many (1000)")
    load.add_argument(
        "--prompt-lengths", type=numbers, default=(32, 128, 512), metavar="N,N", help="tokens (32,128,512)"
    )
    load.add_argument(
        "--output", type=span, default=(64, 64), metavar="N[:M]", help="tokens of an answer (64)"
    )
    load.add_argument("--tenants", type=positive, default=4, metavar="N", help="they share the load (4)")
    load.add_argument("--seed", type=int, default=0)
    deployment = simulate.add_argument_group("deployments")
    deployment.add_argument("--policies", type=_names, default=("fcfs",), metavar="NAME,NAME", help="(fcfs)")
    deployment.add_argument("--workers", type=numbers, default=(1,), metavar="N,N", help="(1)")
    deployment.add_argument(
        "--pool-blocks", type=numbers, default=(2048,), metavar="N,N", help="of each worker (2048)"
    )
    deployment.add_argument("--step-tokens", type=numbers, default=(512,), metavar="N,N", help="(512)")
    deployment.add_argument(
        "--slots", type=positive, default=64, metavar="N", help="sequences at once on each worker (64)"
    )
    deployment.add_argument(
        "--host-blocks",
        type=_numbers_from_0,
        default=(0,),
        metavar="N,N",
        help="of each worker on the host (0)",
    )
    deployment.add_argument(
        "--swap-us",
        type=_rate,
        default=SWAP_US,
        metavar="US",
        help="time a block takes to the host, or back (%(default)g, the shipped model's)",
    )
    deployment.add_argument(
        "--drafts",
        type=_chances,
        default=(0.0,),
        metavar="P,P",
        help="answers repeat themselves: chance that a draft holds if those before it do (0: no drafts)",
    )
    deployment.add_argument(
        "--cost", type=Path, default=STEP_COST, metavar="FILE", help="what steps cost (the shipped model's)"
    )
    simulate.add_argument("--out", type=Path, metavar="FILE", help="also write the result as JSON")
    simulate.add_argument("--plots", type=Path, metavar="DIR", help="also draw it (needs matplotlib)")
    simulate.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from ops.bench.record import write
    from ops.simulate.compare import Grid, compare, table  # needs numpy, which takes its time
    from ops.simulate.cost import load

    grid = Grid(
        arguments.policies,
        arguments.workers,
        arguments.pool_blocks,
        arguments.step_tokens,
        arguments.slots,
        arguments.host_blocks,
        arguments.swap_us,
        arguments.drafts,
    )
    started = time.perf_counter()
    try:
        draw, requests, described = _load(arguments)
        found = described | compare(grid, draw, requests, load(arguments.cost), _progress)
    except (ValueError, OSError) as error:
        print(f"quire simulate: {error}", file=sys.stderr)
        return 2
    print(table(found))
    seconds = time.perf_counter() - started
    print(f"{len(found['runs'])} times {requests} requests in {seconds:.1f} s", file=sys.stderr)
    if arguments.out is not None:
        write(arguments.out, "simulate", arguments.seed, found)
    if arguments.plots is not None:
        from ops.bench.report.simulation import plot_simulation

        for path in plot_simulation(found, arguments.plots):
            print(path)
    return 0


def _load(arguments: argparse.Namespace) -> tuple[Callable[[], Iterator[Arrival]], int, dict[str, Any]]:
    """What draws the load, how many requests it has, and what a result says of it."""
    if arguments.trace is not None:
        arrivals = list(read(arguments.trace))
        if not arrivals:
            raise ValueError(f"{arguments.trace}: no requests")
        return lambda: iter(arrivals), len(arrivals), {"trace": arguments.trace.name}
    drawn = Load(
        arguments.arrivals,
        arguments.requests,
        arguments.rate,
        arguments.prompt_lengths,
        arguments.output,
        arguments.tenants,
        arguments.seed,
    )
    return drawn.arrivals, drawn.requests, {"load": asdict(drawn)}


def _progress(name: str) -> None:
    if sys.stderr.isatty():
        print(f"simulating {name}", file=sys.stderr)


def _rate(text: str) -> float:
    rate = float(text)
    if not rate > 0:
        raise argparse.ArgumentTypeError("must be above 0")
    return rate


def _chances(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split(",")))


def _numbers_from_0(text: str) -> tuple[int, ...]:
    return tuple(0 if number == "0" else positive(number) for number in text.split(","))


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))
