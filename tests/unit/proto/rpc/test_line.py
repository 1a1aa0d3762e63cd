"""How connections to a cluster are opened."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from proto.rpc import BusAway
from proto.rpc import line as line_module
from proto.rpc.line import Line

URL = "redis://one:7000/0"


def opens(monkeypatch: pytest.MonkeyPatch, connection: Any) -> None:
    """What connecting gives, wherever."""

    async def opened(url: str) -> Any:
        await asyncio.sleep(0)
        if isinstance(connection, Exception):
            raise connection
        return connection

    monkeypatch.setattr(line_module, "Connection", SimpleNamespace(open=opened))


async def test_connections_that_fail_together_go_on_to_the_same_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opens(monkeypatch, BusAway("no answer"))
    line = Line(URL)
    line._place.learn([[0, 99, [b"two", 7000, b"id"], [b"three", 7000, b"id"]]])
    lines = [line, line.another(), line.another()]
    assert all(
        isinstance(one, BusAway)
        for one in await asyncio.gather(*(one.get() for one in lines), return_exceptions=True)
    )
    assert line._place.url == "redis://three:7000/0"


async def test_a_connection_is_closed_if_it_is_not_wanted_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, closed = asyncio.Event(), asyncio.Event()

    async def send(*_: Any) -> None:
        asked.set()
        await asyncio.Event().wait()

    opens(monkeypatch, SimpleNamespace(cluster=True, send=send, close=closed.set))
    getting = asyncio.ensure_future(Line(URL).get())
    await asked.wait()
    getting.cancel()
    await asyncio.wait([getting])
    assert closed.is_set()
