"""Jobs: work that goes on when the request that asked for it has been answered.

A job is a record in Redis and a lease on it. A gateway takes a job whose lease is free, and renews the lease
while it works. If the gateway dies, the lease runs out. Then another gateway takes the job, and goes on from
what was written. What is written for a job is written with its lease (`HELD`), so a gateway that has lost the
lease without noticing writes nothing more.

After the prefix and `jobs:<kind>:` the keys are:

    job:<id>       hash: `tenant`, `account`, `keyed`; `owner`, who has the lease; `takes`
    open           sorted set of the ids, by the second from which on a gateway may take them
    of:<tenant>    set of the tenant's ids
"""

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gateway.behalf import Behalf
from gateway.errors import Overloaded
from gateway.redis_replies import reply_of
from proto.rpc.line import Line

LEASE_SECONDS = 10.0
"""Time after which another gateway takes the job of one that has died."""

HELD = """
local function owned(key, owner)
  return key == '' or redis.call('HGET', key, 'owner') == owner
end
local function held(key, owner)
  if not owned(key, owner) then return false end
  if key ~= '' then redis.call('HSET', key, 'takes', 0) end
  return true
end
"""
"""For scripts that write what a job has done: whether it still has its lease, the key and owner of which a
`Lease` has. What is written counts as progress. A script that may find no room asks whether the lease is
`owned`, and calls `held` once it has written."""

_COMMON = """
local base = KEYS[1]
local clock = redis.call('TIME')
local function after(seconds)
  return string.format('%.6f', clock[1] + clock[2] / 1000000 + seconds)
end
"""

# ARGV: id, most jobs of the tenant, tenant, account, keyed.
_ADD = (
    _COMMON
    + """
local mine = base .. 'of:' .. ARGV[3]
if redis.call('SCARD', mine) >= tonumber(ARGV[2]) then return 0 end
local key = base .. 'job:' .. ARGV[1]
redis.call('HSET', key, 'tenant', ARGV[3], 'account', ARGV[4], 'keyed', ARGV[5], 'takes', 0)
redis.call('SADD', mine, ARGV[1])
redis.call('ZADD', base .. 'open', after(0), ARGV[1])
return 1
"""
)

# ARGV: the new owner, seconds of the lease, the id and tenant of a job to take whoever has it, or '', and
# tenants whose jobs are left out. Returns the id and the record.
_TAKE = (
    _COMMON
    + """
local open, wanted, full, first = base .. 'open', ARGV[3], {}, 0
for place = 5, #ARGV do full[ARGV[place]] = true end
repeat
  local ids = {wanted}
  if wanted == '' then ids = redis.call('ZRANGE', open, '-inf', after(0), 'BYSCORE', 'LIMIT', first, 100) end
  for _, id in ipairs(ids) do
    local key = base .. 'job:' .. id
    local tenant = redis.call('HGET', key, 'tenant')
    if not tenant then
      redis.call('ZREM', open, id)
    elseif not full[tenant] and (wanted == '' or tenant == ARGV[4]) then
      redis.call('ZADD', open, after(ARGV[2]), id)
      redis.call('HSET', key, 'owner', ARGV[1])
      redis.call('HINCRBY', key, 'takes', 1)
      return {id, redis.call('HGETALL', key)}
    else
      first = first + 1
    end
  end
until #ids < 100
return nil
"""
)

# ARGV: id, owner, seconds of the lease; 0: it is given back, by a gateway that has not died of it.
_RENEW = (
    _COMMON
    + """
local key = base .. 'job:' .. ARGV[1]
if redis.call('HGET', key, 'owner') ~= ARGV[2] then return 0 end
redis.call('ZADD', base .. 'open', after(ARGV[3]), ARGV[1])
if tonumber(ARGV[3]) == 0 then
  redis.call('HDEL', key, 'owner')
  if tonumber(redis.call('HGET', key, 'takes')) > 0 then redis.call('HINCRBY', key, 'takes', -1) end
end
return 1
"""
)

# ARGV: id, owner.
_END = """
local base, id = KEYS[1], ARGV[1]
local key = base .. 'job:' .. id
if redis.call('HGET', key, 'owner') ~= ARGV[2] then return 0 end
redis.call('SREM', base .. 'of:' .. redis.call('HGET', key, 'tenant'), id)
redis.call('ZREM', base .. 'open', id)
redis.call('DEL', key)
return 1
"""


class LeaseLost(Exception):
    """Another gateway has the job, or it has ended."""


@dataclass(frozen=True)
class Lease:
    """The right to write for a job."""

    key: str
    """The job's record in Redis."""
    owner: str
    """Unlike that of any other lease, of the same job too."""


NO_LEASE = Lease("", "")
"""With it anybody may write."""


@dataclass(frozen=True)
class Job:
    """A job that this gateway has taken."""

    id: str
    behalf: Behalf
    """On whose behalf it makes requests."""
    lease: Lease
    takes: int
    """How often it was taken since anything was last written for it."""

    @property
    def tenant(self) -> str:
        return self.behalf.tenant


class JobQueue:
    """Jobs of one kind, of a whole deployment. Methods raise `Unavailable` if Redis cannot be reached."""

    def __init__(self, line: Line, prefix: str, kind: str, most: int) -> None:
        """`most`: jobs that one tenant may have at once."""
        self.kind = kind
        self._line = line
        self._base = f"{prefix}jobs:{kind}:"
        self._most = most

    async def add(self, job_id: str, behalf: Behalf) -> None:
        """Let some gateway take a job. Raises `Overloaded` if the tenant has too many."""
        fields = (behalf.tenant, behalf.account, int(behalf.keyed))
        if not await self._run(_ADD, job_id, self._most, *fields):
            raise Overloaded(f"At most {self._most} of these may be under way at once for one tenant.")

    async def take(self, full: Iterable[str] = ()) -> Job | None:
        """Take the job that has waited longest; None if there is none. `full`: tenants whose jobs wait on."""
        return await self._take("", "", *full)

    async def seize(self, job_id: str, tenant: str) -> Job | None:
        """Take this job of a tenant's, whoever works at it; None if there is none."""
        return await self._take(job_id, tenant)

    async def renew(self, job: Job) -> bool:
        """Keep the lease for another `LEASE_SECONDS`; False if it is lost."""
        return bool(await self._run(_RENEW, job.id, job.lease.owner, LEASE_SECONDS))

    async def give_back(self, job: Job) -> None:
        """Let another gateway take the job at once."""
        await self._run(_RENEW, job.id, job.lease.owner, 0)

    async def end(self, job: Job) -> bool:
        """The job is done. False if the lease is lost."""
        return bool(await self._run(_END, job.id, job.lease.owner))

    async def _take(self, job_id: str, tenant: str, *full: str) -> Job | None:
        owner = uuid.uuid4().hex
        found = await self._run(_TAKE, owner, LEASE_SECONDS, job_id, tenant, *full)
        if found is None:
            return None
        name, values = found[0].decode(), [value.decode() for value in found[1]]
        fields = dict(zip(values[::2], values[1::2], strict=True))
        behalf = Behalf(fields["tenant"], fields["account"], fields["keyed"] == "1")
        return Job(name, behalf, Lease(f"{self._base}job:{name}", owner), int(fields["takes"]))

    async def _run(self, script: str, *arguments: str | int | float) -> Any:
        given = (str(one) if isinstance(one, float) else one for one in arguments)
        return await reply_of(self._line, "jobs", "EVAL", script, 1, self._base, *given)
