"""A worker of two ranks under `quire up`: whichever is killed, its streams go on to the same bytes."""

import asyncio
from pathlib import Path

import openai
import psutil
import pytest

from ops.bench.load.processes import running
from ops.launcher.deployments import Deployment, recorded
from ops.model_directory.settings import SHIPPED_DRAFT
from tests.support.asking import Attempt, ask, attempts

# The grammar, which every rank compiles, is not complete before the stream's last token.
QUESTION = {
    "temperature": 0.9,
    "seed": 3,
    "extra": {"ignore_eos": False, "guided_regex": "([A-Z][a-z]{2,9}[.] ){400}"},
}


def ranks(quire: Deployment) -> list[psutil.Process]:
    """The worker's processes, rank 0 first."""
    processes = next(one for one in recorded() if one.port == quire.port).processes
    first = psutil.Process(processes["worker"].pid)
    return [first, *first.children()]


async def ask_while_dying(
    quire: Deployment, client: openai.AsyncOpenAI, victim: int, attempt: Attempt
) -> object:
    """The answer, of a worker whose rank `victim` is killed meanwhile; no rank outlives the other."""
    pair = ranks(quire)
    assert len(pair) == 2
    begun = asyncio.Event()
    asking = asyncio.create_task(ask(client, lambda n: begun.set() if n >= 20 else None, **QUESTION))
    await begun.wait()
    pair[victim].kill()
    attempt.hit = not asking.done()
    gone, alive = await asyncio.to_thread(psutil.wait_procs, pair, 60)
    assert (len(gone), alive) == (2, [])
    return await asking


async def survive(quire: Deployment) -> None:
    async with openai.AsyncOpenAI(base_url=f"{quire.url}/v1", api_key="none", max_retries=0) as client:
        expected = await ask(client, **QUESTION)
        for victim in (1, 0):
            for attempt in attempts():
                assert await ask_while_dying(quire, client, victim, attempt) == expected


@pytest.mark.timeout(240)
def test_streams_go_on_whichever_rank_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    settings = {"QUIRE_KV_MEMORY": "64MiB", "QUIRE_TENSOR_PARALLEL": "2", "QUIRE_MODEL_NAME": "quire-tiny"}
    with running("--model", str(SHIPPED_DRAFT), **settings) as quire:
        asyncio.run(survive(quire))
    (log,) = tmp_path.glob("quire/*/logs/worker.log")
    errors = [line.split(" ERROR ")[1] for line in log.read_text().splitlines() if " ERROR " in line]
    assert set(errors) == {"rank 1 was ended by SIGKILL, and the worker with it"}
