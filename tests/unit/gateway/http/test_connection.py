import asyncio

import pytest
from starlette.types import Message

from gateway.http.connection import Disconnected, while_connected


class Client:
    """Sends what is left of its request, and leaves when it is told to."""

    def __init__(self) -> None:
        self.left = asyncio.Event()
        self._more = True

    async def receive(self) -> Message:
        if self._more:
            self._more = False
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}


async def test_work_has_its_result_and_its_error_while_the_client_stays() -> None:
    async def fails() -> None:
        raise TimeoutError("its own")

    assert await while_connected(Client().receive, asyncio.sleep(0.01, "done")) == "done"
    with pytest.raises(TimeoutError, match="its own"):
        await while_connected(Client().receive, fails())


async def test_work_is_cancelled_when_the_client_leaves() -> None:
    client, cancelled = Client(), asyncio.Event()

    async def work() -> None:
        client.left.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with pytest.raises(Disconnected):
        await while_connected(client.receive, work())
    assert cancelled.is_set()
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_a_client_that_leaves_at_the_end_of_the_work_disturbs_nobody() -> None:
    client = Client()

    async def work() -> str:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        client.left.set()
        return "done"

    assert await while_connected(client.receive, work()) == "done"
    await asyncio.sleep(0.01)


async def test_who_is_cancelled_from_outside_is_not_disconnected() -> None:
    waiting = asyncio.create_task(while_connected(Client().receive, asyncio.Event().wait()))
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
