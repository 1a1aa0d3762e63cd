"""Responses of OpenAI's Responses API in Redis, where all gateways of a deployment find them.

A record is a response with the items before it, so that a client can go on from it though others are gone.
That of a background response is there from the beginning, and so are the events of its stream. After the
prefix and `responses:` the keys are those of `gateway.upstream.stored_room`, and:

    of:<tenant>:<id>        a record as lines of JSON, its input one item a line; it runs out
    events:<tenant>:<id>    stream of the events: number n is the entry n+1, as JSON in the field `e`
"""

import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from gateway.errors import NotFound, TooLarge
from gateway.followers import Followers
from gateway.parsing import PART_BYTES, parsed, parsed_each
from gateway.redis_replies import lasting
from gateway.upstream.conversation_store import (
    NOTHING_ADDED,
    Added,
    ConversationStore,
    conversation_too_large,
)
from gateway.upstream.job_queue import HELD, NO_LEASE, Lease, LeaseLost
from gateway.upstream.stored_room import COMMON, DELETE, MAX_RECORD_BYTES, Room, as_json, run
from proto.rpc.line import Line

STREAM_BYTES = 4096
"""Bytes that a stream of events takes in Redis beside them."""
EVENTS_AT_ONCE = 64
"""Events of a stream that are read at once. The last one has the whole response."""
BLOCK_SECONDS = 5.0
"""Time for which a reader waits for the next event, before it looks whether the response is still there."""
AWAY_SECONDS = 30.0
"""Time for which Redis may be away while events are followed."""
_ID = re.compile(r"resp_[0-9a-f]{32}")

Json = dict[str, Any]

# ARGV[7], ARGV[8] key and owner of a lease; ARGV[9] the record; ARGV[10] a conversation or '', and then items
# that are added to it. Returns 0 if the lease is lost, -1 if the conversation would be too large.
_PUT = (
    HELD
    + COMMON
    + """
if not held(ARGV[7], ARGV[8]) then return 0 end
local added = ARGV[10] ~= '' and room_for(ARGV[10], 11)
if added and added < 0 then return -1 end
forget()
if added then touch(name_of(ARGV[10])) end
put(ARGV[9])
if added then append(ARGV[10], 11) end
return 1
"""
)

# ARGV[7], ARGV[8] key and owner of a lease; ARGV[9] the first event's number, ARGV[10] and so on the events.
# Returns 0 if the lease is lost, or the record is gone: with all its events it may be too large. A response
# that is being made counts as new.
_APPEND = (
    HELD
    + COMMON
    + f"\nlocal stream_bytes = {STREAM_BYTES}"
    + """
if not held(ARGV[7], ARGV[8]) or redis.call('EXISTS', key) == 0 then return 0 end
local events = key_of('events', name)
local more = redis.call('EXISTS', events) == 0 and stream_bytes or 0
for place = 10, #ARGV do more = more + #ARGV[place] + 32 end
if not grow(name, more) then
  drop(name)
  return 0
end
for place = 10, #ARGV do
  redis.call('XADD', events, string.format('%d-0', ARGV[9] + place - 9), 'e', ARGV[place])
end
touch(name)
return 1
"""
)


