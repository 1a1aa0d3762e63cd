"""Signals: the first one asks to stop, the second one insists, and threads do not hold a process up."""

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import pytest

from ops.runtime import process
from ops.runtime.errors import StartError, TransientStartError
from ops.runtime.metric_names import WORKERS
from ops.runtime.metrics import Metrics
from ops.runtime.metrics_store import MetricsStore
from ops.runtime.settings import ProcessSettings
from proto.rpc import MemoryBus, Node, TaskEnded
from proto.rpc.line import Line
from proto.rpc.resume import LOST
from proto.scheduler_pb2 import EmbedTokensRequest, EmbedTokensResponse
from proto.scheduler_pb2_grpc import SchedulerServicer, SchedulerStub, add_SchedulerServicer_to_server


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The statuses with which the process would have been ended by itself."""
    statuses: list[int] = []
    monkeypatch.setattr(process.os, "_exit", statuses.append)
    return statuses


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


async def test_the_first_signal_lets_the_work_end_and_the_second_cuts_it_short(exits: list[int]) -> None:
    ended: list[str] = []

    async def serve() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            try:
                ended.append("asked")
                await asyncio.Event().wait()
            finally:
                ended.append("at once")

    task = asyncio.ensure_future(serve())
    process._stop_on_signals(task, 25)
    await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGTERM)
    while not ended:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.01)
    assert ended == ["asked"]
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.wait([task], timeout=60)
    assert ended == ["asked", "at once"]
    assert task.cancelled()
    assert exits == []


async def test_a_thread_does_not_outlive_the_work(exits: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "LAST_SECONDS", 0.01)
    task = asyncio.ensure_future(asyncio.Event().wait())
    process._stop_on_signals(task, 25)  # type: ignore[arg-type]
    await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGTERM)
    while not exits:
        await asyncio.sleep(0.001)
    assert exits == [0]


# --- what ends unasked ---


async def test_a_transport_that_fails_ends_the_process_and_its_peers_know(
    exits: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    bus = MemoryBus()

    class Broken(MemoryBus):
        async def connect(self, process_id: str) -> Any:
            link = await bus.connect(process_id)
            link.read = read  # type: ignore[method-assign]
            return link

    async def read(after: str) -> Any:
        raise ZeroDivisionError("as no code should")

    async with (
        Node(bus, "peer", lease_seconds=60) as peer,
        Node(Broken(), "victim", lease_seconds=60) as victim,
    ):
        serving = asyncio.ensure_future(asyncio.Event().wait())
        watching = asyncio.ensure_future(process._while_whole(victim, serving))  # type: ignore[arg-type]
        while not exits:
            await asyncio.sleep(0.001)
        assert exits == [1]
        assert [lease.service for lease in await peer.leases()] == ["peer"]
        serving.cancel()
        await asyncio.wait([watching])
    (record,) = [record for record in caplog.records if record.levelname == "CRITICAL"]
    assert record.getMessage() == "ZeroDivisionError: as no code should; this process ends"


async def returns() -> None:
    await asyncio.sleep(0)


async def fails() -> None:
    raise ExceptionGroup("unhandled errors in a TaskGroup", [ZeroDivisionError("as no code should")])


@pytest.mark.parametrize(
    ("serve", "line"),
    [(returns, "what serves has ended unasked"), (fails, "ZeroDivisionError: as no code should")],
)
async def test_a_service_that_ends_unasked_is_dead_to_its_callers(
    exits: list[int], caplog: pytest.LogCaptureFixture, serve: Any, line: str
) -> None:
    """It does not tell them that it was stopped: one of their calls may be the reason."""
    bus = MemoryBus()
    async with (
        Node(bus, "tokenizer", lease_seconds=60) as client,
        Node(bus, "scheduler", lease_seconds=60) as node,
    ):
        server = node.server(pool="m")
        servicer = Waits()
        add_SchedulerServicer_to_server(servicer, server)
        await server.start()
        call = SchedulerStub(client.channel(pool="m")).Embed(EmbedTokensRequest())
        await servicer.asked.wait()
        with pytest.raises((TaskEnded, ExceptionGroup)):
            await process._while_whole(node, asyncio.ensure_future(serve()))
        assert exits == [1]
        assert [lease.service for lease in await client.leases()] == ["tokenizer"]
        async with asyncio.timeout(60):
            assert await call.code() is grpc.StatusCode.UNAVAILABLE
            assert dict(await call.trailing_metadata()) == {LOST: node.id}
    (record,) = [record for record in caplog.records if record.levelname == "CRITICAL"]
    assert record.getMessage() == f"{line}; this process ends"


class Waits(SchedulerServicer):  # type: ignore[misc]
    """Answers nothing."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def Embed(self, asked: EmbedTokensRequest, context: Any) -> EmbedTokensResponse:
        self.asked.set()
        await asyncio.Event().wait()
        return EmbedTokensResponse()


