"""A mixed load under `quire up` leaves nothing behind; then processes die at random: answers are as in peace.

The mixed load is the short form of `make soak`. `SOAK_SECONDS` says how long each of the two lasts (default:
a few seconds), `SOAK_SEED` which chance.
"""

import asyncio
import os
import random
import signal
import time
from pathlib import Path

import openai
import pytest

from ops.bench.load.processes import running
from ops.bench.robust.soak import soak as mixed_load
from ops.launcher.deployments import Deployment, recorded
from tests.support.asking import ask

SECONDS = float(os.environ.get("SOAK_SECONDS", "8"))
SEED = int(os.environ.get("SOAK_SEED", "1"))
USERS = 6
QUESTIONS = [
    {"temperature": 0.9, "seed": seed, "n": 1 + seed % 2, "stop": ["\n\n"] if seed % 3 else None}
    for seed in range(9)
]
VICTIMS = ("worker", "scheduler", "tokenizer", "redis")


def kill(port: int, victim: str) -> bool:
    """kill -9 a process of the deployment; False if it is not there just now."""
    processes = next(one for one in recorded() if one.port == port).processes
    identity = processes.get(victim)
    return identity is not None and identity.alive() and identity.end(signal.SIGKILL, 60)


@pytest.mark.timeout(SECONDS * 10 + 300)
def test_nothing_is_left_behind_and_answers_do_not_depend_on_who_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with running(QUIRE_KV_MEMORY="64MiB", QUIRE_THREADS="1") as quire:
        for seconds in (SECONDS, 5 * SECONDS):  # longer on a machine that is too slow for this much sooner
            outcome = asyncio.run(mixed_load(quire, seconds, SEED, sample_seconds=0.5))
            assert outcome.problems == []
            assert outcome.left_behind == {}
            assert outcome.errors == []
            if outcome.outcomes["200"] > USERS and outcome.outcomes["left in the middle"]:
                break
        assert outcome.outcomes["200"] > USERS
        assert outcome.outcomes["left in the middle"] > 0
        asyncio.run(soak(quire))
    logs = "".join(path.read_text() for path in tmp_path.glob("quire/*/logs/*.log"))
    assert " ERROR " not in logs
    assert "Traceback" not in logs


async def soak(quire: Deployment) -> None:
    client = openai.AsyncOpenAI(base_url=f"{quire.url}/v1", api_key="none", max_retries=0)
    expected = [await ask(client, **question) for question in QUESTIONS]
    chance = random.Random(SEED)
    until = time.monotonic() + SECONDS
    answered: list[int] = []
    killed: list[str] = []
    done: set[int] = set()
    """Users who have got an answer."""
    progressed: set[int] = set()
    """Users who have got something since the latest deaths."""

    async def user(number: int) -> None:
        taste = random.Random(SEED * 100 + number)
        while number not in done or time.monotonic() < until:
            which = taste.randrange(len(QUESTIONS))
            answer = await ask(client, lambda _: progressed.add(number), **QUESTIONS[which])
            assert answer == expected[which], (QUESTIONS[which], killed)
            answered.append(which)
            done.add(number)

    async def reaper() -> None:
        while not killed or time.monotonic() < until:
            victims = chance.sample(VICTIMS, chance.choice((1, 1, 2)))
            killed.extend([one for one in victims if await asyncio.to_thread(kill, quire.port, one)])
            # Otherwise the launcher's pauses before it starts a process again would be most of the time.
            progressed.clear()
            while len(progressed) < USERS and time.monotonic() < until:
                await asyncio.sleep(0.05)
            await asyncio.sleep(chance.uniform(0, 1.5))

    await asyncio.gather(*map(user, range(USERS)), reaper())
    await client.close()
    print(f"{len(answered)} answers, {len(killed)} deaths")
    assert len(done) == USERS
    assert killed
