"""The room in Redis that stored responses and conversations have in common.

What is stored has an id, belongs to a tenant, and runs out. If it takes more than it may, the oldest goes.
After a prefix the keys are:

    of:<tenant>:<id>    a record as JSON
    tenant:<tenant>     sorted set of the tenant's records, as `<id>:<tenant>`, by their last second
    all                 the same of all tenants
    sizes               hash: bytes of a record and what belongs to it, by `<id>:<tenant>`
    bytes               hash: bytes in each of these sets, by the set's name
"""

import json
from dataclasses import dataclass, field
from typing import Any

from gateway.redis_replies import reply_of
from ops.runtime.turns import Turns
from proto.rpc.line import Line

MAX_RECORD_BYTES = 8 * 2**20
"""Half of what is read from Redis at once."""
MAX_ITEMS = 4096
"""Items of a conversation: one that has more takes no further ones."""

Json = dict[str, Any]

# In all scripts: KEYS[1] begins all keys; ARGV[1] the tenant, ARGV[2] the record's id, ARGV[3] and ARGV[4]
# bytes that the tenant and all may have, ARGV[5] seconds that a record is kept, ARGV[6] bytes that one
# conversation may have. A record counts as its text and 512 bytes for its keys, an item of a conversation
# as its text, twice its id and 128 bytes.
COMMON = (
    f"\nlocal most_items = {MAX_ITEMS}"
    + """
local base, tenant, id, seconds = KEYS[1], ARGV[1], ARGV[2], ARGV[5]
local function name_of(one) return one .. ':' .. tenant end
local name = name_of(id)
local sets = {'tenant:' .. tenant, 'all'}
local now = tonumber(redis.call('TIME')[1])
local function key_of(kind, one)
  local its_id, its_tenant = string.match(one, '^([^:]+):(.*)$')
  return base .. kind .. ':' .. its_tenant .. ':' .. its_id, its_tenant
end
local key = key_of('of', name)
local function add(set, more)
  if redis.call('HINCRBY', base .. 'bytes', set, more) <= 0 then redis.call('HDEL', base .. 'bytes', set) end
end
local function drop(one)
  local its_tenant
  for _, kind in ipairs({'of', 'events', 'items', 'order'}) do
    local place
    place, its_tenant = key_of(kind, one)
    redis.call('DEL', place)
  end
  local size = redis.call('HGET', base .. 'sizes', one) or 0
  redis.call('HDEL', base .. 'sizes', one)
  for _, set in ipairs({'tenant:' .. its_tenant, 'all'}) do
    if redis.call('ZREM', base .. set, one) == 1 then add(set, -size) end
  end
end
local function grow(one, more)
  local fits = true
  for place, set in ipairs(sets) do
    while (tonumber(redis.call('HGET', base .. 'bytes', set)) or 0) + more > tonumber(ARGV[2 + place]) do
      local oldest = redis.call('ZRANGE', base .. set, 0, 1)
      local other = oldest[1] ~= one and oldest[1] or oldest[2]
      if not other then
        fits = false
        break
      end
      drop(other)
    end
  end
  redis.call('HINCRBY', base .. 'sizes', one, more)
  for _, set in ipairs(sets) do add(set, more) end
  return fits
end
local function touch(one)
  for _, set in ipairs(sets) do redis.call('ZADD', base .. set, now + seconds, one) end
  for _, kind in ipairs({'of', 'events', 'items', 'order'}) do
    redis.call('EXPIRE', key_of(kind, one), seconds)
  end
end
-- Forget a hundred of the records that have run out.
local function forget()
  for _ = 1, 100 do
    local oldest = redis.call('ZRANGE', base .. 'all', 0, 0, 'WITHSCORES')
    if not oldest[1] or tonumber(oldest[2]) > now then break end
    drop(oldest[1])
  end
end
local function put(record)
  local before = redis.call('GET', key)
  local size = #record + 512
  if before then size = #record - #before end
  touch(name)
  grow(name, size)
  redis.call('SET', key, record, 'EX', seconds)
end
-- Items are pairs of an id and a text from ARGV[from] on. Bytes by which they let a conversation grow that
-- does not have them; nil if it is gone, -1 if it would be too large or has too many.
local function room_for(conversation, from)
  local one = name_of(conversation)
  if redis.call('EXISTS', (key_of('of', one))) == 0 then return nil end
  local items, more, seen = key_of('items', one), 0, {}
  for at = from, #ARGV, 2 do
    if not seen[ARGV[at]] and redis.call('HEXISTS', items, ARGV[at]) == 0 then
      more = more + #ARGV[at + 1] + 2 * #ARGV[at] + 128
    end
    seen[ARGV[at]] = true
  end
  local size = tonumber(redis.call('HGET', base .. 'sizes', one)) or 0
  if more > 0 and redis.call('HLEN', items) > most_items then return -1 end
  return size + more > tonumber(ARGV[6]) and -1 or more
end
local function append(conversation, from)
  local more, one = room_for(conversation, from), name_of(conversation)
  if not more then return end
  local items, order = key_of('items', one), key_of('order', one)
  local last = redis.call('ZRANGE', order, 0, 0, 'REV', 'WITHSCORES')[2] or 0
  for at = from, #ARGV, 2 do
    if redis.call('HSETNX', items, ARGV[at], ARGV[at + 1]) == 1 then
      last = last + 1
      redis.call('ZADD', order, last, ARGV[at])
    end
  end
  touch(one)
  grow(one, more)
end
"""
)

DELETE = (
    COMMON
    + """
if redis.call('EXISTS', key) == 0 then return 0 end
drop(name)
return 1
"""
)


@dataclass(frozen=True)
class Room:
    """Where the records of one deployment are, and how much they may take. Methods raise `Unavailable` if
    Redis cannot be reached."""

    line: Line
    base: str
    """What all keys begin with."""
    seconds: int
    """How long a record is kept after it was last written."""
    tenant_bytes: int
    all_bytes: int
    turns: Turns = field(default_factory=Turns)
    """Whoever reads what may be long has a turn: replies that nobody has taken yet take memory, and all that
    is asked after them waits."""

    async def run(self, *command: str | int | bytes) -> Any:
        """The reply to a command."""
        return await run(self.line, *command)

    async def script(self, script: str, tenant: str, record_id: str, *arguments: str | int | bytes) -> Any:
        """What a script returns that begins with `COMMON`. `arguments`: from ARGV[7] on."""
        bounds = (self.tenant_bytes, self.all_bytes, self.seconds, MAX_RECORD_BYTES)
        return await self.run("EVAL", script, 1, self.base, tenant, record_id, *bounds, *arguments)


async def run(line: Line, *command: str | int | bytes, block_seconds: float = 0) -> Any:
    """The reply to a command: see `reply_of`."""
    return await reply_of(line, "stored responses", *command, block_seconds=block_seconds)


def as_json(value: Json) -> bytes:
    """A record or an item as it is stored."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
