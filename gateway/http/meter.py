"""What a caller asks in all: requests at once, requests a minute, tokens a minute.

Redis counts, for all gateways. A limit per minute is a bucket that holds a minute's worth and is refilled
evenly. What Redis keeps of it is the time at which it will be full again (the generic cell rate algorithm of
ATM networks, ITU-T I.371). A request takes the tokens that it asks for from the bucket. When it has ended, it
gives back what it did not use, or takes what it used more, even if the bucket then lacks tokens.

The hash `<prefix>limits:<caller>` has the two times, and the number of the caller's requests that each
gateway has under way. The numbers of gateways whose lease is gone do not count.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Send

from gateway.errors import Overloaded, Unavailable
from ops.runtime.limits import Limits
from proto.rpc import BusAway
from proto.rpc.line import Line

WINDOW = 60
"""Seconds in which an empty bucket is full again."""
_COUNTED = ("requests", "tokens")
RATE_HEADERS = [
    f"x-ratelimit-{value}-{name}" for name in _COUNTED for value in ("limit", "remaining", "reset")
]
"""Headers that tell a caller what is left of its limits, under the names that OpenAI's API has for them."""

# In all scripts: KEYS[1] the caller's hash; ARGV: the two limits, this gateway, its number of requests.
_COMMON = """
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1000000
local window = 60
local function full_at(field)
  return math.max(tonumber(redis.call('HGET', KEYS[1], field) or 0) or 0, now)
end
local function keep(field, at)
  redis.call('HSET', KEYS[1], field, string.format('%.6f', at))
  local left = at - now
  if left > 0 and left * 1000 > redis.call('PTTL', KEYS[1]) then
    redis.call('PEXPIRE', KEYS[1], math.ceil(left * 1000))
  end
end
local function note(gateway, count)
  local field = 'running:' .. gateway
  if count > 0 then
    redis.call('HSET', KEYS[1], field, count)
    redis.call('PEXPIRE', KEYS[1], 172800000)
    return
  end
  redis.call('HDEL', KEYS[1], field)
  for _, other in ipairs(redis.call('HKEYS', KEYS[1])) do
    if string.find(other, '^running:') then return end
  end
  local left = math.max(full_at('requests'), full_at('tokens')) - now
  redis.call('PEXPIRE', KEYS[1], math.max(1, math.ceil(left * 1000)))
end
"""

# ARGV[5] requests at once, ARGV[6] tokens that the request asks for, ARGV[7] begins the keys of leases.
# Returns what refused it ('' if nothing did), seconds until it may ask again, and of both buckets what is
# left and the seconds until it is full.
_BEGIN = (
    _COMMON
    + """
local requests, tokens, most = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[5])
local request_at, token_at = full_at('requests'), full_at('tokens')
local refused, wait = '', 0
local function check(name, at, limit, cost)
  if limit == 0 then return at end
  local after = at + math.min(cost, limit) * window / limit
  local late = math.max(after - window, at - window + window / limit) - now
  if late > 0.000001 and late > wait then refused, wait = name, late end
  return after
end
local request_after = check('requests', request_at, requests, 1)
local token_after = check('tokens', token_at, tokens, tonumber(ARGV[6]))
if refused == '' and most > 0 then
  local running = tonumber(ARGV[4])
  local fields = redis.call('HGETALL', KEYS[1])
  for i = 1, #fields, 2 do
    local gateway = string.match(fields[i], '^running:(.*)$')
    if gateway and gateway ~= ARGV[3] then
      if redis.call('EXISTS', ARGV[7] .. gateway) == 1 then
        running = running + tonumber(fields[i + 1])
      else
        redis.call('HDEL', KEYS[1], fields[i])
      end
    end
  end
  if running >= most then refused, wait = 'concurrency', 1 end
end
if refused == '' then
  request_at, token_at = request_after, token_after
  if requests > 0 then keep('requests', request_at) end
  if tokens > 0 then keep('tokens', token_at) end
  if most > 0 then note(ARGV[3], tonumber(ARGV[4]) + 1) end
end
local function left(at, limit)
  return math.floor(math.max(0, window - (at - now)) * limit / window + 0.000001)
end
return {
  refused, math.ceil(wait),
  left(request_at, requests), string.format('%.3f', request_at - now),
  left(token_at, tokens), string.format('%.3f', token_at - now),
}
"""
)

# ARGV[5] tokens that the request used beyond those that it took.
_END = (
    _COMMON
    + """
local tokens = tonumber(ARGV[2])
if tokens > 0 then keep('tokens', full_at('tokens') + tonumber(ARGV[5]) * window / tokens) end
note(ARGV[3], tonumber(ARGV[4]))
"""
)

