"""How every process starts, serves and ends."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import uvloop

from ops.runtime import huge_pages
from ops.runtime.errors import StartError
from ops.runtime.logs import start_logs
from ops.runtime.metrics_store import MetricsStore, publish, read_all
from ops.runtime.settings import ProcessSettings
from ops.runtime.telemetry import start_traces
from ops.runtime.trace_sampling import Sampling
from ops.runtime.watchdog import watch_loop
from proto.rpc import Node, RedisBus, TaskEnded
from proto.rpc.line import Line

if TYPE_CHECKING:
    from ops.runtime.metrics_page import MetricsPage

Settings = TypeVar("Settings", bound=ProcessSettings)
Serve = Callable[[Node, Settings], Awaitable[None]]

GOODBYE_SECONDS = 1.0
"""Time in which a process whose transport has failed ends its lease."""
COLLECTED_AFTER = (1_000, 5, 200)
"""Containers made, young collections and middle ones, after which the next older generation is collected.

Python's own numbers (700, 10, 10) collect everything after each 70,000 containers. A gateway that refuses
150 requests a second beside those that it serves spent 18 % of its CPU time so, up to 175 ms at once. So
everything is collected after a million, and what is made for each request must not form a circle. The younger
generations are small, because clients wait meanwhile: a middle collection of 25,000 containers took 30 to
60 ms.
"""
LAST_SECONDS = 5.0
"""Time in which a process says goodbye to its peers. One that takes longer is ended."""

log = logging.getLogger(__name__)


def run(settings: Settings, service: str, serve: Serve[Settings]) -> None:
    """Run `serve(node, settings)` as the process `service` until it returns or a signal ends it.

    SIGTERM and SIGINT cancel `serve`, which may then let its calls go on for `settings.stop_seconds`. A
    second signal cancels it again: then calls end at once. What keeps the process from starting is one line
    on stderr and an exit status: 2 if trying again is of no use (as for a bad setting), else 1.
    """
    start_logs(service, settings.log_level, settings.log_format)
    try:
        uvloop.run(_run(settings, service, serve))
    except (StartError, ConnectionError) as error:
        if settings.log_format == "json":
            log.critical("%s", error)
        else:
            print(f"quire {service}: {error}", file=sys.stderr)
        raise SystemExit(error.exit_status if isinstance(error, StartError) else 1) from None
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic in an extension is no Exception
        log.critical("%s; this process ends", _one_line(error), exc_info=error)
        raise SystemExit(1) from None


async def _run(settings: Settings, service: str, serve: Serve[Settings]) -> None:
    watch_loop()
    gc.freeze()  # what was imported stays: the collector need not look at it again and again
    gc.set_threshold(*COLLECTED_AFTER)
    if service != "worker":  # whose memory is weights and pages of keys and values, which are huge already
        huge_pages.use_soon()
    bus = RedisBus(settings.redis_url, prefix=settings.stream_prefix)
    lease, secret = settings.lease_seconds, settings.secret
    async with Node(bus, service=service, lease_seconds=lease, secret=secret) as node:
        traces = start_traces(service, node.id, settings.otlp_endpoint, _sampling(settings))
        store = MetricsStore(Line(settings.redis_url), settings.stream_prefix)
        node.own(publish(node, store), "what publishes the metrics")
        page = await _show_metrics(node, store, settings.metrics_address)
        serving = asyncio.ensure_future(serve(node, settings))
        _stop_on_signals(serving, settings.stop_seconds)
        try:
            await _while_whole(node, serving)
        finally:
            if page is not None:
                page.close()
            if traces is not None:
                await asyncio.to_thread(traces.shutdown)


async def _show_metrics(node: Node, store: MetricsStore, address: str) -> "MetricsPage | None":
    """Show this process's own metrics, if an address is given. Redis lets a gateway read all others."""
    if not address:
        return None
    from ops.runtime.metrics_page import MetricsPage  # needed seldom

    everyone = partial(read_all, node, store) if node.service == "gateway" else None
    page = MetricsPage(node.id, read_all=everyone)
    await node.update(metrics=await page.listen(address))
    return page


def _sampling(settings: ProcessSettings) -> Sampling:
    """Which requests are traced."""
    tenants = frozenset(filter(None, map(str.strip, settings.trace_tenants.split(","))))
    return Sampling(settings.trace_rate, tenants, settings.trace_slow_seconds)


async def _while_whole(node: Node, serving: "asyncio.Task[None]") -> None:
    """Return when `serving` was cancelled. Raises its error if that kept it from starting.

    If anything else fails, nothing that runs here can be handed over: the process ends at once. Nor does it
    say that it was stopped, for one of its calls may be the reason.
    """
    failing = asyncio.create_task(node.failed(), name="transport")
    await asyncio.wait({serving, failing}, return_when=asyncio.FIRST_COMPLETED)
    if failing.done():
        await _end_at_once(node, failing.exception())
    failing.cancel()
    if serving.cancelled():
        return
    error = serving.exception() or TaskEnded("what serves has ended unasked")
    if not isinstance(error, (StartError, ConnectionError)):
        node.fail(error)
        await _end_at_once(node, error)
    raise error


async def _end_at_once(node: Node, error: BaseException | None) -> None:
    """End the process. Its peers know at once, instead of when its lease has run out."""
    log.critical("%s; this process ends", _one_line(error), exc_info=error)
    with contextlib.suppress(Exception):
        async with asyncio.timeout(GOODBYE_SECONDS):
            await node.link.close(goodbye=True)
    os._exit(1)


def _one_line(error: BaseException | None) -> str:
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        (error,) = error.exceptions
    return str(error) if isinstance(error, TaskEnded) else f"{type(error).__name__}: {error}"


def _stop_on_signals(task: "asyncio.Task[None]", seconds: float) -> None:
    """Cancel `task` with every SIGTERM and SIGINT; `seconds`: what it has after the first one.

    Threads may outlive the task, such as one that loads a model. They do not outlive the process.
    """
    loop = asyncio.get_running_loop()
    signals = 0

    def stop() -> None:
        nonlocal signals
        signals += 1
        if signals == 1:
            log.info("stopping: what runs has %g s to end; a second signal ends it at once", seconds)
            task.add_done_callback(lambda _: loop.call_later(LAST_SECONDS, os._exit, 0))
        else:
            log.info("stopping at once")
            loop.call_later(LAST_SECONDS, os._exit, 1)
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
