"""Messages that wait to be read."""

import asyncio

import pytest

from proto.rpc.call import MAX_BUFFERED, MAX_BUFFERED_BYTES, Inflow


async def test_what_came_is_read_in_order() -> None:
    inflow = Inflow()
    assert inflow.put(b"a")
    assert inflow.put(b"b")
    inflow.close()
    assert [await inflow.get(), await inflow.get(), await inflow.get(), await inflow.get()] == [
        b"a",
        b"b",
        None,
        None,
    ]


async def test_a_reader_waits() -> None:
    inflow = Inflow()
    reader = asyncio.ensure_future(inflow.get())
    await asyncio.sleep(0)
    inflow.put(b"a")
    assert await reader == b"a"
    reader = asyncio.ensure_future(inflow.get())
    await asyncio.sleep(0)
    inflow.close()
    assert await reader is None


async def test_a_reader_that_gave_up_loses_nothing() -> None:
    inflow = Inflow()
    reader = asyncio.ensure_future(inflow.get())
    await asyncio.sleep(0)
    reader.cancel()
    inflow.put(b"a")
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert await inflow.get() == b"a"


async def test_discarding() -> None:
    inflow = Inflow()
    inflow.put(b"a")
    inflow.close(discard=True)
    assert await inflow.get() is None


async def test_messages_are_bounded() -> None:
    inflow = Inflow()
    assert all(inflow.put(b"") for _ in range(MAX_BUFFERED))
    assert not inflow.put(b"")
    await inflow.get()
    assert inflow.put(b"")


async def test_bytes_are_bounded() -> None:
    inflow = Inflow()
    assert inflow.put(bytes(MAX_BUFFERED_BYTES))
    assert not inflow.put(b"x")
    await inflow.get()
    assert inflow.put(b"x")
