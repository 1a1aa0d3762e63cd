"""Starts a deployment, keeps it running, and ends it."""

import asyncio
import contextlib
import errno
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from ops.launcher.acl import OPERATOR, ROLES, Credentials
from ops.launcher.deployments import Deployment, claimed_directory, forget, write
from ops.launcher.kept_keys import kept
from ops.launcher.leases import Leases
from ops.launcher.misspelled import misspelled
from ops.launcher.out_of_memory import OutOfMemory
from ops.launcher.progress import Progress
from ops.launcher.ready import first_answer, wait_ready
from ops.launcher.redis_server import NoRedisError, RedisServer
from ops.launcher.served import check_adapters, check_models
from ops.launcher.specs import (
    BEHIND,
    FRONT,
    REDIS,
    Options,
    check_open,
    memory_shares,
    own_key,
    service_specs,
)
from ops.launcher.supervisor import GOODBYE_SECONDS, Report, Supervisor
from ops.launcher.welcome import first_request
from ops.launcher.worker_description import describe
from ops.runtime.address import check_free
from ops.runtime.api_keys import Key, digest_of, new_secret
from ops.runtime.child import Child, Spec
from ops.runtime.errors import LaunchError, UsageError
from ops.runtime.identity import Identity
from ops.runtime.key_store import KeyStore
from ops.runtime.settings import named_redis, stream_prefix
from proto.rpc.line import Line

OWN_KEY_SECONDS = 86400
"""Time in which a first token must have come, where that needs a key."""


async def launch(options: Options, say: Report, on_ready: Callable[[], None]) -> None:
    """Run the deployment until a signal ends it (SIGINT, SIGTERM, SIGHUP; a second one at once).

    `on_ready` is called once a first token has come. Raises `LaunchError` if it does not come to
    that; whatever happens, no process is left behind.
    """
    check_directory()
    check_models(options.models)
    check_adapters(options.adapters, options.models)
    check_open(options)
    with claimed_directory(options.port) as directory:
        check_port(options.host, options.port)
        launcher = Launcher(options, directory, say)
        try:
            async with _until_signal(say, options.stop_seconds, launcher.supervisor.kill):
                await launcher.run(on_ready)
        finally:
            launcher.supervisor.kill()
            forget(options.port)
            await launcher.close()


