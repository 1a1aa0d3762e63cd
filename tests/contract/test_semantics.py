"""gRPC's semantics, the same over every transport. Plain gRPC is the reference."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc.aio import EOF, AioRpcError

from tests.contract.conftest import LIMIT


async def error_of(call: Any) -> AioRpcError:
    with pytest.raises(AioRpcError) as caught:
        await call
    return caught.value


async def all_of(call: Any) -> list[Any]:
    return [message async for message in call]


# --- the four arities ---


async def test_unary_unary(stub: Any, echo: SimpleNamespace) -> None:
    call = stub.Unary(echo.Text(text="hi", count=1))
    assert await call == echo.Text(text="hi", count=2)
    assert await call == echo.Text(text="hi", count=2), "a call can be awaited again"
    assert await call.code() is grpc.StatusCode.OK
    assert call.done()
    assert not call.cancelled()
    assert not call.cancel()


async def test_unary_stream(stub: Any, echo: SimpleNamespace) -> None:
    messages = await all_of(stub.Stream(echo.Text(text="x", count=100)))
    assert [message.count for message in messages] == list(range(100))


async def test_an_empty_stream(stub: Any, echo: SimpleNamespace) -> None:
    assert await all_of(stub.Stream(echo.Text(count=0))) == []


async def test_reading_one_by_one(stub: Any, echo: SimpleNamespace) -> None:
    call = stub.Stream(echo.Text(count=2))
    assert (await call.read()).count == 0
    assert (await call.read()).count == 1
    assert await call.read() is EOF
    assert await call.read() is EOF
    assert await call.code() is grpc.StatusCode.OK


async def test_stream_unary_from_iterators(stub: Any, echo: SimpleNamespace) -> None:
    async def requests() -> AsyncIterator[Any]:
        for word in ("a", "b", "c"):
            await asyncio.sleep(0)
            yield echo.Text(text=word)

    assert (await stub.Collect(requests())).text == "a b c"
    assert (await stub.Collect([echo.Text(text="d"), echo.Text(text="e")])).text == "d e"
    assert (await stub.Collect(iter(()))).count == 0


async def test_more_requests_than_go_with_the_opening(stub: Any, echo: SimpleNamespace) -> None:
    assert (await stub.Collect(echo.Text(text=str(i)) for i in range(3000))).count == 3000


async def test_stream_unary_by_writing(stub: Any, echo: SimpleNamespace) -> None:
    call = stub.Collect()
    for word in ("a", "b"):
        await call.write(echo.Text(text=word))
    await call.done_writing()
    await call.done_writing()
    assert (await call).text == "a b"


async def test_stream_stream_in_turns(stub: Any, echo: SimpleNamespace) -> None:
    call = stub.Chat()
    for word in ("one", "two", "three"):
        await call.write(echo.Text(text=word))
        assert (await call.read()).text == word
    await call.done_writing()
    assert (await call.read()).text == "bye"
    assert await call.read() is EOF


async def test_half_close_leaves_the_other_half(stub: Any, echo: SimpleNamespace, servicer: Any) -> None:
    call = stub.Chat()
    await call.write(echo.Text(text="wait"))
    await call.done_writing()
    with pytest.raises(asyncio.InvalidStateError):
        await call.write(echo.Text(text="too late"))
    servicer.go.set()
    assert [(await call.read()).text, (await call.read()).text] == ["wait", "bye"]
    assert await call.read() is EOF


async def test_a_server_that_does_not_read_to_the_end(stub: Any, echo: SimpleNamespace) -> None:
    call = stub.Collect()
    await call.write(echo.Text(text="a"))
    await call.write(echo.Text(text="early"))
    assert (await call).text == "a"
    with pytest.raises(asyncio.InvalidStateError):
        await call.write(echo.Text(text="b"))


async def test_concurrent_calls_do_not_mix(stub: Any, echo: SimpleNamespace) -> None:
    async def one(index: int) -> None:
        if index % 2:
            assert (await stub.Unary(echo.Text(text=str(index)))).text == str(index)
        else:
            messages = await all_of(stub.Stream(echo.Text(text=str(index), count=20)))
            assert {message.text for message in messages} == {str(index)}
            assert len(messages) == 20

    await asyncio.gather(*(one(index) for index in range(100)))


async def test_large_messages(stub: Any, echo: SimpleNamespace) -> None:
    data = bytes(3 * 2**20)
    assert len((await stub.Unary(echo.Text(data=data))).data) == len(data)


async def test_a_long_stream(stub: Any, echo: SimpleNamespace) -> None:
    messages = await all_of(stub.Stream(echo.Text(count=10_000, data=bytes(100))))
    assert [message.count for message in messages] == list(range(10_000))


# --- how calls end ---


async def test_a_request_that_is_too_large(stub: Any, echo: SimpleNamespace) -> None:
    error = await error_of(stub.Unary(echo.Text(data=bytes(5 * 2**20))))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await stub.Unary(echo.Text(text="next"))).text == "next"


async def test_a_response_that_is_too_large(stub: Any, echo: SimpleNamespace) -> None:
    # A request that is just within the bound; the answer counts on to 128, which takes one byte more.
    request = echo.Text(data=bytes(4 * 2**20 - 7), count=127)
    assert request.ByteSize() == 4 * 2**20
    error = await error_of(stub.Unary(request))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_abort(stub: Any, echo: SimpleNamespace) -> None:
    call = stub.Unary(echo.Text(text="abort"))
    error = await error_of(call)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details() == "no good"
    assert ("quire-param", "n") in tuple(error.trailing_metadata() or ())
    assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert await call.details() == "no good"


async def test_abort_within_a_stream(stub: Any, echo: SimpleNamespace) -> None:
    call = stub.Stream(echo.Text(text="abort", count=3))
    assert [(await call.read()).count for _ in range(3)] == [0, 1, 2]
    with pytest.raises(AioRpcError) as caught:
        await call.read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_an_exception_in_a_handler(stub: Any, echo: SimpleNamespace) -> None:
    error = await error_of(stub.Unary(echo.Text(text="raise")))
    assert error.code() is grpc.StatusCode.UNKNOWN
    assert error.details() == "Unexpected <class 'ValueError'>: boom"


async def test_a_code_that_was_set(stub: Any, echo: SimpleNamespace) -> None:
    error = await error_of(stub.Unary(echo.Text(text="code")))
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert error.details() == "nowhere"


async def test_a_method_without_a_handler(stub: Any, echo: SimpleNamespace) -> None:
    error = await error_of(stub.Missing(echo.Text()))
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED


# --- metadata ---


async def test_metadata_both_ways(stub: Any, echo: SimpleNamespace, servicer: Any) -> None:
    sent = (("traceparent", "00-1-2-01"), ("raw-bin", b"\x00\x01"))
    call = stub.Unary(echo.Text(text="metadata"), metadata=sent)
    assert tuple(await call.initial_metadata()) == (("first", "one"),)
    await call
    trailing = tuple(await call.trailing_metadata())
    assert trailing == (("last", "two"), ("last-bin", b"\x00\xff"))
    assert set(sent) <= {(key, value) for key, value in servicer.seen}


async def test_the_context(stub: Any, echo: SimpleNamespace, servicer: Any) -> None:
    await stub.Unary(echo.Text(text="context"), timeout=10 * LIMIT)
    remaining, cancelled, done, peer = servicer.seen
    # gRPC sends a time that is this long in whole seconds, rounded up.
    assert 9 * LIMIT < remaining < 11 * LIMIT
    assert not cancelled
    assert not done
    assert isinstance(peer, str)
    await stub.Unary(echo.Text(text="context"))
    assert servicer.seen[0] is None


# --- deadlines and cancellation ---


DEADLINES = (0.3, 3.0, 30.0)
"""Seconds. A later one is for a machine that is too slow to get anything done within the one before."""


async def test_a_deadline_ends_both_sides(stub: Any, echo: SimpleNamespace, servicer: Any) -> None:
    for timeout in DEADLINES:
        error = await error_of(stub.Unary(echo.Text(text="wait"), timeout=timeout))
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        if servicer.started.is_set():
            break
    async with asyncio.timeout(LIMIT):
        await servicer.cancelled.wait()


async def read_on(call: Any, counts: list[int]) -> None:
    while True:
        counts.append((await call.read()).count)


async def test_a_deadline_within_a_stream(stub: Any, echo: SimpleNamespace, servicer: Any) -> None:
    for timeout in DEADLINES:
        call, counts = stub.Stream(echo.Text(text="wait", count=2), timeout=timeout), []
        assert call.time_remaining() <= timeout
        with pytest.raises(AioRpcError) as caught:
            await read_on(call, counts)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        if counts == [0, 1]:
            break
    assert counts == [0, 1]


async def test_cancelling_a_call_cancels_its_handler(stub: Any, echo: SimpleNamespace, servicer: Any) -> None:
    call = stub.Unary(echo.Text(text="wait"))
    await servicer.started.wait()
    assert call.cancel()
    assert not call.cancel()
    assert call.cancelled()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await call.code() is grpc.StatusCode.CANCELLED
    async with asyncio.timeout(LIMIT):
        await servicer.cancelled.wait()


async def test_cancelling_the_task_that_waits(stub: Any, echo: SimpleNamespace, servicer: Any) -> None:
    async def wait() -> None:
        await all_of(stub.Stream(echo.Text(text="wait", count=1)))

    task = asyncio.ensure_future(wait())
    await servicer.started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(LIMIT):
        await servicer.cancelled.wait()


async def test_cancelling_while_requests_stream(stub: Any, echo: SimpleNamespace, servicer: Any) -> None:
    call = stub.Chat()
    await call.write(echo.Text(text="wait"))
    await servicer.started.wait()
    call.cancel()
    async with asyncio.timeout(LIMIT):
        await servicer.cancelled.wait()
    assert call.cancelled()
    assert servicer.seen == ["wait"]


async def test_cancelling_at_once(stub: Any, echo: SimpleNamespace, servicer: Any) -> None:
    call = stub.Unary(echo.Text(text="wait"))
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (await stub.Unary(echo.Text(text="next"))).text == "next"


async def test_done_callbacks(stub: Any, echo: SimpleNamespace) -> None:
    told = asyncio.get_running_loop().create_future()
    call = stub.Unary(echo.Text())
    call.add_done_callback(told.set_result)
    await call
    async with asyncio.timeout(LIMIT):
        assert await told is call
    assert call.done()


async def test_an_iterator_that_fails_cancels_the_call(stub: Any, echo: SimpleNamespace) -> None:
    async def requests() -> AsyncIterator[Any]:
        yield echo.Text(text="a")
        raise RuntimeError("the caller's own")

    with pytest.raises(asyncio.CancelledError):
        await stub.Collect(requests())
