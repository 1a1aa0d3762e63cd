"""The server's end of a call, without a bus: what its handler is told, and what the caller is sent."""

import asyncio
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc.aio import UsageError

from proto.rpc import server_call
from proto.rpc.frames import from_pairs
from proto.rpc.outbox import Outbox
from proto.rpc.resume import WAITS
from proto.rpc.server_call import ServerCall, SuspectCall
from proto.wire_pb2 import ACCEPT, CANCEL, HALF_CLOSE, MESSAGE, PROBE, STATUS, Frame, Kind


class Host:
    """A server with one call."""

    def __init__(self) -> None:
        self.outbox = Outbox(SimpleNamespace(), "a-1", lambda error: None)  # type: ignore[arg-type]
        self.told: list[str] = []

    def ended(self, call: ServerCall) -> None:
        self.told.append("ended")

    def progressed(self, call: ServerCall) -> None:
        self.told.append("progressed")

    def released(self, call: ServerCall) -> None:
        self.told.append("released")

    def sent(self) -> list[Frame]:
        return [frame for entry in self.outbox._entries.values() for frame in entry.responses]

    def kinds(self) -> list[Kind]:
        return [frame.kind for frame in self.sent()]


@pytest.fixture
def host() -> Host:
    return Host()


def called(host: Host, handler: Any, timeout: float | None = None, kind: type = ServerCall) -> ServerCall:
    opening = Frame(call=7, seq=1)
    if timeout is not None:
        opening.open.timeout = timeout
    call: ServerCall = kind(host, "client", 1, opening, waited=2.0)
    call.inflow.expected = 2
    call.start(grpc.stream_stream_rpc_method_handler(handler))
    return call


async def over(call: ServerCall) -> None:
    assert call._task is not None
    await asyncio.wait([call._task], timeout=10)
    await asyncio.sleep(0)


async def test_initial_metadata_is_sent_once_and_before_responses(host: Host) -> None:
    async def handler(requests: Any, context: Any) -> None:
        await context.send_initial_metadata((("key", "value"),))
        with pytest.raises(UsageError):
            await context.send_initial_metadata(())
        await context.write(b"")

    await over(called(host, handler))
    assert host.kinds() == [ACCEPT, ACCEPT, MESSAGE, STATUS]
    assert from_pairs(host.sent()[1].metadata) == (("key", "value"),)
    assert [frame.seq for frame in host.sent()] == [1, 2, 3, 4]
    assert host.told == ["ended", "released"]


async def test_a_handler_may_abort_with_a_status(host: Host) -> None:
    status: Any = SimpleNamespace(
        code=grpc.StatusCode.NOT_FOUND, details="x" * 9999, trailing_metadata=(("key", "value"),)
    )

    async def handler(requests: Any, context: Any) -> None:
        await context.abort_with_status(status)

    call = called(host, handler)
    await over(call)
    end = host.sent()[-1]
    assert (end.status.code, len(end.status.details)) == (status.code.value[0], server_call.MAX_DETAILS)
    assert from_pairs(end.metadata) == call.trailing_metadata() == (("key", "value"),)
    assert call.code() is grpc.StatusCode.NOT_FOUND


async def test_an_abort_keeps_the_trailing_metadata_that_were_set(host: Host) -> None:
    async def handler(requests: Any, context: Any) -> None:
        context.set_trailing_metadata((("key", "value"),))
        with pytest.raises(UsageError):
            await context.abort(grpc.StatusCode.OK)
        await context.abort(grpc.StatusCode.NOT_FOUND)

    await over(called(host, handler))
    assert from_pairs(host.sent()[-1].metadata) == (("key", "value"),)


async def test_what_a_handler_awaits_may_be_cancelled_and_the_caller_is_told(host: Host) -> None:
    async def handler(requests: Any, context: Any) -> None:
        raise asyncio.CancelledError

    call = called(host, handler)
    await over(call)
    assert host.sent()[-1].status.code == grpc.StatusCode.CANCELLED.value[0]
    assert not call.cancelled(), "it was not the client"


async def test_the_time_at_the_door_counts(host: Host) -> None:
    async def handler(requests: Any, context: Any) -> None:
        await asyncio.Event().wait()

    call = called(host, handler, timeout=100.0)
    assert 97 < (call.time_remaining() or 0) <= 98
    late = called(host, handler, timeout=2.0)
    await asyncio.wait_for(over(late), 10)
    assert (late.cancelled(), late.time_remaining()) == (True, 0.0)
    assert host.sent()[-1].status.code == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
    assert called(host, handler).time_remaining() is None


@pytest.mark.parametrize("ending", ["gap", "cancel"])
async def test_frames_that_were_lost_end_the_call_and_those_that_come_twice_do_not(
    host: Host, ending: str
) -> None:
    got = []

    async def handler(requests: Any, context: Any) -> None:
        got.extend([request async for request in requests])
        await asyncio.Event().wait()

    call, done = called(host, handler), []
    call.add_done_callback(done.append)
    for seq, kind in ((2, MESSAGE), (2, MESSAGE), (3, PROBE), (3, MESSAGE), (4, HALF_CLOSE)):
        call.receive(Frame(call=7, seq=seq, kind=kind, body=b"x"))
    for _ in range(3):
        await asyncio.sleep(0)
    assert (got, call.done(), done) == ([b"x", b"x"], False, [])
    call.receive(Frame(call=7, seq=6, kind=PROBE) if ending == "gap" else Frame(call=7, kind=CANCEL))
    await over(call)
    assert (call.cancelled(), done) == (True, [call])
    call.add_done_callback(done.append)
    assert done == [call, call], "at once"
    assert host.kinds() == ([ACCEPT, STATUS] if ending == "gap" else [ACCEPT]), "who cancels needs no answer"


async def test_a_suspect_says_that_it_waits_and_then_that_its_turn_has_come(host: Host) -> None:
    async def handler(requests: Any, context: Any) -> None:
        await context.write(b"")

    call = called(host, handler, kind=SuspectCall)
    assert [from_pairs(frame.metadata) for frame in host.sent()] == [((WAITS, "1"),)]
    call.turn.set()  # type: ignore[attr-defined]
    for _ in range(3):
        await asyncio.sleep(0)
    assert host.kinds() == [ACCEPT, ACCEPT]
    assert host.sent()[1].metadata == []
    assert host.told == [], "the handler waits until that has been sent"
    host.outbox._senders.pop().set_result(None)
    await over(call)
    assert host.told == ["progressed", "ended", "released"]
