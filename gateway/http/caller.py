"""Who makes a request: the tenant of an API key, or without keys an address."""

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass

from fastapi import Request

from gateway.http.meter import Visit
from ops.runtime.limits import Limits

PREFIX_BITS = 64
"""An IPv6 client usually has a whole network of this prefix length for itself, and any address in it."""

NO_LIMITS = Limits()


@dataclass(frozen=True)
class Caller:
    """Who makes a request, and what it may ask for."""

    tenant: str = ""
    """The API key's tenant; without keys the address, of IPv6 its prefix."""
    keyed: bool = False
    """Whether there was an API key."""
    limits: Limits = NO_LIMITS
    visit: Visit | None = None
    """This request of the caller's, if they are counted."""

    async def begin(self, tokens: int, used: Callable[[], int]) -> None:
        """Count the request: see `Visit.begin`."""
        if self.visit is not None:
            await self.visit.begin(tokens, used)

    def salt(self, own: str) -> str:
        """The cache salt of a request, which keeps tenants with keys apart: a cached prefix would tell what
        another asked. `own`: the salt that the request names."""
        return f"{self.tenant}:{own}" if self.keyed else own


def tenant_at(address: str) -> str:
    """The tenant that an address is without a key, as in "192.0.2.7" or "2001:db8::/64"."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:64]  # a Unix socket has none
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, PREFIX_BITS), strict=False))


def caller_of(request: Request) -> Caller:
    """Who makes the request, as the guard found out."""
    caller: Caller = request.state.caller
    return caller
