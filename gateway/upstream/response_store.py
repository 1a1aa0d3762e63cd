"""Responses of OpenAI's Responses API in Redis, where all gateways of a deployment find them.

A record is a response with the items before it, so that a client can go on from it though others are gone.
After the prefix and `responses:` the keys are:

    of:<tenant>:<id>   a record as JSON; it runs out
    tenant:<tenant>    sorted set of the tenant's records, as `<bytes>:<id>:<tenant>`, by their last second
    all                the same of all tenants
    bytes              hash: bytes in each of these sets, by the set's name
"""

import json
import logging
import re
from collections.abc import Callable
from typing import Any

from gateway.errors import TooLarge, Unavailable
from proto.rpc import BusAway
from proto.rpc.redis_bus import Line

MAX_RECORD_BYTES = 8 * 2**20
"""Half of what is read from Redis at once."""
_ID = re.compile(r"resp_[0-9a-f]{32}")

Json = dict[str, Any]

logger = logging.getLogger(__name__)

# In both scripts: KEYS[1] begins all keys; ARGV[1] the tenant, ARGV[2] the response's id. A record counts as
# its text and 512 bytes for its keys.
_COMMON = """
local base, tenant, id = KEYS[1], ARGV[1], ARGV[2]
local key = base .. 'of:' .. tenant .. ':' .. id
local function bytes(set)
  return tonumber(redis.call('HGET', base .. 'bytes', set) or 0)
end
local function count(set, more)
  local sum = bytes(set) + more
  if sum > 0 then
    redis.call('HSET', base .. 'bytes', set, sum)
  else
    redis.call('HDEL', base .. 'bytes', set)
  end
end
local function member_of(value)
  return string.format('%d:%s:%s', #value + 512, id, tenant)
end
local function drop(member)
  local size, its_id, its_tenant = string.match(member, '^(%d+):([^:]+):(.*)$')
  redis.call('DEL', base .. 'of:' .. its_tenant .. ':' .. its_id)
  for _, set in ipairs({'all', 'tenant:' .. its_tenant}) do
    if redis.call('ZREM', base .. set, member) == 1 then count(set, -size) end
  end
end
"""

# ARGV[3] the record, ARGV[4] seconds until it runs out, ARGV[5] bytes that the tenant may have, ARGV[6] bytes
# that all may have. Of the records that have run out a hundred are forgotten at a time.
_PUT = (
    _COMMON
    + """
local record, now = ARGV[3], tonumber(redis.call('TIME')[1])
for _ = 1, 100 do
  local oldest = redis.call('ZRANGE', base .. 'all', 0, 0, 'WITHSCORES')
  if not oldest[1] or tonumber(oldest[2]) > now then break end
  drop(oldest[1])
end
local member = member_of(record)
local size = tonumber(string.match(member, '^%d+'))
for place, set in ipairs({'tenant:' .. tenant, 'all'}) do
  while bytes(set) + size > tonumber(ARGV[4 + place]) do
    local oldest = redis.call('ZRANGE', base .. set, 0, 0)[1]
    if not oldest then break end
    drop(oldest)
  end
end
redis.call('SET', key, record, 'EX', ARGV[4])
for _, set in ipairs({'tenant:' .. tenant, 'all'}) do
  redis.call('ZADD', base .. set, now + ARGV[4], member)
  count(set, size)
end
"""
)

_DELETE = (
    _COMMON
    + """
local record = redis.call('GET', key)
if not record then return 0 end
drop(member_of(record))
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
        self._limits = (seconds, tenant_bytes, all_bytes)

    async def put(self, tenant: str, response_id: str, record: Json) -> None:
        """Store a record. Raises `TooLarge`, too."""
        text = json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode()
        if len(text) > MAX_RECORD_BYTES:
            message = f"The response and its input have more than {MAX_RECORD_BYTES // 2**20} MiB: "
            raise TooLarge(message + "ask with 'store': false.", param="store")
        await self._execute("EVAL", _PUT, 1, self._base, tenant, response_id, text, *self._limits)

    async def get(
        self, tenant: str, response_id: str, hold: Callable[[int], None] = lambda _: None
    ) -> Json | None:
        """A record of this tenant's; None if there is none. `hold` is told how many bytes it has, before
        objects are made of them, and may raise."""
        if not _ID.fullmatch(response_id):
            return None
        text = await self._execute("GET", f"{self._base}of:{tenant}:{response_id}")
        if text is None:
            return None
        hold(len(text))
        record: Json = json.loads(text)
        return record

    async def delete(self, tenant: str, response_id: str) -> bool:
        """Delete a record of this tenant's. Whether there was one."""
        if not _ID.fullmatch(response_id):
            return False
        return bool(await self._execute("EVAL", _DELETE, 1, self._base, tenant, response_id))

    async def _execute(self, *command: str | int | bytes) -> Any:
        try:
            (found,) = await self._line.execute(command)
        except BusAway as error:
            logger.warning("stored responses cannot be reached: %s", error)
            raise Unavailable("The stored responses cannot be reached.") from None
        return found
