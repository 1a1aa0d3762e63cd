"""What connections may take: how many are open, and how long each of their phases lasts."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from gateway.errors import GatewayError, Overloaded, Unavailable
from gateway.http.caller import at_loopback, tenant_at

PROBED = frozenset(
    (b"/health", b"/health/live", b"/health/ready", b"/ping", b"/v2/health/live", b"/v2/health/ready")
)
"""Paths that are answered however many connections are open. Otherwise health checks would fail, and whoever
makes them would end a gateway that is well."""
MAX_PROBES = 64
"""Connections beyond all others that may ask for these. The oldest of them makes way for a new one: a probe
asks as soon as it has its connection, and a flood that says nothing does not keep it out."""


@dataclass(frozen=True)
class ConnectionLimits:
    """Bounds on connections. Times are in seconds."""

    connections: int = 8192
    """Open connections in all."""
    per_address: int = 1024
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
    probe: float = 2.0
    """Time from a connection beyond `connections` to the end of its request's head."""
    write: float = 60.0
    """Time in which a client must take what waits to be written: 48 KiB, or all that is left at the end."""


class Doors:
    """Counts the open connections of a server, in all and by address."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._open = 0
        self._by_address: Counter[str] = Counter()
        self._probes: dict[object, Callable[[], None]] = {}
        """Connections that are among the open ones, and take nobody's place."""

    def let_probe(self, connection: object, refuse: Callable[[], None]) -> None:
        """A connection that must not stay may ask how the gateway is. `refuse`: closes it."""
        self._probes[connection] = refuse
        if len(self._probes) > MAX_PROBES:
            self._probes.pop(next(iter(self._probes)))()

    def end_probe(self, connection: object) -> None:
        """A connection has asked, or is closed."""
        self._probes.pop(connection, None)

    def enter(self, address: str | None) -> GatewayError | None:
        """Count a connection from an IP address (None: no network). Returns why it must not stay, if so.

        `leave` is called for every connection, whether it may stay or not.
        """
        self._open += 1
        if (key := self._key(address)) is not None:
            self._by_address[key] += 1
        if self._open - len(self._probes) > self._limits.connections:
            return Unavailable("Too many connections are open.", code="too_many_connections")
        if key is not None and self._by_address[key] > self._limits.per_address:
            allowed = f"{self._limits.per_address} (QUIRE_MAX_CONNECTIONS_PER_ADDRESS)"
            message = f"Your address has more than {allowed} open connections."
            return Overloaded(message, code="too_many_connections")
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
