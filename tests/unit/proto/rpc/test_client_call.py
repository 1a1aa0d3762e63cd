"""The caller's end of a call, without a bus: what it sends, and whom it believes."""

import asyncio
from types import SimpleNamespace

import grpc
import pytest

from proto.rpc import client_call
from proto.rpc.client_call import ClientCall
from proto.rpc.frames import to_pairs
from proto.rpc.outbox import Outbox
from proto.rpc.resume import OUTSIDE, WAITS
from proto.wire_pb2 import ACCEPT, CANCEL, HALF_CLOSE, MESSAGE, PROBE, STATUS, Frame, Kind

DOOR = "calls:Echo"


class Calls:
    """A node with one call."""

    protocol = 1

    def __init__(self) -> None:
        self.outbox = Outbox(SimpleNamespace(), "a-1", lambda error: None)  # type: ignore[arg-type]
        self.over = 0

    def begin(self, call: ClientCall) -> int:
        return 7

    def ended(self, call: ClientCall) -> None:
        self.over += 1

    def sent(self) -> dict[str, list[Kind]]:
        """Kinds of frames by receiver, since the entries went out last."""
        entries = self.outbox._entries.items()
        return {to: [frame.kind for frame in entry.requests] for to, entry in entries}


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
async def call(calls: Calls) -> ClientCall:
    """It has just been opened."""
    opened = ClientCall(calls, DOOR, wait_for_ready=False)
    opened.open("/Echo/Say", None, None)
    return opened


def frame(kind: Kind, seq: int = 1, body: bytes = b"") -> Frame:
    return Frame(call=7, seq=seq, kind=kind, body=body)


async def test_one_that_ends_before_it_has_departed_is_not_sent(calls: Calls, call: ClientCall) -> None:
    assert call.cancel()
    assert calls.outbox._collect()[1].opens == []


@pytest.mark.parametrize(("entry_id", "settled"), [("5-1", [(DOOR, "5-1")]), ("", [])])
async def test_one_that_ends_on_its_way_is_taken_from_the_door(
    calls: Calls, call: ClientCall, entry_id: str, settled: list[tuple[str, str]]
) -> None:
    calls.outbox._collect()
    call.cancel()
    call.at_door(entry_id)
    assert calls.outbox._collect()[1].settled == settled


async def test_the_first_server_that_accepts_keeps_the_call(calls: Calls, call: ClientCall) -> None:
    call.receive("early", 1, frame(MESSAGE))
    assert not call.connected.is_set()
    calls.outbox._collect()
    call.receive("first", 3, frame(ACCEPT))
    for other in (ACCEPT, PROBE, MESSAGE, STATUS):
        call.receive(f"other {other}", 1, frame(other, 2))
    assert calls.sent() == {f"other {kind}": [CANCEL] for kind in (ACCEPT, PROBE)}
    call.receive("first", 2, frame(MESSAGE, 2, b"of an epoch that is over"))
    call.receive("first", 3, frame(MESSAGE, 2, b"it"))
    assert await call.inflow.get() == b"it"
    assert call.status is None


async def test_frames_that_were_lost_end_the_call_and_those_that_come_twice_do_not(
    calls: Calls, call: ClientCall
) -> None:
    calls.outbox._collect()
    for seq, kind in ((1, ACCEPT), (2, MESSAGE), (2, MESSAGE), (3, PROBE), (3, MESSAGE)):
        call.receive("first", 1, frame(kind, seq))
        assert call.status is None
    call.receive("first", 1, frame(PROBE, 5))
    assert call.status is client_call.GAP
    assert calls.sent() == {"first": [CANCEL]}


async def test_nothing_is_sent_once_it_has_ended(calls: Calls, call: ClientCall) -> None:
    calls.outbox._collect()
    call.receive("first", 1, frame(ACCEPT))
    call.receive("first", 1, frame(STATUS, 2))
    call.half_close()
    call.end(client_call.EXPIRED)
    assert not call.cancel()
    assert calls.sent() == {}
    assert calls.over == 1
    call.raise_for_status()


async def test_what_a_lost_server_has_sent_can_be_read_and_what_was_given_up_not(calls: Calls) -> None:
    for lost, left in ((True, [b"a", None]), (False, [None])):
        call = ClientCall(calls, DOOR, wait_for_ready=False)
        call.open("/Echo/Say", None, None)
        calls.outbox._collect()
        call.receive("first", 1, frame(ACCEPT))
        call.receive("first", 1, frame(MESSAGE, 2, b"a"))
        call.lost() if lost else call.cancel()
        assert [await call.inflow.get() for _ in left] == left


@pytest.mark.parametrize("waits", [False, True])
async def test_a_suspect_that_waited_is_not_to_blame(calls: Calls, call: ClientCall, waits: bool) -> None:
    calls.outbox._collect()
    accepts = frame(ACCEPT)
    accepts.metadata.extend(to_pairs(((WAITS, "1"),) if waits else ()))
    call.receive("first", 1, accepts)
    assert call.initial is None
    call.lost()
    assert call.status is not None
    assert (OUTSIDE in dict(call.status.trailing)) == waits


async def test_a_writer_waits_for_accept_when_the_opening_entry_is_full(
    monkeypatch: pytest.MonkeyPatch, calls: Calls
) -> None:
    monkeypatch.setattr(client_call, "MAX_OPENING", 3)
    monkeypatch.setattr(client_call, "MAX_OPENING_BYTES", 10)
    for bodies in (3 * [b""], [bytes(9), b"x"]):
        call = ClientCall(calls, DOOR, wait_for_ready=False)
        call.open("/Echo/Say", None, None)
        for body in bodies:
            await asyncio.wait_for(call.ready(), 10)
            call.send(body)
        waiting = asyncio.ensure_future(call.ready())
        await asyncio.sleep(0)
        assert not waiting.done()
        call.receive("first", 1, frame(ACCEPT))
        await asyncio.wait_for(waiting, 10)


async def test_a_writer_waits_while_the_outbox_is_full(calls: Calls, call: ClientCall) -> None:
    calls.outbox.full = True
    waiting = asyncio.ensure_future(call.ready())
    await asyncio.sleep(0)
    assert not waiting.done()
    calls.outbox._collect()
    call.receive("first", 1, frame(ACCEPT))
    await asyncio.wait_for(waiting, 10)


async def test_what_it_says_is_in_the_opening_entry_and_then_goes_to_its_server(
    calls: Calls, call: ClientCall
) -> None:
    call.send(b"a")
    (opens,) = [entry for _, entry in calls.outbox._openings.values()]
    assert [(one.seq, one.body) for one in opens.requests] == [(1, b""), (2, b"a")]
    calls.outbox._collect()
    call.receive("first", 1, frame(ACCEPT))
    call.send(b"b")
    call.half_close()
    call.half_close()
    call.probe()
    said = [(one.kind, one.seq) for one in calls.outbox._entries["first"].requests]
    assert said == [(MESSAGE, 3), (HALF_CLOSE, 4), (PROBE, 5)]


async def test_the_client_s_own_cancellation_is_raised_as_such(call: ClientCall) -> None:
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        call.raise_for_status()


async def test_one_that_vanished_from_its_door_counts_as_the_loss_of_a_server(call: ClientCall) -> None:
    call.vanished()
    with pytest.raises(grpc.aio.AioRpcError, match="lost at calls:Echo"):
        call.raise_for_status()
