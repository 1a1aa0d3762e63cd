"""Commands to a Redis that is away, starts, or refuses."""

from typing import Any

import pytest

from gateway import redis_replies
from gateway.errors import Unavailable
from gateway.redis_replies import PASSING, Refused, lasting, reply_of
from proto.rpc import BusAway
from proto.rpc.resp import RedisReplyError


class Answering:
    """A connection that gives these replies in turn, and the last one again."""

    def __init__(self, *replies: object) -> None:
        self.replies, self.asked = list(replies), 0

    async def execute(self, *commands: Any, block_seconds: float = 0) -> list[object]:
        self.asked += 1
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, Exception):
            raise reply
        return [reply]

    async def ask(self) -> Any:
        return await reply_of(self, "things", "GET", "a")  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_replies, "AGAIN_SECONDS", 0.01)


async def test_a_redis_that_comes_back_is_waited_for() -> None:
    passing = [RedisReplyError(f"{one} for a moment") for one in PASSING]
    line = Answering(BusAway("the connection was lost"), *passing, b"1")
    assert await lasting(line.ask, 60) == b"1"
    assert line.asked == len(PASSING) + 2


@pytest.mark.parametrize(
    "error",
    [
        "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
        "NOREPLICAS Not enough good replicas to write.",
        "BUSY Valkey is busy running a script.",
        "MOVED 7 127.0.0.1:7001",  # the line follows one, and another server has the keys already
        "ASK 7 127.0.0.1:7001",
    ],
)
async def test_another_server_in_its_place_is_waited_for(error: str) -> None:
    line = Answering(RedisReplyError(error), b"1")
    assert await lasting(line.ask, 60) == b"1"


async def test_what_redis_refuses_is_not_asked_again() -> None:
    line = Answering(RedisReplyError("LOADING the dataset"), RedisReplyError("OOM command not allowed"))
    with pytest.raises(Refused, match="The things cannot be reached"):
        await lasting(line.ask, 60)
    assert line.asked == 2, "while it was loading, and then no more"


async def test_a_redis_that_stays_away_is_waited_for_no_longer() -> None:
    line = Answering(BusAway("no Redis"))
    with pytest.raises(Unavailable):
        await lasting(line.ask, 0.1)
    assert line.asked > 1