_REFUSALS = {
    "requests": "Too many requests a minute: at most {limits.requests_per_minute}.",
    "tokens": "Too many tokens a minute: at most {limits.tokens_per_minute}.",
    "concurrency": "Too many requests at once: at most {limits.concurrency}.",
}


class Meter:
    """Counts requests and tokens of all callers. Methods raise `Unavailable` if Redis cannot be reached."""

    def __init__(self, line: Line, prefix: str, gateway: str) -> None:
        """`gateway`: the id of this process, by which its lease is known."""
        self._line = line
        self._prefix = prefix
        self._gateway = gateway
        self._running: Counter[str] = Counter()

    async def begin(self, account: str, limits: Limits, tokens: int) -> dict[str, str]:
        """Count a request that asks for `tokens`; headers that tell the client how much is left.

        Raises `Overloaded` if it is one too many.
        """
        # It counts from now on: another one may come before Redis has answered.
        before = self._running[account]
        self._running[account] += 1
        try:
            arguments = (limits.concurrency, tokens, f"{self._prefix}alive:")
            found = await self._run(_BEGIN, account, limits, before, *arguments)
        except BaseException:
            self._leave(account)
            raise
        refused, wait, *left = [one.decode() if isinstance(one, bytes) else str(one) for one in found]
        headers = _headers(limits, *left)
        if refused:
            self._leave(account)
            refusal = Overloaded(_REFUSALS[refused].format(limits=limits), code="rate_limit_exceeded")
            refusal.headers = {**headers, "Retry-After": str(max(1, int(wait)))}
            raise refusal
        return headers

    async def end(self, account: str, limits: Limits, tokens: int, used: int) -> None:
        """A request has ended. `tokens`: what it has asked for. `used`: tokens of its prompts and answers."""
        self._leave(account)
        more = used - min(tokens, limits.tokens_per_minute)
        await self._run(_END, account, limits, self._running[account], more)

    async def _run(
        self, script: str, account: str, limits: Limits, running: int, *more: str | int
    ) -> list[bytes | int]:
        rates = (limits.requests_per_minute, limits.tokens_per_minute)
        key = f"{self._prefix}limits:{account}"
        try:
            (found,) = await self._line.execute(
                ("EVAL", script, 1, key, *rates, self._gateway, running, *more)
            )
        except BusAway:
            raise Unavailable("The message queue cannot be reached.") from None
        return found or []

    def _leave(self, account: str) -> None:
        self._running[account] -= 1
        if not self._running[account]:
            del self._running[account]


class Visit:
    """One request of a caller whose requests are counted."""

    def __init__(self, meter: Meter, account: str, limits: Limits) -> None:
        self._meter, self._account, self._limits = meter, account, limits
        self._tokens = 0
        self._used: Callable[[], int] = int
        self._beginning: asyncio.Future[dict[str, str]] | None = None
        """None until the request is to be counted."""
        self._headers: dict[str, str] = {}

    async def begin(self, tokens: int, used: Callable[[], int]) -> None:
        """Count the request, which asks for `tokens`. `used`: how many it has used, at its end.

        Raises `Overloaded` or `Unavailable`.
        """
        self._tokens, self._used = tokens, used
        self._beginning = asyncio.ensure_future(self._meter.begin(self._account, self._limits, tokens))
        # If the client leaves now, Redis counts the request all the same.
        self._headers = await asyncio.shield(self._beginning)

    async def end(self) -> None:
        """The request has ended, if it was counted at all."""
        if self._beginning is not None:
            await asyncio.shield(self._end(self._beginning))

    async def _end(self, beginning: "asyncio.Future[dict[str, str]]") -> None:
        with contextlib.suppress(Overloaded, Unavailable):  # what was taken comes back with time
            await beginning
            await self._meter.end(self._account, self._limits, self._tokens, self._used())

    def with_headers(self, send: Send) -> Send:
        """Sends the headers of the limits along with the response."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self._headers)
            await send(message)

        return send_with_headers


def _headers(
    limits: Limits, requests: str, request_reset: str, tokens: str, token_reset: str
) -> dict[str, str]:
    """What is left of the limits that there are: see `RATE_HEADERS`."""
    values: list[str | None] = []
    for limit, left, reset in (
        (limits.requests_per_minute, requests, request_reset),
        (limits.tokens_per_minute, tokens, token_reset),
    ):
        values += [str(limit), left, f"{float(reset):g}s"] if limit else [None] * 3
    return {name: value for name, value in zip(RATE_HEADERS, values, strict=True) if value is not None}
