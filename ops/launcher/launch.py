"""Starts a deployment, keeps it running, and ends it."""

import asyncio
import contextlib
import errno
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from ops.launcher.ready import first_token, wait_ready
from ops.launcher.record import Deployment, claimed_directory, forget, write
from ops.launcher.redis_server import NoRedisError, RedisServer
from ops.launcher.specs import BEHIND, FRONT, REDIS, Options, check_model, own_key, service_specs
from ops.launcher.supervisor import Report, Supervisor
from ops.runtime.child import Child, Spec
from ops.runtime.errors import LaunchError, UsageError
from ops.runtime.identity import Identity
from ops.runtime.leases import Leases


async def launch(options: Options, say: Report, on_ready: Callable[[], None]) -> None:
    """Run the deployment until a signal ends it (SIGINT, SIGTERM, SIGHUP; a second one at once).

    `on_ready` is called once a first token has come. Raises `LaunchError` if it does not come to
    that; whatever happens, no process is left behind.
    """
    check_model(options.model)
    with claimed_directory(options.port) as directory:
        check_port(options.host, options.port)
        launcher = Launcher(options, directory, say)
        try:
            async with _until_signal(say, launcher.supervisor.kill):
                await launcher.run(on_ready)
        finally:
            launcher.supervisor.kill()
            forget(options.port)
            await launcher.leases.aclose()


class Launcher:
    """One deployment: its processes, its Redis, its record."""

    def __init__(self, options: Options, directory: Path, say: Report) -> None:
        self._options = options
        self._key = own_key(options)
        self._say = say
        self._redis_url, redis_specs = _redis(directory / "redis")
        self._prefix = os.environ.get("QUIRE_STREAM_PREFIX", "quire:")
        self.leases = _leases(self._redis_url, self._prefix)
        self.supervisor = Supervisor(
            [*redis_specs, *service_specs(options, self._redis_url)],
            directory / "logs",
            report=say,
            buried=self._bury,
            changed=self._remember,
        )
        self._own_redis = bool(redis_specs)

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Start all, wait for a first token, and keep all alive until cancelled."""
        start = time.perf_counter()
        if not self._own_redis:
            await self.leases.reachable()
        options, children = self._options, self.supervisor.children
        self._say(f"model   {options.model_name} ({options.model})")
        self._say(f"logs    {children[0].log.parent}")
        self._say(f"start   {', '.join(child.spec.name for child in children)}")
        async with contextlib.AsyncExitStack() as stages:
            await stages.enter_async_context(self.supervisor.running(REDIS))
            if self._own_redis:
                await self.leases.answering()
            await stages.enter_async_context(self.supervisor.running(BEHIND))
            await stages.enter_async_context(self.supervisor.running(FRONT))
            await wait_ready(
                options.url, options.model_name, lambda missing: self._say(f"wait    no {missing} yet")
            )
            self._say(f"loaded  {await self._models()}")
            seconds = await first_token(options.url, options.model_name, self._key)
            self._say(f"token   the first one took {seconds * 1000:.0f} ms")
            self._say(f"ready   in {time.perf_counter() - start:.1f} s: {options.url}")
            self.supervisor.settle()
            on_ready()
            await asyncio.Event().wait()

    async def _bury(self, child: Child) -> None:
        if child.identity is not None and child.spec.stage != REDIS:
            await self.leases.bury(child.identity.pid)

    def _remember(self) -> None:
        children = self.supervisor.children
        deployment = Deployment(
            url=self._options.url,
            port=self._options.port,
            model=self._options.model_name,
            redis_url=self._redis_url,
            stream_prefix=self._prefix,
            launcher=Identity.of(os.getpid()),
            processes={child.spec.name: child.identity for child in children if child.identity},
        )
        write(deployment)

    async def _models(self) -> str:
        """What the workers publish in their leases."""
        workers = [holder.info for holder in await self.leases.holders() if holder.service == "worker"]
        return ", ".join(
            f"{info.get('model')} on {info.get('device')} in {info.get('dtype')}" for info in workers
        )


def check_port(host: str, port: int) -> None:
    """Raise `LaunchError` if the gateway could not listen there."""
    try:
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(address[0]) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address[4])
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise LaunchError(f"port {port} is taken; choose another one with --port") from None
        raise LaunchError(f"cannot listen on {host} port {port}: {error.strerror}") from None


def _redis(directory: Path) -> tuple[str, list[Spec]]:
    """Where Redis is, and the process to start for it: none if the environment names one."""
    if url := os.environ.get("QUIRE_REDIS_URL"):
        return url, []
    try:
        server = RedisServer(directory=directory)
    except NoRedisError as error:
        raise LaunchError(str(error)) from None
    return server.url, [Spec("redis", server.command(), REDIS)]


def _leases(url: str, prefix: str) -> Leases:
    try:
        return Leases(url, prefix)
    except ValueError as error:
        raise UsageError(f"QUIRE_REDIS_URL={url}: {error}") from None


@contextlib.asynccontextmanager
async def _until_signal(say: Report, kill: Callable[[], None]) -> AsyncIterator[None]:
    """Let the block run until a signal cancels it; a second signal calls `kill`."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    signalled = False

    def on_signal() -> None:
        nonlocal signalled
        if signalled:
            kill()
        else:
            signalled = True
            say("stop    ending all processes (once more: at once)")
            task.cancel()

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in signals:
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    except asyncio.CancelledError:
        if not signalled:
            raise
        task.uncancel()
        say("stopped")
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
