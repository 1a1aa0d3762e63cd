"""Starting again and giving up, with processes that live for as long as a test wants."""

import asyncio
import contextlib
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ops.launcher import supervisor as module
from ops.launcher.supervisor import Supervisor, backoff
from ops.runtime.child import Child, Spec, describe_end
from ops.runtime.errors import LaunchError


def python(name: str, code: str, stage: int = 0) -> Spec:
    return Spec(name, (sys.executable, "-c", code), stage)


class Watched:
    """A supervisor whose reports, burials and starts are kept."""

    def __init__(self, logs: Path, *specs: Spec) -> None:
        self.reports: list[str] = []
        self.buried: list[str] = []
        self.statuses: list[int] = []
        self.starts = 0
        self.changed = asyncio.Event()
        self.supervisor = Supervisor(specs, logs, self.reports.append, self._bury, self._change)

    async def _bury(self, child: Child, status: int) -> None:
        self.buried.append(child.spec.name)
        self.statuses.append(status)

    def _change(self) -> None:
        self.starts += 1
        self.changed.set()

    async def started(self, times: int) -> None:
        while self.starts < times:
            self.changed.clear()
            await self.changed.wait()


def test_backoff_is_nothing_then_doubles_up_to_a_cap() -> None:
    assert [backoff(failures) for failures in range(1, 9)] == [0, 0.5, 1, 2, 4, 8, 10, 10]


async def test_once_settled_nothing_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "backoff", lambda failures: 0.01)
    watched = Watched(tmp_path, python("short", "raise SystemExit(2)"))
    watched.supervisor.settle()
    async with asyncio.timeout(60), watched.supervisor.running(0):
        await watched.started(6)
    assert watched.buried[:5] == ["short"] * 5
    assert len(watched.statuses) == len(watched.buried)
    assert "short ended with status 2" in watched.reports[0]


@pytest.mark.parametrize("lacks", ["program", "log", "thread"])
async def test_once_settled_what_cannot_be_started_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    """As where no further process finds room."""
    program, log = tmp_path / "program", tmp_path / "short.log"
    program.symlink_to(tmp_path / "nowhere" if lacks == "program" else sys.executable)
    if lacks == "log":
        log.mkdir()
    start = asyncio.create_subprocess_exec

    async def without_a_thread(*args: Any, **named: Any) -> Any:
        raise RuntimeError("can't start new thread")  # of Python 3.11, which waits for the process

    if lacks == "thread":
        monkeypatch.setattr(asyncio, "create_subprocess_exec", without_a_thread)
    monkeypatch.setattr(module, "backoff", lambda failures: 0.01)
    watched = Watched(tmp_path, Spec("short", (str(program), "-c", ""), 0))
    watched.supervisor.settle()
    async with asyncio.timeout(60), watched.supervisor.running(0):
        while len(watched.reports) < 3:
            await asyncio.sleep(0.01)
        assert watched.starts == 0
        if lacks == "program":
            program.unlink()
            program.symlink_to(sys.executable)
        elif lacks == "log":
            log.rmdir()
        monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
        await watched.started(2)
    assert watched.reports[0].startswith("short: cannot run")
    assert watched.reports[0].endswith("; starting it again in 0.01 s")


async def test_logs_are_kept_small_although_one_look_at_them_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOGS_SECONDS", 0.01)
    supervisor, looks = Watched(tmp_path, python("one", "")).supervisor, []

    def look() -> None:
        looks.append(1)
        raise OSError("too many open files")

    supervisor.children[0].bound_log = look  # type: ignore[method-assign]
    keeping = asyncio.ensure_future(supervisor.bound_logs())
    async with asyncio.timeout(60):
        while len(looks) < 3:
            await asyncio.sleep(0.01)
    keeping.cancel()


async def test_giving_up_names_the_log_of_the_last_try(tmp_path: Path) -> None:
    watched = Watched(tmp_path, python("short", "print('no such model'); raise SystemExit(2)"))
    with pytest.raises(LaunchError, match=r"short\.log\):\nno such model$"):
        async with asyncio.timeout(60), watched.supervisor.running(0):
            await asyncio.Event().wait()


async def test_a_program_that_does_not_exist(tmp_path: Path) -> None:
    watched = Watched(tmp_path, Spec("none", (str(tmp_path / "none"),), 0))
    with pytest.raises(LaunchError, match="cannot run"):
        async with watched.supervisor.running(0):
            await asyncio.Event().wait()


def deaf(ready: Path) -> Spec:
    """A process that does not listen, and touches a file when it no longer does."""
    code = f"""
import pathlib, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path({str(ready)!r}).touch()
while True: signal.pause()
"""
    return python("deaf", code)


async def test_what_is_killed_at_once_is_not_started_again(tmp_path: Path) -> None:
    """Otherwise it would be given its grace, too."""
    watched, ready = Watched(tmp_path, deaf(tmp_path / "ready")), tmp_path / "ready"
    watched.supervisor.settle()
    async with asyncio.timeout(60), watched.supervisor.running(0, grace=3600):
        while not ready.exists():
            await asyncio.sleep(0.01)
        watched.supervisor.kill()
        await watched.supervisor.children[0].wait()
        await asyncio.sleep(0.2)
    assert watched.starts == 1
    assert not watched.supervisor.children[0].running


async def test_what_does_not_listen_is_killed_after_its_grace(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    watched = Watched(tmp_path, deaf(ready))
    async with watched.supervisor.running(0, grace=0.2):
        while not ready.exists():
            await asyncio.sleep(0.01)
        start = time.monotonic()
    assert 0.2 <= time.monotonic() - start < 60
    assert not watched.supervisor.children[0].running


async def test_an_error_in_the_block_ends_the_children_and_is_passed_on(tmp_path: Path) -> None:
    forever = "import signal\nwhile True: signal.pause()"
    watched = Watched(tmp_path, python("back", forever), python("front", forever, stage=1))
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(pytest.raises(LaunchError, match="no token"))
        await stack.enter_async_context(watched.supervisor.running(0))
        await stack.enter_async_context(watched.supervisor.running(1))
        await watched.started(2)
        raise LaunchError("no token")
    assert not any(child.running for child in watched.supervisor.children)


def test_ends_in_words() -> None:
    assert describe_end(1) == "ended with status 1"
    assert describe_end(-9) == "was ended by SIGKILL"
