"""Answers to requests with an `Idempotency-Key`, in Redis: who makes them, and what they are.

Whoever asks first under a key claims it and makes the answer. The claim is a lease: if its owner dies, it
runs out, and the next one who asks claims the key again. Others read the answer as it comes.

All answers share one room, those under way too. When it is full, answers of the tenant go that has most of
it: complete ones, the oldest first, and then those under way. So nobody loses answers to a tenant that has
more. After the prefix and `claims:` the keys are, where <key> is `<tenant>:<digest of the key>`:

    of:<key>               hash: `print`, the fingerprint of the request; `owner`, who makes the answer;
                           `done`, once it is complete; `wanted`, when somebody else last waited for it;
                           `turn`, which names the last entries that were added
    answer:<key>:<owner>   stream: the head of the answer, pieces of its body, its end
    sizes                  hash: bytes of an answer and its keys, by `<owner>:<key>`; in the field '' of all
    ends                   sorted set of these, by when they run out
    tenant:<tenant>        sorted set of the tenant's, in the order in which they go
    tenants                sorted set of the tenants, by the bytes of their answers
"""

import hashlib
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gateway.errors import BadRequest
from gateway.followers import Followers
from gateway.redis_replies import lasting, reply_of
from ops.runtime.turns import Turns
from proto.rpc.line import Line

LEASE_SECONDS = 10.0
"""Time after which the claim of a gateway that has died is free."""
READ_AT_ONCE = 4
"""Entries that are read at once. Each may have 64 KiB, and waits for a client that may be slow."""
BLOCK_SECONDS = 1.0
"""Time between two looks at a claim by whoever waits for its answer."""
WANTED_SECONDS = 3 * BLOCK_SECONDS
"""Time after the last look at which nobody waits any more."""
MOST_UNANSWERED = 1024
"""Claims without a reply whose owners a gateway remembers; the latest are kept."""
KEYS_BYTES = 6144
"""Bytes that an answer's keys take in Redis beside the answer: 4.9 to 5.5 KB were measured, of which 4 KiB
are room at the end of its stream."""
ENTRY_BYTES = 64
"""Bytes that an entry of a stream takes beside its value."""

HEAD, PIECE, END = b"head", b"piece", b"end"
Entry = tuple[bytes, bytes]
"""A part of an answer: what it is, one of the three above, and its bytes."""

# In all scripts: KEYS[1] begins all keys, ARGV[1] is the key, ARGV[2] the owner, ARGV[3] seconds.
_COMMON = """
local base, key, owner, seconds = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local claim, answer = base .. 'of:' .. key, base .. 'answer:' .. key .. ':' .. owner
local name = owner .. ':' .. key
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1000000
local function owned()
  return redis.call('HGET', claim, 'owner') == owner
end
local function mine()
  return owned() and not redis.call('HGET', claim, 'done')
end
local function last()
  redis.call('PEXPIRE', claim, math.ceil(seconds * 1000))
  redis.call('PEXPIRE', answer, math.ceil(seconds * 1000))
end
local function at(second) return string.format('%.6f', second) end
local function tenant_of(one) return string.match(one, '^[^:]*:(.*):[^:]*$') end
local function count(one, more)
  local tenant = tenant_of(one)
  for _, field in ipairs({one, ''}) do redis.call('HINCRBY', base .. 'sizes', field, more) end
  if tonumber(redis.call('ZADD', base .. 'tenants', 'INCR', more, tenant)) <= 0 then
    redis.call('ZREM', base .. 'tenants', tenant)
  end
end
local function forget(one)
  count(one, 0 - (redis.call('HGET', base .. 'sizes', one) or 0))  -- and not the negative, which may be -0
  redis.call('HDEL', base .. 'sizes', one)
  redis.call('ZREM', base .. 'ends', one)
  redis.call('ZREM', base .. 'tenant:' .. tenant_of(one), one)
end
local function drop(one)
  local its_owner, its_key = string.match(one, '^([^:]*):(.*)$')
  local its_claim = base .. 'of:' .. its_key
  if redis.call('HGET', its_claim, 'owner') == its_owner then redis.call('DEL', its_claim) end
  redis.call('DEL', base .. 'answer:' .. its_key .. ':' .. its_owner)
  forget(one)
end
"""

