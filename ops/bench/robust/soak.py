"""A mixed load for an hour: does anything grow, and is anything left behind?

`python -m ops.bench.robust.soak [--minutes 60]` starts a deployment of the shipped model and lets users do
what users do (`mixture.py`). Memory is that which each process has alone; its slope is that of a line through
the samples after the warm-up, which is the first fifth. What is held is counted in an idle deployment, before
and after. The exit status is 1 if something grew or was left behind, or if an answer was none.
"""

import asyncio
import json
import sys
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import httpx
import redis

from ops.bench.command import parser
from ops.bench.load.processes import running
from ops.bench.record import write
from ops.bench.robust.leaks import Held, Memory, held
from ops.bench.robust.mixture import Visitor
from ops.launcher.deployments import Deployment, logs_directory

USERS = 12
SAMPLE_SECONDS = 5.0
WARM_UP = 0.2
"""Share of the time."""
MOST_AN_HOUR = 1.0
"""MiB that a process may grow by in an hour."""
IDLE_SECONDS = 4.0
"""Until entries are trimmed, and an idle scheduler has checked its block tables."""
LOOKS = 10
"""How often one looks once more, after as many seconds, whether something is only late."""


@dataclass(frozen=True)
class Outcome:
    """What a soak has shown."""

    outcomes: Counter[str]
    problems: list[str]
    memory: Memory
    before: Held
    after: Held
    errors: list[str]
    """What processes logged as an error."""

    @property
    def left_behind(self) -> dict[str, tuple[int, int]]:
        """What there was more of in the end than in the beginning: (before, after)."""
        return self.after.more_than(self.before)


async def soak(
    quire: Deployment, seconds: float, seed: int, sample_seconds: float = SAMPLE_SECONDS
) -> Outcome:
    """Users for `seconds`, after as many requests of each kind as make every process ready."""
    connection = redis.Redis.from_url(quire.redis_url, socket_timeout=60)
    memory, outcomes = Memory(), Counter[str]()
    try:
        await visit(quire, seconds * WARM_UP, seed + 1, Counter())
        before = await idle(quire, connection)
        begun = time.monotonic()
        visiting = asyncio.ensure_future(visit(quire, seconds, seed, outcomes))
        while not visiting.done():
            await asyncio.to_thread(memory.sample, quire.pids)
            await asyncio.wait([visiting], timeout=sample_seconds)
        problems = visiting.result()
        assert time.monotonic() - begun >= seconds
        after = await idle(quire, connection)
        # What is left behind stays; the rest may take its time on a machine that is slow.
        for _ in range(LOOKS):
            if not after.more_than(before):
                break
            after = await idle(quire, connection)
    finally:
        connection.close()
    return Outcome(outcomes, problems, memory, before, after, logged_errors(quire))


async def visit(quire: Deployment, seconds: float, seed: int, outcomes: Counter[str]) -> list[str]:
    """Let users come for `seconds`; the problems they had."""
    until = time.monotonic() + seconds
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=quire.url, timeout=120, limits=limits, trust_env=False) as client:
        visitors = [Visitor(client, quire.model, seed * 1000 + number, outcomes) for number in range(USERS)]
        await asyncio.gather(*(one.stay(lambda: time.monotonic() > until) for one in visitors))
    return [problem for one in visitors for problem in one.problems]


async def idle(quire: Deployment, connection: redis.Redis) -> Held:
    """What the deployment holds once nobody has asked for anything for a while."""
    await asyncio.sleep(IDLE_SECONDS)
    return held(quire.pids, connection, quire.stream_prefix)


def logged_errors(quire: Deployment) -> list[str]:
    """Lines that a process logged as an error; a block that leaked is one."""
    return [
        f"{path.stem}: {line}"
        for path in sorted(logs_directory(quire.port).glob("*.log"))
        for line in path.read_text(errors="replace").splitlines()
        if " ERROR " in line or "Traceback (most recent" in line
    ]


def told(outcome: Outcome, seconds: float) -> dict[str, Any]:
    """The outcome as results of a benchmark."""
    warm_up = seconds * WARM_UP
    slopes, growth = outcome.memory.slopes(warm_up), outcome.memory.growth(warm_up)
    before, after = outcome.before.counts, outcome.after.counts
    return {
        "minutes": round(seconds / 60, 1),
        "users": USERS,
        "requests": dict(sorted(outcome.outcomes.items())),
        "memory": {
            name: {
                "MiB at the end": round(values[-1], 1),
                "MiB an hour": round(slopes[name], 2),
                "MiB since the warm-up": round(growth[name], 2),
            }
            for name, values in outcome.memory.mib.items()
        },
        "steepest_mib_an_hour": round(max(slopes.values()), 2),
        "held": {name: {"before": before.get(name, 0), "after": now} for name, now in after.items()},
        "left_behind": len(outcome.left_behind),
        "problems": len(outcome.problems) + len(outcome.errors),
        "what_problems": [*outcome.problems, *outcome.errors][:20],
    }


def main() -> None:
    command = parser(__doc__, "soak.json")
    command.add_argument("--minutes", type=float, default=60)
    command.add_argument("--seed", type=int, default=1)
    options = command.parse_args()
    seconds = options.minutes * 60
    with running() as quire:
        outcome = asyncio.run(soak(quire, seconds, options.seed))
    results = told(outcome, seconds)
    write(options.out, "soak", options.seed, results)
    print(json.dumps(results, indent=2))
    steep = results["steepest_mib_an_hour"] >= MOST_AN_HOUR
    sys.exit(1 if steep or outcome.left_behind or results["problems"] else 0)


if __name__ == "__main__":
    main()
