"""Where a Redis is: at its URL, or, in a cluster, at the server that has a deployment's keys.

A cluster spreads keys over its servers by the part between braces, the hash tag. With a prefix that has one,
such as `{one}:`, all keys of a deployment lie on one server. Every other server answers
`MOVED <slot> <host>:<port>`.
"""

import re
from urllib.parse import urlsplit

TAGGED = re.compile(r"[^{]*\{[^}]+\}")
"""What a prefix must begin with so that its keys lie together."""

_MOVED = re.compile(r"MOVED \d+ (.*):(\d+)")


class Place:
    """The URL at which to connect, shared by all connections of a process that want the same keys."""

    def __init__(self, url: str) -> None:
        self._given = url
        self.url = url

    def moved(self, reply: str) -> bool:
        """Go where an error reply leads, with the same user and password. False if it leads nowhere."""
        match, parts = _MOVED.match(reply), urlsplit(self.url)
        if match is None or parts.scheme == "unix":
            return False
        host, port = match[1] or parts.hostname or "", match[2]
        if ":" in host:
            host = f"[{host}]"
        user = parts.netloc[: parts.netloc.rfind("@") + 1]
        self.url = parts._replace(netloc=f"{user}{host}:{port}").geturl()
        return True

    def lost(self) -> None:
        """The server there does not answer. Another may have its keys; that at the given URL knows."""
        self.url = self._given