async def test_a_service_that_cannot_start_says_why_and_one_that_is_cancelled_says_nothing(
    exits: list[int],
) -> None:
    async def cannot() -> None:
        raise StartError("no model")

    async with Node(MemoryBus(), "node", lease_seconds=60) as node:
        with pytest.raises(StartError):
            await process._while_whole(node, asyncio.ensure_future(cannot()))
        asked = asyncio.ensure_future(asyncio.sleep(10))
        asked.cancel()
        await process._while_whole(node, asked)
    assert exits == []


class Panic(BaseException):
    """As an extension in Rust raises it."""


@pytest.mark.parametrize(
    ("error", "status"),
    [(StartError("no model"), 2), (TransientStartError("no Hub"), 1), (ConnectionError("no Redis"), 1)],
)
def test_the_exit_status_says_whether_to_try_again(
    error: Exception, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_after(error, monkeypatch) == status
    assert capsys.readouterr().err == f"quire test: {error}\n"


@pytest.mark.parametrize(
    ("error", "line"),
    [(TaskEnded("what serves has ended"), "what serves has ended;"), (Panic("index"), "Panic: index;")],
)
def test_an_error_is_one_line_and_the_exit_status_1(
    error: BaseException, line: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert status_after(error, monkeypatch) == 1
    assert [record.getMessage().startswith(line) for record in caplog.records] == [True]


def status_after(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> object:
    """The exit status of a process that ends with an error."""

    async def _run(*_: Any) -> None:
        raise error

    monkeypatch.setattr(process, "_run", _run)
    monkeypatch.setattr(process, "start_logs", lambda *_: None)
    with pytest.raises(SystemExit) as caught:
        process.run(ProcessSettings(), "test", returning)
    return caught.value.code


async def returning(node: Node, settings: ProcessSettings) -> None:
    """Serves nothing."""


async def test_a_process_shows_its_metrics_where_it_is_told_to(line: Line, prefix: str) -> None:
    """A gateway shows those of all processes, too, which no other process may read."""
    bus, store, metrics = MemoryBus(), MetricsStore(line, prefix), Metrics()
    metrics.gauge(WORKERS, "m").set(3)
    async with (
        Node(bus, "scheduler", lease_seconds=60) as scheduler,
        Node(bus, "gateway", lease_seconds=60) as gateway,
        httpx.AsyncClient(trust_env=False) as http,
    ):
        await store.write(scheduler.id, metrics.snapshot())
        assert await process._show_metrics(gateway, store, "") is None
        pages = {
            node.id: await process._show_metrics(node, store, "127.0.0.1:0") for node in (scheduler, gateway)
        }
        found = {}
        for lease in await gateway.leases():
            url = f"http://{lease.info['metrics']}/metrics"
            assert (await http.get(url)).status_code == 200
            found[lease.service] = await http.get(f"{url}/all")
        assert found["scheduler"].status_code == 404
        assert f'quire:workers{{engine="{scheduler.id}",model_name="m"}} 3.0' in found["gateway"].text
        for page in pages.values():
            assert page is not None
            page.close()
