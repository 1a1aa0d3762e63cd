"""Files in Redis: what clients upload for jobs, and what jobs write. They are kept and read in pieces.

After the prefix and `files:` the keys are:

    one:<tenant>:<id>     hash: `about`, a file object of OpenAI's API as JSON, and its `bytes`
    data:<tenant>:<id>    list of pieces
    of:<tenant>           sorted set of the tenant's complete files, by the time of their creation
    <purpose>:<tenant>    the same of one purpose
    ends                  sorted set of all files, as `<id>:<tenant>`, by their last second
    used                  hash: bytes of a tenant's files; in the field '' those of all. A file counts as
                          what is in it, its object, and 1 KiB for its keys: 750 bytes were measured
"""

import json
import re
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any

from gateway.errors import Overloaded, Unavailable
from gateway.redis_replies import reply_of
from gateway.upstream.listed import IDS_AT_ONCE, listed
from proto.rpc.line import Line

PIECE_BYTES = 2**16 - 2**8
"""With what Redis adds, a piece fits into 64 KiB, above which it would take 80."""
UPLOAD_SECONDS = 3600
"""Time after the last piece at which an upload that was broken off is forgotten."""
PURPOSES = ("batch", "batch_output")
"""What files are for: what clients upload, and what batches write."""
_ID = re.compile(r"file-[0-9a-f]{32}")

Json = dict[str, Any]

FILES = """
local function files_place(tenant, id) return tenant .. ':' .. id end
local function files_size(about) return #about + 1024 end
local function files_ended(base, tenant, id)
  local ends = redis.call('ZSCORE', base .. 'ends', id .. ':' .. tenant)
  return not ends or tonumber(ends) <= tonumber(redis.call('TIME')[1])
end
local function files_use(base, tenant, more)
  for _, field in ipairs({tenant, ''}) do
    local left = redis.call('HINCRBY', base .. 'used', field, more)
    if left <= 0 then redis.call('HDEL', base .. 'used', field) end
  end
end
local function files_drop(base, tenant, id)
  local place = files_place(tenant, id)
  local key = base .. 'one:' .. place
  local about, size = redis.call('HGET', key, 'about'), redis.call('HGET', key, 'bytes')
  redis.call('DEL', key, base .. 'data:' .. place)
  for _, list in ipairs({'of', 'batch', 'batch_output'}) do
    redis.call('ZREM', base .. list .. ':' .. tenant, id)
  end
  redis.call('ZREM', base .. 'ends', id .. ':' .. tenant)
  if size then files_use(base, tenant, -size - files_size(about)) end
  return size and 1 or 0
end
local function files_put(base, tenant, id, about, seconds, purpose)
  local clock = redis.call('TIME')
  local now = tonumber(clock[1])
  redis.call('ZADD', base .. 'ends', now + seconds, id .. ':' .. tenant)
  for _, one in ipairs(redis.call('ZRANGE', base .. 'ends', '-inf', now, 'BYSCORE', 'LIMIT', 0, 100)) do
    local its_id, its_tenant = string.match(one, '^([^:]+):(.*)$')
    files_drop(base, its_tenant, its_id)
  end
  local key = base .. 'one:' .. files_place(tenant, id)
  local before = redis.call('HGET', key, 'about')
  files_use(base, tenant, files_size(about) - (before and files_size(before) or 0))
  redis.call('HSETNX', key, 'bytes', 0)
  redis.call('HSET', key, 'about', about)
  for _, list in ipairs(purpose ~= '' and {'of', purpose} or {}) do
    redis.call('ZADD', base .. list .. ':' .. tenant, string.format('%d%06d', clock[1], clock[2]), id)
  end
end
local function files_keep(base, tenant, id, seconds)
  local ends = tonumber(redis.call('TIME')[1]) + seconds
  redis.call('ZADD', base .. 'ends', 'XX', 'GT', ends, id .. ':' .. tenant)
end
local function files_full(base, tenant, tenant_most, all_most, size)
  local function used(field) return tonumber(redis.call('HGET', base .. 'used', field) or 0) + size end
  return used(tenant) > tonumber(tenant_most) or used('') > tonumber(all_most)
end
local function files_append(base, tenant, id, tenant_most, all_most, pieces)
  local place, size = files_place(tenant, id), 0
  for _, piece in ipairs(pieces) do size = size + #piece end
  if redis.call('EXISTS', base .. 'one:' .. place) == 0 then return 'gone' end
  if files_full(base, tenant, tenant_most, all_most, size) then return 'full' end
  for _, piece in ipairs(pieces) do redis.call('RPUSH', base .. 'data:' .. place, piece) end
  redis.call('HINCRBY', base .. 'one:' .. place, 'bytes', size)
  files_use(base, tenant, size)
  return 'ok'
end
"""
"""For scripts that write files. `base` begins all keys. A file without a purpose is not listed."""

_PUT = FILES + "files_put(KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5])"
_APPEND = (
    FILES
    + """
local pieces = {}
for place = 6, #ARGV do pieces[place - 5] = ARGV[place] end
files_keep(KEYS[1], ARGV[1], ARGV[2], ARGV[5])
return files_append(KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], pieces)
"""
)
_DELETE = FILES + "return files_drop(KEYS[1], ARGV[1], ARGV[2])"
_GET = (
    FILES
    + """
local found = {}
for place = 2, #ARGV do
  local fields = {}
  if files_ended(KEYS[1], ARGV[1], ARGV[place]) then files_drop(KEYS[1], ARGV[1], ARGV[place])
  else fields = redis.call('HGETALL', KEYS[1] .. 'one:' .. files_place(ARGV[1], ARGV[place])) end
  found[place - 1] = fields
end
return found
"""
)


