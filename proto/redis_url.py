"""URLs of Redis: of a server as in redis-py (`redis://`, over TLS `rediss://`, `unix://`), and of Sentinels.

    redis+sentinel://USER:PASSWORD@HOST:PORT,HOST:PORT/NAME/DATABASE?OPTIONS     over TLS rediss+sentinel://

USER, PASSWORD and DATABASE are of the server that the Sentinels know by NAME. Of the options,
`sentinel_username` and `sentinel_password` are for the Sentinels; `username`, `password` and `db` are for the
server, as in redis-py; and all others are for every connection. A port that is left out is 26379.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

_SENTINELS = re.compile(
    r"(?P<scheme>rediss?)\+sentinel://(?:(?P<user>[^/?#@]*)@)?(?P<hosts>[^/@?#]+)/(?P<name>[^/?#@]+)"
    r"(?:/(?P<database>\d*))?(?:\?(?P<options>[^#]*))?"
)
_HOST = re.compile(r"(\[[^]]+\]|[^:\[\]]+)(?::(\d+))?")
_OWN = ("sentinel_username", "sentinel_password")
_SERVERS = ("username", "password", "db")


def at(url: str, host: str, port: int | str) -> str:
    """The URL of another server, for the same user, with the same database and options."""
    parts = urlsplit(url)
    user = parts.netloc[: parts.netloc.rfind("@") + 1]
    return parts._replace(netloc=f"{user}[{host}]:{port}" if ":" in host else f"{user}{host}:{port}").geturl()


@dataclass(frozen=True)
class Sentinels:
    """Servers that watch a primary and its replicas, and make a replica the primary when that is lost."""

    urls: tuple[str, ...]
    """URL of each Sentinel."""
    name: str
    """What they call the primary."""
    server: str
    """URL of the primary, with `-` in place of its address."""

    @classmethod
    def of(cls, url: str) -> Self | None:
        """Those of the URL; None if it is that of a server. Raises `ValueError`."""
        if "+sentinel:" not in url.partition("//")[0]:
            return None
        found = _SENTINELS.fullmatch(url)
        hosts = [_HOST.fullmatch(host) for host in found["hosts"].split(",")] if found else []
        if found is None or not all(hosts):
            raise ValueError("no URL of Sentinels")
        options = dict(parse_qsl(found["options"] or "", keep_blank_values=True))
        user, password = (options.pop(name, "") for name in _OWN)
        query = _query(options)
        shared = _query({name: value for name, value in options.items() if name not in _SERVERS})
        own = f"{quote(user, safe='')}:{quote(password, safe='')}@" if password else ""
        scheme = found["scheme"]
        return cls(
            tuple(f"{scheme}://{own}{host[1]}:{host[2] or 26379}{shared}" for host in hosts if host),
            found["name"],
            f"{scheme}://{found['user'] + '@' if found['user'] else ''}-/{found['database'] or 0}{query}",
        )

    @property
    def question(self) -> tuple[str, ...]:
        """The command whose reply is the primary's address."""
        return ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.name)

    def primary(self, reply: object) -> str | None:
        """The primary's URL, by a Sentinel's reply; None if that Sentinel does not know the name."""
        match reply:
            case [bytes(host), bytes(port)]:
                return at(self.server, host.decode(), port.decode())
        return None


def _query(options: Mapping[str, str]) -> str:
    return f"?{urlencode(options)}" if options else ""


def without_password(url: str) -> str:
    """The URL without its passwords, so that it can be shown."""
    return re.sub(r"(//[^/@:]*):.*@", r"\1:***@", re.sub(r"(password=)[^&]*", r"\1***", url))
