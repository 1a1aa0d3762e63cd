"""Streams while everything behind them fails: which answers are lost or changed, and how long they pause.

`python -m ops.bench.robust.chaos [--faults 200] [--seed 1]` starts a deployment of the shipped model with two
of every service behind the gateway. 32 users stream; meanwhile one fault after the other happens, sometimes
two at once (`faults.py`). The exit status is 1 if an answer was lost or changed, if streams did not go on, or
if something was left behind.
"""

import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from ops.bench.command import parser
from ops.bench.record import percentile, percentiles, write
from ops.bench.robust.faults import KINDS, Fault, drawn
from ops.bench.robust.rig import REPLICAS, Rig
from ops.bench.robust.streams import SILENT_SECONDS, Streams, Tally, questions

USERS = 32
LEASE_SECONDS = 3.0
"""What processes have by default."""
PAIRED = 0.15
"""Share of the times at which two faults happen at once."""
ON_ITS_WAY = 0.25
"""Seconds. A token that comes sooner after a fault may have been under way, and shows no recovery."""
WHOLE_SECONDS = 60.0
BOOKS_SECONDS = 2.5
"""By then an idle scheduler has checked its block tables, and logged an error if a block leaked."""


@dataclass(frozen=True)
class Happened:
    """One fault, or two at once, and the pause it made."""

    what: str
    seconds: float
    """Until every stream had gone on: from its beginning, or from its end if nobody could stand in."""
    recovered: bool


@dataclass(frozen=True)
class Outcome:
    """What came of all faults."""

    tally: Tally
    happened: Sequence[Happened]
    seconds: float
    pending: int
    """Calls that nobody answers for, at the end."""
    errors: list[str]
    """What processes logged as an error, an inconsistent block table among it."""

    @property
    def faultless(self) -> bool:
        tally, recovered = self.tally, all(one.recovered for one in self.happened)
        wrong = tally.lost or tally.different or tally.tokens_lost or tally.tokens_repeated
        return recovered and not wrong and not self.pending and not self.errors


async def survive(
    rig: Rig, faults: int, seed: int, users: int, say: Callable[[str], None] = lambda _: None
) -> Outcome:
    """Let `faults` faults happen to a running deployment while `users` users stream."""
    chance = random.Random(seed)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(
        base_url=rig.url, timeout=SILENT_SECONDS, limits=limits, trust_env=False
    ) as client:
        streams = Streams(client, questions(rig.model, users))
        await streams.in_peace()
        begun = time.monotonic()
        streaming = asyncio.ensure_future(streams.run())
        happened: list[Happened] = []
        due = drawn(chance, rig, faults)
        while due:
            await streams.all_heard_since(begun)
            together = [due.pop(0)]
            if due and chance.random() < PAIRED and due[0].name != together[0].name:
                together.append(due.pop(0))
            happened.append(await _happen(rig, streams, together))
            say(f"{happened[-1].what:<70} {happened[-1].seconds:6.2f} s  {len(due)} to come")
            await asyncio.sleep(chance.uniform(0.0, 1.0))
        streams.stop()
        await streaming
        seconds = time.monotonic() - begun
    await rig.settled(WHOLE_SECONDS)
    await asyncio.sleep(BOOKS_SECONDS)
    return Outcome(
        streams.tally, happened, seconds, await rig.pending(), rig.logged(" ERROR ", "Traceback (most recent")
    )


async def _happen(rig: Rig, streams: Streams, faults: Sequence[Fault]) -> Happened:
    """Let faults happen; return once they are over, every stream has gone on, and every process is back."""
    what = " and ".join(sorted(fault.what for fault in faults))
    began = time.monotonic()
    lasting = [asyncio.ensure_future(_last(rig, fault)) for fault in faults]
    replaceable = all(fault.replaceable for fault in faults)
    if not replaceable:
        await asyncio.gather(*lasting)
    since = began if replaceable else time.monotonic()
    recovered = True
    try:
        async with asyncio.timeout(SILENT_SECONDS):
            await streams.all_heard_since(since + ON_ITS_WAY)
    except TimeoutError:
        recovered = False
    took = time.monotonic() - since
    await asyncio.gather(*lasting)
    try:
        async with asyncio.timeout(WHOLE_SECONDS):
            await rig.whole()
    except TimeoutError:
        recovered = False
    return Happened(what, took, recovered)


async def _last(rig: Rig, fault: Fault) -> None:
    async with fault.happening(rig):
        await asyncio.sleep(fault.seconds)


def told(outcome: Outcome, rig: Rig, users: int) -> dict[str, Any]:
    """The outcome as results of a benchmark. Times in seconds."""
    tally = outcome.tally
    by_fault: dict[str, list[float]] = {}
    for one in outcome.happened:
        by_fault.setdefault(one.what if " and " not in one.what else "two at once", []).append(one.seconds)
    pauses = [one.seconds for one in outcome.happened]
    return {
        "deployment": {**REPLICAS, "redis": 1, "lease_seconds": rig.lease_seconds},
        "streams": users,
        "faults": sum(1 + one.what.count(" and ") for one in outcome.happened),
        "kinds": [kind.name for kind in KINDS],
        "minutes": round(outcome.seconds / 60, 1),
        "requests": {
            "accepted": tally.accepted,
            "completed": tally.completed,
            "identical": tally.identical,
            "different": tally.different,
            "lost": tally.lost,
            "refused and asked again": tally.refused,
        },
        "tokens": {"received": tally.tokens, "lost": tally.tokens_lost, "repeated": tally.tokens_repeated},
        "recovery_s": percentiles(pauses, (50, 90, 99), 2),
        "longest_recovery_s": round(max(pauses), 2),
        "not_recovered": [one.what for one in outcome.happened if not one.recovered],
        "by_fault": {
            what: {
                "times": len(found),
                "p50_s": round(percentile(found, 0.5), 2),
                "longest_s": round(max(found), 2),
            }
            for what, found in sorted(by_fault.items())
        },
        "at_the_end": {"pending_calls": outcome.pending, "errors_logged": len(outcome.errors)},
        "problems": [*tally.problems, *sorted(tally.refusals), *outcome.errors[:20]],
    }


async def run(faults: int, seed: int, users: int, lease_seconds: float, directory: Path) -> dict[str, Any]:
    """Start a deployment, let faults happen, and tell what came of it."""
    rig = Rig(directory, lease_seconds)
    async with rig.running():
        outcome = await survive(rig, faults, seed, users, lambda line: print(line, flush=True))
    return told(outcome, rig, users) | {"faultless": outcome.faultless}


def main() -> None:
    command = parser(__doc__, "chaos.json")
    command.add_argument("--faults", type=int, default=200)
    command.add_argument("--seed", type=int, default=1)
    command.add_argument("--users", type=int, default=USERS)
    options = command.parse_args()
    with tempfile.TemporaryDirectory(prefix="quire-chaos-") as folder:
        results = asyncio.run(run(options.faults, options.seed, options.users, LEASE_SECONDS, Path(folder)))
    write(options.out, "chaos", options.seed, results)
    print(json.dumps(results, indent=2))
    sys.exit(0 if results["faultless"] else 1)


if __name__ == "__main__":
    main()
