"""Where a Redis is: at its URL, where its Sentinels say, or, in a cluster, at the server that has the keys.

Sentinels are asked for the primary before each connection: it may be another one by then.

A cluster spreads keys over its servers by the part between braces, the hash tag. With a prefix that has one,
such as `{one}:`, all keys of a deployment lie on one server. Every other server answers
`MOVED <slot> <host>:<port>`. A server that is lost may be that of the URL: then another one is asked.
"""

import asyncio
import re
from typing import Any
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
        self._others: list[str] = []
        """The servers of the cluster, as one of them has told."""
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
        if (url := self._at(match[1], match[2])) is None:
            return False
        self.url = url
        return True

    def learn(self, slots: Any) -> None:
        """The reply to CLUSTER SLOTS says where the other servers are. An error is passed over."""
        if isinstance(slots, list):
            servers = {(host or b"", port) for _, _, *each in slots for host, port, *_ in each}
            urls = (self._at(host.decode(), port) for host, port in sorted(servers))
            self._others = [url for url in urls if url not in (None, self._given)]

    def _at(self, host: str, port: int | str) -> str | None:
        """The URL of a server of the cluster. Empty: the host is the one asked."""
        parts = urlsplit(self.url)
        return None if parts.scheme == "unix" else at(self.url, host or parts.hostname or "", port)

    def lost(self, url: str) -> None:
        """The server at `url` does not answer. Another may have its keys: each of the cluster knows which.

        Each connection that is lost there says so, and some of them late: only the first one counts.
        """
        if url != self.url:
            return
        urls = [self._given, *self._others]
        number = urls.index(self.url) if self.url in urls else -1
        self.url = urls[(number + 1) % len(urls)]


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
