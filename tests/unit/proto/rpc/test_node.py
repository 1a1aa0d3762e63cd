"""A process at the bus: what it makes of frames, epochs and doors."""

from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import Mock

import pytest

from proto.rpc.memory_bus import MemoryBus
from proto.rpc.node import Node
from proto.wire_pb2 import ACCEPT, CANCEL, GONE, MESSAGE, PROBE, STATUS, Entry, Frame, Kind


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with Node(MemoryBus(), "a") as made:
        yield made
        made._calling.clear()
        made.serving.clear()


def calling(node: Node, **fields: Any) -> Mock:
    call = Mock(**{"server": None, "server_epoch": 0, "wait_for_ready": False, "door": "calls:B", **fields})
    node._calling[100 + len(node._calling)] = call
    return call


def frames(*kinds: Kind) -> list[Frame]:
    return [Frame(call=9, kind=kind) for kind in kinds]


async def test_a_call_ends_when_nobody_serves_its_door_unless_it_was_accepted(node: Node) -> None:
    accepted = calling(node, server="b-1")
    assert (node.waiting(), node.impatient()) == (False, False)
    patient = calling(node, wait_for_ready=True)
    assert (node.waiting(), node.impatient()) == (True, False)
    served, alone = calling(node, door="calls:C"), calling(node)
    assert node.impatient()
    node.served({"calls:C"})
    assert [each.end.called for each in (accepted, patient, served, alone)] == [False, False, False, True]


async def test_who_knows_no_such_call_says_so(node: Node) -> None:
    node._dispatch(
        Entry(
            sender="b-1",
            epoch=1,
            responses=frames(ACCEPT, PROBE, MESSAGE, STATUS),
            requests=frames(PROBE, MESSAGE, CANCEL),
        )
    )
    said = node.outbox._entries["b-1"]
    assert [frame.kind for frame in said.requests] == [CANCEL, CANCEL]
    assert [frame.kind for frame in said.responses] == [GONE]


async def test_frames_of_another_epoch_are_not_those_of_a_call(node: Node) -> None:
    served = node.serving["b-1", 9] = Mock(client="b-1", client_epoch=2)
    node._dispatch(Entry(sender="b-1", epoch=3, requests=frames(MESSAGE, PROBE)))
    assert not served.receive.called
    assert not node.outbox._entries, "the call is known"
    node._dispatch(Entry(sender="b-1", epoch=2, requests=frames(MESSAGE)))
    assert served.receive.called


async def test_a_newer_epoch_ends_the_calls_of_older_ones(node: Node) -> None:
    assert node.current("b-1", 2)
    older, newer = (calling(node, server="b-1", server_epoch=epoch) for epoch in (2, 3))
    served = node.serving["b-1", 9] = Mock(client="b-1", client_epoch=2)
    later = node.serving["b-1", 10] = Mock(client="b-1", client_epoch=3)
    other = calling(node, server="c-1", server_epoch=1)
    assert node.current("b-1", 2)
    assert not older.lost.called
    assert node.current("b-1", 3)
    older.lost.assert_called_once_with("silent")
    served.drop.assert_called_once_with()
    assert not later.drop.called
    assert not newer.lost.called
    assert not other.lost.called
    assert not node.current("b-1", 2)
    assert node.current("b-1", 3)
    older.lost.assert_called_once_with("silent")


@pytest.mark.parametrize(("killed", "outside"), [(True, "killed"), (False, "")])
async def test_a_peer_that_is_gone_ends_all_its_calls(node: Node, killed: bool, outside: str) -> None:
    call, other = calling(node, server="b-1", server_epoch=2), calling(node, server="c-1")
    served = node.serving["b-1", 9] = Mock(client="b-1", client_epoch=2)
    node.peer_is("b-1", None, killed)
    call.lost.assert_called_once_with(outside)
    served.drop.assert_called_once_with()
    assert not other.lost.called
