"""Batches of OpenAI's API in Redis, and the results of their lines.

A batch object, without its counts, is kept as the object of an empty file, and takes the room of one. After
the prefix and `batches:` the other keys are:

    counts:<tenant>:<id>    hash: lines `completed` and `failed`
    done:<tenant>:<id>      bit n: line n has its result
    of:<tenant>             sorted set of the tenant's batches, by the time of their creation
"""

import hashlib
import json
import re
import time
from collections.abc import AsyncGenerator
from typing import Any

from gateway.errors import Overloaded
from gateway.redis_replies import reply_of
from gateway.upstream.file_store import FILES, FileStore, in_pieces, no_room
from gateway.upstream.job_queue import HELD, NO_LEASE, Lease, LeaseLost
from gateway.upstream.listed import listed
from proto.rpc.line import Line

DAY = 86400
KEPT_SECONDS = 30 * DAY
"""How long a batch is known."""
MOST_KEPT = 1000
"""Batches of one tenant that are known at once."""
OUTCOMES = {"completed": "output_file_id", "failed": "error_file_id"}
"""The file that lines with this outcome are written to."""
_ID = re.compile(r"batch_[0-9a-f]{32}")

Json = dict[str, Any]

# KEYS[1], KEYS[2] begin all keys of batches and files. ARGV: tenant, id, key and owner of a lease, the batch,
# seconds, batches of a tenant at most, bytes that the tenant's and all files may have, the input file and how
# many seconds more this is needed. Returns 0 if the lease is lost, -1 if there are too many, and -2 if there
# is no room.
_PUT = (
    HELD
    + FILES
    + """
local base, place = KEYS[1], ARGV[1] .. ':' .. ARGV[2]
if not held(ARGV[3], ARGV[4]) then return 0 end
local mine, clock = base .. 'of:' .. ARGV[1], redis.call('TIME')
local function at(second) return string.format('%d%06d', second, clock[2]) end
if not redis.call('ZSCORE', mine, ARGV[2]) then
  for _, old in ipairs(redis.call('ZRANGE', mine, '-inf', at(clock[1] - ARGV[6]), 'BYSCORE')) do
    redis.call('ZREM', mine, old)
  end
  if redis.call('ZCARD', mine) >= tonumber(ARGV[7]) then return -1 end
  if files_full(KEYS[2], ARGV[1], ARGV[8], ARGV[9], files_size(ARGV[5])) then return -2 end
  redis.call('ZADD', mine, at(clock[1]), ARGV[2])
end
for _, name in ipairs({'counts:', 'done:'}) do redis.call('EXPIRE', base .. name .. place, ARGV[6]) end
files_put(KEYS[2], ARGV[1], ARGV[2], ARGV[5], ARGV[6], '')
files_keep(KEYS[2], ARGV[1], ARGV[10], ARGV[11])
return 1
"""
)

_DELETE = (
    FILES
    + """
local place = ARGV[1] .. ':' .. ARGV[2]
redis.call('ZREM', KEYS[1] .. 'of:' .. ARGV[1], ARGV[2])
redis.call('DEL', KEYS[1] .. 'counts:' .. place, KEYS[1] .. 'done:' .. place)
files_drop(KEYS[2], ARGV[1], ARGV[2])
"""
)

# KEYS[1], KEYS[2] begin all keys of batches and files. ARGV: tenant, id, key and owner of a lease, the line's
# number, its outcome, the object of its file and the seconds that this is kept from now on, bytes that the
# tenant's and all files may have, the id of the file; then the pieces of the result. A line has one result.
_RESULT = (
    HELD
    + FILES
    + """
local base, place = KEYS[1], ARGV[1] .. ':' .. ARGV[2]
if not owned(ARGV[3], ARGV[4]) then return 'lost' end
if redis.call('GETBIT', base .. 'done:' .. place, ARGV[5]) == 1 then return 'ok' end
local pieces = {}
for number = 12, #ARGV do pieces[number - 11] = ARGV[number] end
local first = redis.call('HEXISTS', base .. 'counts:' .. place, ARGV[6]) == 0
if first or redis.call('EXISTS', KEYS[2] .. 'one:' .. files_place(ARGV[1], ARGV[11])) == 1 then
  files_put(KEYS[2], ARGV[1], ARGV[11], ARGV[7], ARGV[8], first and 'batch_output' or '')
end
local written = files_append(KEYS[2], ARGV[1], ARGV[11], ARGV[9], ARGV[10], pieces)
if written == 'full' then return written end
redis.call('SETBIT', base .. 'done:' .. place, ARGV[5], 1)
redis.call('HINCRBY', base .. 'counts:' .. place, ARGV[6], 1)
held(ARGV[3], ARGV[4])
return 'ok'
"""
)