# ARGV[4] the fingerprint. Returns the fingerprint and the owner of the claim that there is now. It may be the
# caller's already, as its reply may have been lost: then it lasts anew.
_TAKE = (
    _COMMON
    + """
local print = redis.call('HGET', claim, 'print')
if print and not owned() then return {print, redis.call('HGET', claim, 'owner')} end
redis.call('HSET', claim, 'print', ARGV[4], 'owner', owner, 'wanted', 0)
last()
return {ARGV[4], owner}
"""
)

# ARGV[4] bytes that all answers may take, ARGV[5] bytes of the keys of one, ARGV[6] bytes of an entry beside
# its value, ARGV[7] names the entries that follow. Returns seconds since somebody wanted the answer; -1 if
# the claim is lost.
_KEEP = (
    _COMMON
    + """
if not mine() then return -1 end
-- Their reply may have been lost: entries that are there are not added again.
local first = redis.call('HGET', claim, 'turn') == ARGV[7] and #ARGV + 1 or 8
redis.call('HSET', claim, 'turn', ARGV[7])
for _, one in ipairs(redis.call('ZRANGE', base .. 'ends', '-inf', at(now), 'BYSCORE', 'LIMIT', 0, 100)) do
  forget(one)
end
local more = redis.call('HEXISTS', base .. 'sizes', name) == 1 and 0 or ARGV[5]
for place = first, #ARGV, 2 do more = more + #ARGV[place + 1] + ARGV[6] end
count(name, more)
redis.call('ZADD', base .. 'ends', at(now + seconds), name)
redis.call('ZADD', base .. 'tenant:' .. tenant_of(name), '+inf', name)
while tonumber(redis.call('HGET', base .. 'sizes', '')) > tonumber(ARGV[4]) do
  local most = redis.call('ZRANGE', base .. 'tenants', 0, 0, 'REV')[1]
  local oldest = most and redis.call('ZRANGE', base .. 'tenant:' .. most, 0, 0)[1]
  if not oldest then break end
  drop(oldest)
  if oldest == name then return -1 end
end
for place = first, #ARGV, 2 do redis.call('XADD', answer, '*', ARGV[place], ARGV[place + 1]) end
last()
return now - tonumber(redis.call('HGET', claim, 'wanted'))
"""
)

_WAIT = (
    _COMMON
    + """
if not owned() then return 0 end
redis.call('HSET', claim, 'wanted', now)
return 1
"""
)

_DROP = (
    _COMMON
    + """
if mine() then drop(name) end
"""
)

_COMPLETE = (
    _COMMON
    + """
if not mine() then return end
redis.call('XADD', answer, '*', 'end', '')
redis.call('HSET', claim, 'done', 1)
last()
redis.call('ZADD', base .. 'ends', at(now + seconds), name)
redis.call('ZADD', base .. 'tenant:' .. tenant_of(name), at(now), name)
"""
)


class ClaimLost(Exception):
    """The answer that was waited for does not come: its owner has given it up, or has died."""


@dataclass(frozen=True)
class Claims:
    """The keys of one deployment. Methods raise `Unavailable` if Redis cannot be reached."""

    connect: Callable[[], Line]
    """Makes a connection to Redis."""
    line: Line
    """The connection for what does not wait."""
    prefix: str
    seconds: int
    """How long a complete answer is kept."""
    all_bytes: int
    """Bytes that the answers of all tenants may take, and their keys."""
    followers: Followers = field(default_factory=Followers)
    """Requests that wait for other requests' answers."""
    turns: Turns = field(default_factory=Turns)
    """Whoever reads at the connection that all share has a turn: see `stored_room.Room`."""
    _unanswered: dict[tuple[str, str], str] = field(default_factory=dict)
    """Owners of claims that may have been taken here, though no reply came, by name and fingerprint."""

    async def take(self, tenant: str, key: str, fingerprint: str) -> "Claim":
        """The claim under a tenant's key: a new one of the caller's, or the one that there is.

        `fingerprint` tells the request from others. Raises `BadRequest` if another one has the key, and
        `Unavailable` if Redis is away for longer than a claim lasts. The claim may have been made all the
        same: the next call for the same request then takes it, instead of waiting until it runs out.
        """
        name = f"{tenant}:{hashlib.sha256(key.encode()).hexdigest()}"
        owner = self._unanswered.pop((name, fingerprint), None) or secrets.token_hex(8)
        command = partial(Claim(self, tenant, name, owner, True).run, _TAKE, LEASE_SECONDS, fingerprint)
        try:
            found, its_owner = await lasting(command, LEASE_SECONDS)
        except BaseException:
            self._unanswered[name, fingerprint] = owner
            if len(self._unanswered) > MOST_UNANSWERED:
                del self._unanswered[next(iter(self._unanswered))]
            raise
        if found.decode() != fingerprint:
            message = "Another request has had this Idempotency-Key."
            raise BadRequest(message, code="idempotency_key_reused")
        return Claim(self, tenant, name, its_owner.decode(), its_owner.decode() == owner)

    async def execute(self, line: Line, *command: str | int | bytes, seconds: float = 0) -> Any:
        """`seconds`: that the command may wait in Redis."""
        return await reply_of(line, "answers under an Idempotency-Key", *command, block_seconds=seconds)


