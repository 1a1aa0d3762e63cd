"""Entries of streams: how they change hands in Redis, and how they are read from its replies."""

from typing import Any

from proto.rpc.bounded_reader import size_of
from proto.rpc.bus import MAX_ENTRY_BYTES, Received

FIELD = b"e"
"""The one field of an entry."""

# Tells how many entries a door has, how many of them are pending, and the age of the oldest in milliseconds.
# The age is by this server's own clock, which has given the entry its id.
LOOK = """
local pending = redis.call('XPENDING', KEYS[1], ARGV[1])[1]
local oldest = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
if not oldest then return {0, pending, 0} end
local now = redis.call('TIME')
local age = now[1] * 1000 + math.floor(now[2] / 1000) - string.match(oldest[1], '%d+')
return {redis.call('XLEN', KEYS[1]), pending, math.max(0, age)}
"""

# Lets another consumer have entries that are pending for this one, as if they had not been given to it.
# Atomic, so that nobody is robbed of one that he has taken over meanwhile.
GIVE_BACK = """
for i = 4, #ARGV do
  local item = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1, ARGV[2])[1]
  if item then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[3], 0, ARGV[i], 'RETRYCOUNT', item[4] - 1, 'JUSTID')
  end
end
"""

# Takes over an entry that was given back, or is pending for a consumer without a lease, and removes
# consumers that have neither a lease nor an entry. Atomic, so that a consumer which comes back at this very
# moment loses nothing. Returns the entry's id, its fields, and the number of consumers that it was given to. If
# they are too many, their end may come from reading the fields, which are left out.
ADOPT = """
for _, row in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local consumer = {}
  for i = 1, #row, 2 do consumer[row[i]] = row[i + 1] end
  local name = consumer['name']
  local free = name == ARGV[4]
  if ARGV[5] == '1' then free = name ~= ARGV[2] and redis.call('EXISTS', ARGV[3] .. name) == 0 end
  if free then
    local item = redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, name)[1]
    while item do
      local id, deliveries = item[1], item[4] + 1
      local entry = redis.call('XRANGE', KEYS[1], id, id)[1]
      if entry then
        redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, id, 'RETRYCOUNT', deliveries, 'JUSTID')
        return {id, deliveries <= tonumber(ARGV[6]) and entry[2], deliveries}
      end
      redis.call('XACK', KEYS[1], ARGV[1], id)
      item = redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, name)[1]
    end
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], name)
  end
end
return nil
"""


def entries_of(reply: Any) -> list[Received]:
    """Entries of the one stream that was read; none if the read timed out."""
    return [entry_of(*entry) for entry in reply[0][1]] if reply else []


def entry_of(number: bytes, fields: Any, deliveries: int = 1) -> Received:
    """One entry of a stream, by its id and its fields. Its payload is None if it cannot be read."""
    if isinstance(fields, list) and len(fields) == 2 and fields[0] == FIELD:
        payload = fields[1]
        if isinstance(payload, bytes):
            return Received(number.decode(), payload, deliveries)
        return Received(number.decode(), None, deliveries, size_of(payload))
    return Received(number.decode(), None, deliveries)


def is_here(received: Received) -> bool:
    """Whether an entry was read, or never will be. Otherwise it comes when it is read again."""
    return not 0 < received.size <= MAX_ENTRY_BYTES


def text_members(members: list[bytes]) -> tuple[list[str], list[bytes]]:
    """The members of a set that are text, and the others."""
    texts, others = list[str](), list[bytes]()
    for one in members:
        try:
            texts.append(one.decode())
        except UnicodeDecodeError:
            others.append(one)
    return texts, others
