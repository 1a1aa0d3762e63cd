"""What goes out together."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from unittest.mock import AsyncMock, Mock

import pytest

from proto.rpc import outbox as outbox_module
from proto.rpc.bus import Batch, Refused
from proto.rpc.errors import BusAway
from proto.rpc.outbox import Outbox
from proto.rpc.seal import Seal
from proto.wire_pb2 import ACCEPT, MESSAGE, Entry, Kind

DOOR = "calls:Echo"


class FullLink:
    """Takes nothing as long as it is full."""

    def __init__(self) -> None:
        self.full = True
        self.refused = asyncio.Event()
        self.batches: list[Batch] = []

    async def publish(self, batch: Batch, again: bool = False) -> Sequence[str | None]:
        self.batches.append(batch)
        if self.full:
            self.refused.set()
            raise Refused("OOM", batch)
        return ()


def kinds(batch: Batch) -> list[Kind]:
    return [frame.kind for _, payload in batch.entries for frame in Entry.FromString(payload).responses]


async def test_no_call_leaves_its_door_before_its_accept_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is taken while the bus refuses what came before it. Nothing is sent twice."""
    monkeypatch.setattr(outbox_module, "RETRY_SECONDS", 0.001)
    monkeypatch.setattr(outbox_module, "MAX_BYTES", 10)
    link = FullLink()
    outbox = Outbox(link, "a-1", lambda error: None)  # type: ignore[arg-type]
    running = asyncio.ensure_future(outbox.run())
    outbox.response("b-1", 1, 1, MESSAGE, b"x")
    await link.refused.wait()
    for call in range(1, 4):
        outbox.response("b-1", call, 2, ACCEPT, bytes(8))
        outbox.settle(DOOR, f"{call}-1")
    link.refused.clear()
    await link.refused.wait()
    link.refused.clear()
    await link.refused.wait()
    assert outbox.full, "writers wait until something was sent"
    link.full = False
    await outbox.empty()
    assert not outbox.full
    running.cancel()
    sent = next(batch for batch in link.batches if batch.settled)
    assert [entry for _, entry in sent.settled] == ["1-1", "2-1", "3-1"]
    assert kinds(sent) == [MESSAGE, ACCEPT, ACCEPT, ACCEPT], "what came before is sent before"
    assert [kinds(batch) for batch in link.batches[link.batches.index(sent) :] if batch != sent] == [[]]


async def test_openings_go_out_a_part_at_a_time_and_each_is_sealed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox_module, "MAX_BYTES", 1000)
    sealed: list[str] = []
    seal = Seal()
    monkeypatch.setattr(seal, "close", lambda stream, entry: sealed.append(stream) or entry)
    outbox = Outbox(SimpleNamespace(), "a-1", lambda error: None, seal)  # type: ignore[arg-type]
    for _ in range(4):
        outbox.open(DOOR, Mock()).requests.add(body=bytes(400))
    sizes = [len(outbox._collect()[1].opens) for _ in range(2)]
    assert (sizes, sealed) == ([2, 2], [DOOR] * 4)


def test_openings_have_the_room_that_parts_which_are_out_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "MAX_BYTES", 1000)
    outbox = Outbox(SimpleNamespace(), "a-1", lambda error: None)  # type: ignore[arg-type]
    for seq in range(3):
        outbox.response("b-1", 1, seq, MESSAGE, bytes(400))
    for _ in range(2):
        outbox.open(DOOR, Mock()).requests.add(body=bytes(200))
    batches = [outbox._collect()[1] for _ in range(2)]
    assert [(len(batch.entries), len(batch.opens)) for batch in batches] == [(1, 0), (1, 2)]
    outbox.response("b-1", 1, 3, MESSAGE, bytes(400))
    assert not outbox.full, "what has gone out takes no room"


def test_however_many_do_not_pause_entries_are_as_large_as_they_may_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox_module, "MAX_BYTES", 1000)
    monkeypatch.setattr(outbox_module, "MAX_FRAMES", 1)
    monkeypatch.setattr(outbox_module, "MAX_ENTRY_FRAMES", 5)
    outbox = Outbox(SimpleNamespace(), "a-1", lambda error: None)  # type: ignore[arg-type]
    for size, seqs in ((400, range(9)), (0, range(9, 22))):
        for seq in seqs:
            outbox.response("b-1", 1, seq, MESSAGE, bytes(size))
    frames = []
    while outbox._has_work.is_set():
        outbox._has_work.clear()
        frames.append(len(kinds(outbox._collect()[1])))
    assert frames == [2, 2, 2, 2, 4, 4, 4, 2]


@pytest.mark.parametrize(("ids", "entry_id"), [(["5-1"], "5-1"), ((), "")])
async def test_a_call_that_nobody_wants_any_more_is_not_sent_again(
    monkeypatch: pytest.MonkeyPatch, ids: Sequence[str], entry_id: str
) -> None:
    """`ids`: none are known if what was sent first had arrived."""
    monkeypatch.setattr(outbox_module, "RETRY_SECONDS", 0.001)
    link = SimpleNamespace(publish=AsyncMock(side_effect=[BusAway("gone"), ids]))
    outbox = Outbox(link, "a-1", lambda error: None)  # type: ignore[arg-type]
    given_up, wanted = (Mock(wanted=Mock(return_value=each)) for each in (False, True))
    for opener in (given_up, wanted):
        outbox.open(DOOR, opener)
    await outbox._send()
    assert [len(call.args[0].opens) for call in link.publish.call_args_list] == [2, 1]
    wanted.at_door.assert_called_once_with(entry_id)
    given_up.at_door.assert_not_called()


async def test_what_is_dropped_while_the_bus_is_away_is_not_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox_module, "RETRY_SECONDS", 0.001)
    link = SimpleNamespace(publish=AsyncMock(side_effect=[BusAway("gone"), ()]))
    outbox = Outbox(link, "a-1", lambda error: outbox.drop())  # type: ignore[arg-type]
    outbox.response("b-1", 1, 1, MESSAGE)
    await outbox._send()
    assert link.publish.call_count == 1