class ResponseStore:
    """The stored responses of one deployment. Methods raise `Unavailable` if Redis cannot be reached."""

    def __init__(self, line: Line, prefix: str, *, seconds: int, tenant_bytes: int, all_bytes: int) -> None:
        """`seconds`: how long a response is kept. `tenant_bytes`, `all_bytes`: what those of one tenant and
        of all may take, with their conversations; if they take more, the oldest go."""
        self._room = Room(line, f"{prefix}responses:", seconds, tenant_bytes, all_bytes)
        self.conversations = ConversationStore(self._room)
        self.followers = Followers()
        """Requests that follow the events of background responses."""

    async def put(
        self,
        tenant: str,
        response_id: str,
        record: Json,
        lease: Lease = NO_LEASE,
        added: Added = NOTHING_ADDED,
    ) -> None:
        """Store a record, in place of one with this id. Add items to a conversation if it is still there.

        Both happen or neither does. Raises `TooLarge` and `LeaseLost`, too."""
        text = await parsed(tenant, len(record.get("input", ())) * PART_BYTES, lambda: _lines_of(record))
        if len(text) > MAX_RECORD_BYTES:
            raise response_too_large()
        found = await self._write(_PUT, tenant, response_id, lease, text, *added.arguments)
        if found < 0:
            raise conversation_too_large()

    async def append(
        self, tenant: str, response_id: str, first: int, events: Sequence[bytes], lease: Lease = NO_LEASE
    ) -> None:
        """Add events, as JSON, to those of a background response. `first`: the number of the first of them.

        Raises `LeaseLost`, too: the response is gone, or another gateway works at it.
        """
        await self._write(_APPEND, tenant, response_id, lease, first, *events)

    @asynccontextmanager
    async def following(
        self, tenant: str, response_id: str, after: int = -1
    ) -> AsyncIterator[AsyncGenerator[bytes, None]]:
        """Events of a background response after number `after`, those to come too. They do not end by
        themselves. Raises `Overloaded` at once, and `NotFound` when the response is gone."""
        with self.followers.place(tenant):
            line = self._room.line.another()
            try:
                yield self._follow(line, f"{tenant}:{response_id}", after)
            finally:
                line.close()

    async def _follow(self, line: Line, place: str, after: int) -> AsyncGenerator[bytes, None]:
        block = ("BLOCK", int(BLOCK_SECONDS * 1000))
        read = ("XREAD", "COUNT", EVENTS_AT_ONCE, *block, "STREAMS", f"{self._room.base}events:{place}")

        async def look() -> tuple[Any, bool]:
            """New entries, and whether the response is there."""
            found = await run(line, *read, f"{after + 1}-0", block_seconds=BLOCK_SECONDS)
            return found, bool(found or await run(line, "EXISTS", f"{self._room.base}of:{place}"))

        while True:
            found, there = await lasting(look, AWAY_SECONDS)
            for entry, fields in found[0][1] if found else ():
                after = int(entry.partition(b"-")[0]) - 1
                yield fields[1]
            if not there:
                raise NotFound("The response is gone.")

    async def newer(self, tenant: str, response_id: str, after: int) -> list[bytes]:
        """Event number `after` of a background response and the next one, as far as they are there."""
        key = f"{self._room.base}events:{tenant}:{response_id}"
        found = await self._room.run("XRANGE", key, f"{after + 1}-0", "+", "COUNT", 2)
        return [fields[1] for _, fields in found]

    async def events(self, tenant: str, response_id: str) -> AsyncGenerator[bytes, None]:
        """The events of a background response so far."""
        after = "-"
        key = f"{self._room.base}events:{tenant}:{response_id}"
        while found := await self._room.run("XRANGE", key, after, "+", "COUNT", EVENTS_AT_ONCE):
            for entry, fields in found:
                after = f"({entry.decode()}"
                yield fields[1]

    async def get(
        self, tenant: str, response_id: str, hold: Callable[[int], None] = lambda _: None
    ) -> Json | None:
        """A record of this tenant's; None if there is none. `hold` is told how many bytes it has, before
        objects are made of them, and may raise."""
        if not _ID.fullmatch(response_id):
            return None
        async with self._room.turns.turn(tenant):
            text = await self._room.run("GET", f"{self._room.base}of:{tenant}:{response_id}")
            if text is None:
                return None
            hold(len(text))
        head, *items = text.split(b"\n")
        record: Json = await parsed(tenant, len(head), lambda: json.loads(head))
        return (
            record | {"input": await parsed_each(tenant, len(text), json.loads, items)} if items else record
        )

    async def delete(self, tenant: str, response_id: str) -> bool:
        """Delete a record of this tenant's. Whether there was one."""
        if not _ID.fullmatch(response_id):
            return False
        return bool(await self._room.script(DELETE, tenant, response_id))

    async def _write(
        self, script: str, tenant: str, response_id: str, lease: Lease, *arguments: str | int | bytes
    ) -> int:
        """Run a script that writes. Raises `LeaseLost`."""
        found: int = await self._room.script(script, tenant, response_id, lease.key, lease.owner, *arguments)
        if not found:
            raise LeaseLost
        return found


def _lines_of(record: Json) -> bytes:
    items = record.get("input", ())
    head = record | {"input": []} if items else record
    return b"\n".join(map(as_json, (head, *items)))


def response_too_large() -> TooLarge:
    message = f"The response and its input have more than {MAX_RECORD_BYTES // 2**20} MiB: "
    return TooLarge(message + "ask with 'store': false.", param="store")
