"""A deployment to break: two of every service behind the gateway, each with its own way to Redis.

Processes are started, buried and started again by the launcher's own supervisor.
"""

import asyncio
import contextlib
import secrets
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import redis.asyncio

from ops.bench.robust.leaks import unaccepted
from ops.bench.robust.proxy import Proxy
from ops.launcher.acl import OPERATOR, ROLES, Credentials, digest
from ops.launcher.leases import Leases
from ops.launcher.ready import first_answer, wait_ready
from ops.launcher.redis_server import RedisServer, free_port
from ops.launcher.specs import BEHIND, FRONT, REDIS, Options, service_specs
from ops.launcher.supervisor import Supervisor
from ops.launcher.welcome import FIRST_REQUEST
from ops.runtime.child import Child, Spec
from ops.runtime.identity import Identity

PREFIX = "quire:"
ADMIN = "breaker"
"""A user of Redis who may do everything. The processes have the rights that they always have."""
REPLICAS = {"gateway": 1, "tokenizer": 2, "scheduler": 2, "worker": 2}
START_SECONDS = 240.0
IGNORE_SIGXFSZ = """
import os, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Runs a program whose writes beyond a file's limit fail, as on a full disk, instead of ending it."""


class Rig:
    """The running deployment."""

    def __init__(self, directory: Path, lease_seconds: float, speculation: str | None = None) -> None:
        """`directory`: for logs and for what Redis keeps. `speculation`: where drafts come from."""
        self.lease_seconds = lease_seconds
        self.logs = directory / "logs"
        self.logs.mkdir(parents=True)
        data = directory / "redis"
        data.mkdir()
        credentials, password = Credentials(), secrets.token_hex(32)
        users = f"{credentials.acl_file(PREFIX)}user {ADMIN} on #{digest(password)} ~* &* +@all\n"
        self._server = RedisServer(directory=data, users=users)
        self._urls = {role: credentials.url(role, self._server.address) for role in ROLES}
        self.redis = redis.asyncio.Redis.from_url(
            self._server.address, username=ADMIN, password=password, socket_timeout=60
        )
        self.options = Options(workers=REPLICAS["worker"], port=free_port(), speculation=speculation)
        self.proxies: dict[str, Proxy] = {}
        self._leases = Leases(self._urls[OPERATOR], PREFIX)
        self._supervisor: Supervisor | None = None

    @property
    def url(self) -> str:
        return self.options.url

    @property
    def model(self) -> str:
        return self.options.model_names[0]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start all, and return when all replicas serve; end all after the block."""
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self._server.clear)
            stack.push_async_callback(self.redis.aclose)
            stack.push_async_callback(self._leases.aclose)
            specs = await self._specs(stack)
            self._supervisor = Supervisor(
                specs, self.logs, report=lambda _: None, buried=self._bury, changed=lambda: None
            )
            stack.callback(self._supervisor.kill)
            await stack.enter_async_context(self._supervisor.running(REDIS))
            await self._leases.answering()
            await stack.enter_async_context(self._supervisor.running(BEHIND))
            await stack.enter_async_context(self._supervisor.running(FRONT))
            async with asyncio.timeout(START_SECONDS):
                await wait_ready(self.url, [self.model])
                await self.whole()
                await first_answer(self.url, self.model, "", *FIRST_REQUEST)
            self._supervisor.settle()
            yield

    async def _specs(self, stack: contextlib.AsyncExitStack) -> list[Spec]:
        found = []
        for spec in service_specs(self.options, self._urls):
            names = [spec.name]
            if REPLICAS.get(spec.name, 1) > 1:
                names = [f"{spec.name}-{number}" for number in range(REPLICAS[spec.name])]
            for name in names:
                proxy = Proxy(self._urls[name.partition("-")[0]])
                self.proxies[name] = await stack.enter_async_context(proxy)
                own = {
                    "QUIRE_REDIS_URL": proxy.url,
                    "QUIRE_STREAM_PREFIX": PREFIX,
                    "QUIRE_LEASE_SECONDS": str(self.lease_seconds),
                    "QUIRE_KV_MEMORY": "64MiB",
                    "QUIRE_THREADS": "1",
                }
                found.append(replace(spec, name=name, environment={**spec.environment, **own}))
        command = (sys.executable, "-c", IGNORE_SIGXFSZ, *self._server.command())
        return [Spec("redis", command, REDIS), *found]

    def named(self, role: str) -> list[str]:
        """The processes of one role: "worker" has "worker-0" and "worker-1"."""
        return [child.spec.name for child in self._children() if child.spec.name.split("-")[0] == role]

    def process(self, name: str) -> Identity | None:
        """The process that runs under this name now; None while it is being replaced."""
        (child,) = (child for child in self._children() if child.spec.name == name)
        return child.identity if child.running else None

    def processes(self) -> dict[str, int]:
        """Process ids, by name."""
        return {
            child.spec.name: child.identity.pid
            for child in self._children()
            if child.running and child.identity is not None
        }

    async def whole(self) -> None:
        """Return once every replica has its lease, and each scheduler knows of its workers."""
        while not await self._is_whole():
            await asyncio.sleep(0.05)

    async def pending(self) -> int:
        """Calls that were given to a process and not accepted since."""
        count = 0
        async for key in self.redis.scan_iter(f"{PREFIX}calls:*"):
            for group in await self.redis.xinfo_groups(key):
                consumers = await self.redis.xinfo_consumers(key, group["name"])
                count += unaccepted(key.decode(), consumers)
        return count

    async def settled(self, seconds: float) -> bool:
        """Wait for at most `seconds` until no call is pending."""
        deadline = time.monotonic() + seconds
        while await self.pending():
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.1)
        return True

    def logged(self, *marks: str) -> list[str]:
        """Lines of all logs that have one of the marks in them."""
        return [
            f"{path.stem}: {line}"
            for path in sorted(self.logs.glob("*.log"))
            for line in path.read_text(errors="replace").splitlines()
            if any(mark in line for mark in marks)
        ]

    async def _is_whole(self) -> bool:
        try:
            holders = await self._leases.holders()
        except (redis.exceptions.RedisError, OSError):
            return False
        workers = sum(int(one.info.get("workers", 0)) for one in holders if one.service == "scheduler")
        return Counter(one.service for one in holders) == REPLICAS and workers == REPLICAS["worker"]

    async def _bury(self, child: Child, status: int) -> None:
        if child.identity is not None and child.spec.stage != REDIS:
            await self._leases.bury(child.identity.pid, killed=status == -signal.SIGKILL)

    def _children(self) -> list[Child]:
        assert self._supervisor is not None
        return self._supervisor.children
