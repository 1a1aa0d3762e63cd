"""Background responses: queued in Redis, made by any gateway, followed and cancelled by their ids.

Until the response has ended, a record has the `request` that makes it, and the number of items that are
`earlier` than those of the request. `gateway.jobs.background` makes the response.
"""

import re
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any

from fastapi import Request, Response

from gateway.api.common.answers import Json, compact
from gateway.errors import BadRequest, NotFound
from gateway.http.body_memory import SMALL, Held
from gateway.http.caller import Caller, caller_of
from gateway.http.sse import COMMENT_BETWEEN_IDS, EventStream, named_event
from gateway.upstream.job_queue import JobQueue, LeaseLost
from gateway.upstream.response_store import ResponseStore

ENDED = ("completed", "incomplete", "failed", "cancelled")
"""Statuses of responses that do not change any more."""
LAST_EVENTS = ("response.completed", "response.incomplete", "response.failed")
"""A response that was cancelled ends with `response.incomplete`: OpenAI's API has no event for it."""

LAST_EVENT_ID = "Last-Event-ID"
"""Header of a client whose stream broke off (HTML Living Standard, section 9.2.4)."""
_EVENT_ID = re.compile(r"(resp_[0-9a-f]{32}):([0-9]{1,9})")


@dataclass(frozen=True)
class BackgroundRun:
    """State of the gateway's own request that makes a background response."""

    created: int
    """When the response was asked for: Unix time, seconds."""


@dataclass(frozen=True)
class Background:
    """Where background responses are kept."""

    store: ResponseStore
    queue: JobQueue
    wake: Callable[[], None]
    """Tells this gateway's runner of a new one."""

    async def begin(
        self, request: Request, asked: Json, response: Json, items: list[Json], earlier: int
    ) -> Response:
        """Queue a response, and answer with it or with its stream. Raises `GatewayError`.

        `asked`: the body without its input. `response`: as it is before it has begun. `items`: the input,
        of which the first `earlier` are not the request's own.
        """
        caller = caller_of(request)
        fixed = dict(asked)
        if fixed.get("seed") is None:  # whoever goes on with it comes to the same text
            fixed["seed"] = secrets.randbits(63)
        record = {"response": response, "input": items, "earlier": earlier, "request": fixed}
        if not asked.get("stream"):
            await self._queue(caller, record)
            return Response(compact(response), media_type="application/json")
        with self.store.followers.place(caller.tenant):  # what could not be followed is not stored either
            await self._queue(caller, record)
        return self._follow(request, response["id"], -1)

    async def _queue(self, caller: Caller, record: Json) -> None:
        """Store a response, and let some gateway make it."""
        response, response_id = record["response"], record["response"]["id"]
        await self.store.put(caller.tenant, response_id, record)
        first = [_event(f"response.{kind}", response, at) for at, kind in enumerate(("created", "queued"))]
        try:
            with suppress(LeaseLost):  # others have taken all room: the job will find no record
                events = [compact(event).encode() for event in first]
                await self.store.append(caller.tenant, response_id, 0, events)
            await self.queue.add(response_id, caller.behalf)
        except BaseException:
            await self.store.delete(caller.tenant, response_id)
            raise
        self.wake()

    async def follow(self, request: Request, response: Json, after: int) -> Response:
        """The events of a response after number `after`, until it ends. Without content if it has ended with
        that one: a browser then asks no more."""
        if after >= 0 and response["status"] in ENDED:
            found = await self.store.newer(caller_of(request).tenant, response["id"], after)
            if not found or (len(found) == 1 and _name_of(found[0]) in LAST_EVENTS):
                return Response(status_code=204)
        return self._follow(request, response["id"], after)

    def _follow(self, request: Request, response_id: str, after: int) -> Response:
        held: Held = request.state.body
        held.release()
        held.grow(SMALL)  # what the client has not taken yet
        events = self._events(caller_of(request).tenant, response_id, after)
        return EventStream(events, keep_alive=lambda: COMMENT_BETWEEN_IDS)

    async def _events(self, tenant: str, response_id: str, after: int) -> AsyncGenerator[str, None]:
        async with (
            self.store.following(tenant, response_id, after) as following,
            aclosing(following) as events,
        ):
            async for event in events:
                name = _name_of(event)
                after += 1
                yield named_event(name, event.decode(), f"{response_id}:{after}")
                if name in LAST_EVENTS:
                    return

    async def resume(self, request: Request, response_id: str, after: int) -> Response:
        """As `follow`. Raises `NotFound`, and `BadRequest` for one that was not made in the background."""
        tenant = caller_of(request).tenant
        record = await self.store.get(tenant, response_id, request.state.body.grow)
        if record is None:
            raise NotFound(f"Response with id '{response_id}' not found.", param=LAST_EVENT_ID)
        if not record["response"]["background"]:
            message = "This response was not made in the background."
            raise BadRequest(message, param=LAST_EVENT_ID, code="unsupported_parameter")
        return await self.follow(request, record["response"], after)

    async def cancel(self, request: Request, response_id: str) -> Json:
        """End a response; the response as it is then. Raises `NotFound` and `BadRequest`."""
        tenant, hold = caller_of(request).tenant, request.state.body.grow
        record = await self.store.get(tenant, response_id, hold)
        if record is None:
            raise NotFound(f"Response with id '{response_id[:100]}' not found.", param="id")
        response: Json = record["response"]
        if not response["background"]:
            raise BadRequest("Only background responses can be cancelled.", code="invalid_value")
        if response["status"] not in ENDED and (job := await self.queue.seize(response_id, tenant)):
            # From here on nobody else writes. It may have ended just before.
            record = await self.store.get(tenant, response_id) or record
            response = record["response"]
            if response["status"] not in ENDED:
                response = response | {"status": "cancelled"}
                kept = {"response": response, "input": record["input"]}
                with suppress(LeaseLost):  # somebody else cancels it, too
                    await self.store.put(tenant, response_id, kept, job.lease)
            await self.queue.give_back(job)  # the runner that takes it writes the last event
            self.wake()
        return response


def _name_of(event: bytes) -> str:
    return event.split(b'"', 4)[3].decode()  # it begins with {"type":"…"


def seen_by(request: Request) -> tuple[str, int] | None:
    """The response and the number of the last event that the client has seen; None if it names none.

    Raises `BadRequest`."""
    header = request.headers.get(LAST_EVENT_ID)
    if not header:
        return None
    if (found := _EVENT_ID.fullmatch(header)) is None:
        message = f"'{LAST_EVENT_ID}' is no id of an event of a stored response."
        raise BadRequest(message, param=LAST_EVENT_ID, code="invalid_value")
    return found[1], int(found[2])


def last_event(response: Json, number: int) -> Json:
    """The event with which the stream of a response ends."""
    status = response["status"]
    return _event(f"response.{'incomplete' if status == 'cancelled' else status}", response, number)


def failed(response: Json, code: str, message: str) -> Json:
    """A response that has failed."""
    return response | {"status": "failed", "error": {"code": code, "message": message}}


def _event(kind: str, response: Json, number: int) -> dict[str, Any]:
    return {"type": kind, "sequence_number": number, "response": response}
