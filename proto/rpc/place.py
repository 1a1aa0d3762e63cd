"""Where a Redis is: at its URL, where its Sentinels say, or, in a cluster, at the server that has the keys.

Sentinels are asked for the primary before each connection: it may be another one by then.

A cluster spreads keys over its servers by the part between braces, the hash tag. With a prefix that has one,
such as `{one}:`, all keys of a deployment lie on one server. Every other server answers
`MOVED <slot> <host>:<port>`.
"""

import asyncio
import re
from urllib.parse import urlsplit

from proto.redis_url import Sentinels, at
from proto.rpc.errors import BusAway
from proto.rpc.resp import Connection

TAGGED = re.compile(r"[^{]*\{[^}]+\}")
"""What a prefix must begin with so that its keys lie together."""

ANSWER_SECONDS = 5
"""Time for a Sentinel's answer."""

_MOVED = re.compile(r"MOVED \d+ (.*):(\d+)")


class Place:
    """The URL at which to connect, shared by all connections of a process that want the same keys."""

    def __init__(self, url: str) -> None:
        self._given = url
        self._sentinels = Sentinels.of(url)
        self.url = url

    async def find(self) -> str:
        """The URL of the server to connect to now. Raises `BusAway` if no Sentinel knows one."""
        if self._sentinels is None:
            return self.url
        # All at once: the machine that is lost may be that of the primary and of the first Sentinel.
        asked = [asyncio.ensure_future(_primary(self._sentinels, url)) for url in self._sentinels.urls]
        reasons = []
        try:
            for answer in asyncio.as_completed(asked):
                try:
                    return await answer
                except BusAway as error:
                    reasons.append(str(error))
        finally:
            for one in asked:
                one.cancel()
        raise BusAway("; ".join(sorted(reasons)))

    def moved(self, reply: str) -> bool:
        """Go where an error reply leads, with the same user and password. False if it leads nowhere."""
        match = _MOVED.match(reply)
        if match is None or self._sentinels is not None:
            return False
        parts = urlsplit(self.url)
        if parts.scheme == "unix":
            return False
        self.url = at(self.url, match[1] or parts.hostname or "", match[2])
        return True

    def lost(self) -> None:
        """The server there does not answer. Another may have its keys; that at the given URL knows."""
        self.url = self._given


async def _primary(sentinels: Sentinels, url: str) -> str:
    """The primary's URL, as the Sentinel at `url` has it. Raises `BusAway`."""
    connection = await Connection.open(url)
    try:
        (reply,) = await connection.execute([sentinels.question], ANSWER_SECONDS)
    finally:
        connection.close()
    if (found := sentinels.primary(reply)) is None:
        raise BusAway(
            f"the Sentinel at {urlsplit(url).netloc.rpartition('@')[2]} knows no {sentinels.name!r}"
        )
    return found