class FileStore:
    """The files of one deployment. Methods raise `Unavailable` if Redis cannot be reached."""

    def __init__(self, line: Line, prefix: str, *, seconds: int, tenant_bytes: int, all_bytes: int) -> None:
        """`seconds`: how long a file is kept that does not say. `tenant_bytes`, `all_bytes`: what those of
        one tenant and of all may take."""
        self.seconds = seconds
        self.base = f"{prefix}files:"
        self.most = (tenant_bytes, all_bytes)
        self._line = line

    async def put(self, tenant: str, about: Json, listed: bool = True) -> None:
        """Make a file, or change what is known of it. It is kept until its `expires_at`."""
        seconds = max(1, about["expires_at"] - int(time.time()))
        text = json.dumps(about, separators=(",", ":"))
        purpose = about["purpose"] if listed else ""
        await self._run("EVAL", _PUT, 1, self.base, tenant, about["id"], text, seconds, purpose)

    async def append(self, tenant: str, file_id: str, pieces: Sequence[bytes]) -> None:
        """Add to the end of a file, which is kept for an hour from then on at least.

        Raises `Overloaded` if there is no room, and `Unavailable` if the file is gone."""
        numbers = (*self.most, UPLOAD_SECONDS)
        found = await self._run("EVAL", _APPEND, 1, self.base, tenant, file_id, *numbers, *pieces)
        if found == b"full":
            raise no_room()
        if found == b"gone":
            raise Unavailable("The file is gone: its last piece came too late.")

    async def get(self, tenant: str, file_id: str) -> Json | None:
        """The file object of a file of this tenant's; None if there is none, or it has run out.

        Redis's clock counts: those of two gateways may differ."""
        found = await self._get(tenant, [file_id]) if _ID.fullmatch(file_id) else ()
        return found[0] if found else None

    async def files(
        self,
        tenant: str,
        purpose: str | None,
        after: str | None,
        newest_first: bool,
        hold: Callable[[int], None] = lambda _: None,
    ) -> AsyncGenerator[Json, None]:
        """The file objects of `ids`. Those that have run out are deleted.

        `hold` is told how many bytes the next ones have, before objects are made of them, and may raise."""
        async with aclosing(self.ids(tenant, purpose, after, newest_first)) as ids:
            some: list[str] = []
            async for one in ids:
                some.append(one)
                if len(some) == IDS_AT_ONCE:
                    for file in await self._get(tenant, some, hold):
                        yield file
                    some = []
        for file in await self._get(tenant, some, hold):
            yield file

    async def _get(
        self, tenant: str, ids: Sequence[str], hold: Callable[[int], None] = lambda _: None
    ) -> list[Json]:
        """The file objects of those that there are."""
        found = await self._run("EVAL", _GET, 1, self.base, tenant, *ids) if ids else ()
        there = [dict(zip(one[::2], one[1::2], strict=True)) for one in found if one]
        hold(sum(len(fields[b"about"]) for fields in there))
        return [json.loads(fields[b"about"]) | {"bytes": int(fields[b"bytes"])} for fields in there]

    async def ids(
        self, tenant: str, purpose: str | None, after: str | None, newest_first: bool
    ) -> AsyncGenerator[str, None]:
        """Ids of a tenant's files for a purpose or, if it is None, for all: see `listed`."""
        if purpose is None or purpose in PURPOSES:
            key, whole = f"{self.base}{purpose or 'of'}:{tenant}", f"{self.base}of:{tenant}"
            async with aclosing(listed(self._run, key, after, newest_first, whole)) as ids:
                async for one in ids:
                    yield one

    async def delete(self, tenant: str, file_id: str) -> bool:
        """Delete a file of this tenant's. Whether there was one."""
        if not _ID.fullmatch(file_id):
            return False
        return bool(await self._run("EVAL", _DELETE, 1, self.base, tenant, file_id))

    async def pieces(self, tenant: str, file_id: str) -> AsyncGenerator[bytes, None]:
        """What is in a file."""
        key, number = f"{self.base}data:{tenant}:{file_id}", 0
        # One at a time: whoever does not read it takes no memory for more.
        while found := await self._run("LRANGE", key, number, number):
            number += 1
            yield found[0]

    async def lines(self, tenant: str, file_id: str) -> AsyncGenerator[tuple[int, bytes], None]:
        """The lines of a file that are not empty, each with its number in the file, from 1 on."""
        number, rest = 1, bytearray()
        async for piece in self.pieces(tenant, file_id):
            *whole, last = piece.split(b"\n")
            if whole:
                for at, line in enumerate((bytes(rest) + whole[0], *whole[1:]), number):
                    if line.strip():
                        yield at, line
                rest.clear()
                number += len(whole)
            rest += last
        if rest.strip():
            yield number, bytes(rest)

    async def _run(self, *command: str | int | bytes) -> Any:
        return await reply_of(self._line, "files", *command)


def in_pieces(data: bytes) -> list[bytes]:
    """Data as a file keeps it."""
    return [data[start : start + PIECE_BYTES] for start in range(0, len(data), PIECE_BYTES)]


def no_room() -> Overloaded:
    return Overloaded("Files take all room for files: delete some, or wait until some have expired.")
