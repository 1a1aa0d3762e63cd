"""Answers, refusals and what is neither are told apart, and gaps are those of the time that is looked at."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from ops.bench.robust.bad_grammars import Bad
from ops.bench.robust.hostile_grammars import Streams, Verdicts, send_all, told, written

HARD, BROKEN = Bad("hard", {"guided_regex": "a"}), Bad("broken", {"guided_regex": "a("}, malformed=True)
REFUSAL = {"error": {"param": "guided_regex", "message": "at 1(2)"}}


def test_answers_and_refusals() -> None:
    found = Verdicts()
    found.add(HARD, 200, {}, 0.3)
    found.add(HARD, 400, REFUSAL, 0.2)
    found.add(BROKEN, 400, REFUSAL, 0.1)
    assert (found.followed, found.refused, found.problems) == (
        {"hard": 0.3},
        {"hard": 0.2, "broken": 0.1},
        [],
    )


@pytest.mark.parametrize(
    ("bad", "status", "answer", "seconds"),
    [
        (BROKEN, 200, {}, 0.1),
        (HARD, 500, {"error": {"param": None, "message": "failed"}}, 0.1),
        (BROKEN, 400, {"error": {"param": "messages", "message": "x"}}, 0.1),
        (BROKEN, 400, {"error": {"param": "guided_regex", "message": ""}}, 0.1),
        (BROKEN, 400, REFUSAL, 1.1),
    ],
)
def test_what_is_neither_is_a_problem(bad: Bad, status: int, answer: dict, seconds: float) -> None:
    found = Verdicts()
    found.add(bad, status, answer, seconds)
    assert len(found.problems) == 1


class Served:
    """A server that streams tokens, and refuses grammars."""

    def __init__(self) -> None:
        self.asked = 0

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        if b'"stream"' not in request.content:
            self.asked += 1
            await asyncio.sleep(0.001)  # the streams go on meanwhile
            return httpx.Response(400, json={"error": {"param": "x", "message": "no"}})
        return httpx.Response(200, content=self._events())

    async def _events(self) -> AsyncIterator[bytes]:
        for _ in range(1000):
            yield b"data: {}\n\n"
            await asyncio.sleep(0)
        yield b"data: [DONE]\n\n"


async def test_gaps_are_those_while_the_work_is_done() -> None:
    served = Served()
    async with httpx.AsyncClient(transport=httpx.MockTransport(served), base_url="http://here") as client:
        streams, found = Streams(client, "m"), Verdicts()
        beside = await streams.gaps_while(send_all(client, written("m", 1), found))
        alone = await streams.gaps_while(asyncio.sleep(0.05))
    assert served.asked == len(found.problems) > 50  # the refusals name another field
    assert beside
    assert alone
    results = told(found, [beside, beside], [alone, alone])
    assert results["extra_ms"] == pytest.approx(1000 * (max(beside) - max(alone)), abs=0.11)


async def test_a_stream_that_fails_is_an_error() -> None:
    async def serve(request: httpx.Request) -> httpx.Response:
        return httpx.Response(500)

    async with httpx.AsyncClient(transport=httpx.MockTransport(serve), base_url="http://here") as client:
        with pytest.raises(httpx.HTTPStatusError):
            await Streams(client, "m").gaps_while(asyncio.sleep(0))
