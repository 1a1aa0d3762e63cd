"""Processes of a tokenizer's: messages, environment and end."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from tokenizer_svc.child import Child

ECHO = """
import os, signal, sys
from tokenizer_svc.bounded import answer, question, set_bounds

set_bounds(2**30)
while (asked := question()) is not None:
    if asked == "die":
        sys.stdout.write('{"half": ')
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    answer({"asked": asked})
"""
"""A process that answers with what it is asked."""

TRACED = """
import asyncio, sys
from concurrent.futures import ThreadPoolExecutor

import tokenizer_svc
import grpc, uvloop

server = grpc.server(ThreadPoolExecutor(1))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
channel = grpc.insecure_channel(f"127.0.0.1:{port}")
grpc.channel_ready_future(channel).result()

async def failed():
    processes = [await asyncio.create_subprocess_exec("true") for _ in range(200)]
    return sum([await process.wait() != 0 for process in processes])

sys.exit(uvloop.run(failed()))
"""
"""A process that sends traces, and starts many others."""


@pytest.fixture
async def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Child]:
    (tmp_path / "echoing.py").write_text(ECHO)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(Path(__file__).parents[3])]))
    monkeypatch.setenv("QUIRE_REDIS_URL", "redis://:secret@127.0.0.1")
    child = Child("echoing", most_bytes=4096, niceness=5)
    await child.start()
    yield child
    await child.end()


async def test_it_answers_with_a_lower_priority_and_without_secrets(child: Child) -> None:
    for asked in ({"text": "line\nafter line \U0001f600"}, ["x", 1, None]):
        await child.send(asked)
        assert await child.receive() == {"asked": asked}
    assert child.process is not None
    process = psutil.Process(child.process.pid)
    assert process.nice() == max(5, psutil.Process().nice())
    assert "QUIRE_REDIS_URL" not in process.environ()


async def test_a_message_that_is_too_long_is_not_kept(child: Child) -> None:
    await child.send("x" * 100_000)
    with pytest.raises(ValueError, match="limit"):
        await child.receive()
    async with asyncio.timeout(60):
        assert await child.end() == -signal.SIGKILL


async def test_its_end_in_the_middle_of_a_message_is_told_and_another_can_start(child: Child) -> None:
    await child.send("die")
    with pytest.raises(EOFError):
        await child.receive()
    assert await child.end(60) == -signal.SIGKILL
    assert await child.end() is None
    await child.start()
    await child.send(1)
    assert await child.receive() == {"asked": 1}


async def test_it_ends_with_its_pipe_once_there_are_no_more_questions(child: Child) -> None:
    assert child.process is not None
    assert child.process.stdin is not None
    child.process.stdin.close()
    assert await child.end(60) == 0


async def test_a_process_whose_end_nobody_waits_for_ends() -> None:
    """As when the server stops just then."""
    process = await asyncio.create_subprocess_exec("sleep", "600")
    child = Child("unused", most_bytes=1)
    child.process = process
    ending = asyncio.ensure_future(child.end(600))
    await asyncio.sleep(0)
    ending.cancel()
    async with asyncio.timeout(60):
        assert await process.wait() == -signal.SIGKILL
    assert ending.cancelled()


def test_processes_start_beside_traces() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    assert subprocess.run([sys.executable, "-c", TRACED], env=environment).returncode == 0
