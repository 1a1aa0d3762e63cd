"""`quire record` beside a process that takes the signal for a scheduler."""

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ops.cli import record
from proto.rpc import Lease

SCHEDULER = """
import os, pathlib, signal, socket, sys
asked = {signal.SIGUSR1}
signal.pthread_sigmask(signal.SIG_BLOCK, asked)  # for a handler one that comes right before `pause` is late
print("ready", flush=True)
while signal.sigwait(asked):
    for host in ("other-" + socket.gethostname(), socket.gethostname()):  # another's with the same number
        for number in range(int(sys.argv[2])):
            name = f"fox-20260101T000000-{host}-{os.getpid()}-{number:06}.quire"
            pathlib.Path(sys.argv[1], name).touch()
"""


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Writes two files for each signal."""
    command = [sys.executable, "-c", SCHEDULER, str(tmp_path), "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.send_signal(signal.SIGKILL)


def lease(pid: int, host: str = "", **info: Any) -> Lease:
    return Lease("scheduler-1", "scheduler", 1, info, host or socket.gethostname(), pid)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[Lease]:
    leases: list[Lease] = []

    async def schedulers() -> list[Lease]:
        return leases

    monkeypatch.setattr(record, "_schedulers", schedulers)
    return leases


async def test_it_names_what_the_scheduler_has_written(
    scheduler: subprocess.Popen[str], found: list[Lease], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process = f"{socket.gethostname()}-{scheduler.pid}"
    (tmp_path / f"fox-20250101T000000-{process}-000000.quire").touch()  # from before
    found.append(lease(scheduler.pid, recordings=str(tmp_path), workers=2))
    assert await record.run() == 0
    names = [f"fox-20260101T000000-{process}-{number:06}.quire" for number in range(2)]
    assert capsys.readouterr().out.splitlines() == [str(tmp_path / name) for name in names]


async def test_one_that_writes_too_little_is_named(
    scheduler: subprocess.Popen[str],
    found: list[Lease],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(record, "PATIENCE", 0.3)
    found.append(lease(scheduler.pid, recordings=str(tmp_path), workers=3))
    assert await record.run() == 1
    assert f"process {scheduler.pid} has written too little" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("leases", "why"),
    [
        ([], "none runs here"),
        ([lease(1, host="elsewhere", recordings="/x", workers=1)], "none runs here"),
        ([lease(1, recordings="", workers=1)], "none records: start them with QUIRE_RECORDINGS"),
        ([lease(1, recordings="/x", workers=0)], "process 1 has no worker"),
        ([lease(2**22 + 1, recordings="/x", workers=1)], "No such process"),
    ],
)
async def test_no_one_who_does_not_record_gets_the_signal(
    found: list[Lease], capsys: pytest.CaptureFixture[str], leases: list[Lease], why: str
) -> None:
    """It would end a process that does not expect it."""
    found += leases
    assert await record.run() == 1
    assert why in capsys.readouterr().err