@dataclass(frozen=True, eq=False)
class Claim:
    """What is under one key."""

    _claims: Claims
    _tenant: str
    _key: str
    _owner: str
    own: bool
    """It is the caller's, who makes the answer."""

    async def keep(self, entries: Sequence[Entry]) -> int | None:
        """Renew the claim and add entries to the answer. Seconds since somebody wanted it, or None if the
        claim is not the caller's any more, as when there is no room. Raises `Unavailable` if Redis is away
        for longer than a claim lasts."""
        bounds = (self._claims.all_bytes, KEYS_BYTES, ENTRY_BYTES)
        parts = (part for entry in entries for part in entry)
        command = partial(self.run, _KEEP, LEASE_SECONDS, *bounds, secrets.token_hex(8), *parts)
        found: int = await lasting(command, LEASE_SECONDS)
        return None if found < 0 else found

    async def drop(self) -> None:
        """Free the key. Whoever asks next makes the answer."""
        await self.run(_DROP, 0)

    async def complete(self) -> None:
        """The answer has ended, and is kept."""
        await lasting(lambda: self.run(_COMPLETE, self._claims.seconds), LEASE_SECONDS)

    async def entries(self) -> AsyncGenerator[Entry, None]:
        """The answer as it comes, without its end. Raises `ClaimLost`, `Overloaded`."""
        place: bytes = b"0"
        line: Line | None = None
        looked = time.monotonic()
        with ExitStack() as waiting:
            while True:
                found = await lasting(partial(self._read, line, place), LEASE_SECONDS)
                for _, (kind, value) in found:
                    if kind == END:
                        return
                    yield kind, value
                if found:
                    place = found[-1][0]
                if found and time.monotonic() < looked + BLOCK_SECONDS:
                    continue
                looked = time.monotonic()
                if not await lasting(lambda: self.run(_WAIT, 0), LEASE_SECONDS):
                    raise ClaimLost
                if not found and line is None:
                    waiting.enter_context(self._claims.followers.place(self._tenant))
                    line = self._claims.connect()
                    waiting.callback(line.close)

    async def _read(self, line: Line | None, place: bytes) -> Sequence[tuple[bytes, Entry]]:
        """Entries after `place`. `line`: where to wait for some; None: do not wait."""
        stream = f"{self._claims.prefix}claims:answer:{self._key}:{self._owner}"
        block = ("BLOCK", int(BLOCK_SECONDS * 1000)) if line else ()
        command = ("XREAD", "COUNT", READ_AT_ONCE, *block, "STREAMS", stream, place)
        if line is None:
            async with self._claims.turns.turn(self._tenant):
                found = await self._claims.execute(self._claims.line, *command)
        else:
            found = await self._claims.execute(line, *command, seconds=BLOCK_SECONDS)
        return found[0][1] if found else ()

    async def run(self, script: str, seconds: float, *more: str | int | bytes) -> Any:
        """Run a script of this file."""
        command = ("EVAL", script, 1, f"{self._claims.prefix}claims:", self._key, self._owner)
        return await self._claims.execute(self._claims.line, *command, str(seconds), *more)