class Launcher:
    """One deployment: its processes, its Redis, its record."""

    def __init__(self, options: Options, directory: Path, say: Report) -> None:
        self._options = options
        self._key = own_key(options)
        self._kept = kept(options.port)
        self._say = say
        self._prefix = stream_prefix()
        self._server: RedisServer | None = None
        redis_specs: list[Spec] = []
        if url := named_redis():
            urls = dict.fromkeys(ROLES, url)
        else:
            credentials = Credentials()
            self._server = _own_redis(directory / "redis", credentials, self._prefix)
            redis_specs = [Spec("redis", self._server.command(), REDIS)]
            urls = {role: credentials.url(role, self._server.address) for role in ROLES}
        self._redis_url = urls[OPERATOR]
        self.leases = Leases(self._redis_url, self._prefix)
        self.supervisor = Supervisor(
            [*redis_specs, *service_specs(options, urls)],
            directory / "logs",
            report=say,
            buried=self._bury,
            changed=self._remember,
        )
        self._memory = OutOfMemory()

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Start all, wait for a first token, and keep all alive until cancelled."""
        start = time.perf_counter()
        if self._server is None:
            await self.leases.reachable()
        options, children = self._options, self.supervisor.children
        for line in misspelled(os.environ):
            self._say(f"ignored {line}")
        for model in options.models:
            self._say(f"model   {model.name} ({model.path})")
        for name, directory in options.adapters.items():
            self._say(f"adapter {name} ({directory})")
        if shares := memory_shares([child.spec for child in children]):
            self._say(f"memory  of the device that they share: {shares}")
        self._say(f"logs    {children[0].log.parent}")
        self._say(f"start   {', '.join(child.spec.name for child in children)}")
        grace = self._options.stop_seconds + GOODBYE_SECONDS
        async with contextlib.AsyncExitStack() as stages:
            await stages.enter_async_context(self.supervisor.running(REDIS, grace))
            if self._server is not None:
                await self.leases.answering()
            store = KeyStore(Line(self._redis_url), self._prefix)
            stages.callback(store.close)
            key = await self._key_for_first_token(store)
            await stages.enter_async_context(self.supervisor.running(BEHIND, grace))
            await stages.enter_async_context(self.supervisor.running(FRONT, grace))
            with Progress(self._say) as progress:
                await wait_ready(
                    options.url, options.model_names, lambda missing: self._show_stages(progress, missing)
                )
            for line in await self._found():
                self._say(f"loaded  {line}")
            for model in options.models:
                endpoint, body = first_request(model.path)
                seconds = await first_answer(options.url, model.name, key, endpoint, body)
                of_model = f" of {model.name}" if len(options.models) > 1 else ""
                what = "token " if endpoint == "completions" else "answer"
                self._say(f"{what}  the first one{of_model} took {seconds * 1000:.0f} ms")
            if key != self._key:
                await store.revoke([digest_of(key)])
            self._say(f"ready   in {time.perf_counter() - start:.1f} s: {options.url}")
            self.supervisor.settle()
            on_ready()
            await self.supervisor.bound_logs()

    async def _key_for_first_token(self, store: KeyStore) -> str:
        """A key with which to ask for a first token; empty if none is needed.

        An embedded Redis gets the keys that were kept of the deployment before.
        """
        if self._server is not None and self._kept is not None:
            await store.restore(self._kept)
        if self._key or await store.version() is None:
            return self._key
        secret = new_secret()
        until = time.time() + OWN_KEY_SECONDS
        await store.add(digest_of(secret), Key(name="quire-up", tenant="quire-up", expires=until))
        return secret

    async def close(self) -> None:
        """Let go of Redis, once no process is left."""
        await self.leases.aclose()
        if self._server is not None:
            self._server.clear()

    async def _bury(self, child: Child, status: int) -> None:
        killed = False
        if status == -signal.SIGKILL:
            ran_out = self._memory.ran_out()
            killed = ran_out is False
            if ran_out:
                self._say("memory  the system had none left: less QUIRE_KV_MEMORY or a smaller model may fit")
        if child.identity is not None and child.spec.stage != REDIS:
            await self.leases.bury(child.identity.pid, killed)

    def _remember(self) -> None:
        children = self.supervisor.children
        deployment = Deployment(
            url=self._options.url,
            port=self._options.port,
            model=", ".join(self._options.model_names),
            redis_url=self._redis_url,
            stream_prefix=self._prefix,
            launcher=Identity.of(os.getpid()),
            processes={child.spec.name: child.identity for child in children if child.identity},
            stop_seconds=self._options.stop_seconds,
        )
        try:
            write(deployment)
        except OSError as error:  # a full disk is no reason to end what serves
            self._say(f"record  cannot be kept, so that `quire status` may show another state: {error}")

    async def _show_stages(self, progress: Progress, missing: str) -> None:
        """Show what the workers are doing; before they say that, `missing`."""
        stages = [f"{name}: {stage}" for name, info in await self._workers() if (stage := info.get("stage"))]
        if stages or missing:
            progress.show(", ".join(stages) or f"no {missing} yet")

    async def _found(self) -> list[str]:
        """What each worker has found, in words."""
        return [describe(info) for _, info in await self._workers()]

    async def _workers(self) -> list[tuple[str, Mapping[str, Any]]]:
        """This deployment's workers by name, and what they publish in their leases."""
        names = {child.identity.pid: child.spec.name for child in self.supervisor.children if child.identity}
        holders = [one for one in await self.leases.holders() if one.service == "worker" and one.pid in names]
        return [(names[holder.pid], holder.info) for holder in holders]


def check_directory() -> None:
    """Raise `LaunchError` if the working directory was removed: libraries of the services fail there."""
    try:
        Path.cwd()
    except FileNotFoundError:
        raise LaunchError("the working directory is gone; change to another one") from None


def check_port(host: str, port: int) -> None:
    """Raise `LaunchError` if the gateway could not listen there."""
    try:
        check_free(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise LaunchError(f"port {port} is taken; choose another one with --port") from None
        if error.errno == errno.EACCES:
            raise LaunchError(f"port {port} is for root alone; choose another one with --port") from None
        raise LaunchError(f"cannot listen on {host} port {port}: {error.strerror}") from None


def _own_redis(directory: Path, credentials: Credentials, prefix: str) -> RedisServer:
    """The Redis to start for the deployment."""
    try:
        return RedisServer(directory=directory, users=credentials.acl_file(prefix))
    except NoRedisError as error:
        raise LaunchError(str(error)) from None
    except ValueError as error:
        raise UsageError(f"QUIRE_STREAM_PREFIX={prefix}: {error}") from None


@contextlib.asynccontextmanager
async def _until_signal(say: Report, seconds: float, kill: Callable[[], None]) -> AsyncIterator[None]:
    """Let the block run until a signal cancels it; a second signal calls `kill`.

    `seconds`: that answers under way have then.
    """
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
            say(f"stop    answers that run have {seconds:g} s to end (once more: at once)")
            task.cancel()

    signals = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # with nohup it is meant to go on
        signals.append(signal.SIGHUP)
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
