"""Verdicts on grammars in Redis, where all tokenizers of a deployment find them.

After the prefix the keys are `grammars:0` to `grammars:1023`. The first bytes of a verdict's name say which
of them is its place, and a newer verdict takes the place of an older one. So their number is bounded, and
nobody has to count. A grammar that a flood of others has driven out is tried once more.

    grammars:<place>   code of the deployment's secret, if it has one; name (32 bytes); the verdict as JSON

The code is that of entries in streams (`proto/rpc/seal.py`). It covers key, name and verdict, so that only a
process with the secret can make a verdict. A copy of an old one is over when the old one is. Without a secret
whoever may write to the Redis is trusted, as everywhere.
"""

import asyncio
import logging
import time
from typing import Any

from pydantic import ValidationError

from proto.rpc import BusAway
from proto.rpc.errors import MalformedEntry
from proto.rpc.line import Line
from proto.rpc.seal import Seal
from tokenizer_svc.grammars.verdicts import Verdict

PLACES = 1024
MOST_BYTES = 65_536
"""Of a verdict. Larger ones are not shared; all together take at most 64 MiB."""
WAIT_SECONDS = 0.1
"""Most that a request waits for Redis. A trial takes some milliseconds: soon it is quicker to try."""
PAUSE_SECONDS = 30.0
"""Time for which Redis is left alone after it has failed, so that no flood of requests waits for it."""
NAME_BYTES = 32

log = logging.getLogger(__name__)


class RedisVerdicts:
    """See `Verdicts`. The connection is made with the first grammar."""

    def __init__(self, line: Line, prefix: str, seal: Seal) -> None:
        self._line, self._prefix, self._seal = line, prefix, seal
        self._from = 0.0
        """Time of the monotonic clock from which on Redis is asked."""

    async def get(self, name: bytes) -> Verdict | None:
        """See `Verdicts.get`."""
        key = _key(name)
        found = await self._reply("GET", self._prefix + key)
        if not found or len(found) > 2 * MOST_BYTES:
            return None
        try:
            entry = self._seal.open(key, found)
            if entry[:NAME_BYTES] != name:
                return None
            verdict = Verdict.model_validate_json(entry[NAME_BYTES:])
        except (MalformedEntry, ValidationError):
            log.warning("%s%s holds no verdict of this deployment's on a grammar", self._prefix, key)
            return None
        return verdict if verdict.holds else None

    async def put(self, name: bytes, verdict: Verdict) -> None:
        """See `Verdicts.put`."""
        key = _key(name)
        try:
            entry = name + verdict.model_dump_json().encode()
        except ValueError:  # half a character, which JSON may spell and UTF-8 may not
            return
        left = int(1000 * (verdict.until - time.time()))
        if left > 0 and len(entry) <= MOST_BYTES:
            await self._reply("SET", self._prefix + key, self._seal.close(key, entry), "PX", left)

    async def _reply(self, *command: str | int | bytes) -> Any:
        """The reply to a command; None if there is none in time."""
        if time.monotonic() < self._from:
            return None
        asking = asyncio.ensure_future(self._line.execute(command))
        asking.add_done_callback(_nobody_waits)
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                # Far from Redis it takes longer than that to connect. It goes on, for those who ask later.
                (found,) = await asyncio.shield(asking)
        except (TimeoutError, BusAway) as error:
            self._line.close()  # or a connection that nobody answers any more would be asked for ever
            self._from = time.monotonic() + PAUSE_SECONDS
            reason = str(error) or "Redis takes too long"
            log.warning("for %g s verdicts on grammars are not shared: %s", PAUSE_SECONDS, reason)
            return None
        return found


def _nobody_waits(asking: "asyncio.Future[Any]") -> None:
    """Take an error that comes too late."""
    if not asking.cancelled():
        asking.exception()


def _key(name: bytes) -> str:
    """Where the verdict with a name is, after the prefix."""
    return f"grammars:{int.from_bytes(name[:4]) % PLACES}"
