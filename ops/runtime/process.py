"""How every process starts, serves and ends."""

import asyncio
import contextlib
import gc
import logging
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import TypeVar

import uvloop

from ops.runtime.errors import StartError
from ops.runtime.settings import ProcessSettings
from ops.runtime.telemetry import start_traces
from ops.runtime.watchdog import watch_loop
from proto.rpc import Node, RedisBus

Settings = TypeVar("Settings", bound=ProcessSettings)
Serve = Callable[[Node, Settings], Awaitable[None]]


def run(settings: Settings, service: str, serve: Serve[Settings]) -> None:
    """Run `serve(node, settings)` as the process `service` until it returns or a signal ends it.

    SIGTERM and SIGINT cancel `serve`, which may then end its calls in its own time. What keeps the
    process from starting is one line on stderr and an exit status: 2 if trying again is of no use
    (as for a bad setting), else 1.
    """
    logging.basicConfig(
        level=settings.log_level,
        format=f"%(asctime)s {service:<9} %(levelname)s %(message)s",
        stream=sys.stderr,
    )
    try:
        uvloop.run(_run(settings, service, serve))
    except (StartError, ConnectionError) as error:
        print(f"quire {service}: {error}", file=sys.stderr)
        raise SystemExit(2 if isinstance(error, StartError) else 1) from None


async def _run(settings: Settings, service: str, serve: Serve[Settings]) -> None:
    watch_loop()
    gc.freeze()  # what was imported stays: the collector need not look at it again and again
    bus = RedisBus(settings.redis_url, prefix=settings.stream_prefix)
    async with Node(bus, service=service, lease_seconds=settings.lease_seconds) as node:
        traces = start_traces(service, node.id, settings.otlp_endpoint)
        task = asyncio.ensure_future(serve(node, settings))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, task.cancel)
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        finally:
            if traces is not None:
                await asyncio.to_thread(traces.shutdown)
