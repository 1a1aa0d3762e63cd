"""Ten times as many requests as can be served: how the accepted ones fare, how soon the others are refused.

`python -m ops.bench.robust.overload [--seconds 20]` starts a deployment of the shipped model. A burst shows
how many requests of one tenant the gateway takes, running and waiting; that is the capacity. Then as many
users ask without a pause, and then requests arrive at ten times the rate at which those were answered. Each
request has many prompts, because a gateway lets thousands of prompts wait. Meanwhile another user of the same
tenant asks for a single answer now and then. The exit status is 1 if a target is missed.
"""

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import psutil
import redis
import uvloop

from ops.bench.command import parser
from ops.bench.load.processes import running
from ops.bench.load.workload import arrivals
from ops.bench.record import percentile, percentiles, write
from ops.bench.robust.leaks import held
from ops.launcher.deployments import Deployment

PROMPTS = 16
"""Of a request: it takes as many places."""
TOKENS = 16
"""Of each answer."""
TIMES = 10
SLOWER = 1.5
"""How many times as long an accepted request may take at P99."""
REFUSAL_MS = 50.0
RECOVERY_SECONDS = 1.0
PAUSE_SECONDS = 0.5
IDLE_SECONDS = 4.0


@dataclass
class Load:
    """What came of the requests of a load. Times in milliseconds."""

    answered: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    bystander: list[float] = field(default_factory=list)
    """The single answers of another user."""
    without_advice: int = 0
    """Refusals that do not say when to come back."""
    strange: list[str] = field(default_factory=list)
    """Whatever is neither an answer nor a refusal."""

    def told(self) -> dict[str, Any]:
        return {
            "answered": len(self.answered),
            "answered, ms": _spread(self.answered),
            "refused": len(self.refused),
            "refused, ms": _spread(self.refused),
            "another user, ms": _spread(self.bystander),
        }


class Crowd:
    """Those who ask. `model`: the one they ask for."""

    def __init__(self, connect: Callable[[], httpx.AsyncClient], model: str) -> None:
        """`connect`: makes a client for one connection. One for many would search all of them each time."""
        self._connect, self._model = connect, model
        self._clients: list[httpx.AsyncClient] = []
        self._idle: list[httpx.AsyncClient] = []
        self._asked = 0

    async def aclose(self) -> None:
        for client in self._clients:
            await client.aclose()

    async def ask(self, load: Load) -> None:
        """One request; what came of it is added to the load."""
        self._asked += 1
        prompts = [f"Request {self._asked} has a story of {number} owls." for number in range(PROMPTS)]
        begun = time.perf_counter()
        answer = await self._post(prompt=prompts, max_tokens=TOKENS)
        took = (time.perf_counter() - begun) * 1000
        if answer.status_code == 200:
            load.answered.append(took)
        elif answer.status_code == 429:
            load.refused.append(took)
            load.without_advice += "retry-after" not in answer.headers
        else:
            load.strange.append(f"{answer.status_code}: {answer.text[:300]}")

    async def stand_by(self, load: Load) -> None:
        """Until cancelled, ask for one answer now and then, as another user."""
        while True:
            load.bystander.append(await self.first_token())
            await asyncio.sleep(PAUSE_SECONDS)

    async def first_token(self) -> float:
        """Milliseconds to an answer of one token, for another user. Raises `RuntimeError` without one."""
        begun = time.perf_counter()
        answer = await self._post(prompt="One owl", max_tokens=1, user="another")
        if answer.status_code != 200:
            raise RuntimeError(f"another user got {answer.status_code}: {answer.text[:300]}")
        return (time.perf_counter() - begun) * 1000

    async def _post(self, **fields: Any) -> httpx.Response:
        body = {"model": self._model, "temperature": 0, "ignore_eos": True, **fields}
        if not self._idle:
            self._idle.append(self._connect())
            self._clients.append(self._idle[-1])
        client = self._idle.pop()
        try:
            return await client.post("/v1/completions", json=body)
        finally:
            self._idle.append(client)


async def capacity(crowd: Crowd) -> int:
    """Requests that are taken when far too many come at once."""
    load, burst = Load(), 64
    while not load.refused and burst <= 1024:
        load, burst = Load(), burst * 2
        await asyncio.gather(*(crowd.ask(load) for _ in range(burst)))
    if not load.refused:
        raise RuntimeError(f"{burst} requests at once were all taken")
    return len(load.answered)


