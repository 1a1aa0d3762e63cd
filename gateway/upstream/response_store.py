"""Responses of OpenAI's Responses API in Redis, where all gateways of a deployment find them.

A record is a response with the items before it, so that a client can go on from it though others are gone.
That of a background response is there from the beginning, and so are the events of its stream. After the
prefix and `responses:` the keys are:

    of:<tenant>:<id>        a record as JSON; it runs out
    events:<tenant>:<id>    stream of the events: number n is the entry n+1, as JSON in the field `e`
    tenant:<tenant>         sorted set of the tenant's records, as `<id>:<tenant>`, by their last second
    all                     the same of all tenants
    sizes                   hash: bytes of a record and its events, by `<id>:<tenant>`
    bytes                   hash: bytes in each of these sets, by the set's name
"""

import json
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from gateway.errors import NotFound, TooLarge, Unavailable
from gateway.upstream.jobs import HELD, NO_LEASE, Lease, LeaseLost
from proto.rpc import BusAway
from proto.rpc.redis_bus import Line

MAX_RECORD_BYTES = 8 * 2**20
"""Half of what is read from Redis at once."""
EVENTS_AT_ONCE = 64
"""Events of a stream that are read at once. The last one has the whole response."""
BLOCK_SECONDS = 5.0
"""Time for which a reader waits for the next event, before it looks whether the response is still there."""
_ID = re.compile(r"resp_[0-9a-f]{32}")

Json = dict[str, Any]

logger = logging.getLogger(__name__)

# In all scripts: KEYS[1] begins all keys; ARGV[1] the tenant, ARGV[2] the response's id, ARGV[3] and ARGV[4]
# bytes that the tenant and all may have. A record counts as its text and 512 bytes for its keys.
_COMMON = (
    HELD
    + """
local base, tenant, id = KEYS[1], ARGV[1], ARGV[2]
local key, events = base .. 'of:' .. tenant .. ':' .. id, base .. 'events:' .. tenant .. ':' .. id
local name = id .. ':' .. tenant
local sets = {'tenant:' .. tenant, 'all'}
local function add(set, more)
  if redis.call('HINCRBY', base .. 'bytes', set, more) <= 0 then redis.call('HDEL', base .. 'bytes', set) end
end
local function drop(one)
  local its_id, its_tenant = string.match(one, '^([^:]+):(.*)$')
  local place = its_tenant .. ':' .. its_id
  redis.call('DEL', base .. 'of:' .. place, base .. 'events:' .. place)
  local size = redis.call('HGET', base .. 'sizes', one) or 0
  redis.call('HDEL', base .. 'sizes', one)
  for _, set in ipairs({'tenant:' .. its_tenant, 'all'}) do
    if redis.call('ZREM', base .. set, one) == 1 then add(set, -size) end
  end
end
local function grow(more)
  local fits = true
  for place, set in ipairs(sets) do
    while (tonumber(redis.call('HGET', base .. 'bytes', set)) or 0) + more > tonumber(ARGV[2 + place]) do
      local oldest = redis.call('ZRANGE', base .. set, 0, 1)
      local other = oldest[1] ~= name and oldest[1] or oldest[2]
      if not other then
        fits = false
        break
      end
      drop(other)
    end
  end
  redis.call('HINCRBY', base .. 'sizes', name, more)
  for _, set in ipairs(sets) do add(set, more) end
  return fits
end
"""
)

# ARGV[5], ARGV[6] key and owner of a lease; ARGV[7] the record, ARGV[8] seconds until it runs out. Of the
# records that have run out a hundred are forgotten at a time. Returns 0 if the lease is lost.
_PUT = (
    _COMMON
    + """
if not held(ARGV[5], ARGV[6]) then return 0 end
local record, now = ARGV[7], tonumber(redis.call('TIME')[1])
for _ = 1, 100 do
  local oldest = redis.call('ZRANGE', base .. 'all', 0, 0, 'WITHSCORES')
  if not oldest[1] or tonumber(oldest[2]) > now then break end
  drop(oldest[1])
end
local before = redis.call('GET', key)
local size = #record + 512
if before then size = #record - #before end
for _, set in ipairs(sets) do redis.call('ZADD', base .. set, now + ARGV[8], name) end
grow(size)
redis.call('SET', key, record, 'EX', ARGV[8])
redis.call('EXPIRE', events, ARGV[8])
return 1
"""
)

