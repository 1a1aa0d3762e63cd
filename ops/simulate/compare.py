"""Compares all combinations of settings under one load, and prints a table of the results."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from ops.bench.record import aligned
from ops.simulate import SWAP_US
from ops.simulate.cost import StepCost
from ops.simulate.simulation import Setting, Simulation
from ops.simulate.trace import Arrival

Draw = Callable[[], Iterator[Arrival]]
Progress = Callable[[str], None]
COLUMNS = (
    "tokens/s",
    "TTFT p50",
    "p90",
    "p99",
    "ITL p50",
    "p90",
    "p99",
    "E2E p50",
    "cached",
    "preempted",
    "fairness",
    "in time",
)


@dataclass(frozen=True)
class Grid:
    """The values of settings whose combinations are compared."""

    policies: Sequence[str] = ("fcfs",)
    """Scheduling policies."""
    workers: Sequence[int] = (1,)
    """Numbers of workers."""
    pool_blocks: Sequence[int] = (2048,)
    """Blocks in the pool of each worker."""
    step_tokens: Sequence[int] = (512,)
    """Token budgets of a step."""
    slots: int = 64
    """Slots of each worker's batch."""
    host_blocks: Sequence[int] = (0,)
    """Host slots of each worker, one block each."""
    swap_us: float = SWAP_US
    """Microseconds to copy one block to the host, or back."""
    drafts: Sequence[float] = (0.0,)
    """Chances that a draft holds if those before it in its row do; 0: none are made."""

    def settings(self) -> list[Setting]:
        """All combinations. The last setting changes fastest."""
        combinations = product(
            self.policies, self.workers, self.pool_blocks, self.step_tokens, self.host_blocks, self.drafts
        )
        return [
            Setting(
                policy, workers, pool, step, self.slots, host_blocks=host, swap_us=self.swap_us, drafts=drafts
            )
            for policy, workers, pool, step, host, drafts in combinations
        ]

    def name(self, setting: Setting) -> str:
        """The values in which the combinations differ, as the setting's name in tables."""
        parts = [
            (self.policies, setting.policy),
            (self.workers, f"{setting.workers} workers"),
            (self.pool_blocks, f"{setting.pool_blocks} blocks"),
            (self.step_tokens, f"{setting.step_tokens} a step"),
            (self.host_blocks, f"{setting.host_blocks} on the host"),
            (self.drafts, f"drafts hold by {setting.drafts:.0%}" if setting.drafts else "no drafts"),
        ]
        varied = [text for values, text in parts if len(values) > 1]
        return ", ".join(varied) or f"{setting.policy}, {setting.workers} workers"


def compare(grid: Grid, draw: Draw, requests: int, cost: StepCost, progress: Progress) -> dict[str, Any]:
    """Simulate the load that `draw` gives with every setting. Raises `TraceError`."""
    runs = []
    for setting in grid.settings():
        name = grid.name(setting)
        progress(name)
        ledger = Simulation(setting, cost, requests).run(draw())
        runs.append({"name": name, "setting": asdict(setting)} | ledger.summary())
    return {"cost_ms": cost.milliseconds(), "runs": runs}


def table(found: dict[str, Any]) -> str:
    """A table of the results for a terminal. Times are milliseconds."""
    rows = [["", *COLUMNS]]
    for run in found["runs"]:
        first, between = run["first_token_ms"], run["between_tokens_ms"]
        rows.append(
            [
                run["name"],
                f"{run['output_rate']:.1f}",
                *(f"{first.get(name, 0):.1f}" for name in ("p50", "p90", "p99")),
                *(f"{between.get(name, 0):.1f}" for name in ("p50", "p90", "p99")),
                f"{run['end_to_end_ms'].get('p50', 0):.1f}",
                f"{run['cached_share']:.1%}",
                str(run["preempted"]),
                f"{run['fairness']:.3f}",
                f"{run['in_time_share']:.1%}",
            ]
        )
    never = [
        f"{run['name']}: {run['refused']} requests can never fit" for run in found["runs"] if run["refused"]
    ]
    return "\n".join([aligned(rows), *never])