async def closed(crowd: Crowd, users: int, seconds: float) -> Load:
    """The load of `users` users who ask again when they have an answer. A first round is not counted."""

    async def user(load: Load, until: float) -> None:
        while True:
            await crowd.ask(load)
            if time.perf_counter() > until:
                return

    await asyncio.gather(*(user(Load(), 0.0) for _ in range(users)))
    return await _beside(
        crowd, lambda load: [user(load, time.perf_counter() + seconds) for _ in range(users)]
    )


async def opened(crowd: Crowd, rate: float, seconds: float, seed: int) -> Load:
    """Requests that arrive at `rate` a second, whatever became of those before."""
    begun = time.perf_counter()

    async def arrive(load: Load, at: float) -> None:
        await asyncio.sleep(begun + at - time.perf_counter())
        await crowd.ask(load)

    return await _beside(
        crowd, lambda load: [arrive(load, at) for at in arrivals(int(rate * seconds), rate, seed)]
    )


async def _beside(crowd: Crowd, work: Any) -> Load:
    """Run the coroutines that `work` makes for a load, while another user stands by."""
    load = Load()
    standing_by = asyncio.ensure_future(crowd.stand_by(load))
    try:
        await asyncio.gather(*work(load))
    finally:
        standing_by.cancel()
        await asyncio.gather(standing_by, return_exceptions=True)
    return load


async def measure(quire: Deployment, seconds: float, seed: int) -> dict[str, Any]:
    """The results of the benchmark."""
    connection = redis.Redis.from_url(quire.redis_url, socket_timeout=60)

    async def kept() -> dict[str, float]:
        await asyncio.sleep(IDLE_SECONDS)
        counts: dict[str, float] = dict(held(quire.pids, connection, quire.stream_prefix).counts)
        memory = {f"{name} MiB": _mib(pid) for name, pid in quire.pids.items()}
        return counts | memory

    def connect() -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=quire.url, timeout=120, verify=False, trust_env=False)

    async with contextlib.aclosing(Crowd(connect, quire.model)) as crowd:
        users = await capacity(crowd)
        full = await closed(crowd, users, seconds)
        before = await kept()
        rate = len(full.answered) / seconds
        over = await opened(crowd, TIMES * rate, seconds, seed)
        recovery = await crowd.first_token() / 1000
    after = await kept()
    connection.close()
    return told(users, rate, full, over, recovery) | {
        "grew": {name: (before[name], after[name]) for name in after if after[name] != before.get(name)}
    }


def told(users: int, rate: float, full: Load, over: Load, recovery: float) -> dict[str, Any]:
    """Both loads as results of a benchmark."""
    p99 = [percentile(load.answered, 0.99) for load in (full, over)]
    return {
        "capacity": users,
        "prompts": PROMPTS,
        "answered_a_second": round(rate, 2),
        "times": TIMES,
        "loads": {"at capacity": full.told(), f"{TIMES} times as many": over.told()},
        "p99_over_capacity": round(p99[1] / p99[0], 3),
        "refusal_p99_ms": round(percentile(over.refused, 0.99), 1),
        "recovery_s": round(recovery, 3),
        "strange": len(full.strange) + len(over.strange) + full.without_advice + over.without_advice,
        "what_strange": [*full.strange, *over.strange][:5],
    }


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    return percentiles(values, (50, 90, 99), 1) if values else None


def _mib(pid: int) -> float:
    return round(psutil.Process(pid).memory_full_info().uss / 2**20, 1)


def main() -> None:
    command = parser(__doc__, "overload.json")
    command.add_argument("--seconds", type=float, default=20)
    command.add_argument("--seed", type=int, default=1)
    options = command.parse_args()
    with running() as quire:
        results = uvloop.run(measure(quire, options.seconds, options.seed))
    write(options.out, "overload", options.seed, results)
    print(json.dumps(results, indent=2))
    late = results["p99_over_capacity"] > SLOWER or results["refusal_p99_ms"] > REFUSAL_MS
    sys.exit(1 if late or results["recovery_s"] > RECOVERY_SECONDS or results["strange"] else 0)


if __name__ == "__main__":
    main()
