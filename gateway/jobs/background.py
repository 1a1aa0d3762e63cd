"""Works at background responses: asks for each as a client would ask for a stream, and stores its events."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from gateway.api.responses.background import (
    ENDED,
    LAST_EVENTS,
    BackgroundRun,
    failed,
    last_event,
)
from gateway.errors import Overloaded, TooLarge, Unavailable
from gateway.http.json_text import text_of
from gateway.http.own_requests import OwnRequests, Reply
from gateway.jobs.continuation import Continuation
from gateway.parsing import PART_BYTES, parsed
from gateway.upstream.conversation_store import NOTHING_ADDED, Added
from gateway.upstream.job_queue import Job
from gateway.upstream.response_store import ResponseStore

MOST_TAKES = 5
"""Gateways that may die of a job, one after the other, while nothing of it is done."""
PATH = "/v1/responses"

Json = dict[str, Any]

logger = logging.getLogger(__name__)


class BackgroundResponses:
    """What the runner of background responses does."""

    def __init__(self, own: OwnRequests, store: ResponseStore) -> None:
        self._own, self._store = own, store

    async def work(self, job: Job) -> None:
        """Make a response, from where another gateway has left it. Raises `LeaseLost` and `Unavailable`."""
        record = await self._store.get(job.tenant, job.id)
        if record is None:
            return
        so_far = Continuation()
        async with aclosing(self._store.events(job.tenant, job.id)) as events:
            async for event in events:
                so_far.note(json.loads(event))
        if record["response"]["status"] in ENDED:
            await self._end(job, record, record["response"], so_far)
        elif job.takes > MOST_TAKES:
            fault = "One gateway after the other has died of this response."
            await self._end(job, record, failed(record["response"], "server_error", fault), so_far)
        else:
            await self._make(job, record, so_far)

    async def _make(self, job: Job, record: Json, so_far: Continuation) -> None:
        if record["response"]["status"] == "queued":  # written again, it would pass for progress
            record = record | {"response": record["response"] | {"status": "in_progress"}}
            await self._store.put(job.tenant, job.id, record, job.lease)
        asked = record["request"] | {"input": record["input"], "stream": True}
        body = await parsed(job.tenant, len(record["input"]) * PART_BYTES, lambda: text_of(asked))
        run = BackgroundRun(record["response"]["created_at"])
        state = {"request_id": job.id.removeprefix("resp_"), "run": run}
        while True:
            so_far.again()
            async with self._own.ask(PATH, body, job.behalf, state) as reply:
                response = await self._answer(job, record["response"], reply, so_far)
            if not isinstance(response, float):
                await self._end(job, record, response, so_far)
                return
            await asyncio.sleep(response)
            if await self._store.get(job.tenant, job.id) is None:
                return

    async def _answer(self, job: Job, queued: Json, reply: Reply, so_far: Continuation) -> Json | float:
        """The response as it has ended; or seconds after which to ask again."""
        if reply.status != 200:
            if reply.again_in is not None:
                return reply.again_in
            fault = json.loads(await reply.read())["error"]
            return failed(queued, fault["code"] or "server_error", fault["message"])
        async with aclosing(_events(reply)) as events:
            async for event in events:
                if event["type"] in LAST_EVENTS:
                    error = reply.state.get("error")
                    if isinstance(error, Unavailable | Overloaded):
                        return float(error.headers.get("Retry-After", 1))
                    response: Json = event["response"]
                    return response
                if (new := so_far.rest(event)) is not None:
                    await self._append(job, new)
        return 1.0

    async def _end(self, job: Job, record: Json, response: Json, so_far: Continuation) -> None:
        """Store a response that has ended, and then its last event."""
        kept = {"response": response, "input": record["input"]}
        if "request" in record:
            try:
                await self._store.put(job.tenant, job.id, kept, job.lease, _added(record, response))
            except TooLarge as error:
                response = failed(record["response"], "server_error", error.message)
                await self._store.put(job.tenant, job.id, kept | {"response": response}, job.lease)
        if so_far.last not in LAST_EVENTS:
            await self._append(job, last_event(response, so_far.count))

    async def _append(self, job: Job, event: Json) -> None:
        text = json.dumps(event, separators=(",", ":")).encode()
        await self._store.append(job.tenant, job.id, event["sequence_number"], [text], job.lease)


def _added(record: Json, response: Json) -> Added:
    """What a response that has ended adds to its conversation, if it has one."""
    conversation = response.get("conversation")
    if not conversation or response["status"] not in ("completed", "incomplete"):
        return NOTHING_ADDED
    return Added(conversation["id"], record["input"][record["earlier"] :] + response["output"])


async def _events(reply: Reply) -> AsyncGenerator[Json, None]:
    """The events of a stream, of which a piece has whole ones."""
    async for piece in reply.pieces:
        for part in piece.decode().split("\n\n"):
            if data := part.partition("data: ")[2]:
                yield json.loads(data)
