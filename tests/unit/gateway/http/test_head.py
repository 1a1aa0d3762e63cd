"""The head of a response goes out with what follows it."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.http.head import HeldHead


class Transport:
    """Notes what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


@pytest.fixture
def transport() -> Transport:
    return Transport()


def cycle_over(transport: Transport) -> Any:
    cycle = SimpleNamespace(transport=transport, response_started=True)
    cycle.transport = HeldHead(cycle, asyncio.get_running_loop())
    return cycle


async def test_head_and_first_part_are_one_write(transport: Transport) -> None:
    cycle = cycle_over(transport)
    cycle.transport.write(b"head ")
    cycle.transport.write(b"one")
    cycle.transport.write(b"two")
    await asyncio.sleep(0)
    assert transport.written == [b"head one", b"two"]
    assert cycle.transport is transport, "what follows costs nothing more"


async def test_a_head_that_nothing_follows_goes_out_in_the_next_turn(transport: Transport) -> None:
    cycle = cycle_over(transport)
    cycle.transport.write(b"head ")
    assert not transport.written
    await asyncio.sleep(0)
    assert transport.written == [b"head "]


async def test_a_head_goes_out_before_the_end(transport: Transport) -> None:
    cycle = cycle_over(transport)
    cycle.transport.write(b"head ")
    held = cycle.transport
    assert not held.is_closing()
    held.close()
    await asyncio.sleep(0)
    assert transport.written == [b"head "]
    assert held.is_closing()


async def test_a_head_that_nobody_reads_is_not_written(transport: Transport) -> None:
    cycle = cycle_over(transport)
    cycle.transport.write(b"head ")
    transport.close()
    await asyncio.sleep(0)
    assert not transport.written


async def test_what_comes_before_the_head_is_not_held(transport: Transport) -> None:
    cycle = cycle_over(transport)
    cycle.response_started = False
    cycle.transport.write(b"100 Continue")
    assert transport.written == [b"100 Continue"]
    cycle.response_started = True
    cycle.transport.write(b"head ")
    cycle.transport.write(b"one")
    assert transport.written == [b"100 Continue", b"head one"]
