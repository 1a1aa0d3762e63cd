"""What can happen to a process: it dies, it stops, its way to Redis is cut or slow, memory or disk are full.

Not tried, because it takes privileges: a file system that is really full. A limit on the size of a process's
files stands for it; writes beyond it fail with EFBIG in place of ENOSPC. The kernel's out-of-memory killer is
a kill.
"""

import asyncio
import contextlib
import random
import resource
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import psutil

from ops.bench.robust.rig import Rig
from ops.runtime.identity import Identity

SLOW_SECONDS = 0.05
"""By which each piece from and to Redis is late."""
BEYOND_A_LEASE = 1.4
"""Times a lease: how long a process is stopped or cut off, so that its lease runs out."""


def _signal(process: Identity | None, number: signal.Signals) -> None:
    if process is not None and process.alive():
        with contextlib.suppress(ProcessLookupError):
            psutil.Process(process.pid).send_signal(number)


@contextlib.asynccontextmanager
async def _killed(rig: Rig, name: str) -> AsyncIterator[None]:
    if (process := rig.process(name)) is not None:
        await asyncio.to_thread(process.end, signal.SIGKILL, 5)
    yield


@contextlib.asynccontextmanager
async def _stopped(rig: Rig, name: str) -> AsyncIterator[None]:
    process = rig.process(name)
    _signal(process, signal.SIGSTOP)
    try:
        yield
    finally:
        _signal(process, signal.SIGCONT)


@contextlib.asynccontextmanager
async def _reset(rig: Rig, name: str) -> AsyncIterator[None]:
    rig.proxies[name].reset()
    try:
        yield
    finally:
        rig.proxies[name].mend()


@contextlib.asynccontextmanager
async def _silenced(rig: Rig, name: str) -> AsyncIterator[None]:
    rig.proxies[name].silence()
    try:
        yield
    finally:
        rig.proxies[name].mend()


@contextlib.asynccontextmanager
async def _unanswered(rig: Rig, name: str) -> AsyncIterator[None]:
    rig.proxies[name].lose_answers()
    try:
        yield
    finally:
        rig.proxies[name].mend()


@contextlib.asynccontextmanager
async def _slowed(rig: Rig, name: str) -> AsyncIterator[None]:
    rig.proxies[name].slow(SLOW_SECONDS)
    try:
        yield
    finally:
        rig.proxies[name].mend()


@contextlib.asynccontextmanager
async def _memory_full(rig: Rig, name: str) -> AsyncIterator[None]:
    await rig.redis.config_set("maxmemory", "1")
    try:
        yield
    finally:
        await rig.redis.config_set("maxmemory", "0")


@contextlib.asynccontextmanager
async def _disk_full(rig: Rig, name: str) -> AsyncIterator[None]:
    """No file of the process grows: neither its log nor, of Redis, its append-only file."""
    _limit_files(rig.process(name), 1)
    try:
        yield
    finally:
        _limit_files(rig.process(name), resource.RLIM_INFINITY)


def _limit_files(process: Identity | None, size: int) -> None:
    """Let no file of the process grow beyond `size` bytes."""
    if process is not None and process.alive():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            there = psutil.Process(process.pid)
            _, hard = there.rlimit(resource.RLIMIT_FSIZE)
            there.rlimit(resource.RLIMIT_FSIZE, (size if hard < 0 else min(size, hard), hard))


@dataclass(frozen=True)
class Kind:
    """A kind of fault."""

    name: str
    broken: Callable[[Rig, str], AbstractAsyncContextManager[None]]
    roles: tuple[str, ...]
    """Whom it befalls."""
    leases: float = 0.0
    seconds: float = 0.0
    """It lasts for that many leases and seconds."""


BEHIND = ("worker", "scheduler", "tokenizer")
KINDS = (
    Kind("killed", _killed, (*BEHIND, "redis")),
    Kind("stopped", _stopped, (*BEHIND, "gateway", "redis"), leases=BEYOND_A_LEASE),
    Kind("connections reset", _reset, (*BEHIND, "gateway"), leases=BEYOND_A_LEASE),
    Kind("connections silent", _silenced, (*BEHIND, "gateway"), leases=BEYOND_A_LEASE),
    Kind("answers lost", _unanswered, (*BEHIND, "gateway"), leases=BEYOND_A_LEASE),
    Kind("connections slow", _slowed, (*BEHIND, "gateway"), seconds=2.0),
    Kind("memory full", _memory_full, ("redis",), seconds=1.5),
    Kind("disk full", _disk_full, ("redis", *BEHIND, "gateway"), seconds=1.5),
)


@dataclass(frozen=True)
class Fault:
    """One thing that happens to one process."""

    kind: Kind
    name: str
    """Of the process."""
    seconds: float
    replaceable: bool
    """Another process can do the work meanwhile."""

    @property
    def what(self) -> str:
        return f"{self.name.split('-')[0]}: {self.kind.name}"

    def happening(self, rig: Rig) -> AbstractAsyncContextManager[None]:
        return self.kind.broken(rig, self.name)


def drawn(chance: random.Random, rig: Rig, count: int) -> list[Fault]:
    """`count` faults. Kinds take turns, and so do the roles within a kind, in an order that is drawn anew."""
    decks: dict[str, list[str]] = {kind.name: [] for kind in KINDS}
    found: list[Fault] = []
    while len(found) < count:
        for kind in chance.sample(KINDS, len(KINDS)):
            deck = decks[kind.name] = decks[kind.name] or chance.sample(kind.roles, len(kind.roles))
            role = deck.pop()
            names = rig.named(role)
            seconds = kind.leases * rig.lease_seconds + kind.seconds
            found.append(Fault(kind, chance.choice(names), seconds, len(names) > 1))
    return found[:count]
