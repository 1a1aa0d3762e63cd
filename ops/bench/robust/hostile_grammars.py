"""Streams beside hostile grammars: how soon these are refused, and how much longer the streams wait.

`python -m ops.bench.robust.hostile_grammars [--rounds 5]` starts a deployment of the shipped model. In each
round a few users stream answers while another sends every grammar of `bad_grammars.py`, one after another and
each new to all caches; then they stream for as long without. The exit status is 1 if a grammar got anything
but an answer or a refusal that names its field, within a second, or if the streams waited too much longer.

The delay is the longest time between two tokens of a stream beside the grammars, less the longest without. So
a grammar that is followed counts with all that it causes: its trial, its compilation beside the steps, its
prompt and its masks. The requests are written down before the streams begin.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import uvloop

from ops.bench.command import parser
from ops.bench.load.processes import running
from ops.bench.record import percentiles, write
from ops.bench.robust.bad_grammars import Bad, bad_grammars

USERS = 4
TOKENS = 400
"""Of each streamed answer."""
MOST_TOKENS = 64
"""Of an answer that follows a grammar."""
REFUSAL_SECONDS = 1.0
EXTRA_MS = 20.0
ANSWER_SECONDS = 60.0


@dataclass
class Verdicts:
    """What came of the grammars."""

    refused: dict[str, float] = field(default_factory=dict)
    """Seconds until the refusal, by name: the longest."""
    followed: dict[str, float] = field(default_factory=dict)
    """Seconds until the answer, by name: the longest."""
    problems: list[str] = field(default_factory=list)

    def add(self, bad: Bad, status: int, answer: dict[str, Any], seconds: float) -> None:
        """Take what one grammar got."""
        error = answer.get("error") or {}
        if status == 200 and not bad.malformed:
            self.followed[bad.name] = max(seconds, self.followed.get(bad.name, 0.0))
        elif status == 400 and error.get("param") == bad.param and error.get("message"):
            self.refused[bad.name] = max(seconds, self.refused.get(bad.name, 0.0))
            if seconds > REFUSAL_SECONDS:
                self.problems.append(f"{bad.name}: refused after {seconds:.2f} s")
        else:
            self.problems.append(f"{bad.name}: {status} {json.dumps(answer)[:300]}")


class Streams:
    """Users who stream one answer after another, and the times between their tokens."""

    def __init__(self, client: httpx.AsyncClient, model: str) -> None:
        self._client, self._model = client, model
        self._gaps: list[float] = []

    async def gaps_while(self, work: Awaitable[None]) -> list[float]:
        """Seconds between two tokens of an answer, while `work` is done."""
        users = [asyncio.ensure_future(self._user(number)) for number in range(USERS)]
        try:
            while len(self._gaps) < 10 * USERS:  # all are under way
                self._raise_from(users)
                await asyncio.sleep(0.01)
            self._gaps.clear()
            await work
            self._raise_from(users)
            return list(self._gaps)
        finally:
            for user in users:
                user.cancel()
            await asyncio.gather(*users, return_exceptions=True)
            self._gaps.clear()

    @staticmethod
    def _raise_from(users: Sequence[asyncio.Future[None]]) -> None:
        for user in users:
            if user.done():
                user.result()

    async def _user(self, number: int) -> None:
        body = {"model": self._model, "prompt": f"Once upon a time, {number + 2} owls", "stream": True}
        body |= {"max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
        while True:
            latest = 0.0
            async with self._client.stream("POST", "/v1/completions", json=body) as answer:
                answer.raise_for_status()
                async for line in answer.aiter_lines():
                    if not line.startswith("data: {"):
                        continue
                    now = time.perf_counter()
                    if latest:
                        self._gaps.append(now - latest)
                    latest = now


def written(model: str, number: int) -> list[tuple[Bad, bytes]]:
    """Every bad grammar, and the request that asks for it."""
    messages = [{"role": "user", "content": "Write."}]
    body = {"model": model, "messages": messages, "max_tokens": MOST_TOKENS, "temperature": 0}
    return [(bad, json.dumps(body | bad.fields).encode()) for bad in bad_grammars(number)]


async def send_all(client: httpx.AsyncClient, requests: Sequence[tuple[Bad, bytes]], found: Verdicts) -> None:
    """Ask for every bad grammar, one after another."""
    for bad, body in requests:
        begun = time.perf_counter()
        answer = await client.post(
            "/v1/chat/completions", content=body, headers={"Content-Type": "application/json"}
        )
        found.add(bad, answer.status_code, answer.json(), time.perf_counter() - begun)


async def measure(url: str, model: str, rounds: int) -> dict[str, Any]:
    """The results of the benchmark."""
    found = Verdicts()
    beside: list[list[float]] = []
    alone: list[list[float]] = []
    async with httpx.AsyncClient(base_url=url, timeout=ANSWER_SECONDS, trust_env=False) as client:
        streams = Streams(client, model)
        await streams.gaps_while(
            send_all(client, written(model, 0), Verdicts())
        )  # processes start with the first grammar
        for number in range(1, rounds + 1):
            requests, begun = written(model, number), time.perf_counter()
            beside.append(await streams.gaps_while(send_all(client, requests, found)))
            alone.append(await streams.gaps_while(asyncio.sleep(time.perf_counter() - begun)))
    return told(found, beside, alone)


def told(found: Verdicts, beside: list[list[float]], alone: list[list[float]]) -> dict[str, Any]:
    """`beside`, `alone`: seconds between tokens, by round, beside the grammars and without."""
    longest = [[round(1000 * max(gaps), 1) for gaps in rounds] for rounds in (beside, alone)]
    return {
        "users": USERS,
        "rounds": len(beside),
        "grammars": len(bad_grammars(0)),
        "refused": len(found.refused),
        "followed": len(found.followed),
        "refusal_s": round(max(found.refused.values(), default=0.0), 3),
        "gaps_ms": {"beside the grammars": _spread(beside), "alone": _spread(alone)},
        "longest_gaps_ms": {"beside the grammars": longest[0], "alone": longest[1]},
        "extra_ms": round(max(longest[0]) - max(longest[1]), 1),
        "until_refused_s": _slowest(found.refused),
        "until_answered_s": _slowest(found.followed),
        "problems": found.problems[:20],
    }


def _spread(rounds: list[list[float]]) -> dict[str, float]:
    every = [1000 * gap for gaps in rounds for gap in gaps]
    return percentiles(every, (50, 99, 99.9), 1) | {"longest": round(max(every), 1)}


def _slowest(seconds: dict[str, float]) -> dict[str, float]:
    return {name: round(seconds[name], 3) for name in sorted(seconds, key=lambda name: -seconds[name])[:10]}


def main() -> None:
    command = parser(__doc__, "hostile_grammars.json")
    command.add_argument("--rounds", type=int, default=5)
    options = command.parse_args()
    with running() as quire:
        results = uvloop.run(measure(quire.url, quire.model, options.rounds))
    write(options.out, "hostile-grammars", 0, results)
    print(json.dumps(results, indent=2))
    sys.exit(1 if results["problems"] or results["extra_ms"] > EXTRA_MS else 0)


if __name__ == "__main__":
    main()