class BatchStore:
    """The batches of one deployment. Methods raise `Unavailable` if Redis cannot be reached."""

    def __init__(self, line: Line, prefix: str, files: FileStore) -> None:
        self.files = files
        self._line = line
        self._base = f"{prefix}batches:"

    async def put(self, tenant: str, batch: Json, lease: Lease = NO_LEASE) -> None:
        """Store a batch. Raises `LeaseLost`, and `Overloaded` if the tenant has too many, or no room."""
        where = (tenant, batch["id"], lease.key, lease.owner)
        text = json.dumps(batch, separators=(",", ":"))
        needed = (batch["input_file_id"], max(0, batch["expires_at"] - int(time.time())))
        found = await self._run(_PUT, *where, text, KEPT_SECONDS, MOST_KEPT, *self.files.most, *needed)
        if found == -2:
            raise no_room()
        if found == -1:
            raise Overloaded(f"At most {MOST_KEPT} batches are kept for one tenant.")
        if not found:
            raise LeaseLost

    async def get(self, tenant: str, batch_id: str) -> Json | None:
        """A batch of this tenant's; None if there is none."""
        if not _ID.fullmatch(batch_id):
            return None
        place = f"{tenant}:{batch_id}"
        text = await self._execute("HGET", f"{self.files.base}one:{place}", "about")
        if text is None:
            return None
        batch: Json = json.loads(text)
        if batch["created_at"] + KEPT_SECONDS <= time.time():
            return None
        found = await self._execute("HGETALL", f"{self._base}counts:{place}")
        counts = {name.decode(): int(count) for name, count in zip(found[::2], found[1::2], strict=True)}
        batch["request_counts"] |= counts
        return batch | {OUTCOMES[outcome]: file_of(batch_id, outcome) for outcome in counts}

    def ids(self, tenant: str, after: str | None, newest_first: bool) -> AsyncGenerator[str, None]:
        """Ids of a tenant's batches: see `listed`."""
        return listed(self._execute, f"{self._base}of:{tenant}", after, newest_first)

    async def delete(self, tenant: str, batch_id: str) -> None:
        """Forget a batch."""
        await self._run(_DELETE, tenant, batch_id)

    async def done(self, tenant: str, batch_id: str) -> bytes:
        """The lines that have results, as bits."""
        return await self._execute("GET", f"{self._base}done:{tenant}:{batch_id}") or b""

    async def add_result(
        self, tenant: str, batch: Json, lease: Lease, number: int, outcome: str, result: bytes
    ) -> None:
        """Write the result of a line, if it has none. Raises `LeaseLost`, and `Overloaded` without room."""
        now, file_id = int(time.time()), file_of(batch["id"], outcome)
        seconds = batch["output_seconds"]
        about = {
            "id": file_id,
            "object": "file",
            "created_at": batch["in_progress_at"],
            "expires_at": now + seconds,
            "filename": f"{batch['id']}_{'output' if outcome == 'completed' else 'error'}.jsonl",
            "purpose": "batch_output",
            "status": "processed",
        }
        where = (tenant, batch["id"], lease.key, lease.owner, number, outcome)
        file = (json.dumps(about, separators=(",", ":")), seconds, *self.files.most, file_id)
        found = await self._run(_RESULT, *where, *file, *in_pieces(result))
        if found == b"lost":
            raise LeaseLost
        if found == b"full":
            raise no_room()

    async def _run(self, script: str, *arguments: str | int | bytes) -> Any:
        return await self._execute("EVAL", script, 2, self._base, self.files.base, *arguments)

    async def _execute(self, *command: str | int | bytes) -> Any:
        return await reply_of(self._line, "batches", *command)


def file_of(batch_id: str, outcome: str) -> str:
    """The id of the file that lines of a batch with this outcome are written to. Nobody can guess it who does
    not know the batch."""
    return f"file-{hashlib.sha256(f'{batch_id} {outcome}'.encode()).hexdigest()[:32]}"
