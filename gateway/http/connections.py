"""What connections may take: how many are open, and how long each of their phases lasts."""

from collections import Counter
from dataclasses import dataclass

from gateway.errors import GatewayError, Overloaded, Unavailable
from gateway.http.caller import at_loopback, tenant_at


@dataclass(frozen=True)
class ConnectionLimits:
    """Bounds on connections. Times are in seconds."""

    connections: int = 8192
    """Open connections in all."""
    per_address: int = 256
    """Open connections of one address that is not loopback; 0: any number."""
    head: float = 30.0
    """Time from the first byte of a request, or from the connection, to the end of the request's head."""
    body: float = 30.0
    """Time for a request's body, besides a second for each `body_rate` bytes of it that have come."""
    body_rate: int = 16 * 2**10
    """Bytes a second that a body must come with, on average."""
    idle: float = 75.0
    """Time that a connection stays open between an answer and the next request."""
    linger: float = 10.0
    """Time in which the rest of a body is still read after its request was refused."""
    write: float = 60.0
    """Time in which a client must take what waits to be written: 48 KiB, or all that is left at the end."""


class Doors:
    """Counts the open connections of a server, in all and by address."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._open = 0
        self._by_address: Counter[str] = Counter()

    def enter(self, address: str | None) -> GatewayError | None:
        """Count a connection from an IP address (None: no network). Returns why it must not stay, if so.

        `leave` is called for every connection, whether it may stay or not.
        """
        self._open += 1
        if self._open > self._limits.connections:
            return Unavailable("Too many connections are open.", code="too_many_connections")
        if (key := self._key(address)) is None:
            return None
        self._by_address[key] += 1
        if self._by_address[key] > self._limits.per_address:
            return Overloaded("Your address has too many open connections.", code="too_many_connections")
        return None

    def leave(self, address: str | None) -> None:
        """A connection is closed."""
        self._open -= 1
        if (key := self._key(address)) is not None:
            self._by_address[key] -= 1
            if self._by_address[key] <= 0:
                del self._by_address[key]

    def _key(self, address: str | None) -> str | None:
        """Under which name an address is counted; None for one that is not."""
        if address is None or not self._limits.per_address or is_loopback(address):
            return None
        return tenant_at(address)


def is_loopback(address: str | None) -> bool:
    """Whether an IP address is this machine's own; None is a client that came over no network."""
    return address is None or at_loopback(address)
