"""Faults are drawn so that every kind has its turn; a fault that has ended has left nothing broken."""

import asyncio
import contextlib
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import psutil
import pytest

from ops.bench.robust.faults import KINDS, Fault, drawn
from ops.runtime.identity import Identity

NAMES = {
    "worker": ["worker-0", "worker-1"],
    "scheduler": ["scheduler-0", "scheduler-1"],
    "tokenizer": ["tokenizer-0", "tokenizer-1"],
    "gateway": ["gateway"],
    "redis": ["redis"],
}
WRITER = """
import sys
with open(sys.argv[1], "ab", buffering=0) as file:
    for line in sys.stdin:
        try:
            file.write(b"x" * 10)
            print("written", flush=True)
        except OSError as error:
            print(error.strerror, flush=True)
"""


@dataclass
class FakeRig:
    lease_seconds: float = 2.0
    identity: Identity | None = None
    said: list[str] = field(default_factory=list)
    proxies: dict[str, Any] = field(default_factory=dict)

    def named(self, role: str) -> list[str]:
        return NAMES[role]

    def process(self, name: str) -> Identity | None:
        return self.identity


@contextlib.contextmanager
def writing(path) -> Iterator[tuple["subprocess.Popen[str]", FakeRig]]:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process, FakeRig(identity=Identity.of(process.pid))
    process.kill()
    process.communicate()


def kind(name: str) -> Any:
    return next(one for one in KINDS if one.name == name)


def write_once(process: "subprocess.Popen[str]") -> str:
    assert process.stdin
    assert process.stdout
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def test_a_dozen_has_every_kind_and_the_same_seed_draws_the_same() -> None:
    rig: Any = FakeRig()
    faults = drawn(random.Random(3), rig, 12)
    assert len(faults) == 12
    assert {fault.kind.name for fault in faults} == {kind.name for kind in KINDS}
    assert faults == drawn(random.Random(3), rig, 12)
    assert faults != drawn(random.Random(4), rig, 12)


def test_many_have_every_role_of_every_kind() -> None:
    rig: Any = FakeRig()
    faults = drawn(random.Random(1), rig, 200)
    found = Counter((fault.kind.name, fault.name.split("-")[0]) for fault in faults)
    for kind in KINDS:
        times = [found[kind.name, role] for role in kind.roles]
        assert min(times) >= 200 // len(KINDS) // len(kind.roles)
    stopped = next(fault for fault in faults if fault.what == "scheduler: stopped")
    assert stopped.seconds > rig.lease_seconds
    assert stopped.replaceable
    assert not next(fault for fault in faults if fault.name == "gateway").replaceable


async def test_a_full_disk_refuses_to_grow_a_file_for_a_while(tmp_path) -> None:
    with writing(tmp_path / "log") as (process, rig):
        assert write_once(process) == "written"
        async with Fault(kind("disk full"), "worker-0", 0, True).happening(rig):
            assert write_once(process) == "File too large"
        assert write_once(process) == "written"
    assert (tmp_path / "log").stat().st_size == 20


async def test_one_that_is_stopped_goes_on(tmp_path) -> None:
    with writing(tmp_path / "log") as (process, rig):
        assert write_once(process) == "written"
        async with Fault(kind("stopped"), "worker-0", 0, True).happening(rig):
            while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
                await asyncio.sleep(0.001)
        assert write_once(process) == "written"


async def test_one_that_is_killed_is_dead(tmp_path) -> None:
    with writing(tmp_path / "log") as (process, rig):
        async with Fault(kind("killed"), "worker-0", 0, True).happening(rig):
            assert process.wait(60) == -signal.SIGKILL


@pytest.mark.parametrize("name", ["killed", "stopped", "disk full"])
async def test_one_that_is_not_there_just_now_is_left_alone(name: str, tmp_path) -> None:
    """Its number may be another's by now."""
    with writing(tmp_path / "log") as (process, rig):
        rig.identity = replace(rig.identity, started="before")
        async with Fault(kind(name), "worker-0", 0, True).happening(rig):
            assert write_once(process) == "written"
        rig.identity = None
        async with Fault(kind(name), "worker-0", 0, True).happening(rig):
            assert write_once(process) == "written"
