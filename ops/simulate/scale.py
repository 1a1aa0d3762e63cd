"""Measures the simulator's own speed: a thousand workers under light to heavy loads, on one core.

python -m ops.simulate.scale                                    writes ops/bench/results/simulate_scale.json
python -m ops.simulate.scale --requests 1000000 --rates 15      a million requests, ten minutes or so
"""

import resource
import time
from typing import Any

from ops.bench.command import parser
from ops.bench.record import aligned, write
from ops.simulate import STEP_COST
from ops.simulate.arrivals import Load
from ops.simulate.cost import StepCost, load
from ops.simulate.simulation import Setting, Simulation

RATES = (5.0, 15.0, 30.0)
"""Requests per second for each worker. The last is about what the shipped model can serve on two cores."""


def measure(workers: int, requests: int, rates: tuple[float, ...], cost: StepCost) -> list[dict[str, Any]]:
    """Simulate a load of each rate. Returns the CPU time that each took, in seconds."""
    found = []
    for rate in rates:
        simulation = Simulation(Setting(workers=workers), cost, requests)
        started = time.process_time()
        books: Any = simulation.run(Load(requests=requests, rate=rate * workers).arrivals()).summary()
        seconds = time.process_time() - started
        found.append(
            {
                "workers": workers,
                "requests": requests,
                "rate_per_worker": rate,
                "output_tokens": books["output_tokens"],
                "simulated_seconds": books["seconds"],
                "seconds": round(seconds, 2),
                "us_per_request": round(1e6 * seconds / requests, 1),
                "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            }
        )
    return found


def _rates(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split(",")))


def main() -> None:
    command = parser(__doc__, "simulate_scale.json")
    command.add_argument("--workers", type=int, default=1000, metavar="N")
    command.add_argument("--requests", type=int, default=20_000, metavar="N")
    command.add_argument(
        "--rates", type=_rates, default=RATES, metavar="R,R", help="requests per second and worker"
    )
    arguments = command.parse_args()
    found = measure(arguments.workers, arguments.requests, arguments.rates, load(STEP_COST))
    write(arguments.out, "simulate-scale", 0, {"runs": found})
    print(aligned([list(found[0]), *([str(value) for value in each.values()] for each in found)]))


if __name__ == "__main__":
    main()