_DELETE = (
    _COMMON
    + """
if redis.call('EXISTS', key) == 0 then return 0 end
drop(name)
return 1
"""
)

# ARGV[5], ARGV[6] key and owner of a lease; ARGV[7] the first event's number, ARGV[8] and so on the events.
# Returns 0 if the lease is lost, or the record is gone: with all its events it may be too large.
_APPEND = (
    _COMMON
    + """
if not held(ARGV[5], ARGV[6]) or redis.call('EXISTS', key) == 0 then return 0 end
local more = 0
for place = 8, #ARGV do more = more + #ARGV[place] + 32 end
if not grow(more) then
  drop(name)
  return 0
end
for place = 8, #ARGV do
  redis.call('XADD', events, string.format('%d-0', ARGV[7] + place - 7), 'e', ARGV[place])
end
redis.call('PEXPIRE', events, redis.call('PTTL', key))
return 1
"""
)


class ResponseStore:
    """The stored responses of one deployment. Methods raise `Unavailable` if Redis cannot be reached."""

    def __init__(self, line: Line, prefix: str, *, seconds: int, tenant_bytes: int, all_bytes: int) -> None:
        """`seconds`: how long a response is kept. `tenant_bytes`, `all_bytes`: what those of one tenant and
        of all may take; if they take more, the oldest go."""
        self._line = line
        self._base = f"{prefix}responses:"
        self._seconds = seconds
        self._most = (tenant_bytes, all_bytes)

    async def put(self, tenant: str, response_id: str, record: Json, lease: Lease = NO_LEASE) -> None:
        """Store a record, in place of one with this id. Raises `TooLarge` and `LeaseLost`, too."""
        text = json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode()
        if len(text) > MAX_RECORD_BYTES:
            message = f"The response and its input have more than {MAX_RECORD_BYTES // 2**20} MiB: "
            raise TooLarge(message + "ask with 'store': false.", param="store")
        await self._write(_PUT, tenant, response_id, lease, text, self._seconds)

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
        themselves. Raises `NotFound` when the response is gone."""
        line = self._line.another()
        try:
            yield self._follow(line, f"{tenant}:{response_id}", after)
        finally:
            line.close()

    async def _follow(self, line: Line, place: str, after: int) -> AsyncGenerator[bytes, None]:
        block = ("BLOCK", int(BLOCK_SECONDS * 1000))
        while True:
            read = ("XREAD", "COUNT", EVENTS_AT_ONCE, *block, "STREAMS", f"{self._base}events:{place}")
            found = await _run(line, *read, f"{after + 1}-0", block_seconds=BLOCK_SECONDS)
            for entry, fields in found[0][1] if found else ():
                after = int(entry.partition(b"-")[0]) - 1
                yield fields[1]
            if not found and not await _run(line, "EXISTS", f"{self._base}of:{place}"):
                raise NotFound("The response is gone.")

    async def events(self, tenant: str, response_id: str) -> AsyncGenerator[bytes, None]:
        """The events of a background response so far."""
        after = "-"
        key = f"{self._base}events:{tenant}:{response_id}"
        while found := await _run(self._line, "XRANGE", key, after, "+", "COUNT", EVENTS_AT_ONCE):
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
        text = await _run(self._line, "GET", f"{self._base}of:{tenant}:{response_id}")
        if text is None:
            return None
        hold(len(text))
        record: Json = json.loads(text)
        return record

    async def delete(self, tenant: str, response_id: str) -> bool:
        """Delete a record of this tenant's. Whether there was one."""
        if not _ID.fullmatch(response_id):
            return False
        return bool(await _run(self._line, "EVAL", _DELETE, 1, self._base, tenant, response_id))

    async def _write(
        self, script: str, tenant: str, response_id: str, lease: Lease, *arguments: str | int | bytes
    ) -> None:
        """Run a script that writes. Raises `LeaseLost`."""
        where = (self._base, tenant, response_id, *self._most, lease.key, lease.owner)
        if not await _run(self._line, "EVAL", script, 1, *where, *arguments):
            raise LeaseLost


async def _run(line: Line, *command: str | int | bytes, block_seconds: float = 0) -> Any:
    try:
        (found,) = await line.execute(command, block_seconds=block_seconds)
    except BusAway as error:
        logger.warning("stored responses cannot be reached: %s", error)
        raise Unavailable("The stored responses cannot be reached.") from None
    return found
